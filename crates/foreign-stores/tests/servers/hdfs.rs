//! HDFS: the limit of a cache pool, and bytes that its DataNode has unlocked.
//!
//! Its daemons take half a minute to start, so their test runs only where it is asked for. The
//! DataNode may lock what `ulimit -l` says, up to 256 MiB:
//!
//! ```sh
//! mvn -f crates/foreign-stores/tests/servers/hdfs-pom.xml package -Djars=/var/tmp/hdfs-jars
//! mvn -f java/pom.xml -Drevision=0.1.0 --projects=stores --also-make package
//! TIDEPOOL_HDFS_JARS=/var/tmp/hdfs-jars \
//!     cargo test -p tidepool-foreign-stores --test servers hdfs -- --include-ignored
//! ```

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tidepool_control::actuator::{Actuator, LimitBefore};
use tidepool_foreign_stores::{LateStore, Siblings};
use tidepool_proto::ErrorKind;

use crate::support::{
    MIB, Server, directory, figure, free_port, java_entry, java_programs, open_store, opened,
    program, refusal, skip, stores_jar, until,
};

const JARS: &str = "TIDEPOOL_HDFS_JARS";
const DEADLINE: Duration = Duration::from_secs(120);
const CACHE_BYTES_MAX: u64 = 256 * MIB;
const CACHE_BYTES_MIN: u64 = MIB;
/// Without a level of its own everything is logged, and the NameNode fails to word some of it.
const LOGGING: &str = "\
log4j.rootLogger=WARN, A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.target=System.err
log4j.appender.A.layout=org.apache.log4j.SimpleLayout
";
/// Files in the pool; the cache has room for one more.
const FILES: u64 = 7;

struct Hdfs {
    data_node: Server,
    _name_node: Server,
    data_node_page: u16,
    file_bytes: u64,
    java: Vec<String>,
    class_path: String,
    directory: TempDir,
}

impl Hdfs {
    /// Starts both daemons with the files in a pool `warm`.
    fn start() -> Option<Self> {
        let Some(jars) = std::env::var_os(JARS).map(PathBuf::from) else {
            skip("hdfs", &format!("{JARS} names no directory with its jars"));
            return None;
        };
        let cache_bytes = lockable_bytes();
        if cache_bytes < CACHE_BYTES_MIN {
            skip("hdfs", "`ulimit -l` lets a process lock next to nothing");
            return None;
        }
        let java = program("java", "hdfs")?;
        stores_jar("hdfs")?;
        let directory = directory();
        let place = directory.path();
        let ports = [(); 5].map(|()| free_port());
        configure(&place.join("conf"), place, &ports, cache_bytes);
        let class_path = format!("{}:{}/*", place.join("conf").display(), jars.display());
        let java = machine(&java, &jars, &class_path);
        run(&java, &["org.apache.hadoop.hdfs.server.namenode.NameNode", "-format", "-force"]);
        let daemon = |class: &str, answers: &dyn Fn() -> bool| {
            let own = place.join(class.rsplit('.').next().unwrap());
            std::fs::create_dir(&own).unwrap();
            let command: Vec<&str> = java[1..].iter().map(String::as_str).chain([class]).collect();
            Server::start(Path::new(&java[0]), &command, &own, answers)
        };
        let name_node = daemon("org.apache.hadoop.hdfs.server.namenode.NameNode", &|| {
            TcpStream::connect(("127.0.0.1", ports[0])).is_ok()
        });
        let data_node = daemon("org.apache.hadoop.hdfs.server.datanode.DataNode", &|| {
            bean(ports[1], "NameNode,name=FSNamesystemState", "NumLiveDataNodes") == Some(1)
        });
        std::fs::write(place.join("pid"), format!("{}\n", data_node.pid())).unwrap();
        let file_bytes = cache_bytes / (FILES + 1) / page_bytes() * page_bytes();
        let it = Hdfs {
            data_node,
            _name_node: name_node,
            data_node_page: ports[3],
            file_bytes,
            java,
            class_path,
            directory,
        };
        it.fill();
        Some(it)
    }

    fn fill(&self) {
        let files = self.directory.path().join("warm");
        std::fs::create_dir(&files).unwrap();
        for number in 0..FILES {
            let content = vec![number as u8; self.file_bytes as usize];
            std::fs::write(files.join(number.to_string()), content).unwrap();
        }
        let shell = "org.apache.hadoop.fs.FsShell";
        run(&self.java, &[shell, "-put", files.to_str().unwrap(), "/"]);
        self.cache_command(&["-addPool", "warm"]);
        self.cache_command(&["-addDirective", "-path", "/warm", "-pool", "warm"]);
    }

    fn cache_command(&self, arguments: &[&str]) -> String {
        let mut words = vec!["org.apache.hadoop.hdfs.tools.CacheAdmin"];
        words.extend(arguments);
        run(&self.java, &words)
    }

    /// The limit of the pool, as Hadoop's own command shows it.
    fn pool_limit(&self) -> Option<u64> {
        let list = self.cache_command(&["-listPools", "warm"]);
        let line = list.lines().find(|line| line.starts_with("warm")).unwrap();
        let limit = line.split_whitespace().nth(4).unwrap();
        (limit != "unlimited").then(|| limit.parse().unwrap())
    }

    /// What the DataNode itself says it caches.
    fn cached_bytes(&self) -> u64 {
        bean(self.data_node_page, "DataNode,name=FSDatasetState*", "CacheUsed").unwrap()
    }

    /// Waits until the DataNode says so as well: it unlocks first and counts then.
    fn await_cached(&self, bytes: u64) {
        let begun = Instant::now();
        while self.cached_bytes() != bytes {
            assert!(begun.elapsed() < DEADLINE, "{} bytes, not {bytes}", self.cached_bytes());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn await_full(&self, store: &dyn Actuator) -> u64 {
        let full = FILES * self.file_bytes;
        let begun = Instant::now();
        while store.state().unwrap().resident_bytes < full {
            assert!(begun.elapsed() < DEADLINE, "{} bytes cached", self.cached_bytes());
            std::thread::sleep(Duration::from_millis(50));
        }
        full
    }

    fn entry(&self, pool: &str) -> String {
        entry(pool, &self.directory.path().join("pid"), &self.class_path)
    }
}

/// What processes from here may lock, raised as far as it may be.
fn lockable_bytes() -> u64 {
    let limits = getrlimit(Resource::Memlock);
    let raised = Rlimit { current: limits.maximum, ..limits };
    setrlimit(Resource::Memlock, raised).unwrap();
    let bytes = limits.maximum.unwrap_or(CACHE_BYTES_MAX).min(CACHE_BYTES_MAX);
    bytes / page_bytes() * page_bytes()
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

fn machine(java: &Path, jars: &Path, class_path: &str) -> Vec<String> {
    let processor = if cfg!(target_arch = "x86_64") { "amd64" } else { "aarch64" };
    let native = jars.join(format!("nativelib/Linux-{processor}"));
    let mut words = vec![java.to_str().unwrap().to_owned()];
    words.extend(opened());
    words.extend(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"].map(String::from));
    words.extend([
        format!("-Djava.library.path={}", native.display()),
        "-Djava.net.preferIPv4Stack=true".into(),
        "-cp".into(),
        class_path.to_owned(),
    ]);
    words
}

fn configure(conf: &Path, place: &Path, ports: &[u16; 5], cache_bytes: u64) {
    // The servers want directories for their pages, and work without pages.
    for pages in ["hdfs", "datanode", "static"] {
        std::fs::create_dir_all(conf.join("webapps").join(pages)).unwrap();
    }
    let place = place.display();
    let address = |port: u16| format!("127.0.0.1:{port}");
    let settings = [
        ("hadoop.tmp.dir", format!("{place}/tmp")),
        ("dfs.replication", "1".into()),
        ("dfs.namenode.name.dir", format!("file://{place}/name")),
        ("dfs.datanode.data.dir", format!("file://{place}/data")),
        ("dfs.namenode.rpc-address", address(ports[0])),
        ("dfs.namenode.http-address", address(ports[1])),
        ("dfs.datanode.address", address(ports[2])),
        ("dfs.datanode.http.address", address(ports[3])),
        ("dfs.datanode.ipc.address", address(ports[4])),
        ("dfs.namenode.datanode.registration.ip-hostname-check", "false".into()),
        ("dfs.datanode.max.locked.memory", cache_bytes.to_string()),
        // As the guide advises.
        ("dfs.namenode.path.based.cache.retry.interval.ms", "1000".into()),
        ("dfs.datanode.du.reserved", "0".into()),
    ];
    let mut text = String::from("<configuration>\n");
    for (name, value) in settings {
        text += &format!("<property><name>{name}</name><value>{value}</value></property>\n");
    }
    std::fs::write(conf.join("hdfs-site.xml"), text + "</configuration>\n").unwrap();
    let root = format!("<name>fs.defaultFS</name><value>hdfs://{}</value>", address(ports[0]));
    let text = format!("<configuration><property>{root}</property></configuration>\n");
    std::fs::write(conf.join("core-site.xml"), text).unwrap();
    std::fs::write(conf.join("log4j.properties"), LOGGING).unwrap();
}

fn run(java: &[String], words: &[&str]) -> String {
    let done = Command::new(&java[0]).args(&java[1..]).args(words).output().unwrap();
    assert!(done.status.success(), "{words:?}: {done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// A figure of a daemon's management page; nothing where it does not answer yet.
fn bean(port: u16, bean: &str, figure: &str) -> Option<u64> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let headers = "Host: localhost\r\nConnection: close";
    let request = format!("GET /jmx?qry=Hadoop:service={bean} HTTP/1.1\r\n{headers}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let value = answer.split_once(&format!("\"{figure}\" : "))?.1;
    value.split([',', '\n']).next()?.trim().parse().ok()
}

fn entry(pool: &str, pid_file: &Path, class_path: &str) -> String {
    format!(
        "kind = 'hdfs'\nname = 'hdfs'\npool = '{pool}'\npid_file = '{}'\n\
         capacity_min_bytes = 0\ncapacity_max_bytes = '1GiB'\n{}",
        pid_file.display(),
        java_entry(class_path)
    )
}

#[test]
#[ignore = "long: starts daemons of HDFS from the jars in TIDEPOOL_HDFS_JARS"]
fn a_lower_limit_unlocks_what_is_above_it() {
    let Some(it) = Hdfs::start() else { return };
    let store = open_store(&it.entry("warm")).unwrap();
    let full = it.await_full(&*store);
    it.await_cached(full);

    let done = store.resize(3 * it.file_bytes + it.file_bytes / 2, DEADLINE).unwrap();
    let left = 3 * it.file_bytes;
    assert_eq!((done.freed_bytes, done.resident_bytes), (full - left, left), "whole files");
    it.await_cached(left);
    assert_eq!(store.state().unwrap().held_bytes, 0);
    figure("hdfs", &format!("{} KiB asked back of {}: {done:?}", (full / 2) >> 10, full >> 10));

    let begun = Instant::now();
    store.resize(u64::MAX, DEADLINE).unwrap();
    it.await_full(&*store);
    figure(
        "hdfs",
        &format!("full again {:.1} s after a higher limit", begun.elapsed().as_secs_f32()),
    );
    let done = store.resize(0, DEADLINE).unwrap();
    assert_eq!((done.freed_bytes, done.resident_bytes), (full, 0));
    it.await_cached(0);
    figure("hdfs", &format!("all asked back: {done:?}"));

    the_limit_is_put_back(&it, store);
    let store = open_store(&it.entry("warm")).unwrap();
    wrong_entries_say_so(&it);
    a_killed_program_is_started_again(&it, &*store);

    it.data_node.signal(rustix::process::Signal::KILL);
    let begun = Instant::now();
    while !store.state().unwrap().failed {
        assert!(begun.elapsed() < DEADLINE, "a killed DataNode seems to answer");
        std::thread::sleep(Duration::from_millis(10));
    }
    let error = refusal(&it.entry("warm"));
    assert_eq!(error.kind(), ErrorKind::StoreUnavailable, "{error}");
}

/// Also by the next controller, where one is killed.
fn the_limit_is_put_back(it: &Hdfs, store: Box<dyn Actuator>) {
    store.put_back().unwrap();
    assert_eq!(it.pool_limit(), None, "it had none");
    drop(store);
    let limit = 2 * it.file_bytes;
    it.cache_command(&["-modifyPool", "warm", "-limit", &limit.to_string()]);
    let killed = open_store(&it.entry("warm")).unwrap();
    killed.resize(it.file_bytes, DEADLINE).unwrap();
    let left = killed.limit_before().unwrap();
    drop(killed);
    assert_eq!(it.pool_limit(), Some(it.file_bytes));
    let next = open_store(&it.entry("warm")).unwrap();
    next.adopt_limit(left);
    next.put_back().unwrap();
    assert_eq!(it.pool_limit(), Some(limit));
    drop(next);
    it.cache_command(&["-modifyPool", "warm", "-limit", "unlimited"]);
}

fn wrong_entries_say_so(it: &Hdfs) {
    let error = refusal(&it.entry("none"));
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.detail().contains("none does not exist"), "{error}");
    let pid_file = it.directory.path().join("pid");
    let error = refusal(&entry("warm", &pid_file, "/no/such/place/*"));
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.remedy_text().unwrap().contains("class_path"), "{error}");
    let jars = it.class_path.split_once(':').unwrap().1;
    let error = refusal(&entry("warm", &pid_file, jars));
    assert!(error.detail().contains("fs.defaultFS"), "without the configuration: {error}");
}

fn a_killed_program_is_started_again(it: &Hdfs, store: &dyn Actuator) {
    let programs = java_programs(&it.class_path);
    assert_eq!(programs.len(), 1, "one for all commands");
    rustix::process::kill_process(programs[0], rustix::process::Signal::KILL).unwrap();
    let begun = Instant::now();
    while store.resize(u64::MAX, DEADLINE).is_err() {
        assert!(begun.elapsed() < DEADLINE, "it is not started again");
        std::thread::sleep(Duration::from_millis(100));
    }
    it.await_full(store);
}

#[test]
fn entries_that_cannot_work_are_refused() {
    let directory = directory();
    let place = directory.path();
    let file = |name: &str, text: &str| {
        std::fs::write(place.join(name), text).unwrap();
        place.join(name)
    };
    let own = file("own", &std::process::id().to_string());
    let text = file("text", "datanode");
    let none = file("none", &i32::MAX.to_string());
    let cases = [
        (entry("", &own, "/x"), ErrorKind::InvalidInput, "pool"),
        (entry("warm", &own, "/x"), ErrorKind::InvalidInput, "no DataNode"),
        (entry("warm", &text, "/x"), ErrorKind::StoreUnavailable, "no number"),
        (entry("warm", &none, "/x"), ErrorKind::StoreUnavailable, "2147483647"),
        (entry("warm", &place.join("x"), "/x"), ErrorKind::StoreUnavailable, "/x"),
    ];
    for (case, kind, what) in cases {
        let error = refusal(&case);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.detail().contains(what), "{error}");
        assert!(error.remedy_text().is_some(), "{error}");
    }
}

/// A pool of a NameNode that is a file with its limit, and a DataNode that caches nothing.
struct FakeHdfs {
    data_node: Child,
    place: TempDir,
}

impl FakeHdfs {
    fn start(limit_bytes: u64) -> FakeHdfs {
        let place = directory();
        let file = |name: &str| place.path().join(name);
        let script = format!(
            "#!/bin/sh\necho ready {version}\nwhile read number verb bytes; do\n\
             [ $verb = resize ] && echo $bytes > {limit}\n\
             echo $number done $(cat {limit})\ndone\n",
            version = env!("CARGO_PKG_VERSION"),
            limit = file("limit").display(),
        );
        std::fs::write(file("program"), script).unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(file("program"), executable).unwrap();
        std::fs::write(file("stores.jar"), "").unwrap();
        std::os::unix::fs::symlink("/bin/sh", file("java")).unwrap();
        let class = "org.apache.hadoop.hdfs.server.datanode.DataNode";
        let mut command = Command::new(file("java"));
        command.args(["-c", "read line", class]).stdin(Stdio::piped());
        let data_node = command.spawn().unwrap();
        std::fs::write(file("pid"), data_node.id().to_string()).unwrap();
        let name = format!("/proc/{}/comm", data_node.id());
        until("a DataNode", || std::fs::read_to_string(&name).unwrap() == "java\n");
        let it = FakeHdfs { data_node, place };
        it.set(limit_bytes);
        it
    }

    fn set(&self, limit_bytes: u64) {
        std::fs::write(self.place.path().join("limit"), limit_bytes.to_string()).unwrap();
    }

    fn limit(&self) -> u64 {
        let text = std::fs::read_to_string(self.place.path().join("limit")).unwrap();
        text.trim().parse().unwrap()
    }

    fn entry(&self) -> String {
        let place = self.place.path().display();
        format!(
            "kind = 'hdfs'\nname = 'hdfs'\npool = 'warm'\npid_file = '{place}/pid'\n\
             capacity_min_bytes = 0\ncapacity_max_bytes = '1GiB'\n\
             java = {{ class_path = '/x', program = '{place}/program', \
             jar = '{place}/stores.jar' }}\n"
        )
    }

    fn open(&self) -> Box<dyn Actuator> {
        open_store(&self.entry()).unwrap()
    }
}

impl Drop for FakeHdfs {
    fn drop(&mut self) {
        let _ = self.data_node.kill();
        let _ = self.data_node.wait();
    }
}

#[test]
fn the_limit_of_a_pool_is_put_back_at_the_end_of_control() {
    let unlimited = i64::MAX as u64;
    for (before, chosen, put_back) in
        [(unlimited, None, unlimited), (512 * MIB, None, 512 * MIB), (512 * MIB, Some(7), 7)]
    {
        let it = FakeHdfs::start(before);
        let store = it.open();
        for bytes in [64 * MIB, 32 * MIB] {
            store.resize(bytes, DEADLINE).unwrap();
            assert_eq!(it.limit(), bytes);
        }
        chosen.into_iter().for_each(|bytes| it.set(bytes));
        store.put_back().unwrap();
        assert_eq!(it.limit(), put_back);
        assert!(store.resize(0, DEADLINE).is_err(), "control is over");
        assert_eq!(it.limit(), put_back, "no command comes after the end");
    }
}

#[test]
fn the_next_controller_puts_the_limit_of_a_pool_back_after_a_crash() {
    let it = FakeHdfs::start(512 * MIB);
    let noted = Arc::new(Mutex::new(LimitBefore::default()));
    let killed = it.open();
    let of_witness = noted.clone();
    killed.on_limit(Box::new(move |before| {
        *of_witness.lock().unwrap() = before.clone();
        Ok(())
    }));
    killed.resize(64 * MIB, DEADLINE).unwrap();
    drop(killed);
    assert_eq!(it.limit(), 64 * MIB, "as after `kill -9`");
    let left = noted.lock().unwrap().clone();
    assert_eq!((left.limit_bytes, left.set_bytes.as_slice()), (512 * MIB, &[64 * MIB][..]));
    let next = it.open();
    next.adopt_limit(left);
    next.resize(32 * MIB, DEADLINE).unwrap();
    next.put_back().unwrap();
    assert_eq!(it.limit(), 512 * MIB);
}

#[test]
fn two_pools_of_a_data_node_are_governed_both_and_each_once() {
    let it = FakeHdfs::start(512 * MIB);
    let siblings = Siblings::default();
    let start = |name: &str, pool: &str| {
        let entry = it.entry().replace("name = 'hdfs'", &format!("name = '{name}'"));
        let entry = entry.replace("pool = 'warm'", &format!("pool = '{pool}'"));
        LateStore::start(toml::from_str(&entry).unwrap(), &siblings).unwrap()
    };
    let stores = [start("one", "warm"), start("two", "cold")];
    for store in &stores {
        until("a pool", || store.state().is_ok());
    }
    let again = start("three", "cold");
    until("a word of the twin", || {
        again.state().is_err_and(|error| error.to_string().contains("the server of store `two`"))
    });
}
