//! Checks of names, links and directories.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt, symlink};
use std::time::{Duration, Instant};

use super::ground::{Check, Ground, Verdict};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "create-exclusive", run: create_exclusive, if_failed: "files cannot be made" },
    Check { name: "rename-over", run: rename_over, if_failed: NEEDED },
    Check { name: "rename-across-directories", run: rename_across, if_failed: NEEDED },
    Check { name: "unlink-open-file", run: unlink_open, if_failed: NEEDED },
    Check { name: "hard-link", run: hard_link, if_failed: NO_LINKS },
    Check { name: "symbolic-link", run: symbolic_link, if_failed: NOT_OFFERED },
    Check { name: "name-of-255-bytes", run: long_name, if_failed: NOT_OFFERED },
    Check { name: "name-not-utf8", run: odd_name, if_failed: NOT_OFFERED },
    Check { name: "directory-of-2000", run: big_directory, if_failed: NEEDED },
    Check { name: "inode-stable", run: inode_stable, if_failed: NEEDED },
    Check { name: "inode-reuse", run: inode_reuse, if_failed: NEEDED },
    Check { name: "one-device", run: one_device, if_failed: NEEDED },
    Check { name: "free-space", run: free_space, if_failed: "df on the mount shows nothing" },
];

const NEEDED: &str = "a node needs this: do not use Tidepool here before it works";
const NOT_OFFERED: &str = "the mount offers what the PFS offers: programs get the same error";
const NO_LINKS: &str = "no hard links on the mount either; link counts are not relied on";

fn create_exclusive(ground: &Ground) -> io::Result<Verdict> {
    ground.create("a")?;
    let again = ground.create("a");
    let refused = again.is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
    Ok(Verdict::ok_or_failed(refused, "O_EXCL refuses a name that exists", NEEDED))
}

fn rename_over(ground: &Ground) -> io::Result<Verdict> {
    fs::write(ground.path("target"), b"old")?;
    fs::write(ground.path("new"), b"new")?;
    let mut before = File::open(ground.path("target"))?;
    let old_inode = before.metadata()?.ino();
    fs::rename(ground.path("new"), ground.path("target"))?;
    let mut old = String::new();
    before.read_to_string(&mut old)?;
    let replaced = fs::read(ground.path("target"))? == b"new";
    let told_apart = fs::metadata(ground.path("target"))?.ino() != old_inode;
    if replaced && old == "old" && told_apart {
        return Ok(Verdict::ok("replaced at once; the open file keeps its content"));
    }
    let measured =
        format!("replaced: {replaced}, open file reads `{old}`, new inode: {told_apart}");
    Ok(Verdict::failed(measured, "a replaced file cannot be told from the old one"))
}

fn rename_across(ground: &Ground) -> io::Result<Verdict> {
    fs::create_dir(ground.path("a"))?;
    fs::create_dir(ground.path("b"))?;
    fs::write(ground.path("a/file"), b"content")?;
    fs::rename(ground.path("a/file"), ground.path("b/file"))?;
    fs::rename(ground.path("b"), ground.path("a/b"))?;
    let moved = fs::read(ground.path("a/b/file"))? == b"content" && !ground.path("b").exists();
    Ok(Verdict::ok_or_failed(moved, "files and directories move", NEEDED))
}

fn unlink_open(ground: &Ground) -> io::Result<Verdict> {
    let mut file = ground.create("a")?;
    file.write_all(b"content")?;
    fs::remove_file(ground.path("a"))?;
    let mut content = [0; 7];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut content, 0)?;
    let links = file.metadata()?.nlink();
    let gone = !ground.path("a").exists();
    let measured = format!("readable after unlink, link count {links}");
    Ok(Verdict::ok_or_failed(gone && &content == b"content", measured, NEEDED))
}

fn hard_link(ground: &Ground) -> io::Result<Verdict> {
    fs::write(ground.path("a"), b"content")?;
    if let Err(error) = fs::hard_link(ground.path("a"), ground.path("b")) {
        return Ok(Verdict::degraded(error.to_string(), NO_LINKS));
    }
    let (one, two) = (fs::metadata(ground.path("a"))?, fs::metadata(ground.path("b"))?);
    let measured = format!("link count {}, same inode: {}", two.nlink(), one.ino() == two.ino());
    let holds = two.nlink() == 2 && one.ino() == two.ino();
    Ok(Verdict::ok_or_degraded(holds, measured, NO_LINKS))
}

fn symbolic_link(ground: &Ground) -> io::Result<Verdict> {
    fs::write(ground.path("a"), b"content")?;
    symlink("a", ground.path("link"))?;
    let follows = fs::read(ground.path("link"))? == b"content";
    Ok(Verdict::ok_or_degraded(follows, "made, read and followed", NOT_OFFERED))
}

fn long_name(ground: &Ground) -> io::Result<Verdict> {
    let name = "n".repeat(255);
    if let Err(error) = ground.create(&name) {
        return Ok(Verdict::degraded(error.to_string(), NOT_OFFERED));
    }
    let too_long = ground.create(&"n".repeat(256));
    let refused = too_long.is_err_and(|error| error.raw_os_error() == Some(libc::ENAMETOOLONG));
    Ok(Verdict::ok_or_degraded(refused, "255 bytes taken, 256 refused", NOT_OFFERED))
}

fn odd_name(ground: &Ground) -> io::Result<Verdict> {
    let name = OsStr::from_bytes(b"odd\xff\xfe\n name");
    if let Err(error) = File::create_new(ground.path(name)) {
        return Ok(Verdict::degraded(error.to_string(), NOT_OFFERED));
    }
    let listed = fs::read_dir(&ground.directory)?.flatten().any(|entry| entry.file_name() == name);
    Ok(Verdict::ok_or_degraded(listed, "bytes of names are kept", NOT_OFFERED))
}

fn big_directory(ground: &Ground) -> io::Result<Verdict> {
    const WANTED: usize = 2000;
    let began = Instant::now();
    let mut made = 0;
    // Slow metadata servers get fewer names rather than a long wait.
    while made < WANTED && began.elapsed() < Duration::from_secs(3) && !ground.options.cancelled() {
        ground.create(&format!("{made:04}"))?;
        made += 1;
    }
    let listing = Instant::now();
    let mut seen = HashSet::new();
    for entry in fs::read_dir(&ground.directory)? {
        seen.insert(entry?.file_name());
    }
    let listed_ms = listing.elapsed().as_secs_f64() * 1e3;
    let complete = seen.len() == made;
    let all = if made == WANTED { String::new() } else { format!(" of {WANTED}, in 3 s") };
    let measured = format!("{made} names made{all}; {} listed in {listed_ms:.1} ms", seen.len());
    if !complete {
        return Ok(Verdict::failed(measured, "listings miss names, here and on the mount"));
    }
    Ok(Verdict::ok_or_degraded(made == WANTED, measured, "new names are slow, as on the PFS"))
}

/// A rename or a second open cannot make the kernel drop a name, and only then does a mount that
/// makes up its inode numbers give another. But its listings do not know these numbers.
fn inode_stable(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    let before = file.metadata()?.ino();
    fs::rename(ground.path("a"), ground.path("b"))?;
    drop(file);
    let reopened = File::open(ground.path("b"))?.metadata()?.ino();
    let named = fs::metadata(ground.path("b"))?.ino();
    let mut listed = None;
    for entry in fs::read_dir(&ground.directory)? {
        let entry = entry?;
        if entry.file_name() == "b" {
            listed = Some(entry.ino());
        }
    }
    let told = listed.map_or("not at all".to_owned(), |inode| inode.to_string());
    let measured =
        format!("inode {before}, after rename {named}, open again {reopened}, listed {told}");
    if before != reopened || before != named {
        let consequence = "files are not recognised when opened again: nothing stays cached";
        return Ok(Verdict::failed(measured, consequence));
    }
    let consequence = "the mount makes up inode numbers: what is cached of a file is lost, and its \
                       memory held until it is evicted, whenever the kernel drops the file's name";
    Ok(Verdict::ok_or_degraded(listed == Some(named), measured, consequence))
}

fn inode_reuse(ground: &Ground) -> io::Result<Verdict> {
    let mut seen = HashSet::new();
    let mut versions = HashSet::new();
    let mut reused = 0;
    for round in 0..50 {
        let path = ground.path(format!("{round}"));
        fs::write(&path, b"same length")?;
        let metadata = fs::metadata(&path)?;
        if !seen.insert(metadata.ino()) {
            reused += 1;
        }
        let stamp = (metadata.ino(), metadata.ctime(), metadata.ctime_nsec());
        if !versions.insert(stamp) {
            let measured = "a new file got inode and time stamp of a removed one";
            let consequence = "files younger than the tick of time stamps are not kept cached";
            return Ok(Verdict::degraded(measured, consequence));
        }
        fs::remove_file(&path)?;
    }
    Ok(Verdict::ok(format!("{reused} of 50 new files got the inode of a removed one")))
}

fn one_device(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?.metadata()?.dev();
    let directory = fs::metadata(&ground.directory)?.dev();
    let accepted = crate::LowerStore::file(&*ground.store, File::open(ground.path("a"))?.into());
    let measured = format!("device of files {file:#x}, of directories {directory:#x}");
    let consequence = "a node refuses files whose device differs from that of its directory";
    Ok(Verdict::ok_or_failed(accepted.is_ok(), measured, consequence))
}

fn free_space(ground: &Ground) -> io::Result<Verdict> {
    let stat = rustix::fs::fstatvfs(File::open(&ground.directory)?.as_fd())?;
    let total = stat.f_blocks.saturating_mul(stat.f_frsize);
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let measured = format!("{:.1} GiB free of {:.1} GiB", gib(free), gib(total));
    Ok(Verdict::ok_or_degraded(total > 0, measured, "df on the mount shows nothing"))
}
