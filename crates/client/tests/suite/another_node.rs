//! Nodes that do not serve a client: one that has too many of them, and one that took the socket
//! for another directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_node::server::{Server, ServerLimits};
use tidepool_proto::admin::AdminRequest;

use crate::fake::{FakeNode, FakeService};
use crate::scene::{Scene, child, eventually, role};

/// Files of this process that bytes are told apart by.
const NAME: &str = "who";

impl Scene {
    /// Another node takes the socket, and serves the directory `name`.
    fn succeeded_by(&mut self, name: &str) -> PathBuf {
        let root = self.path(name);
        std::fs::create_dir_all(&root).unwrap();
        self.server = None;
        self.node =
            Arc::new(FakeNode { pfs: root.to_str().unwrap().into(), ..FakeNode::default() });
        self.server = Some(crate::scene::start(&self.socket(), &self.node));
        root
    }

    fn notices_of(&self, what: &str) -> Vec<String> {
        let notices = self.notices.lock().unwrap();
        notices.iter().filter(|line| line.contains(what)).cloned().collect()
    }
}

fn read(client: &Client) -> String {
    let file = client.open(format!("tide:///{NAME}"), OpenOptions::read()).unwrap();
    let mut buffer = vec![0; 100];
    let bytes = file.read_at(0, &mut buffer).unwrap().bytes;
    String::from_utf8(buffer[..bytes].to_vec()).unwrap()
}

fn write(client: &Client, name: &str, bytes: &[u8]) {
    let file = client.open(format!("tide:///{name}"), OpenOptions::write()).unwrap();
    file.write_at(0, bytes).unwrap();
    file.close().unwrap();
}

#[test]
fn a_client_keeps_its_directory_when_a_node_of_another_one_takes_the_socket() {
    let mut scene = Scene::without_node();
    let one = scene.succeeded_by("one");
    std::fs::write(one.join(NAME), "one").unwrap();
    let old = scene.client();
    assert_eq!(read(&old), "one");
    let writer = old.open("tide:///written", OpenOptions::write()).unwrap();
    writer.write_at(0, b"before").unwrap();

    let two = scene.succeeded_by("two");
    std::fs::write(two.join(NAME), "two").unwrap();
    eventually("its end is noticed", || !old.is_connected());
    writer.write_at(6, b" and after").unwrap();
    writer.close().unwrap();
    assert_eq!(std::fs::read(one.join("written")).unwrap(), b"before and after");
    for round in 0..3 {
        assert_eq!(read(&old), "one");
        write(&old, &format!("new-{round}"), b"new");
        assert!(one.join(format!("new-{round}")).exists());
    }
    assert!(!old.is_connected() && !old.is_answering(), "it is not this client's node");
    assert_eq!(scene.handles(), 0, "the other node is asked for no file");
    let told = scene.notices_of("it serves");
    assert_eq!(told.len(), 1, "{told:?}");
    for root in [&one, &two] {
        assert!(told[0].contains(root.to_str().unwrap()), "{told:?}");
    }
    old.admin(AdminRequest::Metrics, None).expect("what is about the node is for any node");

    let new = scene.client();
    assert_eq!(read(&new), "two");
    write(&new, "new", b"new");
    assert!(two.join("new").exists() && new.is_connected());

    scene.succeeded_by("one");
    eventually("its node is back", || {
        assert_eq!(read(&old), "one");
        old.is_connected()
    });
}

#[test]
fn a_stated_directory_on_another_file_system_goes_without_the_node() {
    let mut scene = Scene::without_node();
    scene.succeeded_by("one");
    // In memory: never the file system of the temporary directory of a test, or else it is equal.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = elsewhere.path().join(NAME);
    std::fs::write(&path, "elsewhere").unwrap();
    let options = ClientOptions { pfs_root: Some(elsewhere.path().into()), ..scene.options() };
    let client = Client::connect(options);
    assert_eq!(read(&client), "elsewhere");
    let device = |path: &std::path::Path| {
        std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(path).unwrap())
    };
    let same = device(elsewhere.path()) == device(scene.directory.path());
    assert_eq!(client.is_connected(), same);
    assert_eq!(scene.notices_of("it serves").len(), usize::from(!same));
}

#[test]
#[ignore = "a part of another test: a client of a process that knows of no directory yet"]
fn turned_away_process() {
    let Some(directory) = role() else { return };
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let notices = Arc::clone(&told);
    let client = Client::connect(ClientOptions {
        socket: Some(directory.join("socket")),
        retry_interval: Duration::ZERO,
        notice: Arc::new(move |line| notices.lock().unwrap().push(line.to_owned())),
        ..ClientOptions::default()
    });
    for _ in 0..3 {
        assert_eq!(read(&client), "here");
    }
    write(&client, "written", b"written");
    let told = told.lock().unwrap().join("\n");
    std::fs::write(directory.join("told.part"), told).unwrap();
    std::fs::rename(directory.join("told.part"), directory.join("told")).unwrap();
}

#[test]
fn a_process_that_is_turned_away_goes_on_with_the_directory_and_says_why_once() {
    let mut scene = Scene::new();
    let service = Arc::new(FakeService(Arc::clone(&scene.node)));
    let limits = ServerLimits { connections_per_user_max: 1, ..ServerLimits::default() };
    scene.stop();
    let socket = scene.socket();
    let _server = Server::start(&socket, Arc::clone(&service) as _, service, limits).unwrap();
    std::fs::write(scene.path(NAME), "here").unwrap();
    let first = scene.client();
    assert_eq!(read(&first), "here");
    let _other = child("another_node::turned_away_process", scene.directory.path());
    eventually("the other process is through", || scene.path("told").exists());
    let told = std::fs::read_to_string(scene.path("told")).unwrap();
    assert!(told.lines().count() == 1 && told.contains("too many connections"), "{told}");
    assert_eq!(std::fs::read(scene.path("written")).unwrap(), b"written");
    assert!(first.is_connected());
}
