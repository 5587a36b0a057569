//! Errors of stubs of memory-only files.

use tidepool_proto::stub::{Mark, StubState};
use tidepool_proto::{Error, ErrorKind};

/// The error where another program, or node, wrote to a stub while it was written back.
pub(super) fn changed() -> Error {
    Error::new(ErrorKind::Changed, "writing a memory-only file back", "another program changed it")
}

/// The error where another node keeps in memory what this one was about to begin.
pub(super) fn begun_elsewhere() -> Error {
    let detail = "another node has it in memory by now";
    Error::new(ErrorKind::Changed, "beginning a memory-only file", detail).remedy("open it again")
}

/// The error of a stub whose bytes are gone, or are in the memory of another node.
pub fn lost(name: &str, mark: &Mark) -> Error {
    lost_because(name, mark, "")
}

/// As [`lost`], with what the other node said, if anything.
pub fn lost_because(name: &str, mark: &Mark, reason: &str) -> Error {
    let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    if let Some(away) = Away::of(mark) {
        let detail = format!("{name}: {}{because}", away.detail);
        return Error::new(ErrorKind::Lost, "opening a file", detail).remedy(away.remedy);
    }
    let Mark { host, process_id, length, state, .. } = mark;
    let step = match state {
        StubState::Held => "kept its bytes in memory",
        StubState::Writing | StubState::Finished => "was writing its bytes down",
    };
    let detail = format!(
        "{name} was written in mode `memory`, and the node that {step} ({length} bytes; process \
         {process_id} on {host}) does not serve it here{because}"
    );
    Error::new(ErrorKind::Lost, "opening a file", detail).remedy(
        "read it through that node if it still runs; else the bytes are gone: remove the file or \
         write it anew from empty; mode `through` survives the node",
    )
}

/// Bytes of which copies were promised, none of whose holders is there: they are away, not lost.
pub struct Away {
    /// Where they are.
    pub detail: String,
    /// What to do.
    pub remedy: String,
}

impl Away {
    /// Of a file with this mark; `None` where nobody promised a copy of it.
    pub fn of(mark: &Mark) -> Option<Away> {
        let copies = mark.copies.as_ref().filter(|copies| copies.is_promised)?;
        let holders = copies.holders.join(" and ");
        let (length, owner) = (mark.length, &mark.member);
        let detail = format!(
            "its {length} bytes are not on the PFS yet: {owner} has them in memory, and {holders} \
             keeps a copy, and neither gives them to this node"
        );
        let remedy = format!(
            "start {holders}, or {owner}, again, and open it then; do not remove or rewrite it \
             before: only where {owner} ended and the memory or disk of {holders} is lost too are \
             the bytes gone"
        );
        Some(Away { detail, remedy })
    }
}

/// Whether the PFS has no such call.
pub(super) fn is_unsupported(error: &Error) -> bool {
    matches!(error.errno(), libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY)
}

/// Whether this file takes no attribute, though others may.
pub(super) fn is_no_room_or_right(error: &Error) -> bool {
    let refusals =
        [libc::EACCES, libc::EPERM, libc::ENOSPC, libc::EDQUOT, libc::E2BIG, libc::ERANGE];
    refusals.contains(&error.errno())
}

/// The error of a sync of a file that another node has the right to finish.
pub fn finished_elsewhere() -> Error {
    let what = "syncing a memory-only file";
    Error::new(ErrorKind::Changed, what, "another node finishes it")
        .remedy("sync it again; if that fails, open it again")
}
