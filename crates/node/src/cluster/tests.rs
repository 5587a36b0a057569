//! Tests of what another node is given, asked as the peer port asks.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tidepool_cluster::NodeName;
use tidepool_peer::{Block, Bytes, Refusal, Service};
use tidepool_proto::config::{ClusterConfig, NodeConfig};
use tidepool_proto::{Access, FileService, OpenFile, OpenRequest, Version};

use super::provider::Provider;
use super::shared::Shared;
use crate::file::state::FileState;
use crate::node::Node;

const BLOCK: usize = 4 << 20;
const LENGTH: usize = 2 * BLOCK + 100;

/// A node, and a second one of which only the name is there.
struct Fixture {
    directory: tempfile::TempDir,
    node: Arc<Node>,
    peer: NodeName,
}

impl Fixture {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut NodeConfig)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let directory = tempfile::tempdir().unwrap();
        let key_file = directory.path().join(".key");
        std::fs::write(&key_file, [1; 32]).unwrap();
        std::fs::set_permissions(&key_file, Permissions::from_mode(0o600)).unwrap();
        let (high, low) = (std::process::id() >> 8, std::process::id() & 0xff);
        let host = NEXT.fetch_add(2, Ordering::Relaxed) % 200 + 20;
        let address = |more| format!("127.{}.{low}.{}", 192 + high % 32, host + more);
        let socket = directory.path().join(".socket");
        let defaults = tidepool_proto::resolve::defaults(directory.path(), &socket, 64 << 20);
        let mut config = defaults.unwrap();
        config.timestamp_granularity_ns = Some(0);
        config.cluster = Some(ClusterConfig {
            nodes: format!("n0={},n1={}", address(0), address(1)),
            cluster_name: "test".into(),
            key_file,
            node_name: Some("n0".into()),
            peer_port: 7478,
            peer_timeout: Duration::from_millis(500),
            is_integrity_full: false,
            buffer_local_bytes: u64::MAX,
            buffer_servers: Vec::new(),
            tls: None,
            node_address: None,
        });
        change(&mut config);
        let node = Node::start(config).unwrap();
        let fixture = Fixture { directory, node, peer: NodeName::new("n1").unwrap() };
        let cluster = fixture.node.core.cluster.get().unwrap();
        cluster.proofs.note(&fixture.peer, None, Duration::ZERO);
        std::fs::write(fixture.path(), vec![1; LENGTH]).unwrap();
        fixture
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("file")
    }

    fn open(&self, access: Access) -> Arc<dyn OpenFile> {
        let file = File::options().read(true).write(access.writes()).open(self.path()).unwrap();
        let request = OpenRequest { access, ..OpenRequest::to_read(file.into(), 0) };
        self.node.open(request).unwrap()
    }

    /// Has all of it resident.
    fn read(&self) -> Version {
        let open = self.open(Access::Read);
        assert_eq!(open.read_at(0, &mut vec![0; LENGTH]).unwrap().bytes, LENGTH);
        open.version()
    }

    fn ask(&self, version: &Version, may_fill: bool) -> Result<Block, Refusal> {
        self.ask_as("n1", version, 0, BLOCK, may_fill)
    }

    fn ask_as(
        &self,
        from: &str,
        version: &Version,
        offset: usize,
        length: usize,
        may_fill: bool,
    ) -> Result<Block, Refusal> {
        let request = Shared::named(version).request(offset as u64, length, may_fill);
        let provider = Provider(Arc::downgrade(self.node.core.cluster.get().unwrap()));
        provider.block(from, &request, &mut || Ok(()))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.node.stop();
    }
}

fn bytes_of(block: &Block, length: usize) -> Vec<u8> {
    match &block.bytes {
        Bytes::Copied(bytes) => bytes.clone(),
        Bytes::File { file, offset } => {
            let file = File::from(file.try_clone().unwrap());
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, *offset).unwrap();
            bytes
        }
    }
}

fn has_descriptor(file: &FileState) -> bool {
    file.inner.lock().opens.iter().any(|open| open.lower.strong_count() > 0)
}

fn refusal(asked: Result<Block, Refusal>) -> Refusal {
    asked.err().expect("it is refused")
}

#[test]
fn a_block_is_confirmed_while_nothing_happens_to_it() {
    let fixture = Fixture::new();
    let version = fixture.read();
    for (offset, length) in [(0, BLOCK), (BLOCK, BLOCK), (2 * BLOCK, 100)] {
        let block = fixture.ask_as("n1", &version, offset, length, false).unwrap();
        assert!(bytes_of(&block, length) == vec![1; length], "at {offset}");
        assert!((block.confirm)(), "at {offset}");
    }
}

#[test]
fn a_block_that_changed_after_it_was_sent_is_not_confirmed() {
    let writes = |fixture: &Fixture| {
        fixture.open(Access::ReadWrite).write_at(10, &[2; 100]).map(drop).unwrap();
    };
    let writes_elsewhere = |fixture: &Fixture| {
        fixture.open(Access::ReadWrite).write_at(BLOCK as u64 + 10, &[2; 100]).map(drop).unwrap();
    };
    let cuts = |fixture: &Fixture| fixture.open(Access::ReadWrite).set_size(50).unwrap();
    let evicts = |fixture: &Fixture| _ = fixture.node.core.store.evict_all();
    let refills = |fixture: &Fixture| {
        _ = fixture.node.core.store.evict_all();
        fixture.read();
    };
    let changes_behind = |fixture: &Fixture| {
        std::fs::write(fixture.path(), vec![3; LENGTH]).unwrap();
        fixture.read();
    };
    type Change<'a> = (&'a str, &'a dyn Fn(&Fixture));
    let changes: [Change<'_>; 6] = [
        ("written", &writes),
        ("written in another block", &writes_elsewhere),
        ("cut", &cuts),
        ("evicted", &evicts),
        ("evicted and filled again", &refills),
        ("changed behind the node", &changes_behind),
    ];
    for (what, change) in changes {
        let fixture = Fixture::new();
        let version = fixture.read();
        let block = fixture.ask(&version, false).unwrap();
        change(&fixture);
        assert!(!(block.confirm)(), "{what}");
    }
}

#[test]
fn other_versions_ranges_and_nodes_are_refused() {
    let fixture = Fixture::new();
    let version = fixture.read();
    let newer = Version { modified_ns: version.modified_ns + 1, ..version };
    assert_eq!(refusal(fixture.ask(&newer, true)), Refusal::Stale);
    let born = Version { born_ns: version.born_ns + 1, ..version };
    assert_eq!(refusal(fixture.ask(&born, true)), Refusal::Stale);
    for (offset, length) in [(0, 100), (1, BLOCK), (BLOCK / 2, BLOCK), (0, 2 * BLOCK), (0, 0)] {
        let asked = fixture.ask_as("n1", &version, offset, length, true);
        assert_eq!(refusal(asked), Refusal::NotHeld, "{length} bytes at {offset}");
    }
    let beyond = fixture.ask_as("n1", &version, 3 * BLOCK, BLOCK, true);
    assert_eq!(refusal(beyond), Refusal::NotHeld);
    let stranger = fixture.ask_as("n2", &version, 0, BLOCK, true);
    assert_eq!(refusal(stranger), Refusal::Unknown);
    fixture.node.core.cluster().unwrap().proofs.doubt(&fixture.peer, "for this test");
    assert_eq!(refusal(fixture.ask(&version, true)), Refusal::Unknown);
}

#[test]
fn racy_bytes_are_refused() {
    let racy = Some(10_000_000_000);
    let fixture = Fixture::with(|config| config.timestamp_granularity_ns = racy);
    let version = fixture.read();
    let _open = fixture.open(Access::Read);
    assert_eq!(refusal(fixture.ask(&version, true)), Refusal::Stale);
}

#[test]
fn a_peer_joins_a_read_of_the_pfs_that_is_under_way() {
    let pieces = 4;
    let fixture = Fixture::with(|config| {
        config.transfer_bytes = (BLOCK / pieces) as u64;
        config.fault = Some("read:slow=100ms".into());
    });
    let open = fixture.open(Access::Read);
    let read_bytes = || fixture.node.status().pfs_read_bytes;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| open.read_at(0, &mut [0; 100]).unwrap());
        // So it was decided where the block comes from, and most of it has not come.
        while read_bytes() == 0 && !reader.is_finished() {
            std::thread::yield_now();
        }
        let block = fixture.ask(&open.version(), true).expect("it is waited for");
        assert!(bytes_of(&block, BLOCK) == vec![1; BLOCK] && (block.confirm)());
    });
}

#[test]
fn a_peer_is_sent_away_while_a_writer_waits() {
    let fixture = Fixture::with(|config| {
        config.transfer_bytes = (BLOCK / 32) as u64;
        config.fault = Some("read:slow=100ms".into());
    });
    let open = fixture.open(Access::Read);
    let file = fixture.node.core.files.get(open.version().id).unwrap();
    let request = Shared::named(&open.version()).request(0, BLOCK, true);
    let provider = Provider(Arc::downgrade(fixture.node.core.cluster.get().unwrap()));
    std::thread::scope(|scope| {
        let mut writer = None;
        let mut working = || {
            let write = || fixture.open(Access::ReadWrite).write_at(10, &[2; 100]).unwrap();
            writer.get_or_insert_with(|| scope.spawn(write));
            while file.try_share_gate().is_some() {
                std::thread::yield_now();
            }
            Ok(())
        };
        let asked = provider.block("n1", &request, &mut working);
        assert_eq!(refusal(asked), Refusal::Busy);
        // The fill has not ended, for which the writer waits.
        assert!(fixture.node.status().pfs_read_bytes < BLOCK as u64);
    });
}

#[test]
fn a_block_is_filled_for_a_peer_by_the_descriptor_of_an_open_alone() {
    let fixture = Fixture::new();
    let open = fixture.open(Access::Read);
    let version = open.version();
    assert_eq!(refusal(fixture.ask(&version, false)), Refusal::NotHeld);
    let block = fixture.ask(&version, true).unwrap();
    assert!(bytes_of(&block, BLOCK) == vec![1; BLOCK] && (block.confirm)());
    drop(open);
    // The thread that filled it has the descriptor a moment longer.
    let deadline = Instant::now() + Duration::from_secs(30);
    while fixture.node.core.files.get(version.id).is_some_and(|file| has_descriptor(&file)) {
        assert!(Instant::now() < deadline, "a descriptor outlives its open");
        std::thread::sleep(Duration::from_millis(1));
    }
    fixture.node.core.store.evict_all();
    assert_eq!(refusal(fixture.ask(&version, true)), Refusal::NotHeld);
}

/// Who opens a file waits for a node that does not know it yet, or sees other files for a moment,
/// and not for one that sees others for long.
#[test]
fn who_is_not_known_yet_is_not_refused() {
    let fixture = Fixture::new();
    let cluster = fixture.node.core.cluster().unwrap();
    let answer = || {
        let reply = super::recall::answer(cluster, &fixture.peer, b"");
        postcard::from_bytes::<super::recall::Answer>(&reply).unwrap()
    };
    cluster.proofs.doubt(&fixture.peer, "for this test");
    assert!(matches!(answer(), super::recall::Answer::NotMet));
    let differs = super::join::Refused::Differs("another PFS".into());
    // A client of the PFS may show an earlier file for a while.
    cluster.proofs.note(&fixture.peer, Some(differs.clone()), Duration::from_secs(100));
    assert!(matches!(answer(), super::recall::Answer::NotMet));
    cluster.proofs.note(&fixture.peer, Some(differs), Duration::from_secs(111));
    assert!(matches!(answer(), super::recall::Answer::Stays(reason) if reason == "another PFS"));
}

#[test]
fn what_a_copy_took_the_place_of_comes_back_where_its_node_died_at_it() {
    use super::copies::claim::Taker;

    let fixture = Fixture::new();
    let cluster = fixture.node.core.cluster.get().unwrap();
    let of = (tidepool_cluster::FileKey { inode: 9, generation: 8 }, 7);
    let beside = fixture.directory.path().join(format!(".tidepool-copy-{:016x}-9-1", of.1));
    let name = beside.file_name().unwrap();
    let mark = |seal: &tidepool_peer::Seal| {
        let taker = Taker {
            me: ("n1", "a start"),
            is_there: &|_, _| false,
            is_stuck: &|_, _, _| false,
            seal,
        };
        let copy = File::open(fixture.path()).unwrap();
        let mark = taker.copy_mark(&copy, name, of).unwrap();
        let flags = rustix::fs::XattrFlags::CREATE;
        rustix::fs::fsetxattr(&copy, tidepool_proto::stub::STUB_ATTRIBUTE, &mark, flags).unwrap();
    };
    let is_marked = || {
        let mut value = [0; 512];
        let attribute = tidepool_proto::stub::STUB_ATTRIBUTE;
        rustix::fs::getxattr(fixture.path(), attribute, &mut value).is_ok()
    };
    let open = || {
        let file = File::open(fixture.path()).unwrap();
        fixture.node.open(OpenRequest::to_read(file.into(), 0))
    };
    // A user's mark moves nothing.
    std::fs::write(&beside, b"newer").unwrap();
    let key = tidepool_peer::SharedKey::from_bytes(&[2; 32]).unwrap();
    let identity =
        tidepool_peer::Identity { cluster: "test".into(), node: "n1".into(), key, tls: None };
    mark(&tidepool_peer::Seal::of(&identity));
    drop(open().unwrap());
    assert_eq!(std::fs::read(&beside).unwrap(), b"newer");
    // Its node took another program's file out of the place, and died.
    std::fs::remove_file(fixture.path()).unwrap();
    std::fs::write(fixture.path(), b"old").unwrap();
    mark(&cluster.seal);
    let error = open().map(drop).expect_err("another file is there now");
    assert_eq!(error.kind(), tidepool_proto::ErrorKind::Changed);
    assert_eq!(std::fs::read(fixture.path()).unwrap(), b"newer");
    assert!(!beside.exists() && !is_marked());
    // It died when all was done.
    mark(&cluster.seal);
    drop(open().unwrap());
    assert_eq!(std::fs::read(fixture.path()).unwrap(), b"newer");
    assert!(!is_marked());
}
