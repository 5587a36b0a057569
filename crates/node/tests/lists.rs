//! Nodes that find each other by a real etcd, which goes away and comes back.

mod support;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use support::nodes::{BLOCK, CAPACITY, until, write_key};
use tidepool_node::Node;
use tidepool_proto::config::ClusterConfig;

/// A server on loopback with its data in a directory. Killed when dropped.
struct Etcd(Child);

impl Etcd {
    fn start(directory: &Path, ports: [u16; 2]) -> std::io::Result<Self> {
        let [clients, peers] = ports.map(|port| format!("http://127.0.0.1:{port}"));
        let log = std::fs::File::create(directory.join("etcd.log"))?;
        let mut command = Command::new("etcd");
        command
            .args(["--name", "one", "--data-dir"])
            .arg(directory.join("etcd"))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("one={peers}")])
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(Etcd(command.spawn()?))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ports that nothing listens at now.
fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

struct Site {
    directory: tempfile::TempDir,
    ports: [u16; 2],
    third_byte: u8,
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("pfs")).unwrap();
        let third_byte = (std::process::id() % 250) as u8 + 2;
        Site { directory, ports: free_ports(), third_byte }
    }

    fn node(&self, number: u8) -> Arc<Node> {
        let pfs = self.directory.path().join("pfs");
        let config = support::config(&pfs, |config| {
            config.capacity_bytes = CAPACITY;
            config.block_bytes = BLOCK;
            config.timestamp_granularity_ns = Some(0);
            config.cluster = Some(ClusterConfig {
                nodes: format!("etcd:http://127.0.0.1:1,http://127.0.0.1:{}/site", self.ports[0]),
                cluster_name: "test".into(),
                key_file: write_key(self.directory.path(), 7),
                node_name: Some(format!("n{number}")),
                node_address: Some(format!("127.63.{}.{}", self.third_byte, number + 2)),
                peer_port: 7478,
                peer_timeout: Duration::from_millis(500),
                is_integrity_full: false,
                buffer_local_bytes: u64::MAX,
                buffer_servers: Vec::new(),
                tls: None,
            });
        });
        Node::start(config).unwrap()
    }
}

fn knows(node: &Node, others: usize) -> bool {
    let members = node.status().cluster.unwrap().members;
    members.iter().filter(|it| it.state == "alive" && it.sees_same_pfs).count() == others
}

#[test]
fn nodes_find_each_other_by_etcd_and_go_on_without_it() {
    let site = Site::new();
    let Ok(etcd) = Etcd::start(site.directory.path(), site.ports) else {
        println!(
            "SKIPPED nodes_find_each_other_by_etcd_and_go_on_without_it: no etcd (etcd-server)"
        );
        return;
    };
    let first = site.node(0);
    let second = site.node(1);
    until("both found each other", || knows(&first, 1) && knows(&second, 1));

    // It is away, and nobody needs it while nobody comes. One that starts meanwhile knows nobody.
    drop(etcd);
    let third = site.node(2);
    assert!(knows(&first, 1) && knows(&second, 1));
    assert_eq!(third.status().cluster.unwrap().members.len(), 0);

    // It is back, and has forgotten all leases and names.
    std::fs::remove_dir_all(site.directory.path().join("etcd")).unwrap();
    let etcd = Etcd::start(site.directory.path(), site.ports).unwrap();
    let nodes = [&first, &second, &third];
    until("all found each other", || nodes.iter().all(|node| knows(node, 2)));

    // One that leaves is out of the list, and one that comes later is not told of it.
    second.stop();
    let fourth = site.node(3);
    until("the fourth found the others", || knows(&fourth, 2));
    let names: Vec<String> =
        fourth.status().cluster.unwrap().members.into_iter().map(|it| it.node).collect();
    assert!(!names.contains(&"n1".to_owned()), "{names:?}");
    [first, third, fourth].iter().for_each(|node| node.stop());
    drop(etcd);
}
