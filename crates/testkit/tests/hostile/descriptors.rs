//! Tests of what a client can do with the descriptors that it was given, and of what it learns of
//! the node by `/proc`: it can read its own file and set reference bits, nothing else.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::mm::{MapFlags, ProtFlags};
use tidepool_proto::Access;
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::Node;
use tidepool_testkit::raw::{RawClient, RawReply, open_for, read_of};

use super::{assert_well, file, node, strangers};

const LENGTH: usize = 9 << 20;

fn content() -> Vec<u8> {
    (0..LENGTH).map(|at| (at / 3 % 251) as u8).collect()
}

/// A public file that is resident, and a client that was given its segment.
fn given(node: &Node) -> (RawClient, RawReply) {
    let path = node.pfs().join("public");
    let descriptor = File::open(path).unwrap();
    let mut client = RawClient::accepted(node.socket());
    let opened = client.ask(&open_for(Access::Read), &[descriptor.as_fd()]).unwrap();
    assert_eq!(opened.descriptors.len(), 3, "segment, table and touch marks: {opened:?}");
    let handle = opened.handle();
    for at in (0..LENGTH).step_by(1 << 20) {
        let read = client.ask(&read_of(handle, at as u64, 1 << 20), &[]).unwrap();
        assert!(read.failure().is_none(), "{read:?}");
    }
    (client, opened)
}

fn result(value: libc::c_int) -> io::Result<()> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn map(descriptor: BorrowedFd<'_>, protection: ProtFlags) -> io::Result<*mut u8> {
    let flags = MapFlags::SHARED;
    let start = std::ptr::null_mut();
    // SAFETY: a new mapping at an address of the kernel's choice; left to the end of the process.
    let address = unsafe { rustix::mm::mmap(start, 4096, protection, flags, descriptor, 0)? };
    Ok(address.cast())
}

/// Ways to change a file through a descriptor. All must fail.
fn changes(descriptor: BorrowedFd<'_>) -> Vec<(&'static str, io::Result<()>)> {
    use rustix::fs::FallocateFlags as Flags;
    let number = descriptor.as_raw_fd();
    let this = format!("/proc/self/fd/{number}");
    let reopen = |options: &fs::OpenOptions| options.open(&this).map(drop);
    let punch = Flags::PUNCH_HOLE | Flags::KEEP_SIZE;
    let text = CString::new(this.as_str()).unwrap();
    vec![
        ("pwrite", rustix::io::pwrite(descriptor, b"x", 0).map(drop).map_err(Into::into)),
        ("ftruncate", rustix::fs::ftruncate(descriptor, 0).map_err(Into::into)),
        ("grow", rustix::fs::ftruncate(descriptor, 1 << 40).map_err(Into::into)),
        ("punch", rustix::fs::fallocate(descriptor, punch, 0, 1 << 20).map_err(Into::into)),
        ("allocate", {
            let flags = Flags::empty();
            rustix::fs::fallocate(descriptor, flags, 0, 1 << 30).map_err(Into::into)
        }),
        ("map for writing", map(descriptor, ProtFlags::READ | ProtFlags::WRITE).map(drop)),
        ("map, then make it writable", {
            map(descriptor, ProtFlags::READ).and_then(|address| {
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                // SAFETY: changes the protection of the page that was mapped just now.
                result(unsafe { libc::mprotect(address.cast(), 4096, protection) })
            })
        }),
        ("open anew for writing", reopen(File::options().write(true))),
        ("open anew for both", reopen(File::options().read(true).write(true))),
        ("open anew for appending", reopen(File::options().append(true))),
        ("truncate by path", {
            // SAFETY: a string that ends with a zero.
            result(unsafe { libc::truncate(text.as_ptr(), 0) })
        }),
        ("chmod", rustix::fs::fchmod(descriptor, rustix::fs::Mode::RWXU).map_err(Into::into)),
        // SAFETY: a string that ends with a zero.
        ("chmod by path", result(unsafe { libc::chmod(text.as_ptr(), 0o666) })),
        ("chown", {
            let me = rustix::process::geteuid();
            rustix::fs::fchown(descriptor, Some(me), None).map_err(Into::into)
        }),
    ]
}

#[test]
fn segments_and_tables_cannot_be_changed() {
    needs_mount!();
    let node = node();
    file(&node, "public", 0o644, &content());
    for user in strangers() {
        user.run(|| {
            let (_client, opened) = given(&node);
            for (name, descriptor) in ["segment", "table"].iter().zip(&opened.descriptors) {
                for (what, outcome) in changes(descriptor.as_fd()) {
                    assert!(outcome.is_err(), "{user:?} could {what} the {name}");
                }
            }
        });
        assert!(fs::read(node.mount().join("public")).unwrap() == content());
    }
    assert_well(&node, "public");
}

#[test]
fn touch_marks_change_nothing_but_policy() {
    needs_mount!();
    let node = node();
    file(&node, "public", 0o644, &content());
    let expected = content();
    for user in strangers() {
        user.run(|| {
            let (mut client, opened) = given(&node);
            let touches: &OwnedFd = &opened.descriptors[2];
            // Everything that can be done to them is done; what fails, fails.
            for value in [0x00, 0xff, 0x5a] {
                let _ = rustix::io::pwrite(touches, &[value; 4096], 0);
                if let Ok(address) = map(touches.as_fd(), ProtFlags::READ | ProtFlags::WRITE) {
                    let length = rustix::fs::fstat(touches).unwrap().st_size.clamp(0, 4096);
                    // SAFETY: the part of the mapping that lies within the file.
                    unsafe { std::ptr::write_bytes(address, value, length as usize) };
                }
            }
            let _ = changes(touches.as_fd());
            let seals = rustix::fs::SealFlags::all();
            let _ = rustix::fs::fcntl_add_seals(touches, seals);
            let handle = opened.handle();
            for at in (0..LENGTH).step_by(1 << 20) {
                let read = client.ask(&read_of(handle, at as u64, 1 << 20), &[]).unwrap();
                let end = (at + (1 << 20)).min(LENGTH);
                assert!(read.payload == expected[at..end], "at {at}");
            }
        });
        // The policy looks at the marks when it needs room.
        node.ask(&["resize", "8MiB"]).unwrap();
        node.ask(&["resize", "64MiB"]).unwrap();
        assert!(fs::read(node.mount().join("public")).unwrap() == expected);
    }
    assert_well(&node, "public");
}

#[test]
fn proc_shows_a_stranger_nothing_of_the_node() {
    needs_mount!();
    let node = node();
    file(&node, "secret", 0o600, &content());
    assert!(fs::read(node.mount().join("secret")).unwrap() == content());
    let process = Path::new("/proc").join(node.process_id().unwrap().to_string());
    for user in strangers() {
        user.run(|| {
            for name in ["fd", "map_files", "fdinfo"] {
                let listed = fs::read_dir(process.join(name)).map(|entries| entries.count());
                assert!(listed.is_err(), "{user:?} lists {name}: {listed:?}");
            }
            for name in ["mem", "maps", "environ", "pagemap", "root/etc/passwd", "cwd/."] {
                assert!(File::open(process.join(name)).is_err(), "{user:?} opens {name}");
            }
            for number in 0..256 {
                let path = process.join("fd").join(number.to_string());
                assert!(File::open(path).is_err(), "{user:?} opens descriptor {number}");
            }
        });
    }
}

#[test]
fn a_segment_never_shows_bytes_of_another_file() {
    needs_mount!();
    let node = node();
    file(&node, "public", 0o644, &content());
    strangers()[0].run(|| {
        let (_client, opened) = given(&node);
        let segment = &opened.descriptors[0];
        // Others' secrets pass through the store, in memory that is used again and again.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..6 {
                    node.ask(&["evict", "--all"]).ok();
                }
            });
        });
        let mut bytes = vec![0; LENGTH];
        let mut at = 0;
        while let Ok(count @ 1..) = rustix::io::pread(segment, &mut bytes[at..], at as u64) {
            at += count;
        }
        let foreign = bytes.iter().zip(content()).filter(|(seen, own)| **seen != 0 && *seen != own);
        assert_eq!(foreign.count(), 0, "bytes that are neither the file's nor a hole");
    });
}
