//! The nodes under test: processes over one PFS directory that reach each other by links.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use tidepool_client::{Client, ClientOptions};
use tidepool_proto::admin::{AdminReply, AdminRequest, Status};

use tidepool_test_authority::{Authority, write_secret};

use super::links::RunningLink;
use super::operation::{KEPT_DIRECTORY, Weather};
use super::run::Plan;
use crate::product::{Node, NodeSpec, end_of_log, said, signal, unmount};

/// Capacity of each node in MiB.
pub const MEMORY_MIB: u64 = 48;
/// First port of the nodes; each cluster of a process has one of its own.
const PORT: u16 = 7478;
/// Nodes of a cluster at most, by the addresses that it may have.
pub const NODES_MAX: usize = 6;

/// One node, whether it runs or not.
pub struct Member {
    /// The process and its places.
    pub node: Node,
    /// A client of it, for all threads.
    pub client: Client,
    process_id: AtomicU32,
}

/// See the module's documentation.
pub struct Nodes {
    /// By number.
    pub members: Vec<Member>,
    links: Vec<Vec<Option<RunningLink>>>,
    directory: tempfile::TempDir,
    /// Whether they have mounts.
    pub are_mounted: bool,
}

/// Addresses of a cluster that no other process of this machine uses, as far as its number tells.
fn address(last: usize, port: u16) -> SocketAddr {
    let number = std::process::id() & 0x7fff;
    let [high, low] = ((number >> 1) as u16).to_be_bytes();
    let last = (number & 1) as u8 * 128 + last as u8;
    SocketAddr::new(Ipv4Addr::new(127, 192 + high, low, last).into(), port)
}

fn own_address(node: usize, port: u16) -> SocketAddr {
    address(2 + node, port)
}

fn link_address(from: usize, to: usize, port: u16) -> SocketAddr {
    address(16 + from * NODES_MAX + to, port)
}

/// Where a node finds its certificates, in its configuration.
fn certificate_lines(authority: &Authority, node: usize) -> io::Result<String> {
    let files = authority.issue(&format!("n{node}"))?;
    let line = |(name, path): (&str, &Path)| format!("{name} = \"{}\"\n", path.display());
    Ok(files.options().map(line).concat())
}

fn configuration(node: usize, count: usize, port: u16, key_file: &Path) -> String {
    let entry = |other: usize| {
        let address = match other == node {
            true => own_address(node, port),
            false => link_address(node, other, port),
        };
        format!("n{other}={address}")
    };
    let list: Vec<String> = (0..count).map(entry).collect();
    format!(
        "cluster_nodes = \"{}\"\nnode_name = \"n{node}\"\ncluster_key_file = \"{}\"\n\
         block_bytes = \"2MiB\"\nsmall_file_bytes_max = 0\npeer_timeout_ms = 200\n",
        list.join(","),
        key_file.display()
    )
}

/// What of these files is not on the PFS is in the memory of two nodes.
fn rule() -> String {
    format!("[[rule]]\npath = \"{KEPT_DIRECTORY}\"\nwrite_mode = \"memory\"\ncopies = 2\n")
}

/// The same, in the memory of one and on the disk of another one, which is below this directory.
/// Other files have copies in the buffers.
fn buffer_lines(node: usize, directory: &Path) -> String {
    let disk = directory.join(format!("buffer-{node}"));
    format!(
        "buffer_bytes = \"32MiB\"\nbuffer_directory = \"{}\"\nbuffer_disk_bytes = \"1GiB\"\n\
         buffer_local_bytes = \"16MiB\"\nwrite_mode = \"bld\"\n\
         [[rule]]\npath = \"{KEPT_DIRECTORY}\"\nwrite_mode = \"alw\"\n",
        disk.display()
    )
}

impl Nodes {
    /// Starts nodes over one PFS directory below the temporary directory, or the one of the plan.
    pub fn start(plan: &Plan) -> io::Result<Nodes> {
        let Plan { nodes: count, are_mounted, is_encrypted, has_buffers, .. } = *plan;
        let pfs = plan.pfs.as_deref();
        static NEXT: AtomicU16 = AtomicU16::new(0);
        assert!(count <= NODES_MAX, "{count} nodes");
        let port = PORT + NEXT.fetch_add(1, Ordering::Relaxed) % 1000;
        let directory = match pfs {
            Some(pfs) => tempfile::Builder::new().prefix("tidepool-test-").tempdir_in(pfs)?,
            None => tempfile::Builder::new().prefix("tidepool-test-").tempdir()?,
        };
        let key_file = directory.path().join("key");
        write_secret(&key_file, &KEY)?;
        let authority = is_encrypted.then(|| Authority::new(directory.path())).transpose()?;
        let pfs = directory.path().join("pfs");
        std::fs::create_dir_all(pfs.join(KEPT_DIRECTORY))?;
        let mut links = Vec::new();
        for from in 0..count {
            let link = |to: usize| match from == to {
                true => Ok(None),
                false => {
                    let at = link_address(from, to, port);
                    RunningLink::start(at, own_address(to, port)).map(Some)
                }
            };
            links.push((0..count).map(link).collect::<io::Result<_>>()?);
        }
        let member = |node: usize| {
            let certificates = authority.as_ref().map(|it| certificate_lines(it, node));
            let spec = NodeSpec {
                memory: format!("{MEMORY_MIB}MiB"),
                configuration: configuration(node, count, port, &key_file)
                    + &certificates.transpose()?.unwrap_or_default()
                    + &if has_buffers { buffer_lines(node, directory.path()) } else { rule() },
                pfs: Some(pfs.clone()),
                is_mounted: are_mounted,
                ..NodeSpec::default()
            };
            Member::start(spec)
        };
        let members = (0..count).map(member).collect::<io::Result<_>>()?;
        Ok(Nodes { members, links, directory, are_mounted })
    }

    /// The PFS directory.
    pub fn pfs(&self) -> PathBuf {
        self.directory.path().join("pfs")
    }

    /// Changes a link; one to itself is none.
    pub fn set_link(&self, from: usize, to: usize, weather: Weather) {
        if let Some(link) = &self.links[from][to] {
            link.set(weather);
        }
    }

    /// Makes all links as they were at first.
    pub fn heal_links(&self) {
        self.links.iter().flatten().flatten().for_each(|link| link.set(Weather::Fair));
    }

    /// The ends of their logs.
    pub fn logs(&self) -> String {
        let logs = self.members.iter().enumerate().map(|(number, member)| {
            format!("log of n{number}:\n{}\n", end_of_log(&Node::log(&member.node)))
        });
        logs.collect()
    }

    /// Ends all by force, also those that are paused or hang, so that all that waits for them ends.
    pub fn kill_all(&self) {
        self.members.iter().for_each(|member| member.signal(libc::SIGKILL));
        self.members.iter().for_each(|member| unmount(member.node.mount()));
    }
}

/// The key of all nodes.
const KEY: [u8; 32] = [7; 32];

impl Member {
    fn start(spec: NodeSpec) -> io::Result<Member> {
        let node = Node::start(spec)?;
        let client = Client::connect(ClientOptions {
            socket: Some(node.socket().to_owned()),
            pfs_root: Some(node.pfs().to_owned()),
            retry_interval: Duration::ZERO,
            notice: Arc::new(|_| ()),
            ..ClientOptions::default()
        });
        let process_id = node.process_id()?.into();
        Ok(Member { node, client, process_id })
    }

    /// Starts it again after a kill or stop.
    pub fn start_again(&self) -> io::Result<()> {
        let output = self.node.try_start()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("node start: {}", said(&output))));
        }
        self.process_id.store(self.node.process_id()?, Ordering::Release);
        Ok(())
    }

    /// Its process.
    pub fn process_id(&self) -> u32 {
        self.process_id.load(Ordering::Acquire)
    }

    /// Sends a signal to its process.
    pub fn signal(&self, number: i32) {
        signal(self.process_id(), number);
    }

    /// Facts and counters.
    pub fn status(&self) -> io::Result<Status> {
        match self.client.admin(AdminRequest::Status, None).map_err(io::Error::other)? {
            AdminReply::Status(status) => Ok(*status),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }
}
