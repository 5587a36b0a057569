//! Facts of the machine for a node: memory within the limits of its control group, processors, the
//! usual socket. Reads `/proc` and `/sys` only.

use std::ffi::CString;
use std::fs;
use std::path::Path;

pub use tidepool_client::default_socket;
use tidepool_control::sensor::places;
use tidepool_proto::mounts::MountTable;
use tidepool_proto::resolve::Machine;
use tidepool_proto::size::MemoryLimit;
use tidepool_proto::{Error, ErrorKind, Result};

/// The facts that the configuration depends on.
pub fn machine() -> Result<Machine> {
    let limit = memory_limit()?;
    Ok(Machine {
        memory_bytes: limit.bytes,
        memory_limit: limit.source,
        processors: std::thread::available_parallelism().map_or(2, usize::from),
        socket: default_socket(),
        working_directory: std::env::current_dir().unwrap_or_default(),
        user_id,
    })
}

/// Bytes of a field of `/proc/meminfo`.
pub fn memory_field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Bytes of memory that can be had without pushing anything out.
pub fn available_bytes() -> Option<u64> {
    memory_field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// The lowest of the machine's memory and the limits of the control groups this process is in.
pub fn memory_limit() -> Result<MemoryLimit> {
    let total = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| memory_field(&text, "MemTotal"))
        .ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "reading /proc/meminfo", "MemTotal is missing")
                .remedy("mount /proc")
        })?;
    let machine = MemoryLimit { bytes: total, source: "the machine's memory".to_owned() };
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = MountTable::read().unwrap_or_default();
    let limits = places(&groups, &mounts)
        .into_iter()
        .filter_map(|place| place.levels().filter_map(group_limit).min_by_key(|limit| limit.bytes));
    Ok(limits.fold(machine, |low, limit| if limit.bytes < low.bytes { limit } else { low }))
}

fn group_limit(directory: &Path) -> Option<MemoryLimit> {
    ["memory.max", "memory.high", "memory.limit_in_bytes"]
        .iter()
        .filter_map(|name| {
            let file = directory.join(name);
            let bytes = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
            Some(MemoryLimit { bytes, source: format!("the limit in {}", file.display()) })
        })
        .min_by_key(|limit| limit.bytes)
}

/// Numeric id of a user.
pub fn user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0_u8; 16 << 10];
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::zeroed();
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid for the lengths given, and the buffer outlives the use of the
    // entry, of which only a number is taken.
    let status = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            &mut found,
        )
    };
    if status != 0 || found.is_null() {
        return None;
    }
    // SAFETY: on success `found` points to the entry, which the call filled in.
    Some(unsafe { (*found).pw_uid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_a_group_counts() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("memory.max"), "4096\n").unwrap();
        fs::write(directory.path().join("memory.high"), "max\n").unwrap();
        assert_eq!(group_limit(directory.path()).unwrap().bytes, 4096);
        fs::write(directory.path().join("memory.high"), "1024\n").unwrap();
        let limit = group_limit(directory.path()).unwrap();
        assert_eq!(limit.bytes, 1024);
        assert!(limit.source.contains("memory.high"), "{}", limit.source);
    }

    #[test]
    fn memory_is_never_more_than_the_machine_has() {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
        let total = memory_field(&meminfo, "MemTotal").unwrap();
        let limit = memory_limit().unwrap();
        assert!(limit.bytes > 0 && limit.bytes <= total);
    }

    #[test]
    fn users_are_found_by_name() {
        assert_eq!(user_id("root"), Some(0));
        assert_eq!(user_id("no such user"), None);
    }
}
