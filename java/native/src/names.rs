//! Native methods of `NativeNames.java`: names and metadata of `tide:///`, by plain system calls on
//! the parallel file system as the calling user. No node is needed for any of them.
//!
//! A node that is there is told of files whose metadata changed, so that what it holds of them
//! serves on. Names are never resolved above the directory that `tide:///` stands for by `..`;
//! symbolic links lead where they lead on the parallel file system.

mod attributes;
mod change;
mod directory;
mod path;
mod remove;
mod rename;
mod status;
mod walk;

use tidepool_proto::{Error, Result};

pub(crate) use path::{Place, bytes_of};

/// The error of a system call on a name.
pub(crate) fn failed(doing: &str, place: &Place, errno: rustix::io::Errno) -> Error {
    let error = Error::pfs(format!("{doing} {}", place.lower.display()), errno);
    match remedy(errno) {
        Some(remedy) => error.remedy(remedy),
        None => error,
    }
}

/// What a user can do about an errno of the parallel file system.
fn remedy(errno: rustix::io::Errno) -> Option<&'static str> {
    use rustix::io::Errno;
    Some(match errno {
        Errno::ACCESS => "ask its owner for permission, or run as a user who has it",
        Errno::PERM => "only its owner or root may do this",
        Errno::NOENT => "check the path; names are those of the parallel file system",
        Errno::NOTDIR => "a part of the path is a file; choose another path",
        Errno::EXIST => "remove it first, or ask to overwrite it",
        Errno::NOTEMPTY => "delete recursively, or choose another path",
        Errno::ISDIR => "choose the path of a file",
        Errno::NOSPC => "free space on the parallel file system",
        Errno::DQUOT => "ask for a larger quota, or free space",
        Errno::ROFS => "it is mounted read-only; mount it for writing",
        Errno::XDEV => "copy it instead: it would move to another file system",
        Errno::LOOP => "symbolic links lead in a circle; remove one of them",
        Errno::NAMETOOLONG => "choose a shorter name",
        Errno::MLINK => "the directory has as many entries as it can; use another one",
        Errno::OPNOTSUPP => "this parallel file system does not have it; `tidepool doctor --pfs`",
        _ => return None,
    })
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
