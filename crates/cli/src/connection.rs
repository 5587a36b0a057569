//! The connection of a command to a node, the same for all commands.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use tidepool_client::{Client, ClientOptions, socket_to_ask};
use tidepool_proto::admin::{
    AdminReply, AdminRequest, ConfigEntry, Explanation, FlushReport, FreeReport, HandOnReport,
    LoadReport, NodeReport, ResizeReport, SpreadReport, Status,
};
use tidepool_proto::buffer::OwedFile;
use tidepool_proto::cluster::PairReport;
use tidepool_proto::files::{CachedFile, FileOrder};
use tidepool_proto::trace::{TraceBatch, TraceRequest};
use tidepool_proto::{Error, ErrorKind, MemorySize, Result};

/// How a command finds its node.
#[derive(Args, Clone, Debug)]
pub struct SocketArgument {
    /// Socket of the node [default: that of a node of this user, else root's,
    /// /run/tidepool/node.sock]
    #[arg(long, value_name = "PATH", env = "TIDEPOOL_SOCKET", hide_env_values = true,
          value_parser = OsStringValueParser::new().try_map(socket_path))]
    pub socket: Option<PathBuf>,
}

/// The path of a socket as it was given by flag or environment.
pub fn socket_path(text: OsString) -> Result<PathBuf> {
    if !text.is_empty() {
        return Ok(text.into());
    }
    let detail = "the path is empty";
    Err(Error::new(ErrorKind::InvalidInput, "reading --socket or TIDEPOOL_SOCKET", detail)
        .remedy("name the socket of the node, or unset the variable for the default one"))
}

impl SocketArgument {
    /// The socket to use.
    pub fn path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(socket_to_ask)
    }

    /// A connection to the node; fails at the first request if none answers.
    pub fn connect(&self) -> Connection {
        let socket = self.path();
        // A user that names a socket means the node there, whichever user runs it.
        let owner = std::fs::metadata(&socket).ok().map(|metadata| metadata.uid());
        let options = ClientOptions {
            socket: Some(socket),
            trusted_user_id: owner.filter(|_| self.socket.is_some()),
            notice: Arc::new(|_| {}),
            ..ClientOptions::default()
        };
        Connection { client: Client::connect(options) }
    }
}

/// A connection to a node, for the requests of the command line.
#[derive(Clone, Debug)]
pub struct Connection {
    client: Client,
}

impl Connection {
    /// The library behind it, for reading files.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Asks, and turns a refusal into an error.
    pub fn ask(
        &self,
        request: AdminRequest,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<AdminReply> {
        match self.client.admin(request, descriptor)? {
            AdminReply::Failed { kind, message, errno } => Err(refusal(kind, message, errno)),
            reply => Ok(reply),
        }
    }

    /// Facts and counters of the node.
    pub fn status(&self) -> Result<Status> {
        match self.ask(AdminRequest::Status, None)? {
            AdminReply::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// What all nodes of the cluster say of themselves.
    pub fn cluster_status(&self) -> Result<Vec<NodeReport>> {
        match self.ask(AdminRequest::ClusterStatus, None)? {
            AdminReply::Cluster(nodes) => Ok(nodes),
            other => Err(unexpected(&other)),
        }
    }

    /// What each node measures of the one that comes so many places after it.
    pub fn measure_nodes(&self, shift: u32) -> Result<Vec<PairReport>> {
        match self.ask(AdminRequest::MeasureNodes { shift }, None)? {
            AdminReply::Measured(pairs) => Ok(pairs),
            other => Err(unexpected(&other)),
        }
    }

    /// The cached files that come first.
    pub fn files(&self, order: FileOrder, count: u32) -> Result<Vec<CachedFile>> {
        match self.ask(AdminRequest::Files { order, count }, None)? {
            AdminReply::Files(files) => Ok(files),
            other => Err(unexpected(&other)),
        }
    }

    /// What the node knows of a file.
    pub fn explain(&self, file: BorrowedFd<'_>) -> Result<Explanation> {
        match self.ask(AdminRequest::Explain, Some(file))? {
            AdminReply::Explain(explanation) => Ok(*explanation),
            other => Err(unexpected(&other)),
        }
    }

    /// Brings a file in.
    pub fn load(&self, file: BorrowedFd<'_>) -> Result<()> {
        self.load_until(file, false, &AtomicBool::new(false)).map(drop)
    }

    /// Brings a file in; `keep` pins it. Waits no longer once `interrupted` is true: `None`.
    pub fn load_until(
        &self,
        file: BorrowedFd<'_>,
        keep: bool,
        interrupted: &AtomicBool,
    ) -> Result<Option<LoadReport>> {
        let request = if keep { AdminRequest::Pin } else { AdminRequest::Load };
        match self.ask_until(request, Some(file), interrupted)? {
            None => Ok(None),
            Some(AdminReply::Loaded(report)) => Ok(Some(report)),
            Some(other) => Err(unexpected(&other)),
        }
    }

    /// Has the splits of a file brought in by their owners. Waits no longer once `interrupted` is
    /// true: `None`, and the nodes end with the splits that they are at.
    pub fn spread_until(
        &self,
        file: BorrowedFd<'_>,
        interrupted: &AtomicBool,
    ) -> Result<Option<SpreadReport>> {
        match self.ask_until(AdminRequest::Spread, Some(file), interrupted)? {
            None => Ok(None),
            Some(AdminReply::Spread(report)) => Ok(Some(report)),
            Some(other) => Err(unexpected(&other)),
        }
    }

    /// Has other nodes bring in what the node holds. Waits no longer once `interrupted` is true:
    /// `None`, and they end with the parts that they are at.
    pub fn hand_on_until(
        &self,
        limit: Duration,
        interrupted: &AtomicBool,
    ) -> Result<Option<HandOnReport>> {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        match self.ask_until(AdminRequest::HandOn { limit_ms }, None, interrupted)? {
            None => Ok(None),
            Some(AdminReply::HandedOn(report)) => Ok(Some(report)),
            Some(other) => Err(unexpected(&other)),
        }
    }

    /// A request that is answered without facts. Waits no longer once `interrupted` is true: then
    /// the answer is false, and the node goes on with what it was asked for.
    pub fn order_until(&self, request: AdminRequest, interrupted: &AtomicBool) -> Result<bool> {
        Ok(self.ask_until(request, None, interrupted)?.is_some())
    }

    /// As [`ask`](Self::ask), but waits no longer once `interrupted` is true: `None`.
    fn ask_until(
        &self,
        request: AdminRequest,
        file: Option<BorrowedFd<'_>>,
        interrupted: &AtomicBool,
    ) -> Result<Option<AdminReply>> {
        let mut go_on = || !interrupted.load(Ordering::Relaxed);
        match self.client.admin_while(request, file, &mut go_on)? {
            Some(AdminReply::Failed { kind, message, errno }) => Err(refusal(kind, message, errno)),
            reply => Ok(reply),
        }
    }

    /// Lets a file be evicted again; whether it was pinned.
    pub fn unpin(&self, file: BorrowedFd<'_>) -> Result<bool> {
        match self.ask(AdminRequest::Unpin, Some(file))? {
            AdminReply::Unpinned(was_pinned) => Ok(was_pinned),
            other => Err(unexpected(&other)),
        }
    }

    /// A request that frees memory.
    pub fn free(&self, request: AdminRequest, file: Option<BorrowedFd<'_>>) -> Result<FreeReport> {
        match self.ask(request, file)? {
            AdminReply::Freed(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    /// Files in burst buffers that the PFS does not have.
    pub fn owed(&self) -> Result<Vec<OwedFile>> {
        match self.ask(AdminRequest::Owed, None)? {
            AdminReply::Owed(files) => Ok(files),
            other => Err(unexpected(&other)),
        }
    }

    /// Brings a file to the PFS.
    pub fn flush(&self, file: BorrowedFd<'_>) -> Result<FlushReport> {
        self.flushed(AdminRequest::Flush, Some(file))
    }

    /// Brings all files to the PFS; what is nowhere to be found may be dropped.
    pub fn flush_all(&self, forgets_missing: bool) -> Result<FlushReport> {
        self.flushed(AdminRequest::FlushAll { forgets_missing }, None)
    }

    fn flushed(&self, request: AdminRequest, file: Option<BorrowedFd<'_>>) -> Result<FlushReport> {
        match self.ask(request, file)? {
            AdminReply::Flushed(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    /// Sets the capacity. Waits no longer once `interrupted` is true: `None`, and the node goes on
    /// with what it was asked for.
    pub fn resize_until(
        &self,
        size: MemorySize,
        interrupted: &AtomicBool,
    ) -> Result<Option<ResizeReport>> {
        match self.ask_until(AdminRequest::Resize { size }, None, interrupted)? {
            None => Ok(None),
            Some(AdminReply::Resized(report)) => Ok(Some(report)),
            Some(other) => Err(unexpected(&other)),
        }
    }

    /// Effective configuration of the node.
    pub fn config(&self) -> Result<Vec<ConfigEntry>> {
        match self.ask(AdminRequest::Config, None)? {
            AdminReply::Config(entries) => Ok(entries),
            other => Err(unexpected(&other)),
        }
    }

    /// Watches requests; `None` where `go_on`, asked now and then, gave up.
    pub fn trace(
        &self,
        request: TraceRequest,
        file: Option<BorrowedFd<'_>>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<TraceBatch>> {
        match self.client.admin_while(AdminRequest::Trace(request), file, go_on)? {
            None => Ok(None),
            Some(AdminReply::Traced(batch)) => Ok(Some(batch)),
            Some(AdminReply::Done) => Ok(Some(TraceBatch::default())),
            Some(AdminReply::Failed { kind, message, errno }) => Err(refusal(kind, message, errno)),
            Some(other) => Err(unexpected(&other)),
        }
    }

    /// A request that is answered without facts.
    pub fn order(&self, request: AdminRequest, file: Option<BorrowedFd<'_>>) -> Result<()> {
        self.ask(request, file).map(drop)
    }
}

/// The error that a node reported, with its errno kept.
fn refusal(kind: ErrorKind, message: String, errno: i32) -> Error {
    // The message is a whole line of its own, made from an error of the node.
    let message = message.strip_prefix("while ").map(str::to_owned).unwrap_or(message);
    let (operation, detail) = match message.split_once(": ") {
        Some((operation, detail)) => (operation.to_owned(), detail.to_owned()),
        None => ("asking the node".to_owned(), message),
    };
    let error = Error::new(kind, operation, detail);
    if errno == kind.errno() {
        return error;
    }
    error.caused_by(std::io::Error::from_raw_os_error(errno))
}

fn unexpected(reply: &AdminReply) -> Error {
    let name = format!("{reply:?}");
    let name = name.split(['(', ' ', '{']).next().unwrap_or("nothing").to_owned();
    Error::new(ErrorKind::Protocol, "asking the node", format!("it answered with `{name}`"))
        .remedy("use the same release on both sides")
}
