//! Assembles a [`Cluster`]: who this node is, its key, its port, its threads.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use tidepool_cluster::{ClusterNode, Member, NodeName, PeerSettings, Peers, Roster, Settings};
use tidepool_peer::datagram::{Opener, Sealer};
use tidepool_peer::{
    Identity, Integrity, Limits, Seal, Server, SharedKey, TcpTransport, Tls, TlsFiles,
};
use tidepool_proto::config::{ClusterConfig, PeerTlsConfig};
use tidepool_proto::{Error, ErrorKind, Result};

use super::etcd::{self, Etcd};
use super::provider::Provider;
use super::threads::{self, Datagrams, Signal};
use super::{Cluster, Counts};
use crate::core::Core;

/// Connections to a node that are kept open.
const CONNECTIONS_PER_PEER: usize = 2;
/// Time for which the address of a host name is remembered.
const ADDRESS_TTL: Duration = Duration::from_secs(30);

/// Addresses of host names, looked up now and then.
#[derive(Default)]
pub struct Addresses(Mutex<HashMap<String, (Instant, Option<SocketAddr>)>>);

impl Addresses {
    /// The address of `host` now, as far as it is known.
    pub fn of(&self, host: &str, port: u16) -> Option<SocketAddr> {
        if let Ok(address) = host.parse() {
            return Some(SocketAddr::new(address, port));
        }
        let known = self.0.lock().get(host).copied();
        if let Some((at, address)) = known
            && at.elapsed() < ADDRESS_TTL
        {
            return address.map(|it| SocketAddr::new(it.ip(), port));
        }
        let found = (host, port).to_socket_addrs().ok().and_then(|mut all| all.next());
        self.0.lock().insert(host.to_owned(), (Instant::now(), found));
        found
    }
}

fn invalid(option: &str, detail: impl std::fmt::Display, remedy: &str) -> Error {
    let operation = format!("reading option `{option}`");
    Error::new(ErrorKind::InvalidInput, operation, detail.to_string()).remedy(remedy)
}

/// Certificates between nodes.
fn load_tls(config: &PeerTlsConfig, me: &NodeName) -> Result<Tls> {
    let PeerTlsConfig { certificate_file, private_key_file, authority_file } = config.clone();
    let files = TlsFiles {
        certificate: certificate_file,
        private_key: private_key_file,
        authority: authority_file,
    };
    Tls::load(&files, me.as_str()).map_err(|error| {
        Error::new(ErrorKind::InvalidInput, "reading certificates between nodes", error.to_string())
            .remedy("docs/guide/many-nodes.md says how to make them")
    })
}

/// The members as the option names them, and this node among them. In etcd there may be more.
fn read_list(config: &ClusterConfig) -> Result<(Roster, Member, Option<Etcd>)> {
    let Some(text) = config.nodes.trim().strip_prefix(etcd::SCHEME) else {
        let roster = read_roster(config)?;
        let me = find_self(config, &roster)?;
        return Ok((roster, me, None));
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = host.split('.').next().unwrap_or_default().to_owned();
    let name = NodeName::new(config.node_name.as_ref().unwrap_or(&short));
    let name = name.map_err(|error| invalid("node_name", error, "set it to a name of its own"))?;
    let entry = format!("{name}={}", config.node_address.as_ref().unwrap_or(&host));
    let remedy = "set it to HOST[:PORT] by which other nodes reach this one";
    let roster = Roster::parse(&entry, config.peer_port)
        .map_err(|error| invalid("node_address", error, remedy))?;
    let me = roster.members().first().cloned();
    let me = me.ok_or_else(|| invalid("node_address", "it is empty", remedy))?;
    let etcd = Etcd::new(text, config, me.clone())
        .map_err(|error| invalid("cluster_nodes", error, &format!("valid: {}", etcd::GRAMMAR)))?;
    Ok((roster, me, Some(etcd)))
}

fn read_roster(config: &ClusterConfig) -> Result<Roster> {
    let remedy =
        "valid: [NAME=]HOST[:PORT] separated by commas, `slurm`, @PATH, or etcd:http://...";
    let parsed = match config.nodes.trim() {
        "slurm" => match std::env::var("SLURM_JOB_NODELIST") {
            Ok(nodes) => Roster::parse(&nodes, config.peer_port),
            Err(_) => {
                let detail = "`slurm` takes SLURM_JOB_NODELIST, which is not set";
                let remedy = "start the node in a Slurm job, or list the nodes";
                return Err(invalid("cluster_nodes", detail, remedy));
            }
        },
        text => match text.strip_prefix('@') {
            Some(path) => Roster::read(Path::new(path), config.peer_port),
            None => Roster::parse(text, config.peer_port),
        },
    };
    parsed.map_err(|error| invalid("cluster_nodes", error, remedy))
}

/// This node among the members.
fn find_self(config: &ClusterConfig, roster: &Roster) -> Result<Member> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = host.split('.').next().unwrap_or_default().to_owned();
    let candidates = match &config.node_name {
        Some(name) => vec![name.clone()],
        None => vec![host, short],
    };
    let named = candidates.iter().filter_map(|name| NodeName::new(name).ok());
    let found = named.filter_map(|name| roster.get(&name).cloned()).next();
    found.ok_or_else(|| {
        let detail = format!("`{}` is not among `cluster_nodes`", candidates[0]);
        invalid("node_name", detail, "set `node_name` to this node's name in the list")
    })
}

/// The sockets at this node's address.
fn bind(me: &Member, addresses: &Addresses) -> Result<(TcpListener, UdpSocket)> {
    let place = format!("{}:{}", me.host, me.port);
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Unsupported, "listening for other nodes", format!("at {place}"))
            .caused_by(error)
            .remedy(
                "the entry of `cluster_nodes` must be an address of this machine, its port free",
            )
    };
    let not_found = || std::io::Error::other("the host name has no address");
    let address = addresses.of(&me.host, me.port).ok_or_else(not_found).map_err(failed)?;
    let listener = TcpListener::bind(address).map_err(failed)?;
    Ok((listener, UdpSocket::bind(address).map_err(failed)?))
}

impl Cluster {
    /// Joins the other nodes, where the configuration names any.
    pub fn join(core: &Arc<Core>) -> Result<()> {
        if let Some(config) = &core.config.cluster {
            let cluster = Cluster::start(core, config)?;
            let is_first = core.cluster.set(cluster).is_ok();
            debug_assert!(is_first, "a node joins once");
        }
        Ok(())
    }

    fn start(core: &Arc<Core>, config: &ClusterConfig) -> Result<Arc<Cluster>> {
        let (roster, me, etcd) = read_list(config)?;
        let key = SharedKey::load(&config.key_file).map_err(|error| {
            invalid("cluster_key_file", error, "head -c 32 /dev/urandom > FILE; chmod 600 FILE")
        })?;
        let tls = config.tls.as_ref().map(|tls| load_tls(tls, &me.name)).transpose()?;
        let identity =
            Identity { cluster: config.cluster_name.clone(), node: me.name.to_string(), key, tls };
        let addresses = Arc::<Addresses>::default();
        let seal = Seal::of(&identity);
        let (listener, socket) = bind(&me, &addresses)?;
        let integrity = if config.is_integrity_full { Integrity::Full } else { Integrity::Headers };
        let signal = Signal::new().map_err(|error| {
            Error::new(ErrorKind::Unsupported, "preparing the thread of members", "")
                .caused_by(error)
        })?;
        let settings =
            Settings { cluster_name: config.cluster_name.clone(), ..Settings::default() };
        let seed = threads::random() as u64;
        let incarnation = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (me, incarnation) = (me.name, incarnation.as_millis() as u64);
        core.memory_only.set_member(me.as_str());
        let members =
            ClusterNode::new(settings, me.clone(), incarnation, &roster, seed, Duration::ZERO);
        let roster = Arc::new(RwLock::new(roster));
        let resolve = {
            let (roster, addresses) = (roster.clone(), addresses.clone());
            move |name: &str| {
                let member = roster.read().get(&NodeName::new(name).ok()?)?.clone();
                addresses.of(&member.host, member.port)
            }
        };
        let transport =
            TcpTransport::new(identity.clone(), integrity, Arc::new(resolve), CONNECTIONS_PER_PEER);
        let cluster = Arc::new_cyclic(|myself| Cluster {
            myself: myself.clone(),
            core: Arc::downgrade(core),
            node: Default::default(),
            config: config.clone(),
            seal,
            me,
            roster,
            addresses,
            started: Instant::now(),
            members: Mutex::new(members),
            peers: Mutex::new(Peers::new(PeerSettings { seed, ..PeerSettings::default() })),
            transport: Arc::new(transport),
            server: Mutex::default(),
            proofs: Default::default(),
            sight: Default::default(),
            measuring: Default::default(),
            recalls: Default::default(),
            given: Default::default(),
            taken: Default::default(),
            copies: Default::default(),
            buffers: Default::default(),
            clean: Default::default(),
            holdings: Default::default(),
            counts: Counts::default(),
            asking: Default::default(),
            threads: Mutex::default(),
            signal,
            stopping: false.into(),
        });
        cluster.listen(listener, socket, &identity, integrity)?;
        if let Some(etcd) = etcd {
            threads::follow_list(&cluster, etcd)?;
        }
        Ok(cluster)
    }

    fn listen(
        self: &Arc<Self>,
        listener: TcpListener,
        socket: UdpSocket,
        identity: &Identity,
        integrity: Integrity,
    ) -> Result<()> {
        let service = Arc::new(Provider(Arc::downgrade(self)));
        let server =
            Server::start(listener, identity.clone(), integrity, service, Limits::default());
        let server = server.map_err(|error| {
            Error::new(ErrorKind::Unsupported, "serving other nodes", "").caused_by(error)
        })?;
        *self.server.lock() = Some(server);
        let datagrams =
            Datagrams { socket, sealer: Sealer::new(identity), opener: Opener::new(identity) };
        threads::start(self, datagrams)
    }
}
