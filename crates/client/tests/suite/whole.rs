//! The library with a whole node: real store, real files below.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;
use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_node::Node;
use tidepool_node::server::{Server, ServerLimits};
use tidepool_proto::admin::{AdminReply, AdminRequest};
use tidepool_proto::{ErrorKind, MemorySize, WriteMode};

use crate::scene::{child, eventually, pattern, role};

pub const BLOCK: usize = 4 << 20;
const CAPACITY: u64 = 64 << 20;

pub struct Whole {
    running: Option<(Arc<Node>, Server)>,
    directory: TempDir,
}

impl Whole {
    pub fn new() -> Whole {
        let directory = tempfile::tempdir().unwrap();
        Whole { running: Some(start(directory.path().to_owned())), directory }
    }

    pub fn node(&self) -> &Node {
        &self.running.as_ref().unwrap().0
    }

    pub fn server(&self) -> &Server {
        &self.running.as_ref().unwrap().1
    }

    /// Ends the node and starts another in its place.
    pub fn restart(&mut self) {
        self.stop();
        self.running = Some(start(self.directory.path().to_owned()));
    }

    fn stop(&mut self) {
        if let Some((node, server)) = self.running.take() {
            server.stop();
            node.stop();
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn client(&self) -> Client {
        let socket = Some(self.server().socket_path().to_owned());
        Client::connect(ClientOptions { socket, ..ClientOptions::default() })
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start(directory: PathBuf) -> (Arc<Node>, Server) {
    let socket = directory.join(".socket");
    let config = tidepool_proto::resolve::defaults(&directory, &socket, CAPACITY).unwrap();
    let node = Node::start(config).unwrap();
    let limits = ServerLimits::default();
    let server = Server::start(&socket, node.clone(), node.clone(), limits).unwrap();
    (node, server)
}

#[test]
fn what_is_resident_is_read_without_the_node() {
    let whole = Whole::new();
    let bytes = pattern(3 * BLOCK + 1234, 0);
    std::fs::write(whole.path("file"), &bytes).unwrap();
    let file = whole.client().open("tide:///file", OpenOptions::read()).unwrap();
    let mut buffer = vec![0; bytes.len()];
    let cold = file.read_at(0, &mut buffer).unwrap();
    assert!(buffer == bytes);
    assert_eq!(cold.levels.total(), bytes.len() as u64);
    let asked = whole.server().counts().requests;
    buffer.fill(0);
    let warm = file.read_at(0, &mut buffer).unwrap();
    assert!(buffer == bytes);
    assert_eq!(warm.levels.mapped, bytes.len() as u64, "{warm:?}");
    assert_eq!(whole.server().counts().requests, asked);

    let client = whole.client();
    let resize = |capacity_bytes| {
        client.admin(AdminRequest::Resize { size: MemorySize::Bytes(capacity_bytes) }, None)
    };
    for _ in 0..3 {
        let AdminReply::Resized(report) = resize(0).unwrap() else { panic!("no report") };
        assert_eq!(report.resident_bytes, 0);
        buffer.fill(0);
        file.read_at(0, &mut buffer).unwrap();
        assert!(buffer == bytes);
        resize(CAPACITY).unwrap();
        for _ in 0..2 {
            buffer.fill(0);
            file.read_at(0, &mut buffer).unwrap();
            assert!(buffer == bytes);
        }
    }
    let warm = file.read_at(0, &mut buffer).unwrap();
    assert_eq!(warm.levels.mapped, bytes.len() as u64, "resident again: {warm:?}");
}

#[test]
fn borrowed_bytes_stay_when_the_store_shrinks() {
    let whole = Whole::new();
    let bytes = pattern(2 * BLOCK, 0);
    std::fs::write(whole.path("file"), &bytes).unwrap();
    let client = whole.client();
    let file = client.open(whole.path("file"), OpenOptions::read()).unwrap();
    let borrowed = file.borrow(100, BLOCK).unwrap();
    client.admin(AdminRequest::Resize { size: MemorySize::Bytes(0) }, None).unwrap();
    assert!(borrowed[..] == bytes[100..100 + BLOCK]);
    std::fs::write(whole.path("file"), pattern(2 * BLOCK, 1)).unwrap();
    let again = client.open(whole.path("file"), OpenOptions::read()).unwrap();
    let mut buffer = vec![0; 10];
    again.read_at(100, &mut buffer).unwrap();
    assert!(borrowed[..] == bytes[100..100 + BLOCK], "also when the file is of another version");
}

#[test]
fn local_writes_reach_a_reader_also_while_another_holds_the_bytes() {
    let whole = Whole::new();
    let bytes = pattern(2 * BLOCK, 0);
    std::fs::write(whole.path("file"), &bytes).unwrap();
    let client = whole.client();
    let file = client.open(whole.path("file"), OpenOptions::read()).unwrap();
    let mut buffer = vec![0; bytes.len()];
    for _ in 0..2 {
        file.read_at(0, &mut buffer).unwrap();
    }
    let borrowed = file.borrow(100, BLOCK).unwrap();
    assert!(borrowed.is_zero_copy());
    let warm = file.read_at(0, &mut buffer).unwrap();
    assert_eq!(warm.levels.mapped, bytes.len() as u64, "read without a message: {warm:?}");
    let writer = client.open(whole.path("file"), OpenOptions::read_write()).unwrap();
    writer.write_at(200, b"changed").unwrap();
    file.read_at(0, &mut buffer).unwrap();
    assert_eq!(&buffer[200..207], b"changed");
    assert!(buffer[..200] == bytes[..200] && buffer[207..] == bytes[207..]);
    assert!(borrowed[..] == bytes[100..100 + BLOCK], "what is borrowed does not change");
}

#[test]
fn all_write_modes_write_what_they_say() {
    let whole = Whole::new();
    let client = whole.client();
    for mode in [WriteMode::Through, WriteMode::Bypass, WriteMode::Memory] {
        let path = whole.path(mode.name());
        let options = OpenOptions { write_mode: Some(mode), ..OpenOptions::write() };
        let bytes = pattern(BLOCK + 77, mode as u8);
        let file = client.open(&path, options).unwrap();
        file.write_at(0, &bytes[..1000]).unwrap();
        file.write_at(1000, &bytes[1000..]).unwrap();
        file.close().unwrap();
        let on_pfs = std::fs::read(&path).unwrap();
        assert_eq!(on_pfs == bytes, mode != WriteMode::Memory, "{mode}");
        let mut buffer = vec![0; bytes.len() + 1];
        let file = client.open(&path, OpenOptions::read()).unwrap();
        let outcome = file.read_at(0, &mut buffer).unwrap();
        assert_eq!(outcome.bytes, bytes.len(), "{mode}");
        assert!(buffer[..outcome.bytes] == bytes, "{mode}");
    }
}

#[test]
#[ignore = "a part of another test: the node of another process"]
fn whole_node_process() {
    let Some(directory) = role() else { return };
    let _running = start(directory);
    loop {
        std::thread::park();
    }
}

#[test]
fn memory_only_bytes_of_a_killed_node_are_lost_and_never_invented() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = child("whole::whole_node_process", directory.path());
    let socket = Some(directory.path().join(".socket"));
    let options = ClientOptions { socket, ..ClientOptions::default() };
    let client = Client::connect(ClientOptions { notice: Arc::new(|_| ()), ..options });
    eventually("the node is there", || client.admin(AdminRequest::Status, None).is_ok());
    let memory = OpenOptions { write_mode: Some(WriteMode::Memory), ..OpenOptions::write() };
    // Of the length of a stub too, where sizes tell nothing.
    for length in [256, 0, 10_000] {
        let path = directory.path().join(format!("memory-{length}"));
        let file = client.open(&path, memory).unwrap();
        file.write_at(0, &pattern(length, 3)).unwrap();
        file.close().unwrap();
    }
    let paths: Vec<PathBuf> =
        [256, 10_000].iter().map(|n| directory.path().join(format!("memory-{n}"))).collect();
    let opened: Vec<_> =
        paths.iter().map(|path| client.open(path, OpenOptions::read()).unwrap()).collect();
    let through = directory.path().join("through");
    let file = client.open(&through, OpenOptions::write()).unwrap();
    file.write_at(0, b"durable").unwrap();
    file.close().unwrap();
    node.kill();
    eventually("its end is noticed", || !client.is_connected());
    assert_eq!(std::fs::read(through).unwrap(), b"durable");
    let mut buffer = vec![0; 20_000];
    for (path, file) in paths.iter().zip(&opened) {
        // Bytes that came along with the open are held; everything else is lost.
        match file.read_at(0, &mut buffer) {
            Ok(outcome) => {
                let expected = pattern(if path.ends_with("memory-256") { 256 } else { 10_000 }, 3);
                assert!(buffer[..outcome.bytes] == expected);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Lost),
        }
        let error = client.open(path, OpenOptions::read()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        let error = client.open(path, OpenOptions::read_write()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        let file = client.open(path, OpenOptions::write()).unwrap();
        file.write_at(0, b"anew").unwrap();
        file.close().unwrap();
        let file = client.open(path, OpenOptions::read()).unwrap();
        assert_eq!(file.read_at(0, &mut buffer).unwrap().bytes, 4);
        assert_eq!(&buffer[..4], b"anew");
    }
}

/// Reads a file that must hold `bytes`; how many of them came from the parallel file system.
fn read_below(client: &Client, path: &std::path::Path, bytes: &[u8]) -> u64 {
    let file = client.open(path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; bytes.len()];
    let levels = file.read_at(0, &mut buffer).unwrap().levels;
    assert!(buffer == bytes);
    levels.pfs
}

#[test]
fn what_a_client_does_to_names_keeps_the_cache_and_a_change_of_content_does_not() {
    let whole = Whole::new();
    let client = whole.client();
    let (one, two) = (whole.path("one"), whole.path("two"));
    for size in [1000, BLOCK + 1] {
        let (bytes, changed) = (pattern(size, 1), pattern(size, 2));
        std::fs::write(&one, &bytes).unwrap();
        assert_ne!(read_below(&client, &one, &bytes), 0);
        let file = std::fs::File::open(&one).unwrap();
        client.changing_metadata(Some(file.as_fd()), || std::fs::rename(&one, &two)).unwrap();
        assert_eq!(read_below(&client, &two, &bytes), 0, "renamed");
        let file = std::fs::File::open(&two).unwrap();
        let writer = std::fs::File::options().write(true).open(&two).unwrap();
        client.changing_metadata(Some(file.as_fd()), || writer.write_all_at(&changed, 0)).unwrap();
        assert_ne!(read_below(&client, &two, &changed), 0, "rewritten");
        std::fs::remove_file(&two).unwrap();
    }
}

/// As jobs commit: what was just written is renamed, and the next one reads it.
#[test]
fn what_a_client_writes_and_renames_at_once_stays_cached() {
    let whole = Whole::new();
    let client = whole.client();
    for (round, size) in [1000, BLOCK + 1].into_iter().cycle().take(20).enumerate() {
        let bytes = pattern(size, round as u8);
        let (one, two) = (whole.path("one"), whole.path("two"));
        let file = client.open(&one, OpenOptions::write()).unwrap();
        file.write_at(0, &bytes).unwrap();
        file.close().unwrap();
        // The stamps have to settle where the PFS has coarse ones.
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(read_below(&client, &one, &bytes), 0, "written");
        let file = std::fs::File::open(&one).unwrap();
        client.changing_metadata(Some(file.as_fd()), || std::fs::rename(&one, &two)).unwrap();
        assert_eq!(read_below(&client, &two, &bytes), 0, "renamed, size {size}");
    }
}

#[test]
fn a_file_that_a_client_removes_leaves_the_store() {
    let whole = Whole::new();
    let client = whole.client();
    let path = whole.path("file");
    let bytes = pattern(BLOCK, 1);
    std::fs::write(&path, &bytes).unwrap();
    read_below(&client, &path, &bytes);
    // The close is a message that nobody waits for.
    eventually("the bytes are all that holds the file", || {
        let AdminReply::Status(status) = client.admin(AdminRequest::Status, None).unwrap() else {
            panic!("no status")
        };
        status.open_files == 0 && whole.node().store().stats().resident_bytes > 0
    });
    let file = std::fs::File::open(&path).unwrap();
    client.changing_metadata(Some(file.as_fd()), || std::fs::remove_file(&path)).unwrap();
    assert_eq!(whole.node().store().stats().resident_bytes, 0);
}

#[test]
fn memory_only_bytes_stay_with_a_stub_whose_name_mode_or_times_change() {
    let whole = Whole::new();
    let client = whole.client();
    let path = whole.path("file");
    let bytes = pattern(BLOCK + 77, 3);
    let options = OpenOptions { write_mode: Some(WriteMode::Memory), ..OpenOptions::write() };
    let file = client.open(&path, options).unwrap();
    file.write_at(0, &bytes).unwrap();
    file.close().unwrap();
    let moved = whole.path("moved");
    // Programs that know of no node may rename a stub and change its mode.
    std::fs::rename(&path, &moved).unwrap();
    std::fs::set_permissions(&moved, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let read = || {
        let file = client.open(&moved, OpenOptions::read()).unwrap();
        let mut buffer = vec![0; bytes.len() + 1];
        let outcome = file.read_at(0, &mut buffer).unwrap();
        assert!(buffer[..outcome.bytes] == bytes);
    };
    read();
    let stub = std::fs::File::open(&moved).unwrap();
    let then = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    client.changing_metadata(Some(stub.as_fd()), || stub.set_modified(then)).unwrap();
    read();
}
