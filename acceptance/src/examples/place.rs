//! Where the data of an example lies: on the bare directory of a PFS, on HDFS, or on the same
//! directory through a node. All of it is created for the example and removed after it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};

use super::report::{Report, Served, Stage};
use super::turmoil::Turmoil;
use crate::arguments::Storage;
use crate::bench::forget;
use crate::environment;
use crate::jvm::hadoop::{Hadoop, Hdfs, Yarn};
use crate::jvm::{artifacts, java::Ran};
use crate::node::{Node, NodeOptions};
use crate::scratch::Scratch;

/// What a place is to be.
#[derive(Clone, Debug)]
pub struct PlaceOptions {
    /// Where the data is.
    pub storage: Storage,
    /// Directory of a PFS; the target directory without it.
    pub pfs: Option<PathBuf>,
    /// Capacity of the node's store.
    pub memory_bytes: u64,
    /// Where the logs go.
    pub logs: PathBuf,
    /// The node is disturbed while programs run, by this seed.
    pub turmoil_seed: Option<u64>,
    /// The step before which the page cache of the data is emptied.
    pub forget_before: Option<String>,
}

/// Storage for one run, with Hadoop set up for it.
#[derive(Debug)]
pub struct Place {
    /// Hadoop, configured for this storage.
    pub hadoop: Hadoop,
    options: PlaceOptions,
    turmoil: Option<Turmoil>,
    // Dropped in this order: jobs, then what they read, then the directories.
    yarn: Option<Yarn>,
    hdfs: Option<Hdfs>,
    node: Option<Arc<Mutex<Node>>>,
    directory: Scratch,
}

impl Place {
    /// Sets everything up and starts what the storage needs.
    pub fn new(options: &PlaceOptions) -> Result<Self> {
        let base = options.pfs.clone().unwrap_or_else(|| environment::target().join("examples"));
        let directory = Scratch::below(&base)?;
        std::fs::create_dir(directory.path().join("data"))?;
        let hadoop = Hadoop::new(&environment::target().join("examples"), &options.logs)?;
        let mut place = Place {
            hadoop,
            options: options.clone(),
            turmoil: None,
            yarn: None,
            hdfs: None,
            node: None,
            directory,
        };
        match options.storage {
            Storage::Pfs => {}
            Storage::Hdfs => place.start_hdfs()?,
            Storage::Tide => place.start_node()?,
        }
        if options.storage != Storage::Pfs {
            place.hadoop.site.set("fs.defaultFS", place.uri(""));
        }
        Ok(place)
    }

    fn start_node(&mut self) -> Result<()> {
        let jar = artifacts::tide_jar()?;
        let node = Node::start_unmounted(&NodeOptions {
            pfs: self.data(),
            memory: self.options.memory_bytes.to_string(),
            arguments: Vec::new(),
        })?;
        self.hadoop.add_jar(&jar);
        self.hadoop.site.set("fs.tide.socket", node.socket.display());
        self.hadoop.site.set("fs.tide.pfs", self.data().display());
        // All workers are here, so that locality can be shown.
        self.hadoop.site.set("fs.tide.host.names", self.hadoop.host.clone());
        // Clients of YARN ask for this before they open a file system, which would tell it.
        self.hadoop.site.set("fs.AbstractFileSystem.tide.impl", "io.tidepool.hadoop.Tide");
        self.node = Some(Arc::new(Mutex::new(node)));
        Ok(())
    }

    /// Starts HDFS with its blocks beside the data; for programs that need it beside the storage.
    pub fn start_hdfs(&mut self) -> Result<()> {
        if self.hdfs.is_none() {
            let blocks = self.directory.path().join("blocks");
            self.hdfs = Some(Hdfs::start(&mut self.hadoop, &blocks)?);
        }
        Ok(())
    }

    /// Starts YARN; jobs run on it from then on.
    pub fn start_yarn(&mut self) -> Result<()> {
        self.yarn = Some(Yarn::start(&mut self.hadoop)?);
        Ok(())
    }

    /// Address of a path in the storage.
    pub fn uri(&self, path: &str) -> String {
        match self.options.storage {
            Storage::Pfs => format!("file://{}", self.data().join(path).display()),
            Storage::Hdfs => self.hdfs_uri(path),
            Storage::Tide => format!("tide:///{path}"),
        }
    }

    /// Whether the storage is the bare directory.
    pub fn is_bare(&self) -> bool {
        self.options.storage == Storage::Pfs
    }

    /// Address of a path in HDFS.
    pub fn hdfs_uri(&self, path: &str) -> String {
        let root = self.hdfs.as_ref().map_or("hdfs://", |hdfs| hdfs.uri.as_str());
        format!("{root}/{path}")
    }

    /// Directory of the lower level: for the bare storage and a node, the data as all see it.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A path of the storage as plain files, past the file system under test; what is in HDFS is
    /// copied out by its own client.
    pub fn plain(&self, path: &str) -> Result<PathBuf> {
        let plain = self.data().join(path);
        if self.options.storage == Storage::Hdfs && !plain.exists() {
            let parent = plain.parent().unwrap_or(&plain);
            std::fs::create_dir_all(parent)?;
            self.shell(&["-get", &self.uri(path), &parent.display().to_string()])?;
        }
        Ok(plain)
    }

    /// Brings plain files that were written to [`Self::data`] into the storage.
    pub fn publish(&self, path: &str) -> Result<()> {
        if self.options.storage == Storage::Hdfs {
            let plain = self.data().join(path);
            self.shell(&["-put", &plain.display().to_string(), &self.uri(path)])?;
        }
        Ok(())
    }

    /// A command of Hadoop's shell.
    pub fn shell(&self, arguments: &[&str]) -> Result<Ran> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        self.hadoop.run("org.apache.hadoop.fs.FsShell", &arguments)
    }

    /// Counters of the node; `None` without one, and in turmoil, where they begin anew.
    pub fn served(&self) -> Option<Served> {
        if self.turmoil.is_some() {
            return None;
        }
        let node = self.node.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let status = node.status().ok()?;
        let count = |level: &str| status["served"][level].as_u64().unwrap_or(0);
        Some(Served { mapped: count("mapped"), store: count("store"), pfs: count("pfs") })
    }

    /// Does one step; `work` returns what the program said.
    pub fn stage(
        &self,
        name: &str,
        bytes: Option<u64>,
        work: impl FnOnce() -> Result<Ran>,
    ) -> Result<(Stage, Ran)> {
        eprintln!("x: {name}");
        if self.options.forget_before.as_deref() == Some(name) {
            forget_tree(self.directory.path())?;
        }
        let before = self.served();
        let started = Instant::now();
        let ran = work().with_context(|| name.to_owned())?;
        let seconds = started.elapsed().as_secs_f64();
        let served = self.served().zip(before).and_then(|(now, before)| now.since(&before));
        let kinds = ["Data-local", "Rack-local", "Other local"];
        let counts = kinds.map(|kind| ran.counter(&format!("{kind} map tasks")));
        let all = counts.iter().flatten().sum();
        let stage = Stage {
            name: name.to_owned(),
            seconds,
            bytes,
            served,
            local_tasks: (all > 0).then(|| (counts[0].unwrap_or(0), all)),
            task_seconds: ran
                .counter("Total time spent by all map tasks (ms)")
                .map(|time| time as f64 / 1e3),
            task_megabytes_s: None,
            notes: Vec::new(),
        };
        Ok((stage, ran))
    }

    /// From now on the node is disturbed, if that was asked for.
    pub fn disturb(&mut self) {
        if let Some((node, seed)) = self.node.as_ref().zip(self.options.turmoil_seed) {
            let PlaceOptions { memory_bytes, logs, .. } = &self.options;
            self.turmoil = Some(Turmoil::start(Arc::clone(node), *memory_bytes, seed, logs));
        }
    }

    /// An empty report of this place.
    pub fn report(&self, example: &str, size_bytes: u64) -> Report {
        let storage = match self.options.storage {
            Storage::Pfs => "the bare directory",
            Storage::Hdfs => "HDFS",
            Storage::Tide => "tide://",
        };
        let (example, storage) = (example.to_owned(), storage.to_owned());
        Report { example, storage, size_bytes, ..Report::default() }
    }

    /// Ends the turmoil before results are checked.
    pub fn calm(&mut self, report: &mut Report) -> Result<()> {
        if let Some(turmoil) = self.turmoil.take() {
            report.turmoil = Some(turmoil.stop()?);
        }
        Ok(())
    }

    /// Ends what still runs. An error where nothing was checked, where turmoil that was asked for
    /// did not happen, and where the node served nothing: its clients then went past it, which is
    /// right for jobs and wrong here.
    pub fn finish(&mut self, mut report: Report) -> Result<Report> {
        self.calm(&mut report)?;
        anyhow::ensure!(!report.checked.is_empty(), "no result was checked");
        if self.options.turmoil_seed.is_some() {
            anyhow::ensure!(report.turmoil.is_some(), "the example was not disturbed");
        } else if self.node.is_some() {
            let served = self.served().unwrap_or_default().total();
            anyhow::ensure!(
                served > 0,
                "the node served nothing: programs went to the lower level by themselves; their \
                 logs say why"
            );
        }
        Ok(report)
    }
}

/// Drops the kernel's page cache of all files of a tree.
pub fn forget_tree(directory: &Path) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            forget_tree(&entry.path())?;
        } else if kind.is_file() {
            // HDFS replaces files while it runs; what has gone has no pages.
            let _ = forget(&entry.path());
        }
    }
    Ok(())
}

/// The numbered files of a job's output, in order.
pub fn parts(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("part-") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}
