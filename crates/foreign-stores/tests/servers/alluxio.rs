//! Alluxio: room that is reserved in its worker, and bytes that its memory file system has lost.
//!
//! Its daemons take half a minute to start, so their tests run only where they are asked for:
//!
//! ```sh
//! mvn -f crates/foreign-stores/tests/servers/alluxio-pom.xml dependency:copy-dependencies \
//!     -DoutputDirectory=/var/tmp/alluxio-jars
//! mvn -f java/pom.xml -Drevision=0.1.0 --projects=stores --also-make package
//! TIDEPOOL_ALLUXIO_JARS=/var/tmp/alluxio-jars \
//!     cargo test -p tidepool-foreign-stores --test servers alluxio -- --include-ignored
//! ```

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tidepool_control::actuator::Actuator;
use tidepool_proto::ErrorKind;

use crate::support::{
    MIB, Server, directory, figure, free_port, java_entry, java_programs, open_store, opened,
    program, refusal, skip, stores_jar, until,
};

const JARS: &str = "TIDEPOOL_ALLUXIO_JARS";
const DEADLINE: Duration = Duration::from_secs(120);
const FILES: u64 = 10;
const FILE_BYTES: u64 = 25 * MIB;
const LRFU: [&str; 2] = [
    "worker.block.annotator.class=alluxio.worker.block.annotator.LRFUAnnotator",
    // Close to 0, how often counts and not when.
    "worker.block.annotator.lrfu.step.factor=0.01",
];

/// A memory file system; unmounted when dropped.
struct Ramdisk(PathBuf);

impl Ramdisk {
    fn mount(path: PathBuf) -> Self {
        std::fs::create_dir(&path).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=400m,mode=755", "tmpfs"];
        assert!(Command::new("mount").args(options).arg(&path).status().unwrap().success());
        Ramdisk(path)
    }

    fn used_bytes(&self) -> u64 {
        let output = Command::new("df").args(["--output=used", "-B1"]).arg(&self.0).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.lines().nth(1).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Ramdisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

struct Alluxio {
    worker: Option<Server>,
    _master: Server,
    ramdisk: Ramdisk,
    java: PathBuf,
    options: Vec<String>,
    class_path: String,
    ports: [u16; 2],
    directory: TempDir,
}

impl Alluxio {
    /// Starts both daemons over a directory of files, with further settings.
    fn start(more: &[&str]) -> Option<Self> {
        let Some(jars) = std::env::var_os(JARS).map(PathBuf::from) else {
            skip("alluxio", &format!("{JARS} names no directory with its jars"));
            return None;
        };
        if !rustix::process::geteuid().is_root() {
            skip("alluxio", "needs root to mount a tmpfs");
            return None;
        }
        let java = program("java", "alluxio")?;
        stores_jar("alluxio")?;
        let directory = directory();
        let ramdisk = Ramdisk::mount(directory.path().join("ram"));
        let under = directory.path().join("under");
        std::fs::create_dir(&under).unwrap();
        for number in 0..FILES {
            let content = vec![number as u8; FILE_BYTES as usize];
            std::fs::write(under.join(number.to_string()), content).unwrap();
        }
        let ports = [(); 4].map(|()| free_port());
        let conf = directory.path().join("conf");
        configure(&conf, directory.path(), &ramdisk.0, &ports, more);
        let class_path = format!("{}:{}/*", conf.display(), jars.display());
        let options: Vec<String> = opened()
            .chain(["-Xmx256m".into(), "-cp".into(), class_path.clone()])
            .chain([format!("-Dalluxio.logs.dir={}/logs", directory.path().display())])
            .collect();
        let ports = [ports[0], ports[1]];
        let words = ["alluxio.cli.Format", "master"].map(String::from);
        let format = Command::new(&java).args(&options).args(words).output().unwrap();
        assert!(format.status.success(), "{format:?}");
        let master = daemon(&java, &options, directory.path(), "master.AlluxioMaster", ports[0]);
        let mut it = Alluxio {
            worker: None,
            _master: master,
            ramdisk,
            java,
            options,
            class_path,
            ports,
            directory,
        };
        it.start_worker();
        it.shell(&["load", "/"]);
        Some(it)
    }

    fn start_worker(&mut self) {
        let (place, port) = (self.directory.path(), self.ports[1]);
        let worker = daemon(&self.java, &self.options, place, "worker.AlluxioWorker", port);
        self.worker = Some(worker);
    }

    fn shell(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.java);
        command.args(&self.options).arg("alluxio.cli.fs.FileSystemShell").args(arguments);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Reads all files: what finds room is cached.
    fn load(&self) -> u64 {
        self.shell(&["load", "/"]);
        self.ramdisk.used_bytes()
    }

    fn entry(&self) -> String {
        entry(&self.ramdisk.0, &self.class_path)
    }
}

fn daemon(java: &Path, options: &[String], place: &Path, class: &str, port: u16) -> Server {
    let own = place.join(class);
    std::fs::create_dir_all(&own).unwrap();
    let class = format!("alluxio.{class}");
    let words: Vec<&String> = options.iter().chain([&class]).collect();
    let answers = || TcpStream::connect(("127.0.0.1", port)).is_ok();
    Server::start(java, &words, &own, answers)
}

fn configure(conf: &Path, place: &Path, ramdisk: &Path, ports: &[u16; 4], more: &[&str]) {
    let place = place.display();
    let mut settings = vec![
        format!("home={place}"),
        format!("master.rpc.port={}", ports[0]),
        format!("worker.rpc.port={}", ports[1]),
        format!("master.web.port={}", ports[2]),
        format!("worker.web.port={}", ports[3]),
        format!("master.journal.folder={place}/journal"),
        format!("master.metastore.dir={place}/metastore"),
        format!("master.mount.table.root.ufs={place}/under"),
        format!("worker.tieredstore.level0.dirs.path={}", ramdisk.display()),
    ];
    let fixed = [
        "master.hostname=127.0.0.1",
        "worker.hostname=127.0.0.1",
        "user.hostname=127.0.0.1",
        "master.bind.host=127.0.0.1",
        "worker.bind.host=127.0.0.1",
        "master.web.bind.host=127.0.0.1",
        "worker.web.bind.host=127.0.0.1",
        "web.ui.enabled=false",
        "master.journal.type=UFS",
        "master.metastore=HEAP",
        "worker.ramdisk.size=300MB",
        "worker.tieredstore.levels=1",
        "worker.tieredstore.level0.alias=MEM",
        "worker.tieredstore.level0.dirs.quota=300MB",
        "security.authorization.permission.enabled=false",
        "security.login.impersonation.username=_NONE_",
        "user.metrics.collection.enabled=false",
        "master.daily.backup.enabled=false",
        "master.update.check.enabled=false",
    ];
    settings.extend(fixed.iter().chain(more).map(|setting| (*setting).to_owned()));
    std::fs::create_dir(conf).unwrap();
    let text: String = settings.iter().map(|setting| format!("alluxio.{setting}\n")).collect();
    std::fs::write(conf.join("alluxio-site.properties"), text).unwrap();
}

fn entry(ramdisk: &Path, class_path: &str) -> String {
    format!(
        "kind = 'alluxio'\nname = 'alluxio'\nramdisk = '{}'\n\
         capacity_min_bytes = 0\ncapacity_max_bytes = '300MiB'\n{}",
        ramdisk.display(),
        java_entry(class_path)
    )
}

#[test]
#[ignore = "long: starts Alluxio's daemons from the jars in TIDEPOOL_ALLUXIO_JARS"]
fn a_worker_holds_no_more_than_it_may_and_has_the_room_back_at_once() {
    let Some(mut it) = Alluxio::start(&[]) else { return };
    let before = it.ramdisk.used_bytes();
    assert_eq!(before, FILES * FILE_BYTES, "all was loaded");
    let store = open_store(&it.entry()).unwrap();
    assert_eq!(store.state().unwrap().resident_bytes, before);

    let done = store.resize(before / 2, DEADLINE).unwrap();
    let after = it.ramdisk.used_bytes();
    assert!((100 * MIB..=before / 2).contains(&after), "{} MiB left", after / MIB);
    assert_eq!((done.freed_bytes, done.resident_bytes), (before - after, after));
    assert_eq!(store.state().unwrap().held_bytes, 0);
    let speed = store.state().unwrap().speed;
    figure("alluxio", &format!("half of {} MiB asked back, {speed:?}: {done:?}", before / MIB));
    let full = it.load();
    assert!(full <= before / 2, "{} MiB beyond the capacity", full / MIB);

    let done = store.resize(u64::MAX, DEADLINE).unwrap();
    figure("alluxio", &format!("all given again: {done:?}"));
    assert_eq!(it.load(), before, "what is read again is cached again");

    pinned_files_stay(&it, &*store);
    a_restarted_worker_is_held_to_the_same(&mut it, &*store);
    without_the_program_the_worker_has_all_its_room(&it, &*store);
    drop(store);
    until("the room given back at the end of control", || it.load() == FILES * FILE_BYTES);
    let error = refusal(&entry(&it.ramdisk.0, "/no/such/place/*"));
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.remedy_text().unwrap().contains("class_path"), "{error}");
}

fn pinned_files_stay(it: &Alluxio, store: &dyn Actuator) {
    for path in ["/0", "/1"] {
        it.shell(&["pin", path]);
    }
    // The worker hears of pins with its heartbeat.
    std::thread::sleep(Duration::from_secs(3));
    store.resize(0, DEADLINE).unwrap();
    assert_eq!(it.ramdisk.used_bytes(), 2 * FILE_BYTES);
    assert_eq!(store.state().unwrap().held_bytes, 2 * FILE_BYTES);
    for path in ["/0", "/1"] {
        it.shell(&["unpin", path]);
    }
    until("the end of the pins", || {
        store.resize(0, DEADLINE).unwrap();
        it.ramdisk.used_bytes() == 0
    });
    store.resize(u64::MAX, DEADLINE).unwrap();
    assert_eq!(it.load(), FILES * FILE_BYTES);
}

fn a_restarted_worker_is_held_to_the_same(it: &mut Alluxio, store: &dyn Actuator) {
    store.resize(4 * FILE_BYTES, DEADLINE).unwrap();
    assert_eq!(it.ramdisk.used_bytes(), 4 * FILE_BYTES);
    it.worker = None;
    assert!(store.resize(FILE_BYTES, Duration::from_secs(20)).is_err(), "it is not there");
    it.start_worker();
    // Without a command: the last one holds, though it failed.
    until("the worker held to its capacity", || {
        it.shell(&["load", "/"]);
        it.ramdisk.used_bytes() <= FILE_BYTES
    });
    assert!(it.load() <= FILE_BYTES);
}

fn without_the_program_the_worker_has_all_its_room(it: &Alluxio, store: &dyn Actuator) {
    store.resize(4 * FILE_BYTES, DEADLINE).unwrap();
    assert_eq!(store.state().unwrap().capacity_bytes, 4 * FILE_BYTES);
    assert!(it.load() <= 4 * FILE_BYTES);
    let programs = java_programs(&it.class_path);
    assert_eq!(programs.len(), 1, "one for all commands");
    rustix::process::kill_process(programs[0], rustix::process::Signal::KILL).unwrap();
    until("the end of the program", || {
        store.state().unwrap().capacity_bytes == store.state().unwrap().capacity_max_bytes
    });
    until("the room given back", || it.load() == FILES * FILE_BYTES);
    until("the program started again", || store.resize(4 * FILE_BYTES, DEADLINE).is_ok());
    assert_eq!(it.ramdisk.used_bytes(), 4 * FILE_BYTES);
    assert_eq!(store.state().unwrap().capacity_bytes, 4 * FILE_BYTES);
}

#[test]
#[ignore = "long: starts Alluxio's daemons from the jars in TIDEPOOL_ALLUXIO_JARS"]
fn what_is_used_often_stays_where_alluxio_counts_uses() {
    let Some(it) = Alluxio::start(&LRFU) else { return };
    let store = open_store(&it.entry()).unwrap();
    for _ in 0..3 {
        it.shell(&["cat", "/0"]);
    }
    // Each once, and those that are to go later.
    it.shell(&["cat", "/*"]);
    store.resize(5 * FILE_BYTES, DEADLINE).unwrap();
    let list = it.shell(&["ls", "/0"]);
    assert!(list.contains("100%"), "{list}");
}

#[test]
fn entries_that_cannot_work_are_refused() {
    let disk = Path::new(env!("CARGO_MANIFEST_DIR"));
    let memory = Path::new("/dev/shm/..");
    for place in [Path::new("/no/such/place"), disk, Path::new("/proc"), memory] {
        let error = refusal(&entry(place, "/opt/alluxio/*"));
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.remedy_text().is_some(), "{error}");
    }
}
