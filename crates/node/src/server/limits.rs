//! [`ClientQuotas`]: what clients use, for each user and in all. Each use is counted by a
//! [`Ticket`] that ends it when it drops. Decides nothing but whether a limit is reached.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_proto::{Error, ErrorKind, PassthroughPin, Result};

use crate::pins::is_operator;

/// What clients may use up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections of all users.
    pub connections_max: usize,
    /// Connections of one user.
    pub connections_per_user_max: usize,
    /// Open files (each holds a descriptor) of all users.
    pub handles_max: usize,
    /// Open files of one user.
    pub handles_per_user_max: usize,
    /// Open files of one connection.
    pub handles_per_connection_max: usize,
    /// Borrowed ranges of one connection.
    pub borrows_per_connection_max: usize,
    /// Borrowed ranges of one user.
    pub borrows_per_user_max: usize,
    /// Borrowed bytes of one user.
    pub borrowed_bytes_per_user_max: u64,
    /// Requests of one connection that are worked on at the same time; more wait in the socket.
    pub requests_in_flight_max: usize,
    /// Threads of all connections, beyond which each has one and works on one request at a time.
    pub threads_max: usize,
    /// Bytes of reads and writes under way for one user; further ones wait.
    pub buffered_bytes_per_user_max: u64,
    /// Time for the hello.
    pub hello_timeout: Duration,
    /// Time from the first to the last byte of a message, in either direction.
    pub message_timeout: Duration,
    /// How long a stop waits for requests that are worked on.
    pub stop_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            connections_max: 4096,
            connections_per_user_max: 1024,
            handles_max: 65_536,
            handles_per_user_max: 32_768,
            handles_per_connection_max: 8192,
            borrows_per_connection_max: 1024,
            borrows_per_user_max: 8192,
            borrowed_bytes_per_user_max: 1 << 30,
            requests_in_flight_max: 16,
            threads_max: 1024,
            buffered_bytes_per_user_max: 64 << 20,
            hello_timeout: Duration::from_secs(5),
            message_timeout: Duration::from_secs(10),
            stop_timeout: Duration::from_secs(60),
        }
    }
}

impl ServerLimits {
    /// The same limits, lowered so that clients use at most half of `descriptors_max`, the number
    /// of descriptors that this process may have open. The other half is the store's.
    #[must_use]
    pub fn fitted_to(mut self, descriptors_max: u64) -> Self {
        let for_clients = usize::try_from(descriptors_max / 2).unwrap_or(usize::MAX);
        // Each has its socket, and a descriptor of the process that connected.
        self.connections_max = self.connections_max.min((for_clients / 8).max(1));
        self.handles_max = self.handles_max.min((for_clients - for_clients / 4).max(1));
        // One user alone never takes everything away from the others.
        self.connections_per_user_max =
            self.connections_per_user_max.min((self.connections_max * 3 / 4).max(1));
        self.handles_per_user_max =
            self.handles_per_user_max.min((self.handles_max * 3 / 4).max(1));
        self
    }
}

/// What clients use at the moment, and what was refused since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Connections, with those that have not said hello yet.
    pub connections: u64,
    /// Open files.
    pub handles: u64,
    /// Borrowed ranges.
    pub borrows: u64,
    /// Borrowed bytes.
    pub borrowed_bytes: u64,
    /// Requests answered since the start.
    pub requests: u64,
    /// Requests and connections refused for a limit since the start.
    pub limited: u64,
    /// Connections ended for bytes that make no message, since the start.
    pub malformed: u64,
    /// Changes of bytes that were not carried out, because nobody waited for them any more.
    pub abandoned: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    connections: usize,
    handles: usize,
    borrows: usize,
    borrowed_bytes: u64,
    buffered_bytes: u64,
}

#[derive(Debug, Default)]
struct Books {
    all: Usage,
    users: HashMap<u32, Usage>,
}

/// Stack of a thread of the server, in bytes. Memory is used only as far as it is touched.
pub(super) const STACK_BYTES: usize = 512 << 10;

/// What the clients of a server have, of all users and of each, and their limits.
#[derive(Debug)]
pub(super) struct ClientQuotas {
    limits: ServerLimits,
    books: Mutex<Books>,
    /// Segments that are borrowed, by user and number. Locked before the books.
    borrowed: Mutex<HashMap<(u32, u64), Weak<WholeSegment>>>,
    buffers_freed: Condvar,
    pub(super) requests: AtomicU64,
    pub(super) limited: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) abandoned: AtomicU64,
}

/// What a borrow counts as.
#[derive(Debug)]
pub(super) struct BorrowTicket {
    _range: Ticket,
    _whole: Option<Arc<WholeSegment>>,
}

/// A segment that stays whole for the borrows that a user has of it: counted once.
#[derive(Debug)]
struct WholeSegment {
    key: (u32, u64),
    ticket: Ticket,
}

impl Drop for WholeSegment {
    fn drop(&mut self) {
        let mut borrowed = self.ticket.quotas.borrowed.lock();
        // It may have been borrowed anew since the last borrow ended.
        if borrowed.get(&self.key).is_some_and(|whole| whole.strong_count() == 0) {
            borrowed.remove(&self.key);
        }
    }
}

/// A part of what a user has; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Ticket {
    quotas: Arc<ClientQuotas>,
    user_id: u32,
    usage: Usage,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut books = self.quotas.books.lock();
        let subtract = |from: &mut Usage| {
            from.connections -= self.usage.connections;
            from.handles -= self.usage.handles;
            from.borrows -= self.usage.borrows;
            from.borrowed_bytes -= self.usage.borrowed_bytes;
            from.buffered_bytes -= self.usage.buffered_bytes;
            *from == Usage::default()
        };
        subtract(&mut books.all);
        let nothing_left = books.users.get_mut(&self.user_id).is_some_and(subtract);
        if nothing_left {
            books.users.remove(&self.user_id);
        }
        if self.usage.buffered_bytes > 0 {
            self.quotas.buffers_freed.notify_all();
        }
    }
}

impl ClientQuotas {
    pub(super) fn new(limits: ServerLimits) -> Arc<ClientQuotas> {
        Arc::new(ClientQuotas {
            limits,
            books: Mutex::default(),
            borrowed: Mutex::default(),
            buffers_freed: Condvar::new(),
            requests: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
        })
    }

    pub(super) fn limits(&self) -> &ServerLimits {
        &self.limits
    }

    pub(super) fn counts(&self) -> ServerCounts {
        let all = self.books.lock().all;
        ServerCounts {
            connections: all.connections as u64,
            handles: all.handles as u64,
            borrows: all.borrows as u64,
            borrowed_bytes: all.borrowed_bytes,
            requests: self.requests.load(Ordering::Relaxed),
            limited: self.limited.load(Ordering::Relaxed),
            malformed: self.malformed.load(Ordering::Relaxed),
            abandoned: self.abandoned.load(Ordering::Relaxed),
        }
    }

    pub(super) fn connection(self: &Arc<Self>, user_id: u32) -> Result<Ticket> {
        let limits = &self.limits;
        self.take(user_id, Usage { connections: 1, ..Usage::default() }, |all, user| {
            exceeded("connections of all users", all.connections, limits.connections_max).or(
                exceeded(
                    "connections of this user",
                    user.connections,
                    limits.connections_per_user_max,
                ),
            )
        })
    }

    pub(super) fn handle(self: &Arc<Self>, user_id: u32) -> Result<Ticket> {
        let limits = &self.limits;
        self.take(user_id, Usage { handles: 1, ..Usage::default() }, |all, user| {
            exceeded("open files of all users", all.handles, limits.handles_max).or(exceeded(
                "open files of this user",
                user.handles,
                limits.handles_per_user_max,
            ))
        })
    }

    /// Counts a borrow of `length` bytes as what `pin` really keeps. Root and the user who runs the
    /// node have no limit of bytes where that is a whole segment, as for `tidepool pin`.
    pub(super) fn borrow_segment(
        self: &Arc<Self>,
        user_id: u32,
        pin: &dyn PassthroughPin,
        length: u64,
    ) -> Result<BorrowTicket> {
        let Some(bytes) = pin.held_bytes() else {
            return Ok(BorrowTicket { _range: self.borrow_range(user_id, length)?, _whole: None });
        };
        let range = self.borrow_range(user_id, 0)?;
        let key = (user_id, pin.segment_id());
        let mut borrowed = self.borrowed.lock();
        if let Some(whole) = borrowed.get(&key).and_then(Weak::upgrade) {
            return Ok(BorrowTicket { _range: range, _whole: Some(whole) });
        }
        let bytes_max = self.limits.borrowed_bytes_per_user_max;
        let usage = Usage { borrowed_bytes: bytes, ..Usage::default() };
        let ticket = self.take(user_id, usage, |_, user| {
            (user.borrowed_bytes > bytes_max && !is_operator(user_id))
                .then(|| format!("bytes of files that this user borrowed of: at most {bytes_max}"))
        })?;
        let whole = Arc::new(WholeSegment { key, ticket });
        borrowed.insert(key, Arc::downgrade(&whole));
        Ok(BorrowTicket { _range: range, _whole: Some(whole) })
    }

    fn borrow_range(self: &Arc<Self>, user_id: u32, bytes: u64) -> Result<Ticket> {
        let limits = &self.limits;
        let usage = Usage { borrows: 1, borrowed_bytes: bytes, ..Usage::default() };
        self.take(user_id, usage, |_, user| {
            let too_long = bytes > 0 && user.borrowed_bytes > limits.borrowed_bytes_per_user_max;
            let bytes_max = limits.borrowed_bytes_per_user_max;
            too_long.then(|| format!("borrowed bytes of this user: at most {bytes_max}")).or(
                exceeded("borrowed ranges of this user", user.borrows, limits.borrows_per_user_max),
            )
        })
    }

    /// Memory for the bytes of a read or write, waited for while the user has too much under way:
    /// a client that does not take its replies holds up its own user alone.
    pub(super) fn buffer(self: &Arc<Self>, user_id: u32, bytes: u64) -> Result<Ticket> {
        let usage = Usage { buffered_bytes: bytes, ..Usage::default() };
        let limit = self.limits.buffered_bytes_per_user_max;
        let deadline = Instant::now() + 2 * self.limits.message_timeout;
        let mut books = self.books.lock();
        loop {
            let user = books.users.get(&user_id).copied().unwrap_or_default();
            // One buffer is granted in any case, however small the limit.
            if user.buffered_bytes == 0 || user.buffered_bytes.saturating_add(bytes) <= limit {
                books.all = books.all.plus(&usage);
                books.users.insert(user_id, user.plus(&usage));
                return Ok(Ticket { quotas: Arc::clone(self), user_id, usage });
            }
            if self.buffers_freed.wait_until(&mut books, deadline).timed_out() {
                self.limited.fetch_add(1, Ordering::Relaxed);
                return Err(limit_error(format!("bytes under way of this user: at most {limit}")));
            }
        }
    }

    /// Counts a refusal that another part of the server decided on.
    pub(super) fn refused(&self, what: &str, limit: usize) -> Error {
        self.limited.fetch_add(1, Ordering::Relaxed);
        limit_error(format!("{what}: at most {limit}"))
    }

    fn take(
        self: &Arc<Self>,
        user_id: u32,
        usage: Usage,
        exceeds: impl Fn(&Usage, &Usage) -> Option<String>,
    ) -> Result<Ticket> {
        let mut books = self.books.lock();
        let all = books.all.plus(&usage);
        let user = books.users.get(&user_id).copied().unwrap_or_default().plus(&usage);
        if let Some(what) = exceeds(&all, &user) {
            self.limited.fetch_add(1, Ordering::Relaxed);
            return Err(limit_error(what));
        }
        books.all = all;
        books.users.insert(user_id, user);
        Ok(Ticket { quotas: Arc::clone(self), user_id, usage })
    }
}

impl Usage {
    fn plus(&self, other: &Usage) -> Usage {
        Usage {
            connections: self.connections + other.connections,
            handles: self.handles + other.handles,
            borrows: self.borrows + other.borrows,
            borrowed_bytes: self.borrowed_bytes.saturating_add(other.borrowed_bytes),
            buffered_bytes: self.buffered_bytes.saturating_add(other.buffered_bytes),
        }
    }
}

fn exceeded(what: &str, count: usize, limit: usize) -> Option<String> {
    (count > limit).then(|| format!("{what}: at most {limit}"))
}

fn limit_error(detail: String) -> Error {
    Error::new(ErrorKind::LimitReached, "serving a client", detail)
        .remedy("close files, borrowed ranges or connections, then try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_count_per_user_and_come_back() {
        let limits = ServerLimits {
            handles_max: 3,
            handles_per_user_max: 2,
            borrowed_bytes_per_user_max: 100,
            ..ServerLimits::default()
        };
        let quotas = ClientQuotas::new(limits);
        let first = quotas.handle(1).unwrap();
        let second = quotas.handle(1).unwrap();
        assert_eq!(quotas.handle(1).unwrap_err().kind(), ErrorKind::LimitReached);
        let third = quotas.handle(2).unwrap();
        assert!(quotas.handle(2).is_err(), "the limit of all users");
        drop(first);
        let fourth = quotas.handle(2).unwrap();
        let borrow = quotas.borrow_range(1, 100).unwrap();
        assert!(quotas.borrow_range(1, 1).is_err());
        assert!(quotas.borrow_range(1, u64::MAX).is_err());
        assert_eq!(quotas.counts().limited, 4);
        drop((second, third, fourth, borrow));
        let counts = quotas.counts();
        assert_eq!((counts.handles, counts.borrows, counts.borrowed_bytes), (0, 0, 0));
        assert!(quotas.books.lock().users.is_empty(), "nothing is kept for users who left");
    }

    struct Pin(u64);

    impl PassthroughPin for Pin {
        fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
            rustix::stdio::stdin()
        }

        fn segment_id(&self) -> u64 {
            self.0
        }

        fn serves(&self, _: &tidepool_proto::Version) -> bool {
            true
        }

        fn held_bytes(&self) -> Option<u64> {
            Some(60)
        }
    }

    #[test]
    fn a_loan_counts_as_the_segment_that_it_keeps_once_for_each_user() {
        const ONE: u32 = 60_001;
        let limits = ServerLimits { borrowed_bytes_per_user_max: 100, ..ServerLimits::default() };
        let quotas = ClientQuotas::new(limits);
        let borrow = |user, segment| quotas.borrow_segment(user, &Pin(segment), 1);
        let first = borrow(ONE, 1).unwrap();
        let again = borrow(ONE, 1).unwrap();
        assert_eq!((quotas.counts().borrows, quotas.counts().borrowed_bytes), (2, 60));
        assert_eq!(borrow(ONE, 2).unwrap_err().kind(), ErrorKind::LimitReached);
        let other = borrow(ONE + 1, 2).unwrap();
        let operator = (borrow(0, 1).unwrap(), borrow(0, 2).unwrap());
        drop(first);
        assert!(borrow(ONE, 2).is_err(), "the other borrow keeps it");
        drop(again);
        drop((borrow(ONE, 2).unwrap(), other, operator));
        assert_eq!((quotas.counts().borrows, quotas.counts().borrowed_bytes), (0, 0));
        assert!(quotas.borrowed.lock().is_empty(), "nothing is kept of what was given back");
    }

    #[test]
    fn buffers_are_waited_for() {
        let limits = ServerLimits {
            buffered_bytes_per_user_max: 10,
            message_timeout: Duration::from_millis(20),
            ..ServerLimits::default()
        };
        let quotas = ClientQuotas::new(limits);
        let large = quotas.buffer(1, 50).unwrap();
        assert_eq!(quotas.buffer(1, 1).unwrap_err().kind(), ErrorKind::LimitReached);
        let other = quotas.buffer(2, 10).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                loop {
                    if let Ok(ticket) = quotas.buffer(1, 10) {
                        break ticket;
                    }
                }
            });
            drop(large);
            waiting.join().unwrap();
        });
        drop(other);
        assert!(quotas.books.lock().users.is_empty());
    }

    #[test]
    fn limits_leave_descriptors_to_the_store_and_to_other_users() {
        let limits = ServerLimits::default().fitted_to(1024);
        assert_eq!(2 * limits.connections_max + limits.handles_max, 512);
        assert!(limits.handles_per_user_max < limits.handles_max);
        assert!(limits.connections_per_user_max < limits.connections_max);
    }
}
