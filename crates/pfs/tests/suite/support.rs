//! Support that the tests of this crate share: directories on several file systems, aligned
//! buffers, and a look into the page cache. Mounts need root; without it only the plain directory
//! is used.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tidepool_pfs::{PosixOptions, PosixStore};
use tidepool_proto::mapping::{Access, Mapping};

pub fn open_store(root: &Path) -> Arc<PosixStore> {
    PosixStore::open(root, PosixOptions::default()).unwrap()
}

/// Bytes that depend on position and seed, so that misplaced bytes show.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|at| ((at * 31 + at / 4096 * 7) as u8).wrapping_add(seed.wrapping_mul(97)))
        .collect()
}

/// A buffer aligned as direct I/O wants it.
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    pub fn new(length: usize) -> Self {
        let bytes = vec![0xEE; length + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        AlignedBuffer { bytes, start, length }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// Bytes of a file that the page cache holds.
pub fn cached_bytes(path: &Path) -> usize {
    let file = File::open(path).unwrap();
    let length = file.metadata().unwrap().len() as usize;
    Mapping::shared(&file, 0, length, Access::Nothing).unwrap().cached_bytes().unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A mount that goes away with its directory.
struct Mount {
    directory: tempfile::TempDir,
    point: PathBuf,
}

impl Mount {
    fn new(arguments: &[&str], directory: tempfile::TempDir) -> Option<Mount> {
        let point = directory.path().join("mount");
        std::fs::create_dir(&point).unwrap();
        let mut all = arguments.to_vec();
        let text = point.to_str().unwrap().to_owned();
        all.push(&text);
        run("mount", &all).then_some(Mount { directory, point })
    }

    fn tmpfs(size_bytes: u64) -> Option<Mount> {
        let directory = tempfile::tempdir().unwrap();
        Mount::new(&["-t", "tmpfs", "-o", &format!("size={size_bytes}"), "tmpfs"], directory)
    }

    fn ext4() -> Option<Mount> {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let image = image.to_str().unwrap().to_owned();
        // 2 GiB files need no journal of note; a TiB needs 64-bit block numbers only.
        run("mkfs.ext4", &["-q", "-F", &image])
            .then(|| Mount::new(&["-o", "loop", &image], directory))
            .flatten()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let point = self.point.to_str().unwrap();
        if !run("umount", &[point]) {
            run("umount", &["-l", point]);
        }
        let _kept_until_here = &self.directory;
    }
}

/// Runs `test` in an empty directory on each file system that can be had here. The second argument
/// is its name.
pub fn on_every_file_system(test: impl Fn(&Path, &str)) {
    let directory = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
    test(directory.path(), "plain");
    // A directory of a real PFS, named by the user that runs the tests on one.
    if let Some(pfs) = std::env::var_os("TIDEPOOL_TEST_PFS") {
        let directory = tempfile::tempdir_in(pfs).unwrap();
        test(directory.path(), "pfs");
    }
    if !is_root() {
        eprintln!("not root: only the plain directory was tested");
        return;
    }
    for (name, mount) in [("tmpfs", Mount::tmpfs(64 << 20)), ("ext4", Mount::ext4())] {
        match mount {
            Some(mount) => {
                let root = mount.point.join("root");
                std::fs::create_dir(&root).unwrap();
                test(&root, name);
            }
            None => eprintln!("{name} cannot be mounted here: not tested"),
        }
    }
}

/// Runs `test` in a tmpfs of the given size.
pub fn on_small_tmpfs(size_bytes: u64, test: impl Fn(&Path)) {
    match is_root().then(|| Mount::tmpfs(size_bytes)).flatten() {
        Some(mount) => test(&mount.point),
        None => eprintln!("tmpfs cannot be mounted here: not tested"),
    }
}

pub fn remount_read_only(point: &Path) {
    assert!(run("mount", &["-o", "remount,ro", point.to_str().unwrap()]));
}
