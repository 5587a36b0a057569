//! Tidepool's own store as an actuator, against a real node behind a real socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidepool_control::actuator::{Actuator, TidepoolStore};
use tidepool_node::Node;
use tidepool_node::server::{Server, ServerLimits};
use tidepool_proto::ErrorKind;
use tidepool_proto::admin::{AdminRequest, AdminService};
use tidepool_proto::control::{ControlEvent, ControlReport};
use tidepool_store::Owner;

const BLOCK: u64 = 4 << 20;
const CAPACITY: u64 = 16 * BLOCK;
const MINIMUM: u64 = 2 * BLOCK;
const DEADLINE: Duration = Duration::from_secs(30);

struct Served {
    node: Arc<Node>,
    server: Server,
}

impl Served {
    fn start(directory: &Path) -> Served {
        let socket = socket(directory);
        let mut config = tidepool_proto::resolve::defaults(directory, &socket, CAPACITY).unwrap();
        config.control.memory_min_bytes = MINIMUM;
        let node = Node::start(config).unwrap();
        let limits = ServerLimits::default();
        let server = Server::start(&socket, node.clone(), node.clone(), limits).unwrap();
        Served { node, server }
    }

    fn set(&self, name: &str, value: &str) {
        let request = AdminRequest::SetControl { name: name.into(), value: value.into() };
        self.node.admin(request, None, 0).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.stop();
        self.node.stop();
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("node.sock")
}

fn attach(directory: &Path) -> TidepoolStore {
    TidepoolStore::attach(&socket(directory), None).unwrap()
}

/// Asks for the state, as a controller does all the time, until it is as wanted.
fn until(store: &TidepoolStore, what: &str, holds: impl Fn() -> bool) {
    for _ in 0..6000 {
        let _ = store.state();
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what} never came; trouble: {:?}", store.trouble());
}

#[test]
fn state_and_commands_go_through() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path());
    let store = attach(directory.path());
    let state = store.state().unwrap();
    assert_eq!((store.name(), state.block_bytes), ("tidepool", BLOCK));
    assert_eq!((state.capacity_bytes, state.resident_bytes), (CAPACITY, 0));
    assert_eq!((state.capacity_min_bytes, state.capacity_max_bytes), (MINIMUM, CAPACITY));
    // The page shows every byte at once, without a message.
    let segment = served.node.store().create_segment(8 * BLOCK, Owner::default()).unwrap();
    for block in 0..8 {
        match segment.begin_fill(block) {
            tidepool_store::FillStart::Started(mut fill) => {
                fill.fill(1);
                fill.commit(tidepool_store::BlockState::Clean);
            }
            _ => panic!("the store is empty"),
        }
    }
    assert_eq!(store.state().unwrap().resident_bytes, 8 * BLOCK);
    let resized = store.resize(4 * BLOCK, DEADLINE).unwrap();
    assert_eq!((resized.freed_bytes, resized.resident_bytes), (4 * BLOCK, 4 * BLOCK));
    assert_eq!(store.state().unwrap().capacity_bytes, 4 * BLOCK);
    let again = store.resize(4 * BLOCK, DEADLINE).unwrap();
    assert_eq!(again.freed_bytes, 0, "repeating is harmless");
}

#[test]
fn the_lease_lives_as_long_as_the_controller_asks() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path());
    // Long enough for a busy machine.
    served.set("control_lease_ms", "1000");
    let store = attach(directory.path());
    let lease = || served.node.control_status().lease;
    until(&store, "several leases", || served.node.control_status().attached_s >= Some(3));
    assert_eq!((lease().as_str(), served.node.control_status().expirations), ("governed", 0));
    // A controller that does not decide any more looks alive only by its thread.
    for _ in 0..4000 {
        if lease() == "expired" {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(lease(), "expired");
    assert_eq!(served.node.control_status().capacity_bytes, MINIMUM);
    until(&store, "the lease again", || lease() == "governed");
    store.resize(CAPACITY, DEADLINE).unwrap();
    assert_eq!(store.state().unwrap().capacity_bytes, CAPACITY);
}

#[test]
fn it_attaches_again_after_a_restart_of_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path());
    let store = attach(directory.path());
    drop(served);
    let error = store.state().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NodeUnavailable, "a dead node has no state: {error}");
    let served = Served::start(directory.path());
    // The node has a state before the controller asks for its lease.
    until(&store, "the new node", || store.state().is_ok());
    until(&store, "the lease", || served.node.control_status().lease == "governed");
    store.resize(8 * BLOCK, DEADLINE).unwrap();
    assert_eq!(served.node.control_status().capacity_bytes, 8 * BLOCK);
}

#[test]
fn settings_and_reports_travel() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path());
    let store = attach(directory.path());
    let (generation, settings) = store.settings();
    assert_eq!(
        tidepool_control::settings::parameters(&settings).unwrap(),
        tidepool_control_policy::Parameters::default()
    );
    served.set("control_hold_ms", "77");
    until(&store, "the new setting", || store.settings().0 > generation);
    let parameters = tidepool_control::settings::parameters(&store.settings().1).unwrap();
    assert_eq!(parameters.hold_ms, 77);
    for at_ms in [1, 2] {
        store.report(ControlReport {
            decisions: at_ms,
            events: vec![ControlEvent { at_ms, ..ControlEvent::default() }],
            ..ControlReport::default()
        });
    }
    until(&store, "the report", || served.node.control_status().decisions.len() == 2);
    let status = served.node.control_status();
    assert_eq!(status.report.unwrap().decisions, 2);
    assert_eq!((status.decisions[0].at_ms, status.decisions[1].at_ms), (1, 2));
}

#[test]
fn where_control_is_off_or_nobody_serves_it_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let error = TidepoolStore::attach(&socket(directory.path()), None).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NodeUnavailable);
    let served = Served::start(directory.path());
    served.set("control", "off");
    let error = TidepoolStore::attach(&socket(directory.path()), None).err().unwrap();
    assert!(error.to_string().contains("`control` is off"), "{error}");
    served.set("control", "on");
    attach(directory.path());
}
