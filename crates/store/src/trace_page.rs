//! [`TracePage`]: shared memory by which client processes see whether a trace is under way. The
//! node alone writes it. The layout is `tidepool_proto::trace`.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use tidepool_proto::Result;
use tidepool_proto::trace::{TRACE_PAGE_BYTES, TRACE_PAGE_MAGIC, TracePage as Words};

use crate::backing::MemoryFile;
use crate::mapping::Mapping;

/// A page that says whether anybody watches.
pub struct TracePage {
    file: MemoryFile,
    memory: Mapping,
}

impl TracePage {
    /// A page by which nobody watches. Nobody else can write it or change its length.
    ///
    /// # Errors
    ///
    /// `LimitReached` or `Unsupported` where the system gives no memory file.
    pub fn new() -> Result<TracePage> {
        let file = MemoryFile::create_shared("tidepool-trace", TRACE_PAGE_BYTES)?;
        let memory = file.map(TRACE_PAGE_BYTES)?;
        file.seal_writes()?;
        let this = TracePage { file, memory };
        this.words().magic.store(TRACE_PAGE_MAGIC, Ordering::Release);
        Ok(this)
    }

    /// The words of the page.
    pub fn words(&self) -> &Words {
        // SAFETY: the mapping is page-aligned, longer than the structure (asserted where it is
        // declared), lives as long as `self`, and holds atomics only; any bytes are valid ones.
        // The file is sealed against shrinking and against writing by anyone else.
        unsafe { &*self.memory.base().cast::<Words>() }
    }

    /// A descriptor for a client, which can only read.
    pub fn read_only_copy(&self) -> Result<OwnedFd> {
        self.file.read_only_copy()
    }
}
