//! Memory of a server process as the operating system sees it.
//!
//! A reading is bound to one process: when that ends, readings fail and never show another one
//! that got the same number.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tidepool_control_policy::StoreState;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::ledger::Ledger;
use crate::watch::Watch;

/// A process of this machine, found by the number its server told.
#[derive(Debug)]
pub struct ServerProcess {
    pid: u32,
    statm: File,
    status: File,
}

impl ServerProcess {
    /// Opens process `pid`; its command name must begin with one of `names`, else the number comes
    /// from another machine or PID namespace.
    pub fn open(pid: u32, names: &[&str]) -> Result<Self> {
        let statm = File::open(format!("/proc/{pid}/statm"));
        let status = File::open(format!("/proc/{pid}/status"));
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        let operation = || format!("reading the memory of process {pid}");
        let remedy = "run the controller in the PID namespace of the server, on its node";
        let (Ok(statm), Ok(status), Ok(comm)) = (statm, status, comm) else {
            let what = "no such process is seen here";
            return Err(Error::new(ErrorKind::Unsupported, operation(), what).remedy(remedy));
        };
        if !names.iter().any(|name| comm.starts_with(name)) {
            let what = format!("it is `{}`, not `{}`", comm.trim(), names.join("` or `"));
            return Err(Error::new(ErrorKind::Unsupported, operation(), what).remedy(remedy));
        }
        Ok(ServerProcess { pid, statm, status })
    }

    /// Number of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// This process if it still runs and has number `pid`, else the one that has it now.
    pub fn unless_replaced_by(self: &Arc<Self>, pid: u32, names: &[&str]) -> Result<Arc<Self>> {
        if pid == self.pid && self.resident_bytes().is_ok() {
            return Ok(Arc::clone(self));
        }
        ServerProcess::open(pid, names).map(Arc::new)
    }

    /// Resident bytes (`statm`, second field): one system call, a few microseconds.
    pub fn resident_bytes(&self) -> Result<u64> {
        let mut buffer = [0; 128];
        let length = self.statm.read_at(&mut buffer, 0).map_err(|error| self.ended(Some(error)))?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        let pages = text.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
        // A process that waits to be collected by its parent shows zeros.
        match pages {
            Some(pages) if pages > 0 => Ok(pages * rustix::param::page_size() as u64),
            _ => Err(self.ended(None)),
        }
    }

    /// Bytes that the process keeps from being swapped or dropped (`status`, `VmLck`): some ten
    /// microseconds.
    pub fn locked_bytes(&self) -> Result<u64> {
        let mut text = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let read = self.status.read_at(&mut buffer, text.len() as u64);
            let length = read.map_err(|error| self.ended(Some(error)))?;
            text.extend_from_slice(&buffer[..length]);
            if let Some(bytes) = locked_bytes(&String::from_utf8_lossy(&text)) {
                return Ok(bytes);
            }
            // A process that waits to be collected by its parent has no memory to tell of.
            if length == 0 {
                return Err(self.ended(None));
            }
        }
    }

    fn ended(&self, cause: Option<std::io::Error>) -> Error {
        let operation = format!("reading the memory of process {}", self.pid);
        let error = Error::new(ErrorKind::StoreUnavailable, operation, "it has ended");
        match cause {
            Some(cause) => error.caused_by(cause),
            None => error,
        }
    }
}

/// The figure of the line `VmLck`, where it is there to its end.
fn locked_bytes(status: &str) -> Option<u64> {
    let line = status.split_once("VmLck:")?.1.split_once(" kB")?.0;
    line.trim().parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
}

/// A server that is watched, for it may be restarted as another process.
impl Watch<Arc<ServerProcess>> {
    /// Resident bytes of the process now.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.newest().0.resident_bytes()
    }

    /// The store as its ledger and its process have it. A server that ended holds nothing.
    pub fn state(&self, ledger: &Ledger) -> StoreState {
        let (process, failed) = self.newest();
        let resident = process.resident_bytes();
        let state = ledger.state(*resident.as_ref().unwrap_or(&0), failed || resident.is_err());
        StoreState { process_id: process.pid(), ..state }
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags};

    use super::*;

    #[test]
    fn a_process_is_known_by_its_name() {
        let own = std::fs::read_to_string("/proc/self/comm").unwrap();
        let process = ServerProcess::open(std::process::id(), &[own.trim()]).unwrap();
        assert!(process.resident_bytes().unwrap() > 0);
        let wrong = ServerProcess::open(std::process::id(), &["redis-server"]).unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn locked_memory_is_seen() {
        let own = std::fs::read_to_string("/proc/self/comm").unwrap();
        let process = ServerProcess::open(std::process::id(), &[own.trim()]).unwrap();
        let page = rustix::param::page_size();
        let null = std::ptr::null_mut();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, which nothing refers to when it is unmapped below.
        let address = unsafe { rustix::mm::mmap_anonymous(null, page, access, flags).unwrap() };
        let before = process.locked_bytes().unwrap();
        // SAFETY: the mapping from above.
        unsafe { rustix::mm::mlock(address, page).unwrap() };
        assert_eq!(process.locked_bytes().unwrap(), before + page as u64);
        // SAFETY: as above.
        unsafe { rustix::mm::munmap(address, page).unwrap() };
        assert_eq!(process.locked_bytes().unwrap(), before);
        assert_eq!(locked_bytes("Name:\tjava\nVmLck:\t    71"), None, "cut off");
    }

    #[test]
    fn an_ended_process_is_no_other() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = loop {
            // Until the new program has replaced the copy of this one.
            if let Ok(process) = ServerProcess::open(child.id(), &["sleep"]) {
                break process;
            }
            std::thread::yield_now();
        };
        child.kill().unwrap();
        // Also while nobody has collected it.
        let begun = std::time::Instant::now();
        while process.locked_bytes().is_ok() {
            assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it seems to live");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(process.locked_bytes().unwrap_err().kind(), ErrorKind::StoreUnavailable);
        assert_eq!(process.resident_bytes().unwrap_err().kind(), ErrorKind::StoreUnavailable);
    }
}
