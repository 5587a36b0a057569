//! Open files whose bytes are in the memory of a node alone. The parallel file system has a stub in
//! their place and cannot stand in for the node, so a node that does not answer is waited for.

use std::os::fd::OwnedFd;
use std::time::Instant;

use tidepool_proto::{Error, ErrorKind, Result, Version};

use super::{File, changed};
use crate::binding::{Binding, Manner};
use crate::connection::{CallError, GoOn};
use crate::link::Link;
use crate::lower;
use crate::options::OpenOptions;

/// How often a node that hangs up is asked.
const ASKING_ATTEMPTS: usize = 8;

/// Opens at the node what is a stub on the parallel file system, waiting for a node that is there
/// and does not answer as long as for any request; `None` where `go_on` gave it up.
pub(super) fn open(
    link: &Link,
    lower: &OwnedFd,
    options: &OpenOptions,
    manner: Manner,
    go_on: GoOn<'_>,
) -> Result<Option<Binding>> {
    let deadline = Instant::now() + link.options.request_timeout;
    let mut is_given_up = false;
    let mut wait = || {
        is_given_up = is_given_up || !go_on();
        !is_given_up && Instant::now() < deadline
    };
    let map_segments = link.options.map_segments;
    for _ in 0..ASKING_ATTEMPTS {
        let connection = match link.awaited_connection(&mut wait) {
            Ok(Some(connection)) => connection,
            Ok(None) => break,
            Err(error) if error.kind() == ErrorKind::NodeUnavailable => return Err(gone()),
            Err(error) => return Err(error),
        };
        let until = Some(&mut wait as GoOn<'_>);
        match Binding::open(connection, lower, options, manner, map_segments, until) {
            Ok(Some(binding)) => return Ok(Some(binding)),
            Ok(None) => break,
            Err(CallError::Failed(error)) => return Err(error),
            // It ended; the next one may be there already.
            Err(CallError::Gone(_)) => {}
        }
    }
    if is_given_up { Ok(None) } else { Err(silent()) }
}

/// The error where the node that had the bytes is gone.
pub(super) fn gone() -> Error {
    let detail = "its bytes are, or were, in the memory of a node that is not there any more";
    Error::new(ErrorKind::Lost, "using a file without the node", detail)
        .remedy("start the node, or write the file again in mode `through`")
}

/// The error where the node that has the bytes does not answer.
fn silent() -> Error {
    let detail = "the node that has its bytes in memory does not answer; nothing of it is lost";
    Error::new(ErrorKind::TimedOut, "using a file that is in memory alone", detail)
        .remedy("try again when the node answers `tidepool status`")
}

/// The version of a file that is opened without the node; `None` for a stub, which can only be
/// written anew.
pub(super) fn bare_version(lower: &OwnedFd, options: &OpenOptions) -> Result<Option<Version>> {
    let version = lower::version(lower)?;
    if !lower::is_stub(lower, version.size) {
        return Ok(Some(version));
    }
    if !(options.truncate && options.access.writes()) {
        return Ok(None);
    }
    lower::clear_stub(lower)?;
    lower::version(lower).map(Some)
}

impl File {
    /// The parallel file system has nothing but a stub of a file that lives in memory.
    pub(super) fn check_not_memory_only(&self) -> Result<()> {
        let is_stub = lower::is_stub(&self.lower, lower::version(&self.lower)?.size);
        match self.origin.memory_only {
            // It is on the PFS by now. Nothing tells that it is as it was opened, but it is there.
            true if !is_stub && !self.options.access.writes() => Err(changed()),
            false if !is_stub => Ok(()),
            _ => Err(if self.link.is_silent() { silent() } else { gone() }),
        }
    }

    /// As [`open`], for an open file whose node ended: `None` also where no other one is there.
    pub(super) fn open_anew(&self, manner: Manner, go_on: GoOn<'_>) -> Result<Option<Binding>> {
        if !self.origin.memory_only {
            return Ok(None);
        }
        match open(&self.link, &self.lower, &self.options, manner, go_on) {
            Err(error) if error.kind() == ErrorKind::Lost => Ok(None),
            opened => opened,
        }
    }
}
