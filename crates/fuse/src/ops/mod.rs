//! The operations of the mount, as methods of [`filesystem::Filesystem`].

mod data;
pub(crate) mod directories;
pub(crate) mod filesystem;
pub(crate) mod locks;
pub(crate) mod metadata;
mod nameless;
mod names;
mod open;
mod ranges;
mod special_files;
mod traced;
