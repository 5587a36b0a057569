//! What the kernel keeps of files that are read and written without a node.

use std::fs::File;
use std::path::Path;

use tidepool_client::OpenOptions;
use tidepool_proto::Access;
use tidepool_proto::mapping::{self, Mapping};

use crate::scene::{Scene, pattern};

const LENGTH: usize = 1 << 20;
const PAGE: usize = 4096;

/// Bytes of the file that are in the page cache.
fn cached_bytes(path: &Path) -> usize {
    let file = File::open(path).unwrap();
    Mapping::shared(&file, 0, LENGTH, mapping::Access::Nothing).unwrap().cached_bytes().unwrap()
}

/// Whether files of the directory leave the page cache on request: those of a tmpfs do not.
fn drops_pages(directory: &Path) -> bool {
    let path = directory.join("probe");
    std::fs::write(&path, pattern(LENGTH, 0)).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    cached_bytes(&path) == 0
}

#[test]
fn what_is_not_worth_keeping_leaves_the_page_cache() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if !drops_pages(directory.path()) {
        eprintln!("NOT TESTED: files of the build directory never leave the page cache");
        return;
    }
    let scene = Scene::without_node();
    let path = directory.path().join("file");
    let options = OpenOptions { access: Access::ReadWrite, ..OpenOptions::write() };
    let file = scene.client().open(&path, options).unwrap();
    let bytes = pattern(LENGTH, 1);
    file.write_at(0, &bytes).unwrap();
    file.sync().unwrap();
    assert_eq!(cached_bytes(&path), LENGTH, "by default it stays");
    file.set_keep(false);
    let mut buffer = vec![0; 3 * PAGE + 100];
    for offset in (0..LENGTH).step_by(buffer.len()) {
        let read = file.read_at(offset as u64, &mut buffer).unwrap().bytes;
        assert!(buffer[..read] == bytes[offset..offset + read]);
    }
    assert_eq!(cached_bytes(&path), 0, "what was read is gone");
    file.write_at(0, &bytes).unwrap();
    file.sync().unwrap();
    assert_eq!(cached_bytes(&path), 0, "what was written is gone with the sync");
}
