//! Tests of memcached: pages back with the operating system, and every server that must be refused.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tidepool_control::actuator::Actuator;
use tidepool_control_policy::StoreSpeed;
use tidepool_proto::ErrorKind;

use crate::support::{
    DEADLINE, MIB, Server, directory, figure, free_port, impostor, listens, open_store, program,
    refusal,
};

struct Memcached {
    server: Server,
    socket: PathBuf,
    // Last, so that the server ends before its directory goes.
    directory: TempDir,
}

impl Memcached {
    fn start(test: &str, arguments: &[&str]) -> Option<Self> {
        let directory = directory();
        let socket = directory.path().join("s");
        let server = launch(&program("memcached", test)?, &socket, directory.path(), arguments);
        Some(Memcached { server, socket, directory })
    }

    fn entry(&self) -> String {
        entry(self.socket.to_str().unwrap())
    }

    /// Its limit in bytes.
    fn limit(&self) -> u64 {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.write_all(b"stats settings\r\n").unwrap();
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let line = lines.take_while(|line| line != "END").find(|line| line.contains("maxbytes"));
        line.unwrap().split(' ').nth(2).unwrap().parse().unwrap()
    }

    /// Stores `total` bytes in values of `size` bytes, and waits until the server has them.
    fn fill(&self, name: &str, size: usize, total: u64) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        let value = "x".repeat(size);
        for number in 0..total / size as u64 {
            write!(stream, "set {name}{number} 0 0 {size} noreply\r\n{value}\r\n").unwrap();
        }
        stream.write_all(b"version\r\n").unwrap();
        BufReader::new(stream).read_line(&mut String::new()).unwrap();
    }
}

fn launch(program: &Path, socket: &Path, directory: &Path, arguments: &[&str]) -> Server {
    let mut all = vec!["-s", socket.to_str().unwrap()];
    if rustix::process::geteuid().is_root() {
        all.extend(["-u", "root"]);
    }
    all.extend(arguments);
    Server::start(program, &all, directory, || listens(socket))
}

fn entry(address: &str) -> String {
    format!(
        "kind = 'memcached'\nname = 'cache'\naddress = '{address}'\n\
         capacity_min_bytes = '16MiB'\ncapacity_max_bytes = '1GiB'\n"
    )
}

fn shrink(store: &dyn Actuator, server: &Server, capacity_bytes: u64) {
    let before = server.resident_bytes();
    let done = store.resize(capacity_bytes, DEADLINE).unwrap();
    let after = server.resident_bytes();
    assert!(after <= capacity_bytes, "{} MiB of {} left", after / MIB, capacity_bytes / MIB);
    // The server goes on giving pages of 1 MiB back between the actuator's last look and this one.
    let gone = before - after;
    assert!(done.freed_bytes <= gone + MIB, "claims {} of {gone}", done.freed_bytes);
    assert!(gone <= done.freed_bytes + 4 * MIB, "claims {} of {gone}", done.freed_bytes);
    assert_eq!(store.state().unwrap().held_bytes, 0);
}

#[test]
fn memory_comes_back_again_and_again() {
    let Some(it) = Memcached::start("memcached", &["-m", "256"]) else { return };
    let store = open_store(&it.entry()).unwrap();
    it.fill("a", 16_000, 300 * MIB);
    shrink(&*store, &it.server, 128 * MIB);
    let state = store.state().unwrap();
    assert_eq!(state.capacity_bytes, 128 * MIB);
    assert!(state.release_bytes_per_s > 0 && !state.failed);

    store.resize(256 * MIB, DEADLINE).unwrap();
    it.fill("b", 2_000, 300 * MIB);
    assert!(it.server.resident_bytes() > 200 * MIB, "the larger limit is not used");
    shrink(&*store, &it.server, 64 * MIB);
    it.fill("c", 9_000, 128 * MIB);
    let after = it.server.resident_bytes();
    assert!(after < 72 * MIB, "grew to {} MiB by itself", after / MIB);
}

#[test]
fn a_full_server_keeps_what_is_below_the_limit() {
    let Some(it) = Memcached::start("memcached", &["-m", "128"]) else { return };
    let store = open_store(&it.entry()).unwrap();
    it.fill("a", 16_000, 60 * MIB);
    let before = it.server.resident_bytes();
    let done = store.resize(128 * MIB, DEADLINE).unwrap();
    assert_eq!(done.freed_bytes, 0);
    assert!(it.server.resident_bytes() >= before - MIB);
    let mut stream = UnixStream::connect(&it.socket).unwrap();
    stream.write_all(b"get a17\r\n").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert_eq!(line, "VALUE a17 0 16000\r\n");
}

#[test]
fn a_passed_deadline_is_told_honestly_and_the_rest_follows() {
    let Some(it) = Memcached::start("memcached", &["-m", "256"]) else { return };
    let store = open_store(&it.entry()).unwrap();
    it.fill("a", 16_000, 300 * MIB);
    let before = it.server.resident_bytes();
    let done = store.resize(32 * MIB, Duration::from_millis(5)).unwrap();
    let after = it.server.resident_bytes();
    // Where nothing came back yet, the kernel's count may even have grown by some pages.
    let gone = before.saturating_sub(after);
    assert!(done.freed_bytes.abs_diff(gone) <= 2 * MIB, "{done:?}, gone are {gone}");
    shrink(&*store, &it.server, 32 * MIB);
}

#[test]
fn a_server_that_hangs_fails_only_its_store() {
    let Some(it) = Memcached::start("memcached", &["-m", "64"]) else { return };
    let store = open_store(&it.entry()).unwrap();
    it.server.signal(Signal::STOP);
    let hung = store.resize(32 * MIB, DEADLINE).unwrap_err();
    assert_eq!(hung.kind(), ErrorKind::TimedOut, "{hung}");
    assert!(store.state().is_ok());
    it.server.signal(Signal::CONT);
    store.resize(32 * MIB, DEADLINE).unwrap();
}

#[test]
fn a_restarted_server_is_found_again() {
    let Some(mut it) = Memcached::start("memcached", &["-m", "256"]) else { return };
    let store = open_store(&it.entry()).unwrap();
    it.fill("a", 1_000, 300 * MIB);
    std::thread::scope(|scope| {
        let resize = scope.spawn(|| store.resize(16 * MIB, DEADLINE));
        it.server.signal(Signal::KILL);
        match resize.join().unwrap() {
            Err(error) => assert_eq!(error.kind(), ErrorKind::StoreUnavailable, "{error}"),
            Ok(done) => assert!(done.resident_bytes <= 16 * MIB, "{done:?}"),
        }
    });
    let program = program("memcached", "memcached").unwrap();
    let _ = std::fs::remove_file(&it.socket);
    it.server = launch(&program, &it.socket, it.directory.path(), &["-m", "256"]);
    it.fill("a", 16_000, 200 * MIB);
    shrink(&*store, &it.server, 100 * MIB);
    assert!(!store.state().unwrap().failed);
}

/// Nobody may believe that it keeps to what the one before was told.
#[test]
fn a_restarted_server_is_seen_with_the_limit_that_it_has() {
    let Some(mut it) = Memcached::start("memcached", &["-m", "256"]) else { return };
    let store = open_store(&it.entry()).unwrap();
    store.resize(64 * MIB, DEADLINE).unwrap();
    assert_eq!(store.state().unwrap().capacity_bytes, 64 * MIB);
    it.server.signal(Signal::KILL);
    let program = program("memcached", "memcached").unwrap();
    let _ = std::fs::remove_file(&it.socket);
    it.server = launch(&program, &it.socket, it.directory.path(), &["-m", "256"]);
    let begun = std::time::Instant::now();
    while store.state().unwrap().capacity_bytes < 256 * MIB {
        assert!(begun.elapsed() < DEADLINE * 10, "{:?}", store.state());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_dead_server_holds_nothing_and_is_failed() {
    let Some(it) = Memcached::start("memcached", &[]) else { return };
    let store = open_store(&it.entry()).unwrap();
    drop(it);
    let state = store.state().unwrap();
    assert!(state.failed && state.resident_bytes == 0, "{state:?}");
    let error = store.resize(16 * MIB, DEADLINE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreUnavailable, "{error}");
    assert!(error.remedy_text().is_some());
}

#[test]
fn preallocating_servers_are_refused() {
    let directory = directory();
    let memory = directory.path().join("memory");
    let arguments = ["-m", "64", "-e", memory.to_str().unwrap()];
    let Some(it) = Memcached::start("memcached", &arguments) else { return };
    let error = refusal(&it.entry());
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.remedy_text().is_some());
}

#[test]
fn a_server_that_must_keep_its_items_is_refused() {
    let Some(it) = Memcached::start("memcached", &["-M", "-m", "64"]) else { return };
    it.fill("a", 16_000, 32 * MIB);
    let before = it.server.resident_bytes();
    let error = refusal(&it.entry());
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.remedy_text().is_some_and(|remedy| remedy.contains("-M")), "{error}");
    assert!(it.server.resident_bytes() >= before);
}

#[test]
fn the_limit_is_put_back_also_after_a_restart_and_a_crash() {
    let Some(mut it) = Memcached::start("memcached", &["-m", "200"]) else { return };
    let store = open_store(&it.entry()).unwrap();
    it.fill("a", 16_000, 150 * MIB);
    shrink(&*store, &it.server, 64 * MIB);
    it.server.signal(Signal::KILL);
    let program = program("memcached", "memcached").unwrap();
    let _ = std::fs::remove_file(&it.socket);
    it.server = launch(&program, &it.socket, it.directory.path(), &["-m", "300"]);
    store.resize(64 * MIB, DEADLINE).unwrap();
    let left = store.limit_before().unwrap();
    assert!(it.limit() < 64 * MIB, "{left:?}");
    assert_eq!((left.process_id, left.limit_bytes), (it.server.pid(), 300 * MIB));
    drop(store); // as by `kill -9`: nothing is put back
    let store = open_store(&it.entry()).unwrap();
    store.adopt_limit(left);
    store.put_back().unwrap();
    assert_eq!(it.limit(), 300 * MIB);
}

#[test]
fn a_password_is_asked_for_and_used() {
    let directory = directory();
    let users = directory.path().join("users");
    std::fs::write(&users, "me:secret\n").unwrap();
    let own = directory.path().join("own");
    for (text, kind) in [("me:wrong", Some(ErrorKind::PermissionDenied)), ("me:secret", None)] {
        // The authentication file of the server works with TCP and Unix sockets alike.
        let Some(it) = Memcached::start("memcached", &["-Y", users.to_str().unwrap()]) else {
            return;
        };
        let bare = refusal(&it.entry());
        assert_eq!(bare.kind(), ErrorKind::PermissionDenied, "{bare}");
        std::fs::write(&own, text).unwrap();
        rustix::fs::chmod(&own, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        let entry = format!("{}password_file = '{}'\n", it.entry(), own.display());
        match kind {
            Some(kind) => assert_eq!(refusal(&entry).kind(), kind),
            None => drop(open_store(&entry).unwrap()),
        }
    }
}

#[test]
fn what_is_no_memcached_is_refused_with_a_remedy() {
    let cases = [
        (free_port(), ErrorKind::StoreUnavailable),
        (impostor(b"HTTP/1.1 400 Bad Request\r\n\r\n"), ErrorKind::Protocol),
        (impostor(b"\x00\xff\x81\x00\x00\n"), ErrorKind::Protocol),
        (impostor(b""), ErrorKind::TimedOut),
    ];
    for (port, kind) in cases {
        let error = refusal(&entry(&format!("127.0.0.1:{port}")));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.remedy_text().is_some(), "{error}");
    }
    assert_eq!(refusal(&entry("no port")).kind(), ErrorKind::InvalidInput);
}

/// Figures for the guide: `cargo test --release -p tidepool-control memcached -- --ignored`.
#[test]
#[ignore = "long: measures; prints seconds a GiB"]
fn release_rate() {
    for size in [200, 4_000, 16_000, 100_000] {
        let Some(it) = Memcached::start("memcached", &["-m", "1100"]) else { return };
        let store = open_store(&it.entry()).unwrap();
        it.fill("a", size, 1_300 * MIB);
        let before = it.server.resident_bytes();
        let done = store.resize(before - 512 * MIB, Duration::from_secs(60)).unwrap();
        let state = store.state().unwrap();
        assert!(state.speed == StoreSpeed::Fast || state.speed == StoreSpeed::Slow);
        figure("memcached", &format!("values of {size}: {:?}, {state:?}", done));
    }
}
