//! Remedies of errors of the parallel file system, by error number.

use rustix::io::Errno;
use tidepool_proto::Error;

/// The error with its remedy, unless it has one already.
pub(crate) fn with_remedy(error: Error) -> Error {
    let errno = error.system_errno().map(Errno::from_raw_os_error);
    match errno.and_then(of) {
        Some(remedy) if error.remedy_text().is_none() => error.remedy(remedy),
        _ => error,
    }
}

fn of(errno: Errno) -> Option<&'static str> {
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
