//! memcached as a store: its memory limit, and whole slab pages given back one by one.
//!
//! Lowering the limit alone frees nothing that items use, so pages are reassigned to the global
//! pool, from which the server returns them. Servers that preallocate cannot return anything and
//! are refused; so are those that must not evict (`-M`). Items lost with a page do not count as
//! evictions in the server's own figures. The limit that was found is put back at the end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tidepool_control_policy::StoreSpeed;
use tidepool_proto::size::ByteSize;
use tidepool_proto::{ErrorKind, Result};

use crate::connection::Connection;
use crate::credentials::Credentials;
use crate::limit::Limited;
use crate::server_process::ServerProcess;
use crate::server_store::{Conversation, ServerStore};

const MEBIBYTE: u64 = 1 << 20;
/// The server accepts no smaller limit.
const LIMIT_BYTES_MIN: u64 = 8 * MEBIBYTE;
/// Environment of the server that makes each of its pages a mapping of its own, for good.
const MALLOC_SETTING: &str = "MALLOC_MMAP_THRESHOLD_=";
/// A page takes about a millisecond to move; the server answers BUSY meanwhile.
const BUSY_PAUSE: Duration = Duration::from_micros(100);

/// A memcached server to control.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemcachedConfiguration {
    /// Name of the store, unique on the node.
    pub name: String,
    /// `host:port` on this node, or the path of a Unix socket.
    pub address: String,
    /// Bytes of the whole server process it never goes below.
    pub capacity_min_bytes: ByteSize,
    /// Bytes of the whole server process it never goes above.
    pub capacity_max_bytes: ByteSize,
    /// File with `user:password`, for a server with an authentication file (`-Y`).
    #[serde(default)]
    pub password_file: Option<PathBuf>,
}

/// A memcached server under control.
pub type Memcached = ServerStore<Server>;

impl Memcached {
    /// Connects to the server and begins to watch it.
    ///
    /// # Errors
    /// See [`super::open`].
    pub fn open(configuration: &MemcachedConfiguration) -> Result<Self> {
        let bounds = (configuration.capacity_min_bytes, configuration.capacity_max_bytes);
        Self::open_server(&configuration.name, bounds, configuration)
    }
}

/// After its first release, glibc takes new pages from its heap, which it can return only in part.
fn warn_of_malloc(process: &ServerProcess) {
    let environment = std::fs::read(format!("/proc/{}/environ", process.pid()));
    let fixes = |part: &[u8]| part.starts_with(MALLOC_SETTING.as_bytes());
    if environment.is_ok_and(|text| !text.split(|byte| *byte == 0).any(fixes)) {
        tracing::warn!(
            pid = process.pid(),
            "memcached may keep memory that it has once given back and taken again; start it with \
             {MALLOC_SETTING}131072 in its environment"
        );
    }
}

/// Slab pages of the server.
struct Slabs {
    allocated_bytes: u64,
    classes: Vec<Class>,
}

/// Slab pages of one size of items.
struct Class {
    number: u32,
    pages: u64,
    /// Pages' worth of chunks without an item.
    free_pages: u64,
    /// Age of the oldest item.
    age_seconds: u64,
}

impl Class {
    /// The greater, the less is lost with one of its pages.
    fn rank(&self) -> (u64, u64) {
        (self.free_pages.saturating_sub(2), self.pages * (self.age_seconds + 1))
    }
}

impl Limited for Server {
    fn pid(&mut self) -> Result<u32> {
        let figures = self.figures("stats")?;
        self.connection.number(&figures, "pid").map(|pid| pid as u32)
    }

    fn limit_bytes(&mut self) -> Result<u64> {
        let figures = self.figures("stats settings")?;
        if figures.get("slab_reassign").is_some_and(|value| value == "no") {
            return Err(self.connection.refused(
                ErrorKind::Unsupported,
                "it was started with no_slab_reassign and gives no memory back",
                "start it without that option",
            ));
        }
        if figures.get("evictions").is_some_and(|value| value == "off") {
            return Err(self.connection.refused(
                ErrorKind::InvalidInput,
                "it was started with -M: it keeps its items and answers errors instead",
                "if its items may be evicted: start it without -M",
            ));
        }
        self.connection.number(&figures, "maxbytes")
    }

    fn set_limit(&mut self, limit_bytes: u64) -> Result<()> {
        let answer = self.ask(&format!("cache_memlimit {}", limit_bytes / MEBIBYTE))?;
        match answer.as_str() {
            "OK" => Ok(()),
            answer if answer.starts_with("MEMLIMIT_ADJUST_FAILED") => Err(self.connection.refused(
                ErrorKind::Unsupported,
                "it has preallocated its memory and cannot give any back",
                "start it without -L, and without -e or other preallocation",
            )),
            answer => Err(self.connection.garbage(answer)),
        }
    }
}

/// The conversation with the server, in its text protocol.
pub struct Server {
    connection: Connection,
    deadline: Instant,
}

impl Conversation for Server {
    type Configuration = MemcachedConfiguration;

    const NAMES: &'static [&'static str] = &["memcached"];
    const SPEED: StoreSpeed = StoreSpeed::Fast;

    fn connect(configuration: &MemcachedConfiguration, deadline: Instant) -> Result<Self> {
        let connection = Connection::open(&configuration.address)?;
        let mut server = Server { connection, deadline };
        if let Some(path) = &configuration.password_file {
            let credentials = Credentials::read(path)?;
            let secret =
                format!("{} {}", credentials.user.unwrap_or_default(), credentials.password);
            let request = format!("set auth 0 0 {}\r\n{secret}", secret.len());
            if server.ask(&request)? != "STORED" {
                return Err(server.unauthenticated());
            }
        }
        Ok(server)
    }

    fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn data_bytes(&mut self, process: &ServerProcess, limit_bytes: u64) -> Result<u64> {
        if limit_bytes.is_multiple_of(MEBIBYTE) {
            // Sets what is set already: a server that cannot be resized says so now.
            self.set_limit(limit_bytes)?;
        }
        warn_of_malloc(process);
        Ok(self.slabs()?.allocated_bytes)
    }

    fn change(store: &Memcached, server: &mut Self, capacity_bytes: u64) -> Result<()> {
        let mut slabs = server.slabs()?;
        let overhead_bytes = store.process.resident_bytes()?.saturating_sub(slabs.allocated_bytes);
        let limit = capacity_bytes.saturating_sub(overhead_bytes).max(LIMIT_BYTES_MIN);
        let limit_bytes = limit - limit % MEBIBYTE;
        store.limit.set(server, limit_bytes)?;
        // Eighths, so that no class is emptied because it was the oldest at the beginning.
        while slabs.allocated_bytes > limit_bytes && !server.is_late() {
            let excess = (slabs.allocated_bytes - limit_bytes).div_ceil(MEBIBYTE);
            let moved = server.release_pages(&slabs, excess.div_ceil(8).max(16).min(excess))?;
            slabs = server.slabs()?;
            if moved == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl Server {
    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    fn unauthenticated(&self) -> tidepool_proto::Error {
        self.connection.refused(
            ErrorKind::PermissionDenied,
            "it wants a user and a password",
            "set `password_file` to a file with user:password",
        )
    }

    fn too_old(&self) -> tidepool_proto::Error {
        self.connection.refused(
            ErrorKind::Unsupported,
            "it cannot give slab pages to the global pool",
            "use a newer release",
        )
    }

    /// One line of answer to one line of request.
    fn ask(&mut self, request: &str) -> Result<String> {
        self.connection.send(format!("{request}\r\n").as_bytes(), self.deadline)?;
        let answer = self.connection.line()?;
        match answer.as_str() {
            answer if answer.starts_with("CLIENT_ERROR unauth") => Err(self.unauthenticated()),
            _ => Ok(answer),
        }
    }

    /// All figures of `request`, by name.
    fn figures(&mut self, request: &str) -> Result<HashMap<String, String>> {
        let mut line = self.ask(request)?;
        let mut figures = HashMap::new();
        while line != "END" {
            let mut words = line.splitn(3, ' ');
            let (Some("STAT"), Some(name)) = (words.next(), words.next()) else {
                return Err(self.connection.garbage(&line));
            };
            figures.insert(name.to_owned(), words.next().unwrap_or_default().to_owned());
            line = self.connection.line()?;
        }
        Ok(figures)
    }

    fn slabs(&mut self) -> Result<Slabs> {
        let slabs = self.figures("stats slabs")?;
        let items = self.figures("stats items")?;
        let figure = |figures: &HashMap<String, String>, name: String| -> u64 {
            figures.get(&name).and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        let numbers = slabs.keys().filter_map(|name| {
            name.strip_suffix(":total_pages").and_then(|number| number.parse::<u32>().ok())
        });
        let classes = numbers.map(|number| Class {
            number,
            pages: figure(&slabs, format!("{number}:total_pages")),
            free_pages: figure(&slabs, format!("{number}:free_chunks"))
                / figure(&slabs, format!("{number}:chunks_per_page")).max(1),
            age_seconds: figure(&items, format!("items:{number}:age")),
        });
        let classes = classes.filter(|class| class.number > 0).collect();
        Ok(Slabs { allocated_bytes: self.connection.number(&slabs, "total_malloced")?, classes })
    }

    /// Moves up to `pages` pages of the class that loses least, or of the next one that has any,
    /// to the global pool; returns how many moves the server began.
    fn release_pages(&mut self, slabs: &Slabs, pages: u64) -> Result<u64> {
        let mut order: Vec<&Class> = slabs.classes.iter().filter(|c| c.pages > 1).collect();
        order.sort_by_key(|class| std::cmp::Reverse(class.rank()));
        let mut moved = 0;
        for class in order {
            // The server keeps the last page of each class.
            let mut left = (pages - moved).min(class.pages - 1);
            while left > 0 && !self.is_late() {
                let answer = self.ask(&format!("slabs reassign {} 0", class.number))?;
                match answer.split(' ').next().unwrap_or_default() {
                    "OK" => {
                        moved += 1;
                        left -= 1;
                    }
                    "BUSY" => std::thread::sleep(BUSY_PAUSE),
                    // Another one took its pages meanwhile.
                    "NOSPARE" | "NOTFULL" | "SAME" => break,
                    "BADCLASS" | "ERROR" => return Err(self.too_old()),
                    _ => return Err(self.connection.garbage(&answer)),
                }
            }
            if moved >= pages {
                break;
            }
        }
        Ok(moved)
    }
}
