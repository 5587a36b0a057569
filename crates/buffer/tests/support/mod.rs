//! Servers of tests.

#![allow(dead_code, reason = "some test files use a part")]

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_buffer::disk::{Disk, DiskSettings};
use tidepool_buffer::memory::Memory;
use tidepool_buffer::server::{InMemory, Keeper, Server, Settings};

/// A memcached of this test.
pub struct Memcached {
    child: Child,
    pub port: u16,
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Memcached {
    /// Starts one; `None` where there is none to start.
    pub fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-U", "0", "-m", "64", "-u", "root"]);
        command.args(["-p", &port.to_string()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let memcached = Memcached { child, port };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "memcached does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(memcached)
    }
}

/// A server at this address, with a disk or without.
pub fn serve_at(at: &str, memory_bytes: u64, disk: Option<&Path>, patience: Duration) -> Server {
    let memory = Arc::new(Memory::new(memory_bytes));
    let keeper: Box<dyn Keeper> = match disk {
        None => Box::new(InMemory),
        Some(directory) => {
            let settings = DiskSettings {
                directory: directory.into(),
                capacity_bytes: 1 << 30,
                threads: 2,
                patience,
                replaced_bytes_max: 8 << 20,
            };
            Box::new(Disk::open(&settings, memory.clone()).unwrap().0)
        }
    };
    let settings = Settings { patience, ..Settings::default() };
    let listener = TcpListener::bind(at).unwrap();
    Server::start(Some(listener), settings, memory, keeper).unwrap()
}
