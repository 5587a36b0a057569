//! The state of files that the kernel knows: inodes, opens, handles, cached pages.

pub(crate) mod attributes;
pub(crate) mod directory_handle;
pub(crate) mod file_handle;
pub(crate) mod handles;
pub(crate) mod lock_table;
pub(crate) mod lookups;
pub(crate) mod opens;
pub(crate) mod pages;
pub(crate) mod pins;
pub(crate) mod reservations;
pub(crate) mod state;
pub(crate) mod table;
