//! Everything that is in memory alone is written down: for a drain, and when the node ends.
//!
//! Where the PFS has no room, a drain does not try every file: each try costs syncs, and the bytes
//! stay in memory in any case. The end of a node does, for then they would be lost.

use std::collections::HashMap;
use std::sync::Arc;

use tidepool_pfs::LowerFile;
use tidepool_proto::{ByteSize, Error, ErrorKind, Result};

use super::memory_only::{is_expendable, spill_gated};
use super::spilling::{Room, is_full};
use crate::core::Core;

/// How much is tried where there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A few files: the bytes stay in memory.
    Probe,
    /// Each file: what is not written down is lost.
    Each,
}

/// Writes every memory-only file down, the small ones first: they find room longest. After a file
/// that found none, more and more are passed over until the next is tried. The error tells what is
/// left, or is the first that was of another kind, after all were tried.
pub fn spill_all(core: &Arc<Core>, effort: Effort) -> Result<()> {
    let mut contents = core.memory_only.contents();
    contents.sort_by_key(|content| content.size());
    let mut walk = Walk::default();
    let (mut first_error, mut first_full) = (None, None);
    for content in contents {
        let Some(file) = core.files.get(content.id()) else { continue };
        let stub = file.inner.lock().stub.clone();
        if let (Some(stub), Effort::Probe) = (&stub, effort)
            && walk.passes_over(&**stub.lower())
            && !is_expendable(core, &file)
        {
            continue;
        }
        let _changing = file.gate.write();
        let Some(content) = file.content().filter(|content| content.is_memory_only()) else {
            continue;
        };
        match (spill_gated(core, &file, &content), stub) {
            (Ok(_), stub) => walk.found_room(stub.as_ref().map(|stub| &**stub.lower())),
            (Err(error), Some(stub)) if is_full(&error) => {
                walk.found_none(Room::of(&error, &**stub.lower()));
                first_full.get_or_insert(error);
            }
            (Err(error), _) => {
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error.or_else(|| first_full.map(|error| left(core, &error, effort))) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Says what is left, and what to do.
fn left(core: &Core, error: &Error, effort: Effort) -> Error {
    let contents = core.memory_only.contents();
    let bytes = ByteSize(contents.iter().map(|content| content.size()).sum());
    let whose = if error.errno() == libc::EDQUOT { "a quota on the PFS" } else { "the PFS" };
    let files = match contents.len() {
        1 => "1 file".to_owned(),
        more => format!("{more} files"),
    };
    let detail = format!("{whose} is full: {files} ({bytes}) stay in memory alone");
    let remedy = match effort {
        Effort::Probe => {
            "make room on the PFS or raise the quota, then repeat this; the node goes on until \
             then, and nothing is lost"
        }
        Effort::Each => {
            "end a node by `tidepool node stop`, which leaves it running where the PFS has no room"
        }
    };
    Error::new(ErrorKind::Pfs, "writing down what is in memory alone", detail)
        .caused_by(std::io::Error::from_raw_os_error(error.errno()))
        .remedy(remedy)
}

/// Which room was used up in this walk over all files.
#[derive(Default)]
struct Walk(HashMap<Room, Gap>);

/// Files to pass over until the next try, and how many that are from refusal to refusal.
#[derive(Default)]
struct Gap {
    left: u64,
    length: u64,
}

impl Walk {
    /// Whether this file is one to pass over.
    fn passes_over(&mut self, lower: &dyn LowerFile) -> bool {
        let mut gaps = self.0.iter_mut().filter(|(room, _)| room.is_of(lower));
        // One of them is enough; the others count on.
        gaps.any(|(_, gap)| match gap.left {
            0 => false,
            left => {
                gap.left = left - 1;
                true
            }
        })
    }

    fn found_none(&mut self, room: Room) {
        let gap = self.0.entry(room).or_default();
        gap.length = gap.length * 2 + 1;
        gap.left = gap.length;
    }

    fn found_room(&mut self, lower: Option<&dyn LowerFile>) {
        self.0.retain(|room, _| !lower.is_some_and(|lower| room.is_of(lower)));
    }
}
