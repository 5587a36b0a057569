//! The mount refuses what the PFS refuses, to the same users with the same error. Two equal trees:
//! everything is tried on the one by its path on the PFS and on the other through the mount, after
//! root has made all of it resident.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use tidepool_testkit::needs_mount;
use tidepool_testkit::user::User;

use super::{file, node, strangers};

const GROUP: u32 = 61_000;
const SMALL: usize = 5_000;
const LARGE: usize = 3 << 20;

fn set(path: &Path, owner: u32, group: u32, mode: u32) {
    chown(path, Some(owner), Some(group)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Files and directories of every kind of permission.
fn make_tree(root: &Path) {
    fs::create_dir_all(root).unwrap();
    set(root, 0, 0, 0o755);
    let directories =
        [("shut", 0o700), ("search", 0o711), ("list", 0o744), ("group", 0o750), ("sticky", 0o1777)];
    for (name, mode) in directories {
        let directory = root.join(name);
        fs::create_dir(&directory).unwrap();
        for (name, owner, mode) in files() {
            for (kind, length) in [("small", SMALL), ("large", LARGE)] {
                let path = directory.join(format!("{kind}-{name}"));
                fs::write(&path, vec![b'x'; length]).unwrap();
                set(&path, owner, GROUP, mode);
            }
        }
        set(&directory, 0, GROUP, mode);
    }
}

fn files() -> [(&'static str, u32, u32); 7] {
    [
        ("secret", 0, 0o600),
        ("group", 0, 0o640),
        ("group-denied", 0, 0o604),
        ("all", 0, 0o644),
        ("writable", 0, 0o666),
        ("unreadable", 54_321, 0o222),
        ("executable", 0, 0o711),
    ]
}

type Attempt = (&'static str, fn(&Path) -> io::Result<Vec<u8>>);

fn done(_: ()) -> Vec<u8> {
    Vec::new()
}

/// Ways to get at a file or its directory. The last ones change it, so their order matters.
const ATTEMPTS: [Attempt; 12] = [
    ("read", |path| fs::read(path)),
    ("read twice", |path| {
        let mut bytes = Vec::new();
        File::open(path)?.read_to_end(&mut bytes)?;
        fs::read(path)
    }),
    ("stat", |path| fs::metadata(path).map(|facts| facts.len().to_le_bytes().to_vec())),
    ("list", |path| {
        let mut names: Vec<_> = fs::read_dir(path.parent().unwrap())?
            .map(|entry| Ok(entry?.file_name().into_encoded_bytes()))
            .collect::<io::Result<_>>()?;
        names.sort();
        Ok(names.concat())
    }),
    ("access", |path| {
        rustix::fs::access(path, rustix::fs::Access::READ_OK)?;
        Ok(Vec::new())
    }),
    ("execute", |path| {
        rustix::fs::access(path, rustix::fs::Access::EXEC_OK)?;
        Ok(Vec::new())
    }),
    ("append", |path| OpenOptions::new().append(true).open(path)?.write_all(b"y").map(done)),
    ("truncate", |path| {
        OpenOptions::new().write(true).truncate(true).open(path).map(|_| Vec::new())
    }),
    ("create beside", |path| File::create_new(path.with_extension("new")).map(|_| Vec::new())),
    ("chmod", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map(done)),
    ("link", |path| fs::hard_link(path, path.with_extension("link")).map(done)),
    ("unlink", |path| fs::remove_file(path).map(done)),
];

fn read_all(root: &Path) {
    for directory in fs::read_dir(root).unwrap() {
        for file in fs::read_dir(directory.unwrap().path()).unwrap() {
            fs::read(file.unwrap().path()).unwrap();
        }
    }
}

#[test]
fn the_mount_refuses_what_the_pfs_refuses() {
    needs_mount!();
    let [nobody, made_up] = strangers();
    let users = [
        nobody.clone(),
        made_up.clone(),
        made_up.clone().in_groups(&[GROUP]),
        User { group_id: GROUP, ..nobody.clone() },
        nobody.in_groups(&(GROUP - 40..=GROUP).collect::<Vec<_>>()),
    ];
    let (mut refused, mut allowed) = (0, 0);
    for (number, user) in users.iter().enumerate() {
        let node = node();
        make_tree(&node.pfs().join("bare"));
        make_tree(&node.pfs().join("mounted"));
        read_all(&node.mount().join("mounted"));
        read_all(&node.mount().join("mounted"));
        let (bare, mounted) = (node.pfs().join("bare"), node.mount().join("mounted"));
        for directory in ["shut", "search", "list", "group", "sticky"] {
            for (name, ..) in files() {
                for kind in ["small", "large"] {
                    let path = Path::new(directory).join(format!("{kind}-{name}"));
                    for (what, attempt) in ATTEMPTS {
                        let [expected, seen] = [&bare, &mounted]
                            .map(|root| user.run(|| attempt(&root.join(&path)).map_err(errno)));
                        let case = format!("user {number} {user:?}: {what} {}", path.display());
                        assert_eq!(seen.as_ref().err(), expected.as_ref().err(), "{case}");
                        assert!(seen == expected, "{case}: other bytes");
                        if seen.is_ok() { allowed += 1 } else { refused += 1 }
                    }
                }
            }
        }
    }
    assert!(refused > 100 && allowed > 100, "{refused} refused, {allowed} allowed");
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}

#[test]
fn a_permission_taken_away_holds_at_the_next_open() {
    needs_mount!();
    let node = node();
    for (name, length) in [("small", SMALL), ("large", LARGE)] {
        let path = file(&node, name, 0o644, &vec![7; length]);
        let mounted = node.mount().join(name);
        for user in strangers() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            let open = user.run(|| {
                assert_eq!(fs::read(&mounted).unwrap().len(), length);
                File::open(&mounted).unwrap()
            });
            // Behind Tidepool's back, while the file is resident and open.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let refused = user.run(|| fs::read(&mounted).map_err(errno));
            assert_eq!(refused, Err(libc::EACCES), "{name} {user:?}");
            drop(open);
        }
    }
}

#[test]
fn a_setuid_bit_does_not_work_through_the_mount_and_is_cleared_by_writes() {
    needs_mount!();
    let node = node();
    let user = &strangers()[0];
    let path = file(&node, "program", 0o6777, b"#!/bin/sh\n");
    let mounted = node.mount().join("program");
    user.run(|| OpenOptions::new().append(true).open(&mounted).unwrap().write_all(b"x").unwrap());
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o6000, 0, "a write by somebody else clears the bits, now {mode:o}");
}
