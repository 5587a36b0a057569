//! What a node is told of other nodes: which there are, how it proves itself, and what it takes for
//! them into its burst buffer.

use std::net::SocketAddr;
use std::time::Duration;

use crate::config::{BufferConfig, ClusterConfig, PeerTlsConfig};
use crate::error::Result;
use crate::mode::WriteMode;
use crate::option::{OPTIONS, RawOptions, Setting};
use crate::resolve::{Machine, Reader, path};
use crate::size::ByteSize;

/// Part of the machine's memory that files of mode `bld` may fill: one in so many (the paper takes
/// 3 of 12 GiB, and 6 of 32).
const LOCAL_SHARE: u64 = 4;

/// The other nodes, where any are named, and the burst buffer, where the node has one.
pub fn configs(
    options: &RawOptions,
    machine: &Machine,
) -> Result<(Option<ClusterConfig>, Option<BufferConfig>)> {
    let o = Reader { specs: OPTIONS, place: "option" };
    let (cluster, buffer) = (cluster_config(options, machine)?, buffer_config(options, machine)?);
    check_write_mode(&o, &options.write_mode, cluster.is_some())?;
    Ok((cluster, buffer))
}

fn cluster_config(options: &RawOptions, machine: &Machine) -> Result<Option<ClusterConfig>> {
    let o = Reader { specs: OPTIONS, place: "option" };
    // Checked also where the node stands alone: a wrong value is wrong all the same.
    let peer_timeout_ms = o.required("peer_timeout_ms", &options.peer_timeout_ms)?;
    let integrity: String = o.required("peer_integrity", &options.peer_integrity)?;
    let peer_port = o.required("peer_port", &options.peer_port)?;
    let cluster_name = o.required("cluster_name", &options.cluster_name)?;
    let node_name = o.optional("node_name", &options.node_name)?;
    let node_address = o.optional("node_address", &options.node_address)?;
    let key_file = path(&o, "cluster_key_file", &options.cluster_key_file, machine)?;
    let tls = peer_tls_config(options, machine)?;
    let buffer_local_bytes = match &options.buffer_local_bytes {
        None => machine.memory_bytes / LOCAL_SHARE,
        set => o.bytes("buffer_local_bytes", set)?,
    };
    let buffer_servers = buffer_servers(&o, options)?;
    let Some(nodes) = o.optional("cluster_nodes", &options.cluster_nodes)? else {
        return Ok(None);
    };
    let key_file =
        key_file.ok_or_else(|| o.missing("cluster_key_file", "--cluster-key-file FILE"))?;
    Ok(Some(ClusterConfig {
        nodes,
        cluster_name,
        key_file,
        node_name,
        node_address,
        peer_port,
        peer_timeout: Duration::from_millis(peer_timeout_ms),
        is_integrity_full: integrity == "full",
        tls,
        buffer_local_bytes,
        buffer_servers,
    }))
}

/// Each with a port.
fn buffer_servers(o: &Reader, options: &RawOptions) -> Result<Vec<String>> {
    let Some(setting) = &options.buffer_servers else { return Ok(Vec::new()) };
    let servers = setting.text.split(',').map(str::trim).filter(|server| !server.is_empty());
    let servers: Vec<String> = servers.map(str::to_owned).collect();
    let has_port = |server: &String| {
        server.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        })
    };
    match servers.iter().all(has_port) && !servers.is_empty() {
        true => Ok(servers),
        false => {
            let why = "is no list of hosts with ports";
            Err(o.invalid("buffer_servers", setting, why, "HOST:11211,HOST:11211"))
        }
    }
}

/// All three files, or none.
fn peer_tls_config(options: &RawOptions, machine: &Machine) -> Result<Option<PeerTlsConfig>> {
    let o = Reader { specs: OPTIONS, place: "option" };
    let file = |name, setting| path(&o, name, setting, machine);
    let certificate = file("peer_tls_certificate_file", &options.peer_tls_certificate_file)?;
    let private_key = file("peer_tls_private_key_file", &options.peer_tls_private_key_file)?;
    let authority = file("peer_tls_authority_file", &options.peer_tls_authority_file)?;
    let missing = |name| {
        o.missing(name, "the certificate, its private key and the authority belong together")
    };
    match (certificate, private_key, authority) {
        (None, None, None) => Ok(None),
        (Some(certificate_file), Some(private_key_file), Some(authority_file)) => {
            Ok(Some(PeerTlsConfig { certificate_file, private_key_file, authority_file }))
        }
        (None, ..) => Err(missing("peer_tls_certificate_file")),
        (_, None, _) => Err(missing("peer_tls_private_key_file")),
        (_, _, None) => Err(missing("peer_tls_authority_file")),
    }
}

fn buffer_config(options: &RawOptions, machine: &Machine) -> Result<Option<BufferConfig>> {
    let o = Reader { specs: OPTIONS, place: "option" };
    let disk_bytes = o.bytes("buffer_disk_bytes", &options.buffer_disk_bytes)?;
    let directory = path(&o, "buffer_directory", &options.buffer_directory, machine)?;
    let address: Option<SocketAddr> = o.optional("buffer_address", &options.buffer_address)?;
    if let (Some(address), Some(setting)) = (address, &options.buffer_address)
        && !address.ip().is_loopback()
    {
        let why = "is not on loopback: whoever reaches it needs no password";
        return Err(o.invalid("buffer_address", setting, why, "127.0.0.1:PORT"));
    }
    if options.buffer_bytes.is_none() {
        return match directory.is_some() || address.is_some() {
            true => Err(o.missing("buffer_bytes", "--buffer-bytes 8GiB")),
            false => Ok(None),
        };
    }
    let memory_bytes = o.bytes("buffer_bytes", &options.buffer_bytes)?;
    if let Some(setting) =
        options.buffer_bytes.as_ref().filter(|_| memory_bytes > machine.memory_bytes)
    {
        let why = format!("is more than {}", machine.memory_limit);
        let valid = format!("up to {}", ByteSize(machine.memory_bytes));
        return Err(o.invalid("buffer_bytes", setting, &why, &valid));
    }
    Ok(Some(BufferConfig { memory_bytes, directory, disk_bytes, address }))
}

/// Whether there are nodes for a write mode that needs others.
pub fn check_write_mode(
    reader: &Reader,
    setting: &Option<Setting>,
    has_other_nodes: bool,
) -> Result<()> {
    let is_scheme = |setting: &&Setting| {
        let schemes = [WriteMode::Alw, WriteMode::Adw, WriteMode::Bld];
        schemes.iter().any(|scheme| setting.text.trim() == scheme.name())
    };
    match setting.as_ref().filter(is_scheme).filter(|_| !has_other_nodes) {
        Some(setting) => {
            let why = "is for nodes that have others with a burst buffer";
            Err(reader.invalid(
                "write_mode",
                setting,
                why,
                "another mode, or set `cluster_nodes` too",
            ))
        }
        None => Ok(()),
    }
}
