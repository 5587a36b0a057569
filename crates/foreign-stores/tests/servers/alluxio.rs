//! Alluxio: paths freed in their order, and bytes that its memory file system has lost.
//!
//! Its daemons take half a minute to start, so their test runs only where it is asked for:
//!
//! ```sh
//! mvn -f crates/control/tests/actuators/alluxio-pom.xml dependency:copy-dependencies \
//!     -DoutputDirectory=/var/tmp/alluxio-jars
//! TIDEPOOL_ALLUXIO_JARS=/var/tmp/alluxio-jars \
//!     cargo test -p tidepool-control --test actuators alluxio -- --include-ignored
//! ```

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tidepool_proto::ErrorKind;

use crate::support::{
    MIB, Server, directory, figure, free_port, open_store, opened, program, refusal, skip,
};

const JARS: &str = "TIDEPOOL_ALLUXIO_JARS";
const DEADLINE: Duration = Duration::from_secs(120);

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
    _worker: Server,
    _master: Server,
    ramdisk: Ramdisk,
    shell: Vec<String>,
    directory: TempDir,
}

impl Alluxio {
    fn start() -> Option<Self> {
        let Some(jars) = std::env::var_os(JARS).map(PathBuf::from) else {
            skip("alluxio", &format!("{JARS} names no directory with its jars"));
            return None;
        };
        if !rustix::process::geteuid().is_root() {
            skip("alluxio", "needs root to mount a tmpfs");
            return None;
        }
        let java = program("java", "alluxio")?;
        let directory = directory();
        let ramdisk = Ramdisk::mount(directory.path().join("ram"));
        std::fs::create_dir(directory.path().join("under")).unwrap();
        let (options, ports) = options(&jars, directory.path(), &ramdisk.0);
        let java_with = |class: &[&str]| -> Vec<String> {
            options.iter().cloned().chain(class.iter().map(|word| word.to_string())).collect()
        };
        let format = Command::new(&java)
            .args(java_with(&["alluxio.cli.Format", "master"]))
            .output()
            .unwrap();
        assert!(format.status.success(), "{format:?}");
        let daemon = |class: &str, port: u16| {
            let place = directory.path().join(class);
            std::fs::create_dir(&place).unwrap();
            let answers = || TcpStream::connect(("127.0.0.1", port)).is_ok();
            Server::start(&java, &java_with(&[class]), &place, answers)
        };
        let master = daemon("alluxio.master.AlluxioMaster", ports[0]);
        let worker = daemon("alluxio.worker.AlluxioWorker", ports[1]);
        let mut shell = vec![java.to_str().unwrap().to_owned()];
        shell.extend(java_with(&["alluxio.cli.fs.FileSystemShell"]));
        Some(Alluxio { _worker: worker, _master: master, ramdisk, shell, directory })
    }

    fn shell(&self, arguments: &[&str]) {
        let done = Command::new(&self.shell[0]).args(&self.shell[1..]).args(arguments).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }

    fn entry(&self, paths: &str) -> String {
        entry(&self.ramdisk.0, paths, &format!("command = {:?}\n", self.shell))
    }
}

fn options(jars: &Path, place: &Path, ramdisk: &Path) -> (Vec<String>, [u16; 2]) {
    let ports = [(); 4].map(|()| free_port());
    let mut options: Vec<String> = opened()
        .chain(["-Xmx256m".into(), "-cp".into(), format!("{}/*", jars.display())])
        .collect();
    let place = place.display();
    options.extend([
        format!("-Dalluxio.home={place}"),
        format!("-Dalluxio.logs.dir={place}/logs"),
        format!("-Dalluxio.master.rpc.port={}", ports[0]),
        format!("-Dalluxio.worker.rpc.port={}", ports[1]),
        format!("-Dalluxio.master.web.port={}", ports[2]),
        format!("-Dalluxio.worker.web.port={}", ports[3]),
        format!("-Dalluxio.master.journal.folder={place}/journal"),
        format!("-Dalluxio.master.metastore.dir={place}/metastore"),
        format!("-Dalluxio.master.mount.table.root.ufs={place}/under"),
        format!("-Dalluxio.worker.tieredstore.level0.dirs.path={}", ramdisk.display()),
    ]);
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
    options.extend(fixed.map(|setting| format!("-Dalluxio.{setting}")));
    (options, [ports[0], ports[1]])
}

fn entry(ramdisk: &Path, paths: &str, more: &str) -> String {
    format!(
        "kind = 'alluxio'\nname = 'alluxio'\nramdisk = '{}'\npaths = {paths}\n\
         capacity_min_bytes = 0\ncapacity_max_bytes = '300MiB'\n{more}",
        ramdisk.display()
    )
}

#[test]
#[ignore = "long: starts Alluxio's daemons from the jars in TIDEPOOL_ALLUXIO_JARS"]
fn paths_are_freed_in_order_until_the_memory_is_back() {
    let Some(it) = Alluxio::start() else { return };
    for name in ["less", "more"] {
        let path = it.directory.path().join("under").join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), vec![7; (100 * MIB) as usize]).unwrap();
    }
    it.shell(&["load", "/"]);
    let before = it.ramdisk.used_bytes();
    assert!(before >= 200 * MIB, "{} MiB loaded", before / MIB);
    let store = open_store(&it.entry("['/less', '/more']")).unwrap();
    assert_eq!(store.state().unwrap().resident_bytes, before);

    // No time for a virtual machine to start: nothing is freed, and nothing is claimed.
    let late = store.resize(0, Duration::from_millis(100)).unwrap();
    assert_eq!((late.freed_bytes, it.ramdisk.used_bytes()), (0, before));

    let done = store.resize(150 * MIB, DEADLINE).unwrap();
    let after = it.ramdisk.used_bytes();
    assert!((100 * MIB..150 * MIB).contains(&after), "{} MiB left", after / MIB);
    assert_eq!(done.freed_bytes, before - after);
    figure("alluxio", &format!("{done:?}"));
    store.resize(0, DEADLINE).unwrap();
    assert!(it.ramdisk.used_bytes() < MIB);

    let wrong = open_store(&it.entry("['/none']")).unwrap();
    it.shell(&["load", "/"]);
    let error = wrong.resize(0, DEADLINE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreUnavailable, "{error}");
    assert!(error.detail().contains("/none"), "{error}");
}

#[test]
fn entries_that_cannot_work_are_refused() {
    let memory = Path::new("/dev/shm");
    let disk = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cases = [
        entry(Path::new("/no/such/place"), "['/']", "command = ['true']\n"),
        entry(memory, "[]", "command = ['true']\n"),
        entry(memory, "['relative']", "command = ['true']\n"),
        entry(memory, "['/']", "command = ['no-such-program']\n"),
        entry(memory, "['/']", "command = []\n"),
        entry(disk, "['/']", "command = ['true']\n"),
        entry(Path::new("/proc"), "['/']", "command = ['true']\n"),
    ];
    for case in cases {
        let error = refusal(&case);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.remedy_text().is_some(), "{error}");
    }
}
