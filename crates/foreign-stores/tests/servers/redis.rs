//! Tests of Redis and Valkey: memory that the system has back, which the server's own count hides.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use tidepool_control::actuator::Actuator;
use tidepool_foreign_stores::{LateStore, Siblings};
use tidepool_proto::ErrorKind;

use crate::support::{
    DEADLINE, MIB, Server, directory, figure, free_port, impostor, listens, open_store, program,
    refusal, until,
};

struct Redis {
    server: Server,
    socket: PathBuf,
    // Last, so that the server ends before its directory goes.
    directory: TempDir,
}

const EVICTING: [&str; 4] = ["--maxmemory-policy", "allkeys-lru", "--maxmemory", "1gb"];

impl Redis {
    fn start(kind: &str, arguments: &[&str]) -> Option<Self> {
        let directory = directory();
        let socket = directory.path().join("s");
        let program = program(&format!("{kind}-server"), kind)?;
        let server = launch(&program, &socket, directory.path(), arguments);
        Some(Redis { server, socket, directory })
    }

    fn entry(&self) -> String {
        entry(self.socket.to_str().unwrap())
    }

    fn tell(&self, command: &str) -> String {
        tell(&self.socket, command)
    }

    /// `maxmemory`.
    fn limit(&self) -> u64 {
        let answer = self.tell("CONFIG GET maxmemory");
        let mut numbers = answer.lines().rev().filter_map(|line| line.parse().ok());
        numbers.next().unwrap_or_else(|| panic!("{answer}"))
    }

    fn until_limit(&self, bytes: u64) {
        until("the limit", || self.limit() == bytes);
    }

    /// Stores `total` bytes in values of `size` bytes, and waits until the server has them.
    fn fill(&self, size: usize, total: u64) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.write_all(b"CLIENT REPLY OFF\r\n").unwrap();
        let value = "x".repeat(size);
        let mut batch = String::new();
        for number in 0..total / size as u64 {
            batch += &format!("SET k{number:09} {value}\r\n");
            if batch.len() > 1 << 20 {
                stream.write_all(batch.as_bytes()).unwrap();
                batch.clear();
            }
        }
        stream.write_all(batch.as_bytes()).unwrap();
        stream.write_all(b"CLIENT REPLY ON\r\n").unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
    }
}

fn launch(program: &Path, socket: &Path, directory: &Path, arguments: &[&str]) -> Server {
    let fixed = ["--port", "0", "--save", "", "--unixsocket", socket.to_str().unwrap()];
    let all: Vec<&str> = fixed.into_iter().chain(arguments.iter().copied()).collect();
    Server::start(program, &all, directory, || listens(socket))
}

/// The answer to one inline command.
fn tell(socket: &Path, command: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "{command}\r\nQUIT\r\n").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_to_string(&mut answer).unwrap();
    answer
}

fn entry(address: &str) -> String {
    format!(
        "kind = 'redis'\nname = 'cache'\naddress = '{address}'\n\
         capacity_min_bytes = '16MiB'\ncapacity_max_bytes = '1GiB'\n"
    )
}

fn gives_back(kind: &str) {
    let Some(it) = Redis::start(kind, &EVICTING) else { return };
    let store = open_store(&it.entry()).unwrap();
    it.fill(16_000, 250 * MIB);
    let before = it.server.resident_bytes();
    assert!(before > 250 * MIB);
    let done = store.resize(128 * MIB, DEADLINE).unwrap();
    let after = it.server.resident_bytes();
    assert!(after <= 130 * MIB, "{} MiB left", after / MIB);
    assert!(done.freed_bytes.abs_diff(before - after) <= MIB, "{done:?} of {}", before - after);
    // No more went than had to.
    assert!(after >= 100 * MIB, "{} MiB left", after / MIB);
    store.resize(256 * MIB, DEADLINE).unwrap();
    it.fill(16_000, 250 * MIB);
    assert!(it.server.resident_bytes() > 220 * MIB, "the larger limit is not used");
    let state = store.state().unwrap();
    assert!(!state.failed && state.capacity_bytes == 256 * MIB, "{state:?}");
}

#[test]
fn redis_gives_memory_back() {
    gives_back("redis");
}

#[test]
#[ignore = "long: needs `valkey-server`, which not every release packages"]
fn valkey_gives_memory_back() {
    gives_back("valkey");
}

#[test]
fn bytes_that_stay_in_fragments_are_held_not_freed() {
    let Some(it) = Redis::start("redis", &EVICTING) else { return };
    let store = open_store(&it.entry()).unwrap();
    it.fill(200, 60 * MIB);
    let before = it.server.resident_bytes();
    let target = before / 2;
    let done = store.resize(target, DEADLINE).unwrap();
    let after = it.server.resident_bytes();
    assert!(done.freed_bytes.abs_diff(before - after) <= MIB, "{done:?} of {}", before - after);
    let state = store.state().unwrap();
    assert!(state.held_bytes.abs_diff(after.saturating_sub(target)) <= MIB, "{state:?}");
    let answer = it.tell("DBSIZE");
    let left = answer.trim_start_matches(':').lines().next().unwrap().parse::<u64>().unwrap();
    assert!(left < 60 * MIB / 200, "nothing was evicted");
}

#[test]
fn a_deadline_ends_the_waiting_and_the_tenacity_is_put_back() {
    let Some(it) = Redis::start("redis", &EVICTING) else { return };
    let store = open_store(&format!("{}eviction_tenacity = 60\n", it.entry())).unwrap();
    it.fill(1_000, 150 * MIB);
    let before = it.server.resident_bytes();
    // On a busy machine it may end before anything was asked for.
    match store.resize(32 * MIB, Duration::from_millis(10)) {
        Ok(done) => assert!(done.freed_bytes <= before - 32 * MIB),
        Err(late) => assert_eq!(late.kind(), ErrorKind::TimedOut, "{late}"),
    }
    assert!(it.tell("CONFIG GET maxmemory-eviction-tenacity").contains("\r\n10\r\n"));
    store.resize(32 * MIB, DEADLINE).unwrap();
    assert!(it.tell("CONFIG GET maxmemory-eviction-tenacity").contains("\r\n10\r\n"));
}

#[test]
fn a_server_that_does_not_evict_is_refused_also_later_and_has_its_limit_then() {
    let Some(it) = Redis::start("redis", &["--maxmemory", "100mb"]) else { return };
    let error = refusal(&it.entry());
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.remedy_text().is_some_and(|remedy| remedy.contains("maxmemory-policy")));
    it.tell("CONFIG SET maxmemory-policy allkeys-lfu");
    let store = open_store(&it.entry()).unwrap();
    it.fill(16_000, 80 * MIB);
    store.resize(24 * MIB, DEADLINE).unwrap();
    assert!(it.limit() < 24 * MIB);
    // Whichever command comes next, also one that lets it grow.
    for capacity_bytes in [16 * MIB, 32 * MIB] {
        it.tell("CONFIG SET maxmemory-policy noeviction");
        let refused = store.resize(capacity_bytes, DEADLINE).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        assert_eq!(it.limit(), 100 << 20, "writes would be refused");
        it.tell("CONFIG SET maxmemory-policy allkeys-lfu");
        store.resize(24 * MIB, DEADLINE).unwrap();
    }
    // And where no command comes.
    it.tell("CONFIG SET maxmemory-policy noeviction");
    it.until_limit(100 << 20);
    assert!(store.state().unwrap().failed);
}

#[test]
fn a_server_that_evicts_only_what_expires_is_left_alone_once_it_holds_anything_else() {
    let volatile = ["--maxmemory-policy", "volatile-lru", "--maxmemory", "400mb"];
    let Some(it) = Redis::start("redis", &volatile) else { return };
    it.fill(16_000, 60 * MIB);
    // Most of the keys expire, most of the bytes do not.
    let sessions = (0..9_000).map(|key| format!("SET session{key} of-somebody EX 9999\r\n"));
    it.tell(&sessions.collect::<String>());
    let error = refusal(&it.entry());
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    it.tell("FLUSHALL");
    it.fill(16_000, 60 * MIB);
    let expire = (0..60 * MIB / 16_000).map(|key| format!("EXPIRE k{key:09} 9999\r\n"));
    it.tell(&expire.collect::<String>());
    let store = open_store(&it.entry()).unwrap();
    store.resize(32 * MIB, DEADLINE).unwrap();
    assert!(it.server.resident_bytes() <= 34 * MIB && it.limit() < 34 * MIB);
    assert!(it.tell("SET for-ever it-stays").starts_with("+OK"));
    it.until_limit(400 << 20);
    store.resize(16 * MIB, DEADLINE).unwrap_err();
    assert_eq!(it.limit(), 400 << 20);
    it.tell("DEL for-ever");
    store.resize(16 * MIB, DEADLINE).unwrap();
    assert!(it.limit() < 32 * MIB, "governed again");
}

#[test]
fn no_capacity_is_so_small_that_writes_fail() {
    let Some(it) = Redis::start("redis", &EVICTING) else { return };
    let store = open_store(&it.entry().replace("'16MiB'", "0")).unwrap();
    it.fill(1_000, 40 * MIB);
    store.resize(0, DEADLINE).unwrap();
    let written = it.tell(&"SET one more\r\nSET and another\r\n".repeat(500));
    assert!(!written.contains("OOM"), "{}", it.limit());
}

/// Fills a server with what no eviction frees, and with data; `false` where it knows no such thing.
type Overhead = fn(&Redis) -> bool;

fn scripts(it: &Redis) -> bool {
    let text = "y".repeat(900);
    let load = |number| format!("SCRIPT LOAD \"return {number}--{text}\"\r\n");
    !it.tell(&(0..12_000).map(load).collect::<String>()).contains("-ERR")
}

fn functions(it: &Redis) -> bool {
    let text = "y".repeat(30_000);
    let load = |number| {
        let register = format!("redis.register_function('f{number}', function() return 1 end)");
        format!("FUNCTION LOAD \"#!lua name=l{number}\\n{register}\\n--{text}\"\r\n")
    };
    !it.tell(&(0..400).map(load).collect::<String>()).contains("-ERR")
}

#[test]
fn what_no_eviction_frees_is_no_reason_to_refuse_writes() {
    let overheads: [Overhead; 3] = [scripts, functions, |_| true];
    for (index, overhead) in overheads.iter().enumerate() {
        let Some(it) = Redis::start("redis", &EVICTING) else { return };
        if !overhead(&it) {
            figure("redis", &format!("overhead {index} is not known to this release"));
            continue;
        }
        // Channels that somebody listens to, which no figure of the server tells.
        let mut listener = UnixStream::connect(&it.socket).unwrap();
        if index == 2 {
            let channel = "z".repeat(120);
            for part in 0..100 {
                let names: String =
                    (0..500).map(|number| format!(" {channel}{part}-{number}")).collect();
                write!(listener, "SUBSCRIBE{names}\r\n").unwrap();
                let mut answers = listener.try_clone().unwrap();
                let mut left = 500;
                let mut bytes = [0; 1 << 16];
                while left > 0 {
                    let length = answers.read(&mut bytes).unwrap();
                    left -= bytes[..length].iter().filter(|byte| **byte == b':').count();
                }
            }
        }
        let store = open_store(&it.entry().replace("'16MiB'", "0")).unwrap();
        for _ in 0..2 {
            it.fill(10_000, 40 * MIB);
            store.resize(0, DEADLINE).unwrap();
            let written = it.tell("SET one more\r\n");
            assert!(!written.contains("OOM"), "{index}: {}", it.limit());
        }
        drop(listener);
    }
}

#[test]
fn a_value_of_some_mebibytes_fits_whatever_the_capacity() {
    let Some(it) = Redis::start("redis", &EVICTING) else { return };
    let store = open_store(&it.entry().replace("'16MiB'", "0")).unwrap();
    it.fill(10_000, 40 * MIB);
    store.resize(0, DEADLINE).unwrap();
    let value = "x".repeat(4 << 20);
    for _ in 0..3 {
        let length = value.len();
        let mut stream = UnixStream::connect(&it.socket).unwrap();
        write!(stream, "*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${length}\r\n{value}\r\n").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+OK\r\n", "at {}", it.limit());
    }
}

#[test]
fn a_release_ends_where_more_is_wanted_by_then() {
    let Some(it) = Redis::start("redis", &EVICTING) else { return };
    let store = open_store(&it.entry()).unwrap();
    it.fill(16_000, 250 * MIB);
    store.expect(512 * MIB);
    let done = store.resize(32 * MIB, DEADLINE).unwrap();
    assert!(done.resident_bytes > 128 * MIB, "it went on: {done:?}");
    store.resize(512 * MIB, DEADLINE).unwrap();
    assert!(it.limit() > 256 * MIB);
}

#[test]
fn a_server_under_two_names_is_governed_under_one_and_gets_its_own_limit_back() {
    let Some(it) = Redis::start("redis", &EVICTING) else { return };
    let found = it.limit();
    let siblings = Siblings::default();
    let start = |name: &str| {
        let entry = it.entry().replace("'cache'", &format!("'{name}'"));
        let late = LateStore::start(toml::from_str(&entry).unwrap(), &siblings).unwrap();
        late.wait_for_first_try(Instant::now() + DEADLINE);
        late
    };
    let (first, second) = (start("first"), start("second"));
    it.fill(16_000, 100 * MIB);
    first.resize(64 * MIB, DEADLINE).unwrap();
    let limit = it.limit();
    let refused = second.resize(32 * MIB, DEADLINE).unwrap_err().to_string();
    assert!(refused.contains("`first`") && refused.contains("`second`"), "{refused}");
    second.state().unwrap_err();
    assert_eq!(it.limit(), limit);
    second.put_back().unwrap();
    assert_eq!(it.limit(), limit, "what it has not set it does not put back");
    // What a killed controller left under the name that is refused now is not lost.
    let left = first.limit_before().unwrap();
    drop((first, second));
    let (first, second) = (start("first"), start("second"));
    second.adopt_limit(left);
    first.put_back().unwrap();
    assert_eq!(it.limit(), found);
}

#[test]
fn the_limit_is_put_back_also_after_a_crash() {
    let Some(it) = Redis::start("redis", &EVICTING) else { return };
    let found = it.limit();
    // What comes between the crash and the next controller: nothing, or an administrator.
    for (chosen, put_back) in [(None, found), (Some(777 * MIB), 777 * MIB)] {
        let store = open_store(&it.entry()).unwrap();
        it.fill(16_000, 100 * MIB);
        store.resize(64 * MIB, DEADLINE).unwrap();
        let left = store.limit_before().unwrap();
        assert!(it.limit() < 64 * MIB && left.limit_bytes == found, "{left:?}");
        drop(store); // as by `kill -9`: nothing is put back
        if let Some(bytes) = chosen {
            it.tell(&format!("CONFIG SET maxmemory {bytes}"));
        }
        let store = open_store(&it.entry()).unwrap();
        store.adopt_limit(left);
        store.put_back().unwrap();
        assert_eq!(it.limit(), put_back);
        store.resize(32 * MIB, DEADLINE).unwrap_err();
        assert_eq!(it.limit(), put_back, "no command comes after the end");
    }
}

#[test]
fn what_an_administrator_sets_meanwhile_is_put_back() {
    let Some(it) = Redis::start("redis", &EVICTING) else { return };
    let store = open_store(&it.entry()).unwrap();
    for chosen in [100 * MIB, 900 * MIB] {
        store.resize(64 * MIB, DEADLINE).unwrap();
        it.tell(&format!("CONFIG SET maxmemory {chosen}"));
        store.resize(512 * MIB, DEADLINE).unwrap();
        assert_eq!(store.limit_before().unwrap().limit_bytes, chosen);
    }
    store.put_back().unwrap();
    assert_eq!(it.limit(), 900 * MIB);
}

#[test]
fn a_server_that_comes_later_is_governed_and_gets_back_what_a_crash_left() {
    let Some(mut it) = Redis::start("redis", &EVICTING) else { return };
    let found = it.limit();
    let store = open_store(&it.entry()).unwrap();
    it.fill(16_000, 100 * MIB);
    store.resize(64 * MIB, DEADLINE).unwrap();
    let left = store.limit_before().unwrap();
    drop(store); // as by `kill -9`
    it.server.signal(Signal::STOP);
    let late = late_store(&it.entry());
    late.adopt_limit(left.clone());
    late.state().unwrap_err();
    late.resize(32 * MIB, DEADLINE).unwrap_err();
    it.server.signal(Signal::CONT);
    until("the store", || late.state().is_ok());
    late.resize(32 * MIB, DEADLINE).unwrap();
    late.put_back().unwrap();
    assert_eq!(it.limit(), found);
    // It does not evict any more, so nobody governs it; its limit is put back all the same.
    it.tell(&format!("CONFIG SET maxmemory {}", left.set_bytes[0]));
    it.tell("CONFIG SET maxmemory-policy noeviction");
    let refused = late_store(&it.entry());
    refused.adopt_limit(left);
    it.until_limit(found);
    refused.state().unwrap_err();
    // One that is not there at all.
    let socket = it.socket.clone();
    let _ = std::fs::remove_file(&socket);
    let late = late_store(&entry(socket.to_str().unwrap()));
    assert!(!late.wait_for_first_try(Instant::now() + DEADLINE));
    let program = program("redis-server", "redis").unwrap();
    it.server = launch(&program, &socket, it.directory.path(), &EVICTING);
    // A command that waits for it is no failure.
    until("the store", || late.resize(0, DEADLINE).is_ok());
    late.put_back().unwrap();
    assert_eq!(it.limit(), found);
}

fn late_store(entry: &str) -> LateStore {
    LateStore::start(toml::from_str(entry).unwrap(), &Siblings::default()).unwrap()
}

#[test]
fn a_replica_that_ignores_its_limit_is_refused() {
    let arguments = [&EVICTING[..], &["--replicaof", "127.0.0.1 1"]].concat();
    let Some(it) = Redis::start("redis", &arguments) else { return };
    let error = refusal(&it.entry());
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn a_password_is_asked_for_and_used() {
    let arguments = [&EVICTING[..], &["--requirepass", "secret"]].concat();
    let Some(it) = Redis::start("redis", &arguments) else { return };
    assert_eq!(refusal(&it.entry()).kind(), ErrorKind::PermissionDenied);
    let file = it.directory.path().join("password");
    let entry = format!("{}password_file = '{}'\n", it.entry(), file.display());
    for (text, opens) in [("wrong", false), ("secret", true), ("default:secret", true)] {
        std::fs::write(&file, text).unwrap();
        rustix::fs::chmod(&file, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        match opens {
            true => drop(open_store(&entry).unwrap()),
            false => assert_eq!(refusal(&entry).kind(), ErrorKind::PermissionDenied),
        }
    }
}

#[test]
fn a_server_without_config_is_refused() {
    let arguments = [&EVICTING[..], &["--rename-command", "CONFIG", ""]].concat();
    let Some(it) = Redis::start("redis", &arguments) else { return };
    assert_eq!(refusal(&it.entry()).kind(), ErrorKind::Unsupported);
}

#[test]
fn hanging_ending_and_restarting_servers_are_survived() {
    let Some(mut it) = Redis::start("redis", &EVICTING) else { return };
    let store = open_store(&it.entry()).unwrap();
    it.fill(1_000, 100 * MIB);
    it.server.signal(Signal::STOP);
    let hung = store.resize(32 * MIB, DEADLINE).unwrap_err();
    assert_eq!(hung.kind(), ErrorKind::TimedOut, "{hung}");
    it.server.signal(Signal::CONT);
    std::thread::scope(|scope| {
        let resize = scope.spawn(|| store.resize(16 * MIB, DEADLINE));
        it.server.signal(Signal::KILL);
        if let Err(error) = resize.join().unwrap() {
            assert_eq!(error.kind(), ErrorKind::StoreUnavailable, "{error}");
        }
    });
    let server = program("redis-server", "redis").unwrap();
    let _ = std::fs::remove_file(&it.socket);
    it.server = launch(&server, &it.socket, it.directory.path(), &EVICTING);
    it.fill(16_000, 100 * MIB);
    store.resize(64 * MIB, DEADLINE).unwrap();
    assert!(it.server.resident_bytes() <= 66 * MIB);
    assert!(!store.state().unwrap().failed);
}

#[test]
fn what_is_no_redis_is_refused_with_a_remedy() {
    let cases = [
        (free_port(), ErrorKind::StoreUnavailable),
        (impostor(b"HTTP/1.1 400 Bad Request\r\n\r\n"), ErrorKind::Protocol),
        (impostor(b"$99999999999\r\n"), ErrorKind::Protocol),
        (impostor(b"*-7\r\n"), ErrorKind::Protocol),
        (impostor(b"\xff\xfe\n"), ErrorKind::Protocol),
        (impostor(b"\n"), ErrorKind::Protocol),
        (impostor(b""), ErrorKind::TimedOut),
    ];
    for (port, kind) in cases {
        let error = refusal(&entry(&format!("127.0.0.1:{port}")));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.remedy_text().is_some(), "{error}");
    }
}

/// Figures for the guide: `cargo test -p tidepool-control redis -- --ignored`.
#[test]
#[ignore = "long: measures; prints seconds a GiB"]
fn release_rate() {
    for (size, tenacity) in [(200, 10), (4_000, 10), (4_000, 60), (64_000, 10)] {
        let Some(it) = Redis::start("redis", &EVICTING) else { return };
        let store = open_store(&format!("{}eviction_tenacity = {tenacity}\n", it.entry())).unwrap();
        it.fill(size, 700 * MIB);
        let before = it.server.resident_bytes();
        let done = store.resize(before - 512 * MIB, Duration::from_secs(60)).unwrap();
        let state = store.state().unwrap();
        figure("redis", &format!("values of {size}, tenacity {tenacity}: {done:?} {state:?}"));
    }
}
