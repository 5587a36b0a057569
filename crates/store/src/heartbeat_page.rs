//! [`HeartbeatPage`]: a memory file of one word that a controller writes and the node reads. The
//! layout and its meaning are in `tidepool_proto::control_page`.

use std::os::fd::OwnedFd;

use tidepool_proto::Result;
use tidepool_proto::control_page::{HEARTBEAT_BYTES, Heartbeat};

use crate::backing::MemoryFile;
use crate::mapping::Mapping;

/// A heartbeat for one attachment of a controller.
pub struct HeartbeatPage {
    file: MemoryFile,
    memory: Mapping,
}

impl HeartbeatPage {
    /// A heartbeat that has not been heard yet. Nobody can change its length.
    ///
    /// # Errors
    ///
    /// `LimitReached` or `Unsupported` where the system gives no memory file.
    pub fn new() -> Result<HeartbeatPage> {
        let file = MemoryFile::create_shared("tidepool-heartbeat", HEARTBEAT_BYTES)?;
        let memory = file.map(HEARTBEAT_BYTES)?;
        file.seal_as_it_is()?;
        Ok(HeartbeatPage { file, memory })
    }

    /// The words of the page.
    pub fn words(&self) -> &Heartbeat {
        // SAFETY: the mapping is page-aligned, longer than the structure (asserted where it is
        // declared), lives as long as `self`, and holds atomics only, so whatever the controller
        // writes is a valid value. The file is sealed against shrinking.
        unsafe { &*self.memory.base().cast::<Heartbeat>() }
    }

    /// A descriptor for the controller, which may write.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        self.file.writable_copy()
    }
}
