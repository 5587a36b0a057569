//! The operations of the mount, as methods of [`filesystem::Filesystem`].

pub(crate) mod data;
pub(crate) mod directories;
pub(crate) mod filesystem;
pub(crate) mod locks;
pub(crate) mod metadata;
mod nameless;
mod names;
mod ranges;
mod special_files;
