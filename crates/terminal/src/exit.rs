//! Exit codes of the command line. They are part of its interface and never change their meaning.

use std::process::ExitCode;

use tidepool_proto::{Error, ErrorKind};

use crate::interruption;

/// All exit codes with their meaning, for the reference.
pub const EXIT_CODES: [(u8, &str); 8] = [
    (0, "done"),
    (1, "failed; or something asked for is not so, such as a file that is not resident after load"),
    (2, "usage: an argument, option or configuration entry is not valid"),
    (3, "no node answers at the socket"),
    (4, "a file or directory does not exist"),
    (5, "permission denied"),
    (6, "in use: the socket, mount point or PFS directory is taken, or a mount is busy"),
    (interruption::EXIT_CODE, "interrupted by Ctrl-C or SIGTERM; what it made is gone again"),
];

const ENOENT: i32 = 2;
const EPERM: i32 = 1;
const EACCES: i32 = 13;

/// The exit code for an error.
pub fn code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::NodeUnavailable => 3,
        ErrorKind::PermissionDenied => 5,
        ErrorKind::InUse => 6,
        _ if error.errno() == ENOENT => 4,
        _ if matches!(error.errno(), EPERM | EACCES) => 5,
        ErrorKind::InvalidInput => 2,
        ErrorKind::Pfs
        | ErrorKind::Changed
        | ErrorKind::NotResident
        | ErrorKind::Lost
        | ErrorKind::StoreFull
        | ErrorKind::QuotaExceeded
        | ErrorKind::LimitReached
        | ErrorKind::Protocol
        | ErrorKind::Unsupported
        | ErrorKind::TimedOut
        | ErrorKind::StoreUnavailable
        | ErrorKind::Internal => 1,
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All that was asked for is done or true.
    Done,
    /// It ran, but something asked for is not so; the output says what.
    NotSo,
    /// It ran, and said what failed; the exit code is that of the first failure.
    Failed(u8),
    /// It was asked to stop before its end.
    Interrupted,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        match outcome {
            Outcome::Done => ExitCode::SUCCESS,
            Outcome::NotSo => ExitCode::from(1),
            Outcome::Failed(code) => ExitCode::from(code),
            Outcome::Interrupted => ExitCode::from(interruption::EXIT_CODE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_documented() {
        let of = |kind| code(&Error::new(kind, "testing", ""));
        assert_eq!(of(ErrorKind::NodeUnavailable), 3);
        assert_eq!(of(ErrorKind::InvalidInput), 2);
        assert_eq!(of(ErrorKind::PermissionDenied), 5);
        assert_eq!(of(ErrorKind::InUse), 6);
        assert_eq!(of(ErrorKind::StoreFull), 1);
        let missing = std::io::Error::from_raw_os_error(ENOENT);
        assert_eq!(code(&Error::pfs("opening", missing)), 4);
        for kind in ErrorKind::ALL {
            let known = EXIT_CODES.iter().any(|(code, _)| *code == of(kind));
            assert!(known, "{kind} has an undocumented code");
        }
    }
}
