//! Checks of locks. Two open file descriptions of one process conflict as two processes do, except
//! for record locks of POSIX, which belong to the process: those are tried against the others.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::fs::FlockOperation;

use super::ground::{Check, Ground, Verdict};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "lock-record", run: record, if_failed: NOT_OFFERED },
    Check { name: "lock-record-by-description", run: by_description, if_failed: NOT_OFFERED },
    Check { name: "lock-whole-file", run: whole_file, if_failed: NOT_OFFERED },
];

const NOT_OFFERED: &str =
    "programs that lock get the same error on the mount, which passes locks on";

/// Sets (or clears) a lock on the first 100 bytes without waiting.
fn lock(file: &File, command: libc::c_int, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `flock`; the kernel wants l_pid to be 0 for OFD locks.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_len = 100;
    // SAFETY: the structure outlives the call, and the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn is_conflict(result: io::Result<()>) -> bool {
    let errno = result.err().and_then(|error| error.raw_os_error());
    matches!(errno, Some(libc::EAGAIN | libc::EACCES))
}

fn pair(ground: &Ground) -> io::Result<(File, File)> {
    let one = ground.create("a")?;
    let two = File::options().read(true).write(true).open(ground.path("a"))?;
    Ok((one, two))
}

fn record(ground: &Ground) -> io::Result<Verdict> {
    let (one, two) = pair(ground)?;
    if let Err(error) = lock(&one, libc::F_SETLK, libc::F_WRLCK) {
        return Ok(Verdict::degraded(error.to_string(), NOT_OFFERED));
    }
    let conflicts = is_conflict(lock(&two, libc::F_OFD_SETLK, libc::F_WRLCK));
    lock(&one, libc::F_SETLK, libc::F_UNLCK)?;
    let freed = lock(&two, libc::F_OFD_SETLK, libc::F_WRLCK).is_ok();
    let measured = format!("conflicts: {conflicts}, free after unlock: {freed}");
    Ok(Verdict::ok_or_degraded(conflicts && freed, measured, NOT_OFFERED))
}

fn by_description(ground: &Ground) -> io::Result<Verdict> {
    let (one, two) = pair(ground)?;
    if let Err(error) = lock(&one, libc::F_OFD_SETLK, libc::F_WRLCK) {
        return Ok(Verdict::degraded(error.to_string(), NOT_OFFERED));
    }
    let conflicts = is_conflict(lock(&two, libc::F_OFD_SETLK, libc::F_RDLCK));
    drop(one);
    let freed = lock(&two, libc::F_OFD_SETLK, libc::F_WRLCK).is_ok();
    let measured = format!("conflicts: {conflicts}, free after close: {freed}");
    Ok(Verdict::ok_or_degraded(conflicts && freed, measured, NOT_OFFERED))
}

fn whole_file(ground: &Ground) -> io::Result<Verdict> {
    let (one, two) = pair(ground)?;
    if let Err(error) = rustix::fs::flock(&one, FlockOperation::NonBlockingLockExclusive) {
        return Ok(Verdict::degraded(format!("flock: {error}"), NOT_OFFERED));
    }
    let second = rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared);
    let conflicts = second == Err(rustix::io::Errno::WOULDBLOCK);
    rustix::fs::flock(&one, FlockOperation::Unlock)?;
    let freed = rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive).is_ok();
    let measured = format!("conflicts: {conflicts}, free after unlock: {freed}");
    Ok(Verdict::ok_or_degraded(conflicts && freed, measured, NOT_OFFERED))
}
