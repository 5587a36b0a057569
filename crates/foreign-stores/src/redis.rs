//! Redis and Valkey as a store: `maxmemory`, then the allocator's free pages given back.
//!
//! The server's own count says nothing about the operating system, so only its resident memory
//! counts. Small values may leave pages that never come back. A server that would refuse writes at
//! a lower limit, because it does not evict or not all it holds, is not governed and keeps its own
//! limit; one that becomes so gets it back at once. The limit that was found is put back at the
//! end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tidepool_control_policy::StoreSpeed;
use tidepool_proto::size::ByteSize;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::connection::{ANSWER_TIME, Connection};
use crate::credentials::Credentials;
use crate::limit::{Limit, Limited};
use crate::server_process::ServerProcess;
use crate::server_store::{Conversation, ServerStore};

const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Purging blocks the server, so it waits for this many evicted bytes.
const PURGE_BYTES: u64 = 64 << 20;
/// Resident memory that does not fall for this long after a purge will not fall soon.
const STALL_TIME: Duration = Duration::from_millis(100);
/// What surrounds the data changes as it shrinks; three limits are near enough.
const ROUNDS_MAX: u32 = 3;
/// Least room for data: a limit of 0 would mean none at all, and a server without room for any
/// data takes no writes. A value needs more than twice its size while it is set: it, and the next
/// buffer of its client.
const LIMIT_BYTES_MIN: u64 = 16 << 20;
/// Pages are fuller than this where values are just rounded up. Beyond it there are holes, and
/// evicting more for them would cost data without bringing much back.
const SPREAD_MAX: f64 = 1.5;
/// No answer that we ask for is longer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A Redis or Valkey server to control.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisConfiguration {
    /// Name of the store, unique on the node.
    pub name: String,
    /// `host:port` on this node, or the path of a Unix socket.
    pub address: String,
    /// Bytes of the whole server process it never goes below.
    pub capacity_min_bytes: ByteSize,
    /// Bytes of the whole server process it never goes above.
    pub capacity_max_bytes: ByteSize,
    /// File with `password`, or `user:password`.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// `maxmemory-eviction-tenacity` while it shrinks, 0 to 99; the server's own where none is
    /// given. More evicts faster and lets clients wait longer.
    #[serde(default)]
    pub eviction_tenacity: Option<u8>,
}

/// A Redis or Valkey server under control.
pub type Redis = ServerStore<Server>;

impl Redis {
    /// Connects to the server, checks that it evicts, and begins to watch it.
    ///
    /// # Errors
    /// See [`super::open`].
    pub fn open(configuration: &RedisConfiguration) -> Result<Self> {
        if configuration.eviction_tenacity.is_some_and(|tenacity| tenacity > 99) {
            let what = "`eviction_tenacity` above 99 blocks the server until it has evicted all";
            return Err(Error::new(ErrorKind::InvalidInput, "opening a store", what)
                .remedy("give 0 to 99, or none"));
        }
        let bounds = (configuration.capacity_min_bytes, configuration.capacity_max_bytes);
        Self::open_server(&configuration.name, bounds, configuration)
    }

    /// Brings the server to the capacity, with the tenacity that was configured.
    fn bring(&self, server: &mut Server, capacity_bytes: u64) -> Result<()> {
        if self.process.resident_bytes()? > capacity_bytes {
            // What is free already comes first, and hides what the server needs besides its data.
            server.purge()?;
        }
        let Some(tenacity) = self.configuration.eviction_tenacity else {
            return self.approach(server, capacity_bytes);
        };
        let usual = server.setting(TENACITY)?;
        server.set(TENACITY, &tenacity.to_string())?;
        let approached = self.approach(server, capacity_bytes);
        // Whatever became of the rest, with a little time of its own.
        server.deadline = server.deadline.max(Instant::now() + ANSWER_TIME);
        let restored = server.set(TENACITY, &usual);
        approached.and(restored)
    }

    /// Sets the limit, and once more where the server turns out to need more besides its data.
    fn approach(&self, server: &mut Server, capacity_bytes: u64) -> Result<()> {
        let mut last = u64::MAX;
        for _ in 0..ROUNDS_MAX {
            let resident = self.process.resident_bytes()?;
            let memory = self.memory(server)?;
            let limit_bytes = memory.limit_bytes(resident, capacity_bytes);
            if limit_bytes >= last || server.is_late() {
                break;
            }
            // What it holds may have changed since the last look.
            server.guard(&self.limit)?;
            self.limit.set(server, limit_bytes)?;
            last = limit_bytes;
            if resident <= capacity_bytes {
                break;
            }
            let reached = self.follow(server, limit_bytes, capacity_bytes)?;
            if !reached {
                // All data has gone for it, and it stays out of reach: the server would take no
                // writes at it.
                let fixed_bytes = server.memory()?.used_bytes;
                self.fixed_bytes.store(fixed_bytes, Ordering::Relaxed);
                return self.limit.set(server, fixed_bytes.saturating_add(LIMIT_BYTES_MIN));
            }
            if self.is_overtaken(capacity_bytes) {
                break;
            }
        }
        Ok(())
    }

    /// The server's figures, with what it was once seen to hold without any data.
    fn memory(&self, server: &mut Server) -> Result<Memory> {
        let mut memory = server.memory()?;
        let seen_bytes = self.fixed_bytes.load(Ordering::Relaxed);
        if memory.used_bytes < seen_bytes {
            // It has been restarted, or has lost what was no data.
            self.fixed_bytes.store(0, Ordering::Relaxed);
        } else {
            memory.fixed_bytes = memory.fixed_bytes.max(seen_bytes);
        }
        Ok(memory)
    }

    /// Waits until the server has evicted and the system has the memory, nothing moves, or a higher
    /// capacity waits. Answers whether the limit can be reached: there was something to evict.
    fn follow(&self, server: &mut Server, limit_bytes: u64, capacity_bytes: u64) -> Result<bool> {
        let mut purged_at = server.memory()?.used_bytes;
        let (mut lowest, mut lowest_used) = (u64::MAX, u64::MAX);
        let mut progress = Instant::now();
        while !server.is_late() && !self.is_overtaken(capacity_bytes) {
            let used = server.memory()?.used_bytes;
            let evicted = used <= limit_bytes;
            // It evicts only when it is asked for something, as here.
            if !evicted && progress.elapsed() > STALL_TIME && server.keys()? == 0 {
                return Ok(false);
            }
            if evicted || purged_at.saturating_sub(used) >= PURGE_BYTES {
                server.purge()?;
                purged_at = used;
            }
            let resident = self.process.resident_bytes()?;
            if resident <= capacity_bytes {
                return Ok(true);
            }
            if resident < lowest || used < lowest_used {
                progress = Instant::now();
            }
            (lowest, lowest_used) = (lowest.min(resident), lowest_used.min(used));
            if evicted && progress.elapsed() > STALL_TIME {
                return Ok(true);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(true)
    }
}

/// Policies that evict keys that expire, and no others.
const VOLATILE: &str = "volatile-";
/// Figures of what no eviction frees, some of which older servers do not tell: the program itself,
/// clients with what they have sent and subscribed to, scripts, and functions. What they leave out
/// shows when all data has gone.
const FIXED: [&str; 4] = [
    "used_memory_startup",
    "mem_clients_normal",
    "used_memory_scripts_eval",
    "used_memory_functions",
];
const TENACITY: &str = "maxmemory-eviction-tenacity";

/// The server's own figures of its memory.
struct Memory {
    /// What counts against the limit.
    used_bytes: u64,
    /// Whole pages that hold it.
    active_bytes: u64,
    /// What counts against the limit without being data: no eviction brings it back.
    fixed_bytes: u64,
}

impl Memory {
    /// The limit with which the process should hold `capacity_bytes`, from what it holds now.
    fn limit_bytes(&self, resident_bytes: u64, capacity_bytes: u64) -> u64 {
        let overhead_bytes = resident_bytes.saturating_sub(self.active_bytes);
        let room = capacity_bytes.saturating_sub(overhead_bytes);
        let spread = self.active_bytes as f64 / self.used_bytes.max(1) as f64;
        ((room as f64 / spread.clamp(1.0, SPREAD_MAX)) as u64)
            .max(self.fixed_bytes.saturating_add(LIMIT_BYTES_MIN))
    }
}

/// An answer of the server, in version 2 of its protocol.
#[derive(Debug, PartialEq)]
enum Answer {
    Text(String),
    Refusal(String),
    List(Vec<String>),
}

/// The conversation with the server.
pub struct Server {
    connection: Connection,
    deadline: Instant,
}

impl Conversation for Server {
    type Configuration = RedisConfiguration;

    const NAMES: &'static [&'static str] = &["redis-server", "valkey-server"];
    /// Until it has shown otherwise.
    const SPEED: StoreSpeed = StoreSpeed::Slow;

    fn connect(configuration: &RedisConfiguration, deadline: Instant) -> Result<Self> {
        let connection = Connection::open(&configuration.address)?;
        let mut server = Server { connection, deadline };
        if let Some(path) = &configuration.password_file {
            let credentials = Credentials::read(path)?;
            let user = credentials.user.unwrap_or_else(|| "default".to_owned());
            server.text(&["AUTH", &user, &credentials.password])?;
        }
        Ok(server)
    }

    fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn check(&mut self) -> Result<()> {
        self.check_eviction()
    }

    fn data_bytes(&mut self, _process: &ServerProcess, _limit_bytes: u64) -> Result<u64> {
        self.memory().map(|memory| memory.used_bytes)
    }

    /// Finds out whether the control set the limit, and whether the server may be cut. Where not,
    /// it has its own limit when this returns: one that it had to refuse writes at must not stay.
    /// Answers its process.
    fn guard(&mut self, limit: &Limit) -> Result<u32> {
        let process_id = limit.look(self)?;
        if let Err(refusal) = self.check_eviction() {
            if refusal.kind() == ErrorKind::InvalidInput {
                limit.raise_back(self)?;
            }
            return Err(refusal);
        }
        Ok(process_id)
    }

    fn change(store: &Redis, server: &mut Self, capacity_bytes: u64) -> Result<()> {
        store.bring(server, capacity_bytes)
    }
}

impl Server {
    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    fn ask(&mut self, words: &[&str]) -> Result<Answer> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.connection.send(request.as_bytes(), self.deadline)?;
        let line = self.connection.line()?;
        let (kind, rest) = line.split_at_checked(1).unwrap_or_default();
        Ok(match kind {
            "+" | ":" => Answer::Text(rest.to_owned()),
            "-" => Answer::Refusal(rest.to_owned()),
            "$" => Answer::Text(self.bulk(&line)?),
            "*" => {
                let count = rest.parse::<usize>().ok().filter(|count| *count <= 1024);
                let count = count.ok_or_else(|| self.connection.garbage(&line))?;
                let mut list = Vec::new();
                for _ in 0..count {
                    let head = self.connection.line()?;
                    list.push(self.bulk(&head)?);
                }
                Answer::List(list)
            }
            _ => return Err(self.connection.garbage(&line)),
        })
    }

    /// The string that `head` announces.
    fn bulk(&mut self, head: &str) -> Result<String> {
        let length = head.strip_prefix('$').and_then(|length| length.parse::<usize>().ok());
        let length = length.filter(|length| *length <= ANSWER_BYTES_MAX);
        let length = length.ok_or_else(|| self.connection.garbage(head))?;
        let mut block = self.connection.block(length + 2)?;
        block.truncate(length);
        String::from_utf8(block).map_err(|_| self.connection.garbage("an answer that is no text"))
    }

    fn text(&mut self, words: &[&str]) -> Result<String> {
        match self.ask(words)? {
            Answer::Text(text) => Ok(text),
            Answer::Refusal(why) => Err(self.refusal(words[0], &why)),
            Answer::List(list) => Err(self.connection.garbage(&list.concat())),
        }
    }

    fn refusal(&self, command: &str, why: &str) -> Error {
        let code = why.split(' ').next().unwrap_or_default();
        let (kind, remedy) = match code {
            "NOAUTH" => (
                ErrorKind::PermissionDenied,
                "set `password_file` to a file with the password, or user:password",
            ),
            "WRONGPASS" => (ErrorKind::PermissionDenied, "correct the file of `password_file`"),
            "NOPERM" => (
                ErrorKind::PermissionDenied,
                "allow the user INFO, CONFIG GET, CONFIG SET and MEMORY PURGE",
            ),
            "DENIED" => (ErrorKind::PermissionDenied, "use a password, or connect from loopback"),
            "LOADING" | "BUSY" | "MASTERDOWN" => {
                (ErrorKind::StoreUnavailable, "wait until the server is ready")
            }
            _ => (ErrorKind::Unsupported, "the server must allow CONFIG, INFO and MEMORY"),
        };
        self.connection.refused(kind, &format!("{command} is refused: {why}"), remedy)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        self.text(&["CONFIG", "SET", name, value]).map(drop)
    }

    fn setting(&mut self, name: &str) -> Result<String> {
        match self.ask(&["CONFIG", "GET", name])? {
            Answer::List(mut pair) if pair.len() == 2 => Ok(pair.remove(1)),
            Answer::List(_) => Err(self.connection.refused(
                ErrorKind::Unsupported,
                &format!("it has no setting `{name}`"),
                "use Redis 6.2, Valkey 7.2, or newer",
            )),
            Answer::Refusal(why) => Err(self.refusal("CONFIG GET", &why)),
            Answer::Text(text) => Err(self.connection.garbage(&text)),
        }
    }

    fn figures(&mut self, section: &str) -> Result<HashMap<String, String>> {
        let text = self.text(&["INFO", section])?;
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    fn memory(&mut self) -> Result<Memory> {
        let figures = self.figures("memory")?;
        let used = self.connection.number(&figures, "used_memory")?;
        let uncounted = self.connection.number(&figures, "mem_not_counted_for_evict").unwrap_or(0);
        let used_bytes = used.saturating_sub(uncounted);
        // Without jemalloc the server knows only what it asked for.
        let active_bytes = self.connection.number(&figures, "allocator_active").unwrap_or(used);
        let fixed_bytes = FIXED
            .map(|name| figures.get(name).and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or(0))
            .into_iter()
            .fold(0, u64::saturating_add);
        Ok(Memory { used_bytes, active_bytes: active_bytes.max(used_bytes), fixed_bytes })
    }

    fn purge(&mut self) -> Result<()> {
        self.text(&["MEMORY", "PURGE"]).map(drop)
    }

    /// All keys, and those of them that expire.
    fn key_counts(&mut self) -> Result<(u64, u64)> {
        let databases = self.figures("keyspace")?;
        let count = |name: &str| -> u64 {
            let pairs = databases.values().flat_map(|figures| figures.split(','));
            let counts =
                pairs.filter_map(|pair| pair.split_once('=')).filter(|(key, _)| *key == name);
            counts.filter_map(|(_, value)| value.parse::<u64>().ok()).sum()
        };
        Ok((count("keys"), count("expires")))
    }

    fn keys(&mut self) -> Result<u64> {
        self.key_counts().map(|(keys, _)| keys)
    }

    /// Keys that never expire, which `volatile` policies never evict.
    fn lasting_keys(&mut self) -> Result<u64> {
        self.key_counts().map(|(keys, expires)| keys.saturating_sub(expires))
    }

    /// Refuses servers that answer a lower limit with errors, or not at all.
    fn check_eviction(&mut self) -> Result<()> {
        let policy = self.setting("maxmemory-policy")?;
        if policy.starts_with(VOLATILE) && self.lasting_keys()? > 0 {
            return Err(self.connection.refused(
                ErrorKind::InvalidInput,
                &format!(
                    "its maxmemory-policy is {policy}, and some of its keys do not expire: a \
                          lower limit would fail its writes"
                ),
                "if its data may be evicted: CONFIG SET maxmemory-policy allkeys-lfu",
            ));
        }
        if policy == "noeviction" {
            return Err(self.connection.refused(
                ErrorKind::InvalidInput,
                "its maxmemory-policy is noeviction: a lower limit would fail its writes",
                "if its data may be evicted: CONFIG SET maxmemory-policy allkeys-lfu",
            ));
        }
        let replication = self.figures("replication")?;
        let replica = replication.get("role").is_some_and(|role| role == "slave");
        if replica && self.setting("replica-ignore-maxmemory")? == "yes" {
            return Err(self.connection.refused(
                ErrorKind::InvalidInput,
                "it is a replica that ignores its limit",
                "control its primary",
            ));
        }
        Ok(())
    }
}

impl Limited for Server {
    fn pid(&mut self) -> Result<u32> {
        let figures = self.figures("server")?;
        self.connection.number(&figures, "process_id").map(|pid| pid as u32)
    }

    /// `maxmemory`; 0 is none.
    fn limit_bytes(&mut self) -> Result<u64> {
        let text = self.setting("maxmemory")?;
        text.parse().map_err(|_| self.connection.garbage(&text))
    }

    fn set_limit(&mut self, limit_bytes: u64) -> Result<()> {
        self.set("maxmemory", &limit_bytes.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limit_leaves_room_for_what_surrounds_the_data() {
        let limit = |used: u64, active: u64, resident: u64, capacity: u64| {
            let (used_bytes, active_bytes) = (used * MIB, active * MIB);
            let memory = Memory { used_bytes, active_bytes, fixed_bytes: 0 };
            memory.limit_bytes(resident * MIB, capacity * MIB) / MIB
        };
        assert_eq!(limit(400, 400, 410, 210), 200, "the process itself");
        assert_eq!(limit(400, 500, 500, 250), 200, "values rounded up");
        assert_eq!(limit(100, 900, 900, 300), 200, "holes, up to a bound");
        assert_eq!(limit(0, 0, 50, 10), 16, "never none");
        let memory = Memory { used_bytes: 0, active_bytes: 0, fixed_bytes: 3 * MIB };
        assert_eq!(memory.limit_bytes(50 * MIB, 10 * MIB), 19 * MIB, "room for data");
    }
}
