//! The burst buffer's client and server without a node, for rows that measure them alone. Measures
//! nothing by itself but what it is told to; prints figures, a line each.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use tidepool_buffer::client::{Client, ClientSettings, Keep, tcp};
use tidepool_buffer::disk::{Disk, DiskSettings};
use tidepool_buffer::key::BlockName;
use tidepool_buffer::memory::Memory;
use tidepool_buffer::placement::{Member, Placement, Pool};
use tidepool_buffer::server::{InMemory, Keeper, Server, Settings};

/// Bytes that are sent in one call.
const CALL_BYTES: usize = 4 << 20;
/// Packets of a block.
const BLOCK_PACKETS: u32 = 256;
/// Threads that write to the disk, as in a node.
const DISK_THREADS: usize = 4;

/// Measures the burst buffer alone.
#[derive(Debug, Parser)]
enum Arguments {
    /// Serves in memory until it is killed.
    Serve {
        /// Where.
        address: SocketAddr,
        /// Most bytes in memory.
        memory_bytes: u64,
    },
    /// Stores packets that may be evicted on one server; prints bytes a second.
    Store {
        /// Where the server is.
        address: SocketAddr,
        /// Length of a packet.
        packet_bytes: usize,
        /// Of all packets.
        bytes: u64,
        /// Threads with a connection each.
        streams: u64,
    },
    /// Has a server owe packets to the PFS, on a disk, and ends as by a crash.
    Fill {
        /// Directory of its files.
        directory: PathBuf,
        /// Of all packets.
        bytes: u64,
    },
    /// Reads what was left there; prints its bytes and the seconds it took.
    Replay {
        /// The same directory.
        directory: PathBuf,
    },
}

fn main() -> Result<()> {
    match Arguments::parse() {
        Arguments::Serve { address, memory_bytes } => {
            let memory = Arc::new(Memory::new(memory_bytes));
            let listener = TcpListener::bind(address)?;
            let settings = Settings::default();
            let _server = Server::start(Some(listener), settings, memory, Box::new(InMemory))?;
            println!("ready");
            loop {
                std::thread::park();
            }
        }
        Arguments::Store { address, packet_bytes, bytes, streams } => {
            println!("{}", store(address, packet_bytes, bytes, streams)?);
            Ok(())
        }
        Arguments::Fill { directory, bytes } => fill(&directory, bytes),
        Arguments::Replay { directory } => {
            let begun = Instant::now();
            let (_disk, replayed) = Disk::open(&settings(&directory), small_memory())?;
            let seconds = begun.elapsed().as_secs_f64();
            ensure!(replayed.damaged.is_empty(), "broken: {:?}", replayed.damaged);
            println!("{} {seconds}", replayed.bytes);
            Ok(())
        }
    }
}

fn client(address: SocketAddr) -> Result<Client> {
    let members = vec![Member { name: "buffer".into(), weight: 1.0 }];
    let pool = Pool::new(members, Placement::Block).map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(Client::new(pool, vec![tcp(address)], ClientSettings::default()))
}

/// Stores packets, the same few again and again, so that the server replaces what it has.
fn put(client: &Client, epoch: u64, packet: &[u8], bytes: u64, keep: Keep) -> Result<()> {
    let at_once = (CALL_BYTES / packet.len()).max(1) as u32;
    let (mut left, mut next) = (bytes, 0);
    while left > 0 {
        let block = BlockName { epoch, block: u64::from(next / BLOCK_PACKETS) };
        let first = next % BLOCK_PACKETS;
        let packets: Vec<(u32, &[u8])> =
            (first..first + at_once).map(|number| (number, packet)).collect();
        client.put(&block, &packets, keep)?;
        next += at_once;
        left = left.saturating_sub(u64::from(at_once) * packet.len() as u64);
    }
    Ok(())
}

fn store(address: SocketAddr, packet_bytes: usize, bytes: u64, streams: u64) -> Result<f64> {
    let client = client(address)?;
    let packet = vec![7; packet_bytes];
    let share = bytes / streams;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let store = |epoch| {
            let (client, packet) = (&client, &packet);
            scope.spawn(move || put(client, epoch, packet, share, Keep::Clean))
        };
        let threads: Vec<_> = (1..=streams).map(store).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().try_for_each(join)
    })?;
    Ok((share * streams) as f64 / begun.elapsed().as_secs_f64())
}

fn settings(directory: &Path) -> DiskSettings {
    DiskSettings {
        directory: directory.to_owned(),
        capacity_bytes: u64::MAX >> 1,
        threads: DISK_THREADS,
        patience: Duration::from_secs(60),
        replaced_bytes_max: 8 << 20,
    }
}

/// Far less than what is on the disk.
fn small_memory() -> Arc<Memory> {
    Arc::new(Memory::new(256 << 20))
}

fn fill(directory: &Path, bytes: u64) -> Result<()> {
    let memory = small_memory();
    let keeper: Box<dyn Keeper> = Box::new(Disk::open(&settings(directory), memory.clone())?.0);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = Server::start(Some(listener), Settings::default(), memory, keeper)?;
    let address = server.address().expect("it listens");
    let packet: Vec<u8> = (0..512 << 10).map(|at: u32| (at % 251) as u8).collect();
    put(&client(address)?, 1, &packet, bytes, Keep::Durable)?;
    std::process::exit(0)
}
