//! [`BurstBuffer`]: memory, and a disk, of this node that take what jobs on other nodes write until
//! the PFS has it.
//!
//! It is a server of `tidepool-buffer` in this process. Other nodes reach it by their authenticated
//! connections (see `cluster::buffers`), programs of this machine on loopback, where that is asked
//! for.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tidepool_buffer::client::{self, Client, ClientSettings, Connect};
use tidepool_buffer::disk::{Disk, DiskSettings, Owed};
use tidepool_buffer::memory::Memory;
use tidepool_buffer::placement::{Member, Placement, Pool};
use tidepool_buffer::server::{InMemory, Keeper, Server, Settings, Shared};
use tidepool_proto::buffer::BufferStatus;
use tidepool_proto::config::BufferConfig;
use tidepool_proto::{ByteSize, Error, ErrorKind, Result};

/// Most bytes of a message with commands, and of its answers: the transport adds its own to 1 MiB.
pub const MESSAGE_BYTES_MAX: usize = (1 << 20) - (4 << 10);
/// How long what a node stores waits for room: it has the bytes, and can bring them to the PFS.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The allocator is asked to give memory back once so much was freed.
const TRIMMED_BYTES: u64 = 16 << 20;
/// Threads that write to the disk.
const DISK_THREADS: usize = 4;
/// See [`DiskSettings::replaced_bytes_max`].
const REPLACED_BYTES_MAX: u64 = 8 << 20;

/// See the module's documentation.
pub struct BurstBuffer {
    config: BufferConfig,
    server: Server,
    notes: Vec<String>,
}

impl BurstBuffer {
    /// Reads what an earlier start left on the disk, and serves.
    ///
    /// # Errors
    /// The directory or the address cannot be had.
    pub fn start(config: &BufferConfig) -> Result<Self> {
        let memory = Arc::new(Memory::new(config.memory_bytes));
        let mut notes = Vec::new();
        let keeper: Box<dyn Keeper> = match &config.directory {
            None => Box::new(InMemory),
            Some(directory) => {
                let settings = DiskSettings {
                    directory: directory.clone(),
                    capacity_bytes: config.disk_bytes,
                    threads: DISK_THREADS,
                    patience: PATIENCE,
                    replaced_bytes_max: REPLACED_BYTES_MAX,
                };
                let (disk, replayed) = Disk::open(&settings, memory.clone()).map_err(|error| {
                    let detail = directory.display().to_string();
                    failed("buffer_directory", detail, error)
                        .remedy("give a directory on a local disk that no other node uses")
                })?;
                tracing::info!(
                    blocks = replayed.blocks,
                    bytes = replayed.bytes,
                    "the burst buffer read what is owed to the PFS"
                );
                let place = directory.display();
                notes.extend(replayed.damaged.iter().map(|what| {
                    format!("of what the burst buffer owes, this is broken in {place}: {what}")
                }));
                notes.extend(replayed.set_aside.iter().map(|file| {
                    format!("the burst buffer set {place}/{file} aside: it was never synced")
                }));
                Box::new(disk)
            }
        };
        let listen = |address: &std::net::SocketAddr| {
            TcpListener::bind(address)
                .map_err(|error| failed("buffer_address", address.to_string(), error))
        };
        let listener = config.address.as_ref().map(listen).transpose()?;
        let settings =
            Settings { patience: PATIENCE, blocks_are_guarded: true, ..Settings::default() };
        let server = Server::start(listener, settings, memory, keeper)
            .map_err(|error| failed("buffer_bytes", String::new(), error))?;
        Ok(BurstBuffer { config: config.clone(), server, notes })
    }

    /// What is lost or was left out at the start, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Most bytes in its memory.
    pub fn memory_bytes(&self) -> u64 {
        self.config.memory_bytes
    }

    /// Follows the store of this node, which has this part of its capacity now, from 0 to 1. What
    /// is clean goes at once, what is owed stays, and whoever stores more waits.
    pub fn follow(&self, share: f64) {
        let bytes = (self.config.memory_bytes as f64 * share.clamp(0.0, 1.0)) as u64;
        let before = self.server.usage();
        if before.capacity_bytes == bytes {
            return;
        }
        let above_bytes = self.shared().memory.set_capacity(bytes);
        let freed_bytes = before.used_bytes.saturating_sub(self.server.usage().used_bytes);
        if freed_bytes >= TRIMMED_BYTES {
            give_back_freed();
        }
        if above_bytes > 0 {
            tracing::info!(
                capacity = %ByteSize(bytes),
                owed = %ByteSize(above_bytes),
                "the burst buffer follows the store: what it owes stays until the PFS has it, and \
                 writers wait"
            );
        }
    }

    /// Which start of it this is.
    pub fn start_number(&self) -> u64 {
        self.shared().start()
    }

    /// Whether what it owes is there again after a crash.
    pub fn is_on_disk(&self) -> bool {
        self.config.directory.is_some()
    }

    /// All blocks on its disk that the PFS does not have.
    pub fn owed(&self) -> Vec<Owed> {
        self.shared().keeper.owed()
    }

    /// The server, which obeys commands.
    pub fn shared(&self) -> &Arc<Shared> {
        self.server.shared()
    }

    /// A way to it within this process.
    pub fn way(&self) -> Connect {
        let shared = self.shared().clone();
        let obey = move |commands: &[u8], _: Duration| shared.obey(commands, MESSAGE_BYTES_MAX);
        client::messages(MESSAGE_BYTES_MAX, Vec::new(), obey)
    }

    /// A client of it alone.
    pub fn local(&self) -> Client {
        let member = Member { name: "this node".to_owned(), weight: 1.0 };
        let pool = Pool::new(vec![member], Placement::Block).expect("one member is a pool");
        Client::new(pool, vec![self.way()], ClientSettings::default())
    }

    /// What it has.
    pub fn status(&self) -> BufferStatus {
        let (usage, totals) = (self.server.usage(), self.shared().keeper.totals());
        BufferStatus {
            memory_limit_bytes: usage.capacity_bytes,
            memory_bytes: usage.used_bytes,
            memory_owed_bytes: usage.owed_bytes,
            waiting_writers: usage.waiting,
            disk_limit_bytes: self.is_on_disk().then_some(self.config.disk_bytes),
            disk_bytes: totals.disk_bytes,
            owed_blocks: totals.owed_blocks,
            owed_bytes: totals.owed_bytes,
            owed_oldest_s: totals.oldest.map(|age| age.as_secs()),
            failed_blocks: totals.failed_blocks,
            address: self.server.address().map(|address| address.to_string()),
        }
    }
}

/// Has the allocator give back what was freed: it keeps it for the next values otherwise.
fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and other threads may allocate meanwhile.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn failed(option: &str, detail: String, error: std::io::Error) -> Error {
    let operation = format!("starting the burst buffer (option `{option}`)");
    Error::new(ErrorKind::Unsupported, operation, detail).caused_by(error)
}
