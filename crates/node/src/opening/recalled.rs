//! An open of a stub waits until the node that holds its bytes has brought them to the PFS.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_pfs::{LowerFile, asked};
use tidepool_proto::stub::Mark;
use tidepool_proto::{Error, ErrorKind, Result, Version};

use super::{replaced, wait_until_finished};
use crate::cluster::recall::Recalled;
use crate::core::Core;
use crate::file::memory_only;
use crate::file::stub::{self, Found};

/// How long what another node wrote back may take to show here, and how often it is looked.
const SHOW_LIMIT: Duration = Duration::from_secs(5);
const SHOW_INTERVAL: Duration = Duration::from_millis(20);

/// Has the node that holds the bytes of a stub write them back; the version that the file has
/// then. `Lost` where there is no such node, or it does not.
pub fn recalled(
    core: &Arc<Core>,
    lower: &Arc<dyn LowerFile>,
    mark: &Mark,
    version: &Version,
) -> Result<Version> {
    let lost = |reason: &str| stub::lost_because(&memory_only::name_of(&**lower), mark, reason);
    let is_known = version.id.device == core.pfs.device();
    let cluster = core.cluster().filter(|_| is_known).ok_or_else(|| lost(""))?;
    let answer = asked::while_another_node_works(|| {
        cluster.recall_or_take_copy(core, mark, version, &**lower)
    });
    let was_written = answer == Ok(Recalled::WrittenBack);
    let begun = Instant::now();
    loop {
        let is_replaced = |epoch| cluster.is_replaced(core, (version, epoch), &**lower);
        if mark.epoch().is_some_and(is_replaced) {
            return Err(replaced(&memory_only::name_of(&**lower)));
        }
        let is_late = begun.elapsed() >= SHOW_LIMIT;
        let now = lower.version()?;
        // What is no stub any more has other times, or this is what the client remembers: an
        // empty file would be read.
        let is_shown = mark.length == 0 || !now.agrees_with(version);
        match stub::find(&**lower, now.size)? {
            Found::Nothing if is_shown => return Ok(now),
            Found::Finished if is_shown && wait_until_finished(&**lower)? => {}
            // It was emptied meanwhile, and began anew in memory.
            Found::Stub(other) if other.node != mark.node => {
                return recalled(core, lower, &other, &now);
            }
            Found::Remains | Found::Finished if is_shown => {
                // A reader may lack the right.
                let _ = stub::clear_remains(&**lower);
                return lower.version();
            }
            // It may have come while this one asked in vain.
            _ if !was_written => return Err(lost(&answer.err().unwrap_or_default())),
            Found::Stub(_) if is_late => return Err(lost("")),
            _ if !is_late => std::thread::sleep(SHOW_INTERVAL),
            _ => return Err(not_shown(&memory_only::name_of(&**lower))),
        }
    }
}

/// The error of an open while the PFS's client tells old times of a file.
fn not_shown(name: &str) -> Error {
    let detail = format!(
        "{name} was just written back by another node, and this node's client of the PFS does not \
         show it after {} s",
        SHOW_LIMIT.as_secs()
    );
    Error::new(ErrorKind::Changed, "opening a file", detail)
        .remedy("open it again later; mount the PFS without a cache of attributes")
}
