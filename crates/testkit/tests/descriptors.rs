//! Tests of descriptors that changed: their flags, or the user that has them.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use rustix::fs::OFlags;
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec};
use tidepool_testkit::user::User;

const STRANGER: u32 = 54_321;
const SET_ID: [u32; 3] = [0o4777, 0o2777, 0o6755];

/// Nodes whose mount writes in different ways.
fn nodes() -> Vec<Node> {
    let ways: [&[&str]; 4] = [
        &[],
        &["--passthrough", "off"],
        &["--direct-io", "off"],
        &["--passthrough", "off", "--direct-io", "off"],
    ];
    let start = |way: &&[&str]| {
        let arguments = way.iter().map(|argument| (*argument).to_owned()).collect();
        Node::start(NodeSpec { arguments, ..NodeSpec::default() }).expect("a node starts")
    };
    ways.iter().map(start).collect()
}

fn append_is(file: &File, append: bool) {
    let mut flags = rustix::fs::fcntl_getfl(file).unwrap();
    flags.set(OFlags::APPEND, append);
    rustix::fs::fcntl_setfl(file, flags).unwrap();
}

#[test]
fn a_descriptor_appends_as_its_flag_says_now() {
    needs_mount!();
    for node in nodes() {
        let path = node.mount().join("log");
        let open = |append: bool| {
            File::options().read(true).write(true).append(append).create(true).open(&path).unwrap()
        };
        let bytes = || fs::read(node.pfs().join("log")).unwrap();
        for late in [false, true] {
            let _ = fs::remove_file(&path);
            // The second time another open keeps the kernel from writing by itself.
            let other = late.then(|| open(false));
            let mut file = open(true);
            file.write_all(b"0123456789").unwrap();
            append_is(&file, false);
            file.write_all_at(b"ab", 2).unwrap();
            file.sync_all().unwrap();
            assert_eq!(bytes(), b"01ab456789");
            append_is(&file, true);
            file.write_all_at(b"cd", 0).unwrap();
            drop((file, other));
            assert_eq!(bytes(), b"01ab456789cd");

            let mut file = open(false);
            append_is(&file, true);
            open(true).write_all(b"ef").unwrap();
            file.write_all(b"gh").unwrap();
            append_is(&file, false);
            file.write_all_at(b"ij", 4).unwrap();
            let mut seen = [0; 16];
            assert_eq!(file.read_at(&mut seen, 0).unwrap(), 16);
            drop(file);
            assert_eq!(bytes(), b"01abij6789cdefgh");
            assert_eq!(&seen, b"01abij6789cdefgh");
        }
    }
}

/// As a shell does for `>> /dev/stderr` where that is a new file on the mount.
#[test]
fn what_is_being_written_is_opened_again_to_append() {
    needs_mount!();
    for node in nodes() {
        for user in [0, STRANGER] {
            let name = format!("errors{user}");
            let file = File::create(node.mount().join(&name)).unwrap();
            file.set_permissions(Permissions::from_mode(0o666)).unwrap();
            (&file).write_all(b"one ").unwrap();
            let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            User::new(user).run(|| {
                for append in [true, false] {
                    let mut options = File::options();
                    let mut file = options.write(true).append(append).open(&again).unwrap();
                    file.write_all(b"two ").unwrap();
                }
            });
            assert_eq!(fs::read(node.pfs().join(&name)).unwrap(), b"two two ");
        }
    }
}

/// A copy inside of the kernel ends where the kernel believes the end.
#[test]
fn who_appends_to_what_is_being_written_copies_all_that_is_there() {
    needs_mount!();
    const LENGTH: usize = 1 << 20;
    for node in nodes() {
        let path = node.mount().join("log");
        let writer = File::create(&path).unwrap();
        let mut log = File::options().read(true).append(true).open(&path).unwrap();
        writer.write_all_at(&[1; LENGTH], 0).unwrap();
        let copy = File::create(node.mount().join("copy")).unwrap();
        let (mut from, mut to) = (0, 0);
        let copied =
            rustix::fs::copy_file_range(&log, Some(&mut from), &copy, Some(&mut to), LENGTH);
        assert_eq!(copied.unwrap(), LENGTH);
        log.write_all(b"end").unwrap();
        writer.write_all_at(b"begin", 0).unwrap();
        drop((writer, log));
        let seen = fs::read(node.pfs().join("log")).unwrap();
        assert_eq!(seen, [b"begin", &[1; LENGTH - 5][..], b"end"].concat());
        assert_eq!(fs::read(node.pfs().join("copy")).unwrap(), [1; LENGTH]);
    }
}

#[test]
fn set_id_bits_go_with_writes_by_whoever_has_the_descriptor() {
    needs_mount!();
    for node in nodes() {
        for mode in SET_ID {
            let path = node.mount().join(format!("program{mode:o}"));
            let file = File::create(&path).unwrap();
            file.write_all_at(&[1; 9_000], 0).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            User::new(STRANGER).run(|| file.write_all_at(b"evil", 0).unwrap());
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o6000, 0, "inherited, {mode:o}");

            fs::set_permissions(&path, Permissions::from_mode(mode | 0o777)).unwrap();
            User::new(STRANGER).run(|| {
                let own = File::options().write(true).open(&path).unwrap();
                own.write_all_at(b"evil", 0).unwrap();
            });
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o6000, 0, "his own, {mode:o}");

            // Root keeps them where a file has them already, whoever else has it open.
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            for truncate in [true, false] {
                let mut options = File::options();
                let roots = options.write(true).truncate(truncate).open(&path).unwrap();
                roots.write_all_at(b"good", 0).unwrap();
            }
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode, "root, {mode:o}");
            drop(file);
        }
    }
}
