//! The files that `bench compare` reads, by each way to them. They are removed when this drops, and
//! the node forgets them.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use tidepool_proto::admin::AdminRequest;
use tidepool_proto::{Error, Result};

use super::way::Way;
use crate::calibrate::memory;
use crate::mountain::own_node::Scratch;
use tidepool_cli::connection::Connection;
use tidepool_cli::target::{Roots, Target};
use tidepool_terminal::interruption::check;
use tidepool_terminal::output;

/// A mebibyte.
pub const MIB: u64 = 1 << 20;
/// Room beside files: part blocks at their ends.
pub const SPARE_BYTES: u64 = 16 * MIB;
/// Where raw memory is to be had.
const TMPFS: &str = "/dev/shm";
/// Bytes of a file that is scanned, and of a piece that is written.
pub const PIECE_BYTES: u64 = MIB;
const READ: &str = "read";

/// The files, the same on the PFS and on tmpfs.
pub struct Files {
    /// Why ways are left out.
    pub skipped: Vec<String>,
    /// Bytes that each pattern reads or writes.
    pub size_bytes: u64,
    /// The node.
    pub connection: Connection,
    mount: Option<PathBuf>,
    tmpfs: Option<Scratch>,
    pfs: Scratch,
}

impl Files {
    /// Writes the files and brings those of the PFS into the store.
    pub fn create(
        roots: &Roots,
        connection: &Connection,
        size_bytes: u64,
        interrupted: &AtomicBool,
    ) -> Result<Files> {
        let pfs = Scratch::below(&roots.pfs)?;
        let mut files = Files {
            skipped: Vec::new(),
            size_bytes,
            connection: connection.clone(),
            mount: None,
            tmpfs: None,
            pfs,
        };
        match room_for(Path::new(TMPFS), 2 * size_bytes) {
            Ok(()) => files.tmpfs = Some(Scratch::below(Path::new(TMPFS))?),
            Err(why) => files.skipped.push(format!("tmpfs: {why}")),
        }
        match (&roots.mount, files.pfs.path().strip_prefix(&roots.pfs)) {
            (Some(mount), Ok(below)) => files.mount = Some(mount.join(below)),
            _ => files.skipped.push("mount: the node has none".to_owned()),
        }
        let tmpfs = files.tmpfs.as_ref().map(Scratch::path);
        for directory in [Some(files.pfs.path()), tmpfs].into_iter().flatten() {
            let failed = |source| Error::pfs(format!("writing in {}", directory.display()), source);
            write(&directory.join(READ), size_bytes, interrupted)?;
            for name in files.scanned() {
                write(&directory.join(name), PIECE_BYTES, interrupted)?;
            }
            // What is left unwritten would be written back while others are timed.
            File::open(directory)
                .and_then(|file| Ok(rustix::fs::syncfs(&file)?))
                .map_err(failed)?;
        }
        memory::load(connection, &files.pfs.path().join(READ))?;
        for name in files.scanned() {
            check(interrupted)?;
            memory::load(connection, &files.pfs.path().join(name))?;
        }
        Ok(files)
    }

    /// The ways that can be measured here.
    pub fn ways(&self) -> Vec<Way> {
        let all = [Way::Tmpfs, Way::PageCache, Way::Mount, Way::Library, Way::BarePfs];
        let possible = all.into_iter().filter(|way| match way {
            Way::Tmpfs => self.tmpfs.is_some(),
            Way::Mount => self.mount.is_some(),
            Way::PageCache | Way::Library | Way::BarePfs => true,
        });
        possible.collect()
    }

    /// The directory by a way.
    fn directory(&self, way: Way) -> &Path {
        let special = match way {
            Way::Tmpfs => self.tmpfs.as_ref().map(Scratch::path),
            Way::Mount => self.mount.as_deref(),
            Way::PageCache | Way::Library | Way::BarePfs => None,
        };
        special.unwrap_or(self.pfs.path())
    }

    /// The file that is read.
    pub fn read_path(&self, way: Way) -> PathBuf {
        self.directory(way).join(READ)
    }

    /// The files that are scanned, in order.
    pub fn scan_paths(&self, way: Way) -> impl Iterator<Item = PathBuf> {
        let directory = self.directory(way);
        self.scanned().map(|name| directory.join(name))
    }

    /// A new file; every round takes another name.
    pub fn write_path(&self, way: Way, round: u64) -> PathBuf {
        self.directory(way).join(format!("write-{}-{round}", way.name().replace(' ', "-")))
    }

    fn scanned(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.size_bytes / PIECE_BYTES).map(|number| format!("scan-{number}"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let names = std::iter::once(READ.to_owned()).chain(self.scanned());
        for path in names.map(|name| self.pfs.path().join(name)) {
            // What was not written yet, or is gone, needs no forgetting.
            let Ok(target) = Target::open(&path) else { return };
            if self.connection.free(AdminRequest::Evict, Some(target.descriptor())).is_err() {
                return;
            }
        }
    }
}

fn room_for(directory: &Path, size_bytes: u64) -> std::result::Result<(), String> {
    let facts = rustix::fs::statvfs(directory).map_err(|error| error.to_string())?;
    let free_bytes = facts.f_bavail * facts.f_frsize;
    if free_bytes > size_bytes.saturating_add(SPARE_BYTES) {
        return Ok(());
    }
    Err(format!("{} has {} free only", directory.display(), output::size(free_bytes)))
}

/// Writes bytes that no file system can compress or find twice.
fn write(path: &Path, size_bytes: u64, interrupted: &AtomicBool) -> Result<()> {
    let failed = |source| Error::pfs(format!("writing {}", path.display()), source);
    let mut file = File::create_new(path).map_err(failed)?;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut piece = vec![0; PIECE_BYTES as usize];
    let mut left = size_bytes;
    while left > 0 {
        check(interrupted)?;
        for word in piece.chunks_exact_mut(8) {
            word.copy_from_slice(&random(&mut state).to_le_bytes());
        }
        let part = left.min(PIECE_BYTES) as usize;
        file.write_all(&piece[..part]).map_err(failed)?;
        left -= part as u64;
    }
    Ok(())
}

/// A small generator (xorshift), repeatable by its start.
pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_cli::connection::SocketArgument;

    #[test]
    fn an_interrupted_preparation_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots { pfs: directory.path().to_owned(), mount: None };
        let socket = Some(directory.path().join("none.sock"));
        let connection = SocketArgument { socket }.connect();
        let interrupted = AtomicBool::new(true);
        assert!(Files::create(&roots, &connection, 2 * MIB, &interrupted).is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
