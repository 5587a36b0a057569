//! Checks of content: appends, truncation, holes, attributes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, XattrFlags};

use super::ground::{Check, Ground, Verdict};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "append", run: append, if_failed: BROKEN },
    Check { name: "truncate-at-open", run: truncate_at_open, if_failed: BROKEN },
    Check { name: "visible-at-once", run: visible_at_once, if_failed: BROKEN },
    Check {
        name: "sparse-file",
        run: sparse,
        if_failed: "loads read holes as zeros, at full cost",
    },
    Check { name: "large-file", run: large, if_failed: "files are limited in size" },
    Check { name: "punch-hole", run: punch_hole, if_failed: NOT_OFFERED },
    Check { name: "preallocate", run: preallocate, if_failed: NOT_OFFERED },
    Check { name: "extended-attributes", run: attributes, if_failed: NO_XATTR },
    Check { name: "access-control-lists", run: access_lists, if_failed: NOT_OFFERED },
    Check { name: "file-without-name", run: nameless, if_failed: NOT_OFFERED },
];

const BROKEN: &str = "content cannot be relied on: do not use Tidepool here";
const NOT_OFFERED: &str = "the mount offers what the PFS offers: programs get the same error";
const NO_XATTR: &str = "stubs of memory-only files are marked by their content instead";

fn append(ground: &Ground) -> io::Result<Verdict> {
    ground.create("log")?;
    let open = || File::options().append(true).open(ground.path("log"));
    let (mut one, mut two) = (open()?, open()?);
    for round in 0..50u8 {
        one.write_all(&[round; 10])?;
        two.write_all(&[round | 0x80; 10])?;
    }
    let content = fs::read(ground.path("log"))?;
    let whole = content.chunks(10).all(|part| part.iter().all(|byte| byte == &part[0]));
    let holds = content.len() == 1000 && whole;
    Ok(Verdict::ok_or_failed(
        holds,
        format!("{} of 1000 bytes, whole: {whole}", content.len()),
        BROKEN,
    ))
}

fn truncate_at_open(ground: &Ground) -> io::Result<Verdict> {
    fs::write(ground.path("a"), [1; 10_000])?;
    let reader = File::open(ground.path("a"))?;
    File::create(ground.path("a"))?.write_all(b"new")?;
    let seen = reader.metadata()?.len();
    let mut bytes = [9; 10];
    let count = reader.read_at(&mut bytes, 0)?;
    let holds = seen == 3 && &bytes[..count] == b"new";
    Ok(Verdict::ok_or_failed(holds, format!("another open sees {seen} of 3 bytes"), BROKEN))
}

fn visible_at_once(ground: &Ground) -> io::Result<Verdict> {
    let writer = ground.create("a")?;
    let reader = File::open(ground.path("a"))?;
    for round in 1..50u8 {
        writer.write_all_at(&[round; 100], u64::from(round) * 100)?;
        let mut bytes = [0; 100];
        let count = reader.read_at(&mut bytes, u64::from(round) * 100)?;
        if count != 100 || bytes != [round; 100] {
            return Ok(Verdict::failed(format!("write {round} was not seen"), BROKEN));
        }
    }
    Ok(Verdict::ok("writes of one open are seen by another at once"))
}

fn sparse(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    file.set_len(64 << 20)?;
    file.write_all_at(b"data", 32 << 20)?;
    file.sync_all()?;
    let mut bytes = [1; 4096];
    file.read_exact_at(&mut bytes, 8 << 20)?;
    if bytes != [0; 4096] {
        return Ok(Verdict::failed("a hole does not read as zeros", BROKEN));
    }
    let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata()?) * 512;
    let data_at = rustix::fs::seek(file.as_fd(), SeekFrom::Data(0));
    let measured = match data_at {
        Ok(at) => {
            format!("{} KiB stored of 64 MiB, first data found at {} MiB", blocks >> 10, at >> 20)
        }
        Err(error) => format!("{} KiB stored of 64 MiB, SEEK_DATA: {error}", blocks >> 10),
    };
    let found = data_at.is_ok_and(|at| at > 0 && at <= 32 << 20);
    Ok(Verdict::ok_or_degraded(found, measured, "loads read holes as zeros, at full cost"))
}

fn large(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    let at = (1u64 << 40) - 4;
    if let Err(error) = file.write_all_at(b"tail", at) {
        let five = (5u64 << 30) - 4;
        file.write_all_at(b"tail", five)?;
        let measured = format!("5 GiB fit, 1 TiB does not: {error}");
        return Ok(Verdict::degraded(measured, "files are limited in size, as without Tidepool"));
    }
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at)?;
    Ok(Verdict::ok_or_failed(&bytes == b"tail", "a sparse file of 1 TiB", BROKEN))
}

fn punch_hole(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    file.write_all_at(&[1; 65_536], 0)?;
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(error) = rustix::fs::fallocate(&file, mode, 4096, 8192) {
        return Ok(Verdict::degraded(error.to_string(), NOT_OFFERED));
    }
    let content = fs::read(ground.path("a"))?;
    let zeros = content[4096..12_288].iter().all(|byte| *byte == 0);
    let kept = content.len() == 65_536 && content[4095] == 1 && content[12_288] == 1;
    Ok(Verdict::ok_or_failed(zeros && kept, "the hole reads as zeros, the rest stays", BROKEN))
}

fn preallocate(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    let result = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20);
    if let Err(error) = result {
        return Ok(Verdict::degraded(error.to_string(), NOT_OFFERED));
    }
    let length = file.metadata()?.len();
    Ok(Verdict::ok_or_degraded(length == 1 << 20, format!("{length} bytes"), NOT_OFFERED))
}

fn attributes(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    let mut largest = 0;
    for size in [1, 255, 1_000, 4_000, 8_000, 60_000] {
        let value = vec![7u8; size];
        let set = rustix::fs::fsetxattr(&file, "user.tidepool.check", &value, XattrFlags::empty());
        match set {
            Ok(()) => {
                let read = crate::layout::runner::get_xattr(file.as_fd(), "user.tidepool.check")?;
                if read.as_deref() != Some(value.as_slice()) {
                    return Ok(Verdict::failed("a value came back changed", NO_XATTR));
                }
                largest = size;
            }
            Err(error) if largest == 0 => {
                return Ok(Verdict::degraded(error.to_string(), NO_XATTR));
            }
            Err(_) => break,
        }
    }
    // Stubs need some 200 bytes.
    let measured = format!("values of up to {largest} bytes (sizes tried: up to 60000)");
    Ok(Verdict::ok_or_degraded(largest >= 255, measured, NO_XATTR))
}

/// An access control list as the kernel takes it: version 2, then tag, permissions and id of each
/// entry (see acl(5) and the kernel's `posix_acl_xattr.h`).
fn access_list() -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let entries: [(u16, u16, u32); 5] =
        [(0x01, 6, NO_ID), (0x02, 4, 65_534), (0x04, 4, NO_ID), (0x10, 4, NO_ID), (0x20, 0, NO_ID)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn access_lists(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    let (name, list) = ("system.posix_acl_access", access_list());
    if let Err(error) = rustix::fs::fsetxattr(&file, name, &list, XattrFlags::empty()) {
        return Ok(Verdict::degraded(error.to_string(), NOT_OFFERED));
    }
    let kept =
        crate::layout::runner::get_xattr(file.as_fd(), name)?.is_some_and(|read| read == list);
    Ok(Verdict::ok_or_degraded(kept, "a list with a named user is kept", NOT_OFFERED))
}

fn nameless(ground: &Ground) -> io::Result<Verdict> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match rustix::fs::open(&ground.directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => {
            rustix::io::pwrite(&file, b"content", 0)?;
            Ok(Verdict::ok("O_TMPFILE works"))
        }
        Err(error) => Ok(Verdict::degraded(
            format!("O_TMPFILE: {error}"),
            "probes use a hidden name that is removed at once",
        )),
    }
}
