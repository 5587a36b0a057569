//! How long a file of the PFS may be. What is in memory alone has to fit there one day, so it may
//! not become longer than the PFS would have let it.

use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Mode, OFlags, ftruncate, openat, unlinkat};
use rustix::io::Errno;
use tidepool_proto::{Error, Result};

use crate::core::Core;

/// Every PFS has files of this length: no other is tried for it.
const SURE_BYTES: u64 = 1 << 40;

/// Fails as the PFS does where no file of it can be that long. A PFS that lets no file be made to
/// try it with is not asked.
pub fn check(core: &Core, bytes: u64) -> Result<()> {
    let tried = &core.longest_tried_bytes;
    if bytes <= SURE_BYTES.max(tried.load(Ordering::Relaxed)) {
        return Ok(());
    }
    let root = core.pfs.root_descriptor();
    let (mode, flags) = (Mode::RUSR | Mode::WUSR, OFlags::RDWR | OFlags::CLOEXEC);
    let file = openat(root, ".", flags | OFlags::TMPFILE, mode).or_else(|_| {
        let name = format!(".tidepool-length-{}", std::process::id());
        let file = openat(root, &name, flags | OFlags::CREATE | OFlags::EXCL, mode);
        let _ = unlinkat(root, &name, AtFlags::empty());
        file
    });
    let Ok(file) = file else { return Ok(()) };
    match ftruncate(&file, bytes) {
        Ok(()) => {
            tried.fetch_max(bytes, Ordering::Relaxed);
            Ok(())
        }
        Err(errno @ (Errno::FBIG | Errno::INVAL)) => {
            let errno = if errno == Errno::INVAL { Errno::FBIG } else { errno };
            Err(Error::pfs("making a memory-only file longer", errno))
        }
        Err(_) => Ok(()),
    }
}
