//! Striping of files over the data servers of a PFS: what it is, and hints for new files.
//!
//! Each file system has a backend of its own, chosen by the type of the mount. Hints are wishes: a
//! file system that cannot honour one says so, and nothing fails for it. Data is never moved.

mod beegfs;
mod ceph;
mod gluster;
mod gpfs;
mod lustre;
mod moosefs;
mod orangefs;
pub(crate) mod placement;
pub(crate) mod runner;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use tidepool_proto::{ByteSize, Error, Result};

use self::runner::{Runner, SystemRunner};
use crate::filesystem::{FileSystem, magic};

/// Wishes for the striping of new files. Empty fields leave the choice to the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutHints {
    /// Bytes on one server before the next one's turn.
    pub stripe_size_bytes: Option<u64>,
    /// Number of servers of a file.
    pub stripe_count: Option<u32>,
    /// The servers (targets, pools) in order, as the file system names them.
    pub servers: Vec<String>,
}

impl LayoutHints {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.stripe_size_bytes.is_none() && self.stripe_count.is_none() && self.servers.is_empty()
    }
}

/// What became of hints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayoutOutcome {
    /// All hints are in force.
    Applied,
    /// Some hints are in force; the text says which are not and why.
    Partly(String),
    /// No hint is in force; the text says why.
    Ignored(String),
}

/// Striping of one file, or of the files that will be made in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Type of the file system.
    pub fs_type: String,
    /// Bytes on one server before the next one's turn; `None` where unknown.
    pub stripe_size_bytes: Option<u64>,
    /// Number of servers; `None` where unknown.
    pub stripe_count: Option<u32>,
    /// The servers in the order of stripes; empty where unknown.
    pub servers: Vec<String>,
    /// The server of each stripe, where they are not in turn; empty text: not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stripes: Vec<String>,
    /// Pool or storage class, if there is one.
    pub pool: Option<String>,
    /// Why something is unknown, or what else is to be said.
    pub note: Option<String>,
}

/// A part of a range that lies in one stripe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StripePart {
    /// Number of the stripe from the start of the file.
    pub stripe: u64,
    /// Offset of the part in the file, in bytes.
    pub offset: u64,
    /// Length of the part in bytes.
    pub length: u64,
    /// Position of the server in the order of stripes; `None` where the count is unknown.
    pub server_index: Option<u32>,
    /// Name of the server, where known.
    pub server: Option<String>,
}

impl Layout {
    fn unknown(fs_type: &str, note: impl Into<String>) -> Self {
        Layout { fs_type: fs_type.to_owned(), note: Some(note.into()), ..Layout::default() }
    }

    /// The layout in words, for `explain`.
    pub fn describe(&self) -> String {
        let size = self.stripe_size_bytes.map(|bytes| ByteSize(bytes).to_string());
        let mut text = match (self.stripe_count, size) {
            (Some(1), Some(size)) => format!("one server, stripes of {size}"),
            (Some(1), None) => "one server".to_owned(),
            (Some(count), Some(size)) => format!("{count} servers in turn, stripes of {size}"),
            (Some(count), None) => format!("{count} servers, stripe size not known"),
            (None, Some(size)) => format!("stripes of {size}, number of servers not known"),
            (None, None) => "striping not known".to_owned(),
        };
        if !self.servers.is_empty() {
            text += &format!(": {}", self.servers.join(", "));
        }
        if !self.stripes.is_empty() {
            let servers: BTreeSet<&String> =
                self.stripes.iter().filter(|server| !server.is_empty()).collect();
            text = text.replace("number of servers not known", "placed one by one");
            text += &format!(": on {} servers", servers.len());
        }
        if let Some(pool) = &self.pool {
            text += &format!("; pool {pool}");
        }
        if let Some(note) = &self.note {
            text += &format!(" ({note})");
        }
        format!("{}: {text}", self.fs_type)
    }

    /// The stripe that holds `offset`; `None` where the stripe size is unknown.
    pub fn stripe_of(&self, offset: u64) -> Option<u64> {
        self.stripe_size_bytes.filter(|size| *size > 0).map(|size| offset / size)
    }

    /// Position in the order of servers of the one that holds `stripe`.
    pub fn server_index_of(&self, stripe: u64) -> Option<u32> {
        let count = self.stripe_count.filter(|count| *count > 0)?;
        Some((stripe % u64::from(count)) as u32)
    }

    /// The server of a stripe, where each is placed for itself.
    fn placed(&self, stripe: u64) -> Option<&String> {
        let server = self.stripes.get(usize::try_from(stripe).ok()?)?;
        Some(server).filter(|server| !server.is_empty())
    }

    /// The stripes of `[offset, offset + length)` and their servers, at most `parts_max`.
    pub fn map(&self, offset: u64, length: u64, parts_max: usize) -> Vec<StripePart> {
        let Some(size) = self.stripe_size_bytes.filter(|size| *size > 0) else {
            return Vec::new();
        };
        let end = offset.saturating_add(length);
        let mut parts = Vec::new();
        let mut at = offset;
        while at < end && parts.len() < parts_max {
            let stripe = at / size;
            let stripe_end = (stripe + 1).saturating_mul(size).min(end);
            let server_index = self.server_index_of(stripe);
            let in_turn = server_index.and_then(|index| self.servers.get(index as usize));
            let server = in_turn.or_else(|| self.placed(stripe)).cloned();
            let length = stripe_end - at;
            parts.push(StripePart { stripe, offset: at, length, server_index, server });
            at = stripe_end;
        }
        parts
    }
}

/// What a file system does with layouts.
pub(crate) trait Striping: Send + Sync {
    /// Whether a layout takes a program to read: reads do not wait for it.
    fn runs_a_tool(&self) -> bool {
        false
    }

    /// Layout of the file or directory.
    fn read(&self, runner: &dyn Runner, descriptor: BorrowedFd<'_>) -> Layout;

    /// Asks for `hints`, which are not empty.
    fn apply(
        &self,
        runner: &dyn Runner,
        descriptor: BorrowedFd<'_>,
        hints: &LayoutHints,
    ) -> Result<LayoutOutcome>;
}

/// File systems without striping that could be asked for.
struct NoStriping {
    fs_type: String,
}

impl Striping for NoStriping {
    fn read(&self, _runner: &dyn Runner, _descriptor: BorrowedFd<'_>) -> Layout {
        Layout::unknown(&self.fs_type, "it does not report striping")
    }

    fn apply(
        &self,
        _runner: &dyn Runner,
        _descriptor: BorrowedFd<'_>,
        _hints: &LayoutHints,
    ) -> Result<LayoutOutcome> {
        Ok(LayoutOutcome::Ignored(format!(
            "a file system of type {} takes no layout hints",
            self.fs_type
        )))
    }
}

/// The striping of one store: the backend of its file system, and the notice given once.
pub(crate) struct LayoutBackend {
    striping: Box<dyn Striping>,
    runner: Box<dyn Runner>,
    noticed: AtomicBool,
}

impl LayoutBackend {
    pub fn of(file_system: &FileSystem) -> Self {
        LayoutBackend::new(striping_for(file_system), Box::new(SystemRunner))
    }

    fn new(striping: Box<dyn Striping>, runner: Box<dyn Runner>) -> Self {
        LayoutBackend { striping, runner, noticed: AtomicBool::new(false) }
    }

    pub fn runs_a_tool(&self) -> bool {
        self.striping.runs_a_tool()
    }

    pub fn read(&self, descriptor: BorrowedFd<'_>) -> Layout {
        self.striping.read(self.runner.as_ref(), descriptor)
    }

    pub fn apply(&self, descriptor: BorrowedFd<'_>, hints: &LayoutHints) -> Result<LayoutOutcome> {
        if hints.is_empty() {
            return Ok(LayoutOutcome::Applied);
        }
        let outcome = self.striping.apply(self.runner.as_ref(), descriptor, hints)?;
        if let LayoutOutcome::Partly(why) | LayoutOutcome::Ignored(why) = &outcome
            && !self.noticed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("layout hints are not honoured in full: {why}");
        }
        Ok(outcome)
    }
}

/// Asks for `hints` for a file that was just created and has no bytes yet, without a store around
/// it: for programs that create files of the PFS themselves.
pub fn apply_to_new_file(descriptor: BorrowedFd<'_>, hints: &LayoutHints) -> Result<LayoutOutcome> {
    if hints.is_empty() {
        return Ok(LayoutOutcome::Applied);
    }
    let file_system = FileSystem::of(descriptor)
        .map_err(|error| Error::pfs("asking for the type of a file system", error))?;
    striping_for(&file_system).apply(&SystemRunner, descriptor, hints)
}

fn striping_for(file_system: &FileSystem) -> Box<dyn Striping> {
    let fs_type = file_system.fs_type.as_str();
    match (file_system.magic, fs_type) {
        (magic::LUSTRE, _) | (_, "lustre") => Box::new(lustre::Lustre),
        (magic::CEPH, _) | (_, "ceph" | "fuse.ceph-fuse") => {
            Box::new(ceph::Ceph { fs_type: fs_type.to_owned() })
        }
        (magic::ORANGEFS, _) | (_, "orangefs" | "pvfs2" | "fuse.pvfs2fuse") => {
            Box::new(orangefs::OrangeFs)
        }
        (magic::BEEGFS, _) | (_, "beegfs") => Box::new(beegfs::BeeGfs),
        (_, "fuse.mfs" | "fuse.mfsmount") => Box::new(moosefs::MooseFs),
        (_, "fuse.glusterfs") => Box::<gluster::Gluster>::default(),
        (magic::GPFS, _) | (_, "gpfs") => Box::new(gpfs::Gpfs),
        _ => Box::new(NoStriping { fs_type: fs_type.to_owned() }),
    }
}
