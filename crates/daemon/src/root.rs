//! Watches whether the path of the PFS directory still leads to the directory of the start. The
//! node holds that open: where it was removed and made again, or another file system was mounted on
//! it, the node would go on serving files that no other program sees.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidepool_proto::{Error, Result};

/// How often the path is looked at.
const INTERVAL: Duration = Duration::from_secs(5);

/// Device and inode of a directory.
type Identity = (u64, u64);

/// Looks from now on and tells `changed` each time that the answer is another: what is wrong, or
/// `None` where the path leads to the same directory again. Ends when `changed` says no.
pub fn watch(
    pfs: &Path,
    changed: impl FnMut(Option<String>) -> bool + Send + 'static,
) -> Result<()> {
    let failed = |source| Error::pfs("watching the PFS directory", source);
    let first = std::fs::metadata(pfs).map_err(failed)?;
    let (path, first) = (pfs.to_owned(), (first.dev(), first.ino()));
    // Nobody waits for it: a PFS that hangs may hold it for ever.
    let run = move || look(&path, first, changed);
    std::thread::Builder::new().name("root".into()).spawn(run).map_err(failed)?;
    Ok(())
}

fn look(path: &PathBuf, first: Identity, mut changed: impl FnMut(Option<String>) -> bool) {
    let mut told = None;
    loop {
        std::thread::sleep(INTERVAL);
        let now = match std::fs::metadata(path) {
            Ok(found) if (found.dev(), found.ino()) == first => None,
            Ok(_) => Some(format!(
                "{} leads to another directory now: restart the node to serve that one",
                path.display()
            )),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(format!(
                "{} is gone: mount or make it again, then restart the node",
                path.display()
            )),
            // A PFS that does not answer says nothing of where the path leads.
            Err(_) => continue,
        };
        if now != told {
            if !changed(now.clone()) {
                return;
            }
            told = now;
        }
    }
}
