//! `Link`: the connection of a client as it comes and goes. Looks for the node now and then, waits
//! for one that does not answer, and refuses one that serves another directory.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tidepool_proto::{Error, ErrorKind, Habit, Result};

use crate::connection::{
    CONNECT_TIMEOUT, Connection, GIVING_UP_INTERVAL, GoOn, Refused, longer_silence,
};
use crate::options::ClientOptions;
use crate::root;

/// The connection as it comes and goes.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) options: ClientOptions,
    socket: Option<PathBuf>,
    root_is_stated: bool,
    /// What `tide:///` stands for, once it was asked for.
    pub(crate) pfs_root: OnceLock<PathBuf>,
    /// The directory of the first node that served a file of this client.
    first_root: OnceLock<PathBuf>,
    connection: ArcSwapOption<Connection>,
    pub(crate) attempts: Mutex<Attempts>,
    /// Whether readers go on from the heads of files.
    pub(crate) habit: Arc<Habit>,
    /// When a refused open was told of last.
    refusal_told: Mutex<Option<Instant>>,
}

/// Refused opens are told of no more often: beyond a limit of the node each open is one.
const REFUSALS_APART: Duration = Duration::from_secs(60);

/// How the node was looked for, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    next: Option<Instant>,
    /// How long the node was not looked for because it was there and did not answer.
    silence: Duration,
    /// The last attempt found a node that did not answer.
    is_silent: bool,
    absence_told: bool,
    /// Why the last attempt failed.
    failed: Option<String>,
}

impl Link {
    /// Not connected yet; what the options leave open, the environment says.
    pub(crate) fn new(options: ClientOptions) -> Link {
        let environment =
            |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let socket = options.socket.clone().or_else(|| environment("TIDEPOOL_SOCKET"));
        let stated_root = options.pfs_root.clone().or_else(|| environment("TIDEPOOL_PFS"));
        let pfs_root = OnceLock::new();
        if let Some(root) = stated_root.clone() {
            let _ = pfs_root.set(root);
        }
        Link {
            options,
            socket,
            root_is_stated: stated_root.is_some(),
            pfs_root,
            first_root: OnceLock::new(),
            connection: ArcSwapOption::empty(),
            attempts: Mutex::default(),
            habit: Arc::default(),
            refusal_told: Mutex::default(),
        }
    }

    /// The connection, if the node is there; looks for it where it is time to. `None` also for a
    /// node that serves another directory than this client uses.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        let connection = match self.any() {
            Some(connection) => connection,
            None => {
                // Another thread connects: do not wait, the parallel file system is there.
                let mut attempts = self.attempts.try_lock()?;
                if attempts.next.is_some_and(|next| Instant::now() < next) {
                    return None;
                }
                self.attempt(&mut attempts).ok()?
            }
        };
        self.used(connection)
    }

    /// Tells that the node refused an open, which goes on without it; once in a while.
    pub(crate) fn tell_refusal(&self, error: &Error) {
        let mut told = self.refusal_told.lock();
        if told.is_some_and(|told| told.elapsed() < REFUSALS_APART) {
            return;
        }
        *told = Some(Instant::now());
        drop(told);
        (self.options.notice)(&format!(
            "opened without the node, at the speed of the parallel file system, told once a \
             minute at most: {error}"
        ));
    }

    /// A connection that files are to use, unless its node serves another directory.
    fn used(&self, connection: Arc<Connection>) -> Option<Arc<Connection>> {
        if !self.is_served_by(&connection) {
            return None;
        }
        if self.first_root.get().is_none()
            && let Some(root) = connection.root()
        {
            let _ = self.first_root.set(root.to_owned());
        }
        Some(connection)
    }

    /// The connection to whichever node is there.
    pub(crate) fn any(&self) -> Option<Arc<Connection>> {
        self.connection.load().as_ref().filter(|connection| connection.is_alive()).cloned()
    }

    /// The connection to a node of this client's directory.
    pub(crate) fn living(&self) -> Option<Arc<Connection>> {
        self.any().filter(|connection| self.is_served_by(connection))
    }

    /// Whether the node serves the directory that this client uses: the one that it was told to
    /// use, or else that of the first node. Another node may have taken the socket since.
    fn is_served_by(&self, connection: &Connection) -> bool {
        let ours = self.pfs_root.get().or_else(|| self.first_root.get());
        let (Some(ours), Some(theirs)) = (ours, connection.root()) else { return true };
        ours == theirs
            || !connection.is_elsewhere(|| {
                let is_elsewhere = !root::is_same_place(ours, theirs, self.root_is_stated);
                if is_elsewhere {
                    (self.options.notice)(&format!(
                        "going on without the node, at the speed of the parallel file system: it \
                         serves {}, and this client uses {}",
                        theirs.display(),
                        ours.display()
                    ));
                }
                is_elsewhere
            })
    }

    /// As `connection`, but waits for a node that is there and does not answer; `None` where
    /// `go_on` gave it up. Fails where no node is there, or it is of no use.
    pub(crate) fn awaited_connection(&self, go_on: GoOn<'_>) -> Result<Option<Arc<Connection>>> {
        loop {
            if let Some(connection) = self.any() {
                let elsewhere = || {
                    let detail = "the node there serves another directory";
                    Error::new(ErrorKind::NodeUnavailable, "looking for the node", detail)
                };
                return self.used(connection).map(Some).ok_or_else(elsewhere);
            }
            if let Some(mut attempts) = self.attempts.try_lock_for(GIVING_UP_INTERVAL) {
                let by = Instant::now() + self.options.request_timeout;
                match self.attempt_until(&mut attempts, by, go_on) {
                    Ok(_) => continue,
                    Err(error) if !attempts.is_silent => return Err(error),
                    Err(_) => {}
                }
            }
            if !go_on() {
                return Ok(None);
            }
        }
    }

    /// Whether a node is there and did not answer lately.
    pub(crate) fn is_silent(&self) -> bool {
        match self.any() {
            Some(connection) => connection.is_silent(),
            None => self.attempts.try_lock().is_some_and(|attempts| attempts.is_silent),
        }
    }

    /// Connects unless somebody did meanwhile.
    pub(crate) fn attempt(&self, attempts: &mut Attempts) -> Result<Arc<Connection>> {
        self.attempt_until(attempts, Instant::now() + CONNECT_TIMEOUT, &mut || true)
    }

    fn attempt_until(
        &self,
        attempts: &mut Attempts,
        by: Instant,
        go_on: GoOn<'_>,
    ) -> Result<Arc<Connection>> {
        if let Some(connection) = self.any() {
            return Ok(connection);
        }
        let options = &self.options;
        let opened = match &self.socket {
            Some(path) => Connection::open(path, options, by, go_on),
            None => Err(Error::new(
                ErrorKind::NodeUnavailable,
                "looking for the node",
                "neither a socket nor TIDEPOOL_SOCKET is given",
            )
            .remedy("pass --socket, or set TIDEPOOL_SOCKET")
            .into()),
        };
        match opened {
            Ok(connection) => {
                self.keep_root(connection.root());
                self.connection.store(Some(Arc::clone(&connection)));
                if attempts.absence_told && self.is_served_by(&connection) {
                    (options.notice)("the node is back");
                }
                *attempts = Attempts::default();
                Ok(connection)
            }
            Err(Refused { error, is_silence, root }) => {
                self.keep_root(root.as_deref());
                let pause = match is_silence {
                    true => longer_silence(attempts.silence, options.retry_interval),
                    false => options.retry_interval,
                };
                attempts.silence = if is_silence { pause } else { Duration::ZERO };
                attempts.is_silent = is_silence;
                attempts.next = Some(Instant::now() + pause);
                attempts.failed = Some(error.to_string());
                if self.socket.is_some() && !attempts.absence_told {
                    attempts.absence_told = true;
                    (options.notice)(&format!(
                        "going on without a node, at the speed of the parallel file system: {error}"
                    ));
                }
                Err(error)
            }
        }
    }

    /// The directory that `tide:///` stands for.
    pub(crate) fn pfs_root(&self) -> Result<&Path> {
        if let Some(root) = self.pfs_root.get().or_else(|| self.first_root.get()) {
            return Ok(self.pfs_root.get_or_init(|| root.clone()));
        }
        match self.connection().as_deref().and_then(Connection::root) {
            Some(root) => Ok(self.pfs_root.get_or_init(|| root.to_owned())),
            None => self.pfs_root_without_node(),
        }
    }

    /// The root as a node on this socket said it last, or as the options have it for the case.
    fn pfs_root_without_node(&self) -> Result<&Path> {
        if let Some(root) = self.socket.as_deref().and_then(root::kept) {
            return Ok(self.pfs_root.get_or_init(|| root));
        }
        self.options.pfs_root_without_node.as_deref().ok_or_else(|| {
            let detail = "the directory that tide:/// stands for is not known without a node";
            let why = self.attempts.try_lock().and_then(|attempts| attempts.failed.clone());
            let detail = why.map_or(detail.to_owned(), |why| format!("{detail}: {why}"));
            Error::new(ErrorKind::InvalidInput, "reading a tide name", detail)
                .remedy("set TIDEPOOL_PFS, or start the node")
        })
    }

    fn keep_root(&self, root: Option<&Path>) {
        if let (Some(socket), Some(root)) = (&self.socket, root) {
            root::keep(socket, root);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn thousands_of_refused_opens_are_one_line() {
        let told = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&told);
        let link = Link::new(ClientOptions {
            notice: Arc::new(move |line: &str| {
                assert!(line.contains("at most 6562"), "{line}");
                counter.fetch_add(1, Ordering::Relaxed);
            }),
            ..ClientOptions::default()
        });
        let error = Error::new(ErrorKind::LimitReached, "serving a client", "at most 6562");
        (0..1_000).for_each(|_| link.tell_refusal(&error));
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_node_that_does_not_greet_is_looked_for_more_and_more_seldom() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let retry_interval = Duration::from_secs(4);
        let notice: crate::Notice = Arc::new(|_| ());
        let options = ClientOptions { retry_interval, notice, ..ClientOptions::default() };
        let link = Link::new(ClientOptions { socket: Some(socket.clone()), ..options });
        let mut attempts = link.attempts.lock();
        let mut pauses_s = Vec::new();
        for _ in 0..5 {
            let begun = Instant::now();
            assert!(link.attempt_until(&mut attempts, begun, &mut || true).is_err());
            assert!(attempts.next.unwrap() >= begun + attempts.silence);
            pauses_s.push(attempts.silence.as_secs());
        }
        assert_eq!(pauses_s, [4, 8, 16, 30, 30]);
        drop(listener);
        assert!(link.attempt(&mut attempts).is_err());
        assert_eq!(attempts.silence, Duration::ZERO, "that nobody is there costs no wait");
    }
}
