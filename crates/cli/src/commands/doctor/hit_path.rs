//! Check of the read path of a hit: writes a probe file, loads it, reads it through mount and
//! library, and says which level served each read and why not a better one.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidepool_client::OpenOptions;
use tidepool_pfs::contract::Outcome as Found;
use tidepool_proto::admin::{AdminRequest, PROBE_PREFIX, Status};
use tidepool_proto::{BytesByLevel, Error, ErrorKind, Level, Result};

use super::Findings;
use crate::connection::{Connection, SocketArgument};
use crate::target::{Roots, Target};
use tidepool_terminal::output::size;

/// What the probe holds beyond two blocks, so that its last block is a part of one.
const TAIL_BYTES: u64 = 4097;
/// Time stamps of a PFS may be coarse; until they settle nothing can be trusted to stay.
const SETTLE_ATTEMPTS: u32 = 40;
const SETTLE_PAUSE: Duration = Duration::from_millis(100);

/// Which level served the probe.
#[derive(Default)]
pub struct Proof {
    /// To a reader of the mount.
    pub mount: Option<String>,
    /// To the library.
    pub library: Option<String>,
}

/// A probe file on the PFS that goes when this drops.
struct Probe {
    path: PathBuf,
    name: String,
}

impl Drop for Probe {
    fn drop(&mut self) {
        // It may be gone already; a leftover is told by its name.
        let _ = fs::remove_file(&self.path);
    }
}

/// Runs the proof; an error means that it could not be run.
pub fn prove(socket: &SocketArgument, findings: &mut Findings) -> Result<Proof> {
    let node = socket.connect();
    let status = node.status()?;
    findings.check("node", || (Found::Ok, describe(&status), String::new()));
    for note in &status.degraded {
        findings.check("node-note", || (Found::Degraded, note.clone(), String::new()));
    }
    if status.draining {
        findings.check("drain", || {
            let measured = "the node is drained: new opens are refused, so no way is proven";
            let remedy = "`tidepool node drain --undo` has it take opens again";
            (Found::Failed, measured.to_owned(), remedy.to_owned())
        });
        return Ok(Proof::default());
    }
    let roots = Roots::of(&status);
    let bytes = 2 * status.store.block_bytes + TAIL_BYTES;
    let probe = match create(&roots.pfs, bytes, 0) {
        Ok(probe) => probe,
        Err(error) => {
            let remedy = match error.system_errno() {
                Some(libc::ENOSPC | libc::EDQUOT) => {
                    format!("make room there: the proof writes a file of {}", size(bytes))
                }
                Some(libc::EROFS) => "make the PFS writable: the proof writes a file".to_owned(),
                _ => "run this as a user who may write there".to_owned(),
            };
            findings.check("hit-path", || (Found::Skipped, error.to_string(), remedy));
            return Ok(Proof::default());
        }
    };
    let loaded = load(&node, &probe, findings)?;
    let library = read_by_library(&node, &probe, bytes, findings);
    let mount = match &roots.mount {
        Some(mount) => read_by_mount(&node, &mount.join(&probe.name), bytes, findings),
        None => None,
    };
    if loaded {
        sees_changes(&node, &roots, &probe, bytes, findings);
        misses(&node, &probe, bytes, findings);
    }
    forget(&node, &probe);
    Ok(Proof { mount, library })
}

fn describe(status: &Status) -> String {
    format!(
        "node {} serves {} ({}), {} of {} resident",
        status.process_id,
        status.pfs,
        status.pfs_type,
        size(status.store.resident_bytes),
        size(status.store.capacity_bytes)
    )
}

/// Content that no other offset and no other `salt` has.
fn content(bytes: u64, salt: u64) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8)).map(|index| {
        (index + (salt << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23).to_le_bytes()
    });
    let mut content: Vec<u8> = words.flatten().collect();
    content.truncate(bytes as usize);
    content
}

fn create(directory: &Path, bytes: u64, salt: u64) -> Result<Probe> {
    let name = format!("{PROBE_PREFIX}{}", std::process::id());
    let path = directory.join(&name);
    let failed = |source| Error::pfs(format!("writing the probe {}", path.display()), source);
    let mut file = File::create_new(&path).map_err(failed)?;
    let probe = Probe { path: path.clone(), name };
    file.write_all(&content(bytes, salt)).and_then(|()| file.sync_all()).map_err(failed)?;
    Ok(probe)
}

/// Loads the probe until it stays; says so.
fn load(node: &Connection, probe: &Probe, findings: &mut Findings) -> Result<bool> {
    let target = Target::open(&probe.path)?;
    let mut explanation = None;
    for _ in 0..SETTLE_ATTEMPTS {
        let loaded = node.load_until(target.descriptor(), false, findings.interrupted())?;
        if loaded.is_none() {
            return Ok(false);
        }
        let facts = node.explain(target.descriptor())?;
        let resident = facts.current && facts.resident_bytes == facts.size_bytes;
        explanation = Some(facts);
        if resident {
            break;
        }
        std::thread::sleep(SETTLE_PAUSE);
    }
    let facts = explanation.ok_or_else(|| {
        Error::new(ErrorKind::Internal, "loading the probe", "no attempt was made")
    })?;
    let resident = facts.current && facts.resident_bytes == facts.size_bytes;
    findings.check("load", || {
        let share = format!("{} of {}", size(facts.resident_bytes), size(facts.size_bytes));
        let outcome = if resident { Found::Ok } else { Found::Failed };
        let why = if resident { String::new() } else { facts.why_not.join("; ") };
        (outcome, format!("{share} resident as {}", facts.cached_as), why)
    });
    Ok(resident)
}

fn levels(served: &BytesByLevel) -> String {
    let some = Level::ALL.iter().filter(|level| served.get(**level) > 0);
    some.map(|level| level.name()).collect::<Vec<_>>().join(" and ")
}

fn read_by_library(
    node: &Connection,
    probe: &Probe,
    bytes: u64,
    findings: &mut Findings,
) -> Option<String> {
    let mut answer = None;
    findings.check("read-by-library", || {
        let served = match library_read(node, &probe.path, bytes, 0) {
            Ok(served) => served,
            Err(error) => return (Found::Failed, error.to_string(), String::new()),
        };
        let name = levels(&served);
        answer = Some(name.clone());
        let measured = format!("served by {name}, bytes verified");
        match (served.mapped == served.total(), served.pfs == 0) {
            (true, _) => (Found::Ok, format!("{measured}: no message to the node"), String::new()),
            (false, true) => {
                let why = "the node handed no segment out, so each read is a message";
                (Found::Degraded, measured, why.to_owned())
            }
            (false, false) => {
                let why = "the probe was loaded, yet bytes came from the PFS; see `explain`";
                (Found::Failed, measured, why.to_owned())
            }
        }
    });
    answer
}

fn library_read(node: &Connection, path: &Path, bytes: u64, salt: u64) -> Result<BytesByLevel> {
    let file = node.client().open(path, OpenOptions::read())?;
    let mut buffer = vec![0; bytes as usize];
    let mut served = BytesByLevel::default();
    let mut offset = 0;
    while offset < buffer.len() {
        let outcome = file.read_at(offset as u64, &mut buffer[offset..])?;
        if outcome.bytes == 0 {
            break;
        }
        offset += outcome.bytes;
        served.merge(&outcome.levels);
    }
    verify(&buffer[..offset], bytes, salt)?;
    Ok(served)
}

fn verify(read: &[u8], bytes: u64, salt: u64) -> Result<()> {
    if read == content(bytes, salt) {
        return Ok(());
    }
    let detail = "the bytes read are not those written";
    Err(Error::new(ErrorKind::Internal, "verifying the probe", detail)
        .remedy("stop the node and report this"))
}

fn read_by_mount(
    node: &Connection,
    path: &Path,
    bytes: u64,
    findings: &mut Findings,
) -> Option<String> {
    let mut answer = None;
    findings.check("read-by-mount", || match mount_read(node, path, bytes, 0) {
        Ok(served) if served.total() == 0 => {
            answer = Some("passthrough".to_owned());
            let measured = "served by the kernel from the segment (passthrough), bytes verified";
            (Found::Ok, measured.to_owned(), String::new())
        }
        Ok(served) => {
            let name = levels(&served);
            answer = Some(name.clone());
            let measured = format!("served by {name} through the node, bytes verified");
            if served.pfs > 0 {
                let why = "the probe was loaded, yet bytes came from the PFS; see `explain`";
                return (Found::Failed, measured, why.to_owned());
            }
            let why = "no passthrough: it needs Linux 6.9, a node run by root and `passthrough` \
                       not `off`; the notes of the node say more";
            (Found::Degraded, measured, why.to_owned())
        }
        Err(error) => (Found::Failed, error.to_string(), String::new()),
    });
    answer
}

/// Reads through the mount; returns what the node counted meanwhile. Other readers at the same
/// time add to it, so on a busy node the level may be named too many, never too few.
fn mount_read(node: &Connection, path: &Path, bytes: u64, salt: u64) -> Result<BytesByLevel> {
    let failed = |source| Error::pfs(format!("reading {}", path.display()), source);
    let before = node.status()?;
    let mut read = Vec::with_capacity(bytes as usize);
    File::open(path).and_then(|mut file| file.read_to_end(&mut read)).map_err(failed)?;
    let after = node.status()?;
    verify(&read, bytes, salt)?;
    let mut served = BytesByLevel::default();
    for level in Level::ALL {
        // Probes too small to be known by their names are among the other reads.
        let count = |status: &Status| status.probes.served.get(level) + status.served.get(level);
        served.add(level, count(&after).saturating_sub(count(&before)));
    }
    Ok(served)
}

/// Another program changes the probe on the PFS, equally long: both ways must show the new bytes.
fn sees_changes(
    node: &Connection,
    roots: &Roots,
    probe: &Probe,
    bytes: u64,
    findings: &mut Findings,
) {
    findings.check("change-behind-the-back", || {
        let changed = fs::write(&probe.path, content(bytes, 1))
            .map_err(|source| Error::pfs("changing the probe", source))
            .and_then(|()| library_read(node, &probe.path, bytes, 1))
            .and_then(|_| match &roots.mount {
                Some(mount) => mount_read(node, &mount.join(&probe.name), bytes, 1).map(drop),
                None => Ok(()),
            });
        match changed {
            Ok(()) => (Found::Ok, "new bytes at the next open".to_owned(), String::new()),
            Err(error) => (Found::Failed, error.to_string(), String::new()),
        }
    });
}

/// After an eviction the bytes come from the PFS, and counters say so.
fn misses(node: &Connection, probe: &Probe, bytes: u64, findings: &mut Findings) {
    findings.check("miss", || {
        let read = Target::open(&probe.path)
            .and_then(|target| node.free(AdminRequest::Evict, Some(target.descriptor())))
            .and_then(|_| library_read(node, &probe.path, bytes, 1));
        match read {
            Ok(served) if served.pfs > 0 => {
                let measured = format!("after eviction served by {}", levels(&served));
                (Found::Ok, measured, String::new())
            }
            Ok(served) => {
                let measured = format!("after eviction still served by {}", levels(&served));
                let why = "the evicted bytes were held by an open file or by read-ahead";
                (Found::Degraded, measured, why.to_owned())
            }
            Err(error) => (Found::Failed, error.to_string(), String::new()),
        }
    });
}

/// The file goes next, and nobody could have the node drop what it holds of it then.
fn forget(node: &Connection, probe: &Probe) {
    // A node that is gone holds nothing either.
    let _ = Target::open(&probe.path)
        .and_then(|target| node.free(AdminRequest::Evict, Some(target.descriptor())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_differs_everywhere() {
        let (first, second) = (content(4096, 0), content(4096, 1));
        assert_eq!(first.len(), 4096);
        assert_ne!(first[..8], first[8..16]);
        assert_ne!(first, second);
        assert_eq!(content(4097, 0)[..4096], first);
        assert!(verify(&first, 4096, 0).is_ok() && verify(&first, 4096, 1).is_err());
    }

    #[test]
    fn the_probe_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let probe = create(directory.path(), 100, 0).unwrap();
        let path = probe.path.clone();
        assert!(path.exists());
        assert!(create(directory.path(), 100, 0).is_err(), "never overwrites");
        drop(probe);
        assert!(!path.exists());
    }
}
