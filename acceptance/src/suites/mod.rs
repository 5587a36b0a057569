//! Test suites that were written elsewhere, and a power-loss test, on the bare file system and on
//! a node mounted over it.
//!
//! What fails on the bare file system itself is no fault of ours. Every other deviation stands in
//! `conformance/` with its reason, and fails the run as soon as it is one no longer.

mod applications;
mod churn;
mod clients;
mod comparison;
pub mod content;
mod control;
mod crash;
mod fio;
mod foreign;
mod fsx;
mod ltp;
mod memcached;
mod pjdfstest;
mod plane;
mod proof;
pub mod record;
mod verdicts;
mod xfstests;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::arguments::SuiteOptions;
use crate::environment;
use crate::loop_volume::{LoopVolume, VolumeOptions};
use crate::node::{Node, NodeOptions};
use crate::outcome::Outcome;
use crate::scratch::Scratch;

/// The suites that run when none is named.
pub const STANDARD: [&str; 5] = ["pjdfstest", "fsx", "fio", "crash", "proof"];
const ON_REQUEST: [&str; 10] = [
    "applications",
    "applications-short",
    "control",
    "ltp",
    "memcached",
    "memcached-short",
    "pjdfstest-perl",
    "plane",
    "plane-faults",
    "xfstests",
];

const VOLUME: VolumeOptions = VolumeOptions {
    file_system: "ext4",
    format_arguments: &["-q", "-F"],
    size_bytes: 8 << 30,
    mount_options: "noatime",
    direct: false,
};

/// Where the suites run.
pub struct Places {
    // First, because fields drop in order: the volume goes before its directories.
    _volume: Option<LoopVolume>,
    /// Directory of the lower level.
    pub lower: PathBuf,
    /// The lower level is ours alone, so it may be remounted.
    pub private: bool,
    /// A directory for sockets and mount points; its path is short.
    pub scratch: Scratch,
    /// A directory for images, on a disk.
    pub images: Scratch,
    /// The options of the task.
    pub options: SuiteOptions,
}

/// A directory under test.
#[derive(Debug)]
pub struct Subject<'a> {
    /// `bare` or `node`.
    pub name: &'static str,
    /// Where the suite works.
    pub directory: PathBuf,
    /// The same directory on the lower level.
    pub lower: PathBuf,
    /// The node behind it.
    pub node: Option<&'a Node>,
}

impl Places {
    fn new(options: &SuiteOptions) -> Result<Self> {
        if !["bare", "node", "both"].contains(&options.on.as_str()) {
            bail!("--on takes bare, node or both, not `{}`", options.on);
        }
        let base = environment::target().join("suites");
        let images = Scratch::below(&base)?;
        let scratch = Scratch::short()?;
        let (lower, volume) = match &options.pfs {
            Some(directory) => (directory.canonicalize().context("--pfs")?, None),
            None if environment::is_root() => {
                let volume = LoopVolume::create(images.path(), scratch.path(), &VOLUME)?;
                (volume.mount.clone(), Some(volume))
            }
            None => {
                let directory = images.path().join("lower");
                std::fs::create_dir(&directory)?;
                (directory, None)
            }
        };
        let private = volume.is_some();
        Ok(Places { lower, private, options: options.clone(), _volume: volume, scratch, images })
    }

    /// Whether the bare directory is to be tested.
    pub fn wants_bare(&self) -> bool {
        self.options.on != "node"
    }

    /// Whether a node is to be tested.
    pub fn wants_node(&self) -> bool {
        self.options.on != "bare"
    }

    /// Directories of one experiment: for images, and for mount points.
    pub fn corner(&self) -> Result<(Scratch, Scratch)> {
        Ok((Scratch::below(self.images.path())?, Scratch::below(self.scratch.path())?))
    }

    /// Runs `test` in a new directory of the lower level.
    pub fn on_bare<T>(
        &self,
        suite: &str,
        test: impl FnOnce(&Subject<'_>) -> Result<T>,
    ) -> Result<T> {
        let lower = self.working_directory("b").with_context(|| suite.to_owned())?;
        let subject = Subject { name: "bare", directory: lower.clone(), lower, node: None };
        let result = test(&subject);
        let _ = std::fs::remove_dir_all(&subject.lower);
        result
    }

    /// Runs `test` in a new directory of the mount of a node of its own.
    pub fn on_node<T>(
        &self,
        suite: &str,
        memory: &str,
        test: impl FnOnce(&Subject<'_>) -> Result<T>,
    ) -> Result<T> {
        let lower = self.working_directory("n").with_context(|| suite.to_owned())?;
        let options = NodeOptions {
            pfs: self.lower.clone(),
            memory: memory.to_owned(),
            arguments: self.node_arguments(),
        };
        let node = Node::start(&options)?;
        let directory = node.mount.join("n");
        let result =
            test(&Subject { name: "node", directory, lower: lower.clone(), node: Some(&node) });
        drop(node);
        let _ = std::fs::remove_dir_all(&lower);
        result
    }

    /// Further arguments of `node start`.
    pub fn node_arguments(&self) -> Vec<String> {
        self.options.node_option.iter().map(|option| format!("--{option}")).collect()
    }

    fn working_directory(&self, name: &str) -> Result<PathBuf> {
        let directory = self.lower.join(name);
        if directory.exists() {
            std::fs::remove_dir_all(&directory)?;
        }
        std::fs::create_dir(&directory)
            .with_context(|| format!("making {}", directory.display()))?;
        Ok(directory)
    }
}

/// Runs the named suites and prints each outcome as it comes.
pub fn run(options: &SuiteOptions) -> Result<Vec<Outcome>> {
    let names: Vec<&str> = match options.names.as_slice() {
        [] => STANDARD.to_vec(),
        names => names.iter().map(String::as_str).collect(),
    };
    if options.record {
        names.iter().try_for_each(|name| record::check(name, options).map(drop))?;
    }
    let places = Places::new(options)?;
    let mut outcomes = Vec::new();
    for name in names {
        let began = Instant::now();
        let result = match name {
            "pjdfstest" => pjdfstest::run(&places),
            "fsx" => fsx::run(&places),
            "fio" => fio::run(&places),
            "crash" => crash::run(&places),
            "proof" => proof::run(&places),
            "applications" => applications::run(&places, true),
            "applications-short" => applications::run(&places, false),
            "control" => control::run(&places),
            "ltp" => ltp::run(&places),
            "memcached" => memcached::run(&places),
            "memcached-short" => memcached::run_short(&places),
            "plane" => plane::run(&places),
            "plane-faults" => plane::faults::run(&places),
            "xfstests" => xfstests::run(&places),
            "pjdfstest-perl" => foreign::pjdfstest_perl(&places),
            other => bail!(
                "no suite `{other}`; there are {} and, on request, {}",
                STANDARD.join(", "),
                ON_REQUEST.join(", ")
            ),
        };
        let new = result.unwrap_or_else(|error| vec![Outcome::of::<()>(name, Err(error))]);
        for outcome in &new {
            println!("{outcome}");
        }
        if options.record {
            record::keep(name, options, &new)?;
        }
        eprintln!("x: suite {name}: {:.0} s", began.elapsed().as_secs_f64());
        outcomes.extend(new);
    }
    Ok(outcomes)
}

/// A file of `conformance/`.
pub fn conformance(name: &str) -> PathBuf {
    environment::checkout().join("conformance").join(name)
}

/// The last lines of what a suite said, for a failure message.
pub fn tail(text: &[u8], lines: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n        ")
}

/// The place of a suite that no package registry has, and the packages that a build of it needs.
fn place(variable: &str, what: &str, packages: &str) -> Result<PathBuf> {
    let Some(path) = std::env::var_os(variable) else {
        bail!(
            "set {variable} to {what}; conformance/README.md says how to build it, with the \
             packages {packages}"
        );
    };
    PathBuf::from(path).canonicalize().with_context(|| format!("{variable} names no directory"))
}

/// Fails unless the programs are there, and names the packages of those that are not.
fn need(programs: &[(&str, &str)]) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    directories.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let lacks = |program: &str| !directories.iter().any(|place| place.join(program).is_file());
    let missing: Vec<_> = programs.iter().filter(|(program, _)| lacks(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(program, _)| *program).collect();
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    bail!("missing: {}; install the packages {}", names.join(", "), packages.join(" "))
}

/// A second file system, for tests across file systems.
pub fn other_file_system() -> Result<Scratch> {
    Scratch::below(Path::new("/dev/shm")).context("making a directory on a second file system")
}

#[cfg(test)]
mod tests {
    use super::need;

    #[test]
    fn missing_programs_are_named_with_their_packages() {
        assert!(need(&[("sh", "dash")]).is_ok());
        let error = need(&[("sh", "dash"), ("no-such-program", "a-package")]).unwrap_err();
        assert_eq!(error.to_string(), "missing: no-such-program; install the packages a-package");
    }
}
