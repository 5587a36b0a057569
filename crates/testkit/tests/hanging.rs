//! A PFS that no longer answers one kind of request about one directory, each kind in turn, while
//! one user has more threads in that directory than the mount has turns for one user. Other users
//! are not affected: their calls on their own files, their reads of resident bytes of the very file
//! whose other calls hang, by the mount and by the library, the status of the node and its
//! capacity.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, StatxFlags, XattrFlags};
use tidepool_client::{Client as Library, ClientOptions, File as LibraryFile, OpenOptions};
use tidepool_fuse::{Mount, MountConfig};
use tidepool_node::Node;
use tidepool_node::server::{Server, ServerLimits};
use tidepool_proto::{FileService, Version};
use tidepool_testkit::needs_mount;
use tidepool_testkit::user::User;
use tidepool_testkit::weak_pfs::{WeakPfs, Weakness};

const ATTACKER: u32 = 54_321;
const OTHER: u32 = 65_534;
/// Requests that may wait for the PFS at a time, half of them of one user.
const TURNS: usize = 12;
/// Threads of the attacker: all that one user may have and more.
const THREADS: usize = 24;
/// What takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);
const BYTES: usize = 4096;

/// One program: a directory of its own, and two files that it keeps open.
struct Client {
    /// Through the mount, and on what is behind the PFS.
    upper: PathBuf,
    behind: PathBuf,
    reader: File,
    writer: File,
    by_library: LibraryFile,
    counter: AtomicUsize,
}

impl Client {
    fn new(scene: &Scene, name: &str) -> Client {
        let (upper, behind) = (scene.upper.path().join(name), scene.pfs.behind().join(name));
        fs::create_dir(&behind).unwrap();
        fs::set_permissions(&behind, Permissions::from_mode(0o777)).unwrap();
        for file in ["resident", "written", "locked"] {
            Client::make(&behind.join(file));
        }
        let below = scene.pfs.root().join(name).join("resident");
        scene.wait_settled(&below);
        let reader = File::open(upper.join("resident")).unwrap();
        let written = upper.join("written");
        let writer = File::options().read(true).write(true).open(written).unwrap();
        let by_library = scene.library.open(below, OpenOptions::read()).unwrap();
        Client { upper, behind, reader, writer, by_library, counter: AtomicUsize::new(0) }
    }

    fn read_by_library(&self) -> io::Result<()> {
        let mut bytes = [0; BYTES];
        let read = self.by_library.read_at(0, &mut bytes)?;
        assert_eq!((read.bytes, bytes), (BYTES, [7; BYTES]));
        Ok(())
    }

    fn read_both_ways(&self) -> io::Result<()> {
        self.read_resident().and_then(|()| self.read_by_library())
    }

    /// Waits until the file is read without the PFS: a smaller capacity took its bytes away.
    fn settle(&self, scene: &Scene) {
        let end = Instant::now() + LIMIT;
        while scene.pfs.asked_by(|| self.read_both_ways().unwrap()).1.contains_key("read") {
            assert!(Instant::now() < end, "the file becomes resident");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn make(path: &Path) {
        fs::write(path, [7; BYTES]).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    }

    fn read_resident(&self) -> io::Result<()> {
        let mut bytes = [0; BYTES];
        self.reader.read_exact_at(&mut bytes, 0)?;
        assert_eq!(bytes, [7; BYTES]);
        Ok(())
    }

    /// A name that was not used before.
    fn name(&self) -> String {
        format!("new{}", self.counter.fetch_add(1, Ordering::Relaxed))
    }

    /// A file that another machine just made, for which the mount was not asked yet.
    fn fresh(&self) -> PathBuf {
        let name = self.name();
        Client::make(&self.behind.join(&name));
        self.upper.join(name)
    }
}

type Call = (&'static str, fn(&Client) -> io::Result<()>);

/// What programs do.
const CALLS: [Call; 21] = [
    ("read what is open", Client::read_resident),
    ("open and read", |it| fs::read(it.upper.join("resident")).map(drop)),
    ("open and read anew", |it| fs::read(it.fresh()).map(drop)),
    ("stat", |it| fs::metadata(it.upper.join("resident")).map(drop)),
    ("fstat", |it| it.reader.metadata().map(drop)),
    ("create", |it| fs::write(it.upper.join(it.name()), [7; BYTES])),
    ("write", |it| it.writer.write_all_at(&[7; BYTES], 0)),
    ("sync", |it| it.writer.write_all_at(&[7; 1], 0).and_then(|()| it.writer.sync_all())),
    ("set length", |it| it.writer.set_len(BYTES as u64)),
    ("allocate", |it| {
        Ok(rustix::fs::fallocate(&it.writer, FallocateFlags::KEEP_SIZE, 0, BYTES as u64)?)
    }),
    ("lock", |it| {
        let file = File::options().write(true).open(it.upper.join("locked"))?;
        for kind in [libc::F_WRLCK, libc::F_UNLCK] {
            // SAFETY: all zeros is a valid lock of the whole file.
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            lock.l_type = kind as libc::c_short;
            // SAFETY: the command reads the one `flock` that is passed.
            if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &lock) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }),
    ("list", |it| fs::read_dir(&it.upper)?.try_for_each(|entry| entry.map(drop))),
    ("unlink", |it| fs::remove_file(it.fresh())),
    ("rename", |it| fs::rename(it.fresh(), it.upper.join(it.name()))),
    ("link", |it| fs::hard_link(it.fresh(), it.upper.join(it.name()))),
    ("symbolic link", |it| {
        let path = it.upper.join(it.name());
        symlink("target", &path)?;
        fs::read_link(path).map(drop)
    }),
    ("directory", |it| {
        let path = it.upper.join(it.name());
        fs::create_dir(&path)?;
        fs::remove_dir(path)
    }),
    ("mode", |it| fs::set_permissions(it.fresh(), Permissions::from_mode(0o644))),
    ("set attribute", |it| {
        let path = it.fresh();
        rustix::fs::setxattr(&path, "user.a", b"value", XattrFlags::empty())?;
        Ok(rustix::fs::removexattr(&path, "user.a")?)
    }),
    ("get attribute", |it| {
        let (path, mut value) = (it.upper.join("resident"), [0; 16]);
        let _ = rustix::fs::getxattr(&path, "user.b", &mut value[..]);
        rustix::fs::listxattr(&path, &mut value[..])?;
        Ok(())
    }),
    ("room", |it| Ok(rustix::fs::fstatfs(&it.reader).map(drop)?)),
];

/// The mounts of the test, taken away if it fails.
static MOUNTS: OnceLock<[PathBuf; 2]> = OnceLock::new();

struct Scene {
    // Dropped in this order.
    _mount: Mount,
    _server: Server,
    library: Library,
    node: Arc<Node>,
    pfs: WeakPfs,
    upper: tempfile::TempDir,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.node.stop();
    }
}

impl Scene {
    /// Waits until what is read of a file may be kept: its time stamps are old enough.
    fn wait_settled(&self, path: &Path) {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let end = Instant::now() + LIMIT;
        loop {
            let facts = rustix::fs::statx(CWD, path, AtFlags::empty(), flags).unwrap();
            if !self.node.is_racy(&Version::from(&facts)) {
                return;
            }
            assert!(Instant::now() < end, "time stamps stay new");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn scene() -> Scene {
    let pfs = WeakPfs::mount(Weakness::default()).unwrap();
    let upper = tempfile::tempdir().unwrap();
    let socket = upper.path().with_extension("sock");
    let config = tidepool_proto::resolve::defaults(pfs.root(), &socket, 64 << 20).unwrap();
    let node = Node::start(config).unwrap();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root: OwnedFd = rustix::fs::open(pfs.root(), flags, Mode::empty()).unwrap();
    let at = upper.path().to_owned();
    let config = MountConfig {
        turns_max: TURNS,
        ..MountConfig::new(root, pfs.root().to_owned(), at.clone())
    };
    let mount = tidepool_fuse::mount(node.clone(), config).unwrap();
    fs::set_permissions(pfs.behind(), Permissions::from_mode(0o755)).unwrap();
    let limits = ServerLimits::default();
    let server = Server::start(&socket, node.clone(), node.clone(), limits).unwrap();
    let library = Library::connect(ClientOptions {
        socket: Some(socket),
        pfs_root: Some(pfs.root().to_owned()),
        ..ClientOptions::default()
    });
    assert!(library.is_connected());
    let _ = MOUNTS.set([upper.path().to_owned(), pfs.root().to_owned()]);
    Scene { _mount: mount, _server: server, library, node, pfs, upper }
}

/// The kinds of question that programs have the node ask.
fn kinds_asked(scene: &Scene, client: &Client) -> BTreeSet<&'static str> {
    for (what, call) in CALLS {
        call(client).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    scene.pfs.questions().into_keys().collect()
}

/// Runs `act` in a thread of `user`, which must end.
fn must_end(case: &str, user: u32, act: impl FnOnce() -> io::Result<()> + Send + 'static) {
    let (ended, end) = channel();
    std::thread::spawn(move || ended.send(User::new(user).run(act)));
    match end.recv_timeout(LIMIT) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => fail(&format!("{case}: {error}")),
        Err(RecvTimeoutError::Timeout) => fail(&format!("{case}: hangs")),
        Err(error) => fail(&format!("{case}: {error}")),
    }
}

/// Ends at once: a process that hangs in its own mounts could not be ended in order.
fn fail(what: &str) -> ! {
    // Past what the harness keeps of a test's output till its end.
    let _ = writeln!(io::stderr(), "{what}");
    // By force: nobody in the process is left waiting for another thread of it.
    let how = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
    for place in MOUNTS.get().into_iter().flatten() {
        let _ = rustix::mount::unmount(place, how);
    }
    std::process::abort();
}

/// Does everything, each thread from another call on, until it is told to stop.
fn attack(client: &Client, number: usize, stop: &AtomicBool) -> io::Result<()> {
    for (what, call) in CALLS.iter().cycle().skip(number).take(CALLS.len()) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        call(client).map_err(|error| io::Error::other(format!("{what}: {error}")))?;
    }
    Ok(())
}

/// What goes on while questions of `kind` about the attacker's directory hang.
fn goes_on(scene: &Scene, kind: &str, victim: &Arc<Client>, other: &Arc<Client>) {
    for (what, call) in CALLS {
        // It is about the file system, not about a file.
        if (what, kind) != ("room", "statfs") {
            let client = other.clone();
            must_end(&format!("{what} beside {kind}"), OTHER, move || call(&client));
        }
    }
    for (whose, client) in [("the same file", victim), ("another file", other)] {
        let client = client.clone();
        let case = format!("read what is open of {whose} beside {kind}");
        must_end(&case, OTHER, move || client.read_both_ways());
    }
    let node = scene.node.clone();
    must_end(&format!("status beside {kind}"), 0, move || {
        assert!(node.status().store.capacity_bytes > 0);
        Ok(())
    });
    let node = scene.node.clone();
    must_end(&format!("capacity beside {kind}"), 0, move || {
        node.store().resize(32 << 20);
        node.store().resize(64 << 20);
        Ok(())
    });
}

#[test]
fn what_hangs_for_one_directory_holds_up_nobody_else() {
    needs_mount!();
    let scene = scene();
    let victim = Arc::new(Client::new(&scene, "victim"));
    let other = Arc::new(Client::new(&scene, "other"));
    let kinds = kinds_asked(&scene, &other);
    assert!(kinds.len() >= 22, "{kinds:?}");
    for kind in kinds {
        victim.settle(&scene);
        let hold = match kind {
            "statfs" => scene.pfs.hold(kind),
            _ => scene.pfs.hold_below(kind, &victim.behind),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, ends) = channel();
        for number in 0..THREADS {
            let (client, ended, stop) = (victim.clone(), ended.clone(), stop.clone());
            std::thread::spawn(move || {
                let attack = || attack(&client, number, &stop);
                let _ = ended.send(User::new(ATTACKER).run(attack));
            });
        }
        let end = Instant::now() + LIMIT;
        while scene.pfs.waiting(kind) == 0 {
            assert!(Instant::now() < end, "nobody asked for {kind}");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The others come to wait as well.
        std::thread::sleep(Duration::from_millis(50));
        goes_on(&scene, kind, &victim, &other);
        assert!(scene.pfs.waiting(kind) > 0, "{kind}");
        stop.store(true, Ordering::Relaxed);
        drop(hold);
        for _ in 0..THREADS {
            let outcome = ends.recv_timeout(LIMIT).expect("who waited for it goes on");
            outcome.unwrap_or_else(|error| panic!("after {kind} hung: {error}"));
        }
    }
}
