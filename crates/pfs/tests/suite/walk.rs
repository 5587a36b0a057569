//! Tests of the walk of loads: complete, on one mount, through no symbolic link, and ending when
//! dropped.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tidepool_pfs::walk;

use crate::support::on_small_tmpfs;

fn files(path: &Path) -> BTreeSet<PathBuf> {
    walk(path, 4).unwrap().map(|entry| entry.unwrap().path).collect()
}

#[test]
fn every_file_comes_once() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let mut expected = BTreeSet::new();
    for outer in 0..20 {
        for inner in 0..10 {
            let path = root.join(format!("{outer}/deep/{inner}"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, vec![0; inner]).unwrap();
            expected.insert(path);
        }
    }
    symlink("/", root.join("out")).unwrap();
    symlink("0", root.join("0/loop")).unwrap();
    let found: Vec<_> = walk(root, 4).unwrap().map(Result::unwrap).collect();
    assert_eq!(found.len(), 200);
    assert_eq!(found.iter().map(|entry| entry.size_bytes).sum::<u64>(), 20 * 45);
    assert_eq!(found.into_iter().map(|entry| entry.path).collect::<BTreeSet<_>>(), expected);
    let one = root.join("3/deep/7");
    assert_eq!(files(&one), BTreeSet::from([one]));
    assert!(walk(&root.join("absent"), 4).is_err());
}

#[test]
fn a_walk_that_is_dropped_ends_and_other_mounts_are_left_out() {
    on_small_tmpfs(8 << 20, |mount| {
        let above = mount.parent().unwrap();
        std::fs::write(mount.join("inside"), b"x").unwrap();
        std::fs::write(above.join("outside"), b"x").unwrap();
        assert_eq!(files(above), BTreeSet::from([above.join("outside")]));
        for index in 0..3000 {
            std::fs::write(mount.join(format!("{index}")), b"").unwrap();
        }
        // More than the queue holds, so the walkers wait when it is dropped.
        drop(walk(mount, 2).unwrap().next());
        assert_eq!(files(mount).len(), 3001);
    });
}
