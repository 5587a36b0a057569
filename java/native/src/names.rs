//! Native methods of `NativeNames.java`: names and metadata of `tide:///`, by plain system calls on
//! the parallel file system as the calling user. No node is needed for any of them.
//!
//! A node that is there is told of files whose metadata changed, so that what it holds of them
//! serves on. Names are never resolved above the directory that `tide:///` stands for by `..`;
//! symbolic links lead where they lead on the parallel file system.

pub(crate) mod attributes;
pub(crate) mod change;
mod descent;
pub(crate) mod directory;
pub(crate) mod locate;
pub(crate) mod make;
mod path;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod status;
pub(crate) mod walk;

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use tidepool_proto::{Error, Result};

pub(crate) use directory::ListingRef;
pub(crate) use path::{Place, at_place, bytes_of};

/// The error of a system call on a name.
pub(crate) fn failed(doing: &str, place: &Place, errno: rustix::io::Errno) -> Error {
    Error::pfs(format!("{doing} {}", place.lower.display()), errno)
}

/// A path that leads to what a descriptor stands for and nowhere else: of one that was opened for
/// its place alone, and of what lies deeper than a path can say.
pub(crate) fn itself(file: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// As `failed`, for the results of system calls.
pub(crate) trait Doing<T> {
    /// The result with an error that says what was done to which name.
    fn doing(self, what: &str, place: &Place) -> Result<T>;
}

impl<T> Doing<T> for rustix::io::Result<T> {
    fn doing(self, what: &str, place: &Place) -> Result<T> {
        self.map_err(|errno| failed(what, place, errno))
    }
}
