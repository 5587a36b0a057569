//! [`AccountPage`]: the control page of a store, a sealed memory file whose words are the store's
//! own account, so that a controller sees every byte booked at the moment it is booked. The layout
//! and its meaning are in `tidepool_proto::control_page`.

use std::os::fd::OwnedFd;

use tidepool_proto::Result;
use tidepool_proto::control_page::{CONTROL_PAGE_BYTES, ControlPage};

use crate::backing::MemoryFile;
use crate::mapping::Mapping;

/// A control page that this store alone writes.
pub(crate) struct AccountPage {
    file: MemoryFile,
    memory: Mapping,
}

impl AccountPage {
    /// A page of zeros but for what never changes. Nobody else can write it or change its length.
    pub fn new(block_bytes: u64) -> Result<AccountPage> {
        let file = MemoryFile::create_shared("tidepool-control", CONTROL_PAGE_BYTES)?;
        let memory = file.map(CONTROL_PAGE_BYTES)?;
        file.seal_writes()?;
        let this = AccountPage { file, memory };
        this.words().initialise(block_bytes);
        Ok(this)
    }

    /// The words of the page.
    pub fn words(&self) -> &ControlPage {
        // SAFETY: the mapping is page-aligned, longer than the structure (asserted where it is
        // declared), lives as long as `self`, and holds atomics only; any bytes are valid ones.
        // The file is sealed against shrinking and against writing by anyone else.
        unsafe { &*self.memory.base().cast::<ControlPage>() }
    }

    /// A descriptor for a controller, which can only read.
    pub fn read_only_copy(&self) -> Result<OwnedFd> {
        self.file.read_only_copy()
    }
}
