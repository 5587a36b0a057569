//! Memory that a node shares with its controller, mapped and checked. What the words mean is for
//! `tidepool_proto::control_page`.

use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use tidepool_control_policy::{StoreSpeed, StoreState};
use tidepool_proto::control_page::{CONTROL_PAGE_BYTES, ControlPage, HEARTBEAT_BYTES, Heartbeat};
use tidepool_proto::mapping::{Access, Mapping};
use tidepool_proto::{Error, ErrorKind, Result};

const OPERATION: &str = "mapping what the node shares with its controller";

/// Words that two processes share.
///
/// # Safety
///
/// Every word is an atomic, so that any bytes are valid values, and the structure is no longer than
/// `BYTES`.
pub(super) unsafe trait Words {
    /// Length of the memory file.
    const BYTES: u64;
    /// What this process may do with the words.
    const ACCESS: Access;
}

// SAFETY: atomics only; the length is asserted where it is declared.
unsafe impl Words for ControlPage {
    const BYTES: u64 = CONTROL_PAGE_BYTES;
    const ACCESS: Access = Access::Read;
}

// SAFETY: as above.
unsafe impl Words for Heartbeat {
    const BYTES: u64 = HEARTBEAT_BYTES;
    const ACCESS: Access = Access::ReadWrite;
}

/// A memory file of a node, mapped.
pub(super) struct Page<W: Words>(Mapping, PhantomData<W>);

impl<W: Words> Page<W> {
    /// Maps the file behind `descriptor`.
    ///
    /// # Errors
    ///
    /// `Protocol` for a file that is too short or could become so.
    pub(super) fn map(descriptor: &OwnedFd) -> Result<Self> {
        let failed = |error: rustix::io::Errno| {
            Error::new(ErrorKind::Protocol, OPERATION, "").caused_by(error)
        };
        let status = rustix::fs::fstat(descriptor).map_err(failed)?;
        // A node that cut its page off would end this process: only a sealed file is mapped.
        let seals = rustix::fs::fcntl_get_seals(descriptor).map_err(failed)?;
        let is_sealed = seals.contains(rustix::fs::SealFlags::SHRINK);
        if !is_sealed || u64::try_from(status.st_size).unwrap_or(0) < W::BYTES {
            let detail = "it is too short, or not sealed against shrinking";
            return Err(Error::new(ErrorKind::Protocol, OPERATION, detail)
                .remedy("use the same release on both sides"));
        }
        let mapping = Mapping::shared(descriptor, 0, W::BYTES as usize, W::ACCESS);
        Ok(Page(mapping.map_err(failed)?, PhantomData))
    }

    /// The words. Those of a page that may only be read must not be written.
    pub(super) fn words(&self) -> &W {
        // SAFETY: mapped for as long as `self` lives, long enough by the check in `map`, aligned to
        // a page; the file cannot shrink. All words are atomics, so whatever the node writes is a
        // valid value.
        unsafe { &*self.0.base().cast::<W>() }
    }
}

impl Page<ControlPage> {
    /// What it says of the store. The name is empty.
    pub(super) fn state(&self) -> StoreState {
        let words = self.words();
        let load = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
        // No name: this runs at every decision, and a name is an allocation.
        let capacity_max_bytes = load(&words.capacity_max_bytes);
        let capacity_configured_bytes = load(&words.capacity_configured_bytes);
        StoreState {
            resident_bytes: load(&words.resident_bytes),
            capacity_bytes: load(&words.capacity_bytes),
            capacity_min_bytes: words.guaranteed(),
            capacity_max_bytes,
            capacity_configured_bytes,
            is_leased: capacity_max_bytes < capacity_configured_bytes,
            held_bytes: load(&words.held_bytes),
            memory_only_bytes: load(&words.memory_only_bytes),
            write_back_bytes_per_s: load(&words.write_back_bytes_per_s),
            speed: StoreSpeed::Fast,
            block_bytes: load(&words.block_bytes),
            process_id: u32::try_from(load(&words.process_id)).unwrap_or(0),
            ..StoreState::default()
        }
    }
}
