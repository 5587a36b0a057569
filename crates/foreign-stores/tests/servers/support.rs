//! Servers that end with the test, and a second opinion on their memory.

use std::ffi::OsStr;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidepool_control::actuator::Actuator;
use tidepool_foreign_stores::{StoreConfiguration, open};
use tidepool_proto::Result;

use crate::skip::say;
pub use crate::skip::skip;

pub const MIB: u64 = 1 << 20;
pub const DEADLINE: Duration = Duration::from_secs(20);
const START_TIME: Duration = Duration::from_secs(90);

/// Path of a program, or a printed reason to skip `test`.
pub fn program(name: &str, test: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = directories.map(|directory| directory.join(name)).find(|path| path.is_file());
    if found.is_none() {
        skip(test, &format!("`{name}` is not installed"));
    }
    found
}

/// Says what was measured.
pub fn figure(of: &str, text: &str) {
    say(&format!("measured {of}: {text}\n"));
}

/// A server process; killed and collected when dropped.
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts a program in `directory`; it is up when `answers` says so.
    pub fn start<A: AsRef<OsStr>>(
        program: &Path,
        arguments: &[A],
        directory: &Path,
        answers: impl Fn() -> bool,
    ) -> Server {
        let log = std::fs::File::create(directory.join("server.log")).unwrap();
        let child = Command::new(program)
            .args(arguments)
            .current_dir(directory)
            // As the guide has it.
            .env("MALLOC_MMAP_THRESHOLD_", "131072")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Server { child };
        let started = Instant::now();
        while !answers() {
            let ended = server.child.try_wait().unwrap();
            if ended.is_some() || started.elapsed() > START_TIME {
                let log = std::fs::read_to_string(directory.join("server.log"));
                panic!("{} does not start ({ended:?}): {log:?}", program.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    /// Bytes resident, from a file that the product does not read.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// Number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory with a short path, for sockets.
pub fn directory() -> TempDir {
    tempfile::Builder::new().prefix("store-").tempdir_in("/tmp").unwrap()
}

/// Options of a Java 17 that open what Alluxio and Hadoop reach into.
pub fn opened() -> impl Iterator<Item = String> {
    let packages =
        ["java.lang", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"];
    packages.into_iter().map(|package| format!("--add-opens=java.base/{package}=ALL-UNNAMED"))
}

/// Whether something listens at a Unix socket.
pub fn listens(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// A port that nobody uses now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Opens a store from the text of its configuration entry.
pub fn open_store(entry: &str) -> Result<Box<dyn Actuator>> {
    open(&toml::from_str::<StoreConfiguration>(entry).unwrap())
}

/// The error of a store that must not open.
pub fn refusal(entry: &str) -> tidepool_proto::Error {
    match open_store(entry) {
        Ok(_) => panic!("opened: {entry}"),
        Err(error) => error,
    }
}

/// Waits for what another thread does in its own time.
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < START_TIME, "{what} never came");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A listener that answers every connection with `answer` and then stays silent.
pub fn impostor(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.write_all(answer);
            kept.push(stream);
        }
    });
    port
}

/// The jar of the Java program, as `./x build` makes it, or a printed reason to skip `test`.
pub fn stores_jar(test: &str) -> Option<PathBuf> {
    let jar = jar();
    if !jar.is_file() {
        skip(test, &format!("no {}", jar.display()));
        return None;
    }
    Some(jar)
}

fn jar() -> PathBuf {
    let name = format!("tidepool-stores-{}.jar", env!("CARGO_PKG_VERSION"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../java/stores/target").join(name)
}

/// The entries of a store's Java program.
pub fn java_entry(class_path: &str) -> String {
    format!("java = {{ class_path = '{class_path}', jar = '{}' }}\n", jar().display())
}

/// The Java programs that this process has started with this class path.
pub fn java_programs(class_path: &str) -> Vec<rustix::process::Pid> {
    let own = format!("PPid:\t{}\n", std::process::id());
    let is_one = |process: &Path| {
        let read = |name: &str| std::fs::read_to_string(process.join(name)).unwrap_or_default();
        let words = read("cmdline");
        read("status").contains(&own)
            && words.contains(class_path)
            && words.contains("io.tidepool.stores.Stores")
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| is_one(&entry.path()))
        .filter_map(|entry| {
            rustix::process::Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)
        })
        .collect()
}
