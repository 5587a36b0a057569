//! The command line of the tasks. One place for names, defaults and help; no behaviour.

use std::path::PathBuf;

use acceptance::arguments::{
    BenchOptions, ClusterOptions, DemoOptions, ExampleOptions, HogOptions, SuiteOptions,
    VisitOptions, VmOptions,
};
use clap::{Args, Parser, Subcommand};

/// Project tasks of Tidepool.
#[derive(Debug, Parser)]
#[command(name = "x", disable_version_flag = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub task: Task,
}

/// One task.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Show the product on a K-means job, side by side with the bare file system.
    Demo(DemoOptions),
    /// Format, clippy, unit tests, documents: a contributor's loop, which changes nothing outside
    /// the checkout.
    Check,
    /// Run every check that a change must pass.
    Test(TestOptions),
    /// Check libraries of others by cargo-deny: licences, origins, versions.
    Deny(DenyOptions),
    /// Check all crates with the oldest compiler that is promised.
    Msrv,
    /// Build everything that is shipped, into `dist/`.
    Build(BuildOptions),
    /// Check style, layers, generated documents and dead files.
    Tidy,
    /// Generate the reference documents.
    Docs,
    /// Generate the man pages and shell completions.
    Man,
    /// Measure the product against raw tmpfs and the bare file system.
    Bench(BenchOptions),
    /// Run Hadoop, Spark or Flink on the product; without a name, list what there is.
    Example(ExampleOptions),
    /// Run test suites from elsewhere on a mount.
    Suites(SuiteOptions),
    /// Make a cluster of network namespaces on this machine, with shaped links and disks, a
    /// parallel file system and a daemon a node, and act on it.
    Cluster(ClusterOptions),
    /// Boot a distribution's kernel in an emulator and run there what depends on the kernel.
    Vm(VmOptions),
    /// Take and release memory by a trace, as a job would: a part of `bench` and `suites`.
    #[command(hide = true)]
    Hog(HogOptions),
    /// Open and read files, or take all that one user can have of a node: a part of `bench`.
    #[command(hide = true)]
    Visit(VisitOptions),
    /// Lay a program out as it is installed: a part of `build`.
    #[command(hide = true)]
    Tree(TreeOptions),
}

/// Options of `tree`.
#[derive(Clone, Debug, Args)]
pub struct TreeOptions {
    /// The program.
    pub binary: PathBuf,
    /// The directory `deploy`.
    pub deploy: PathBuf,
    /// Where the tree goes; what is there is removed.
    pub tree: PathBuf,
}

/// Options of `deny`.
#[derive(Clone, Debug, Default, Args)]
pub struct DenyOptions {
    /// Also ask for known holes; fetches the database of RustSec from GitHub.
    #[arg(long)]
    pub advisories: bool,
}

/// Options of `test`.
#[derive(Clone, Debug, Args)]
pub struct TestOptions {
    /// Ten times the random operations, more seeds, more data.
    #[arg(long)]
    pub long: bool,
    /// Run only the steps whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// A list of what this machine leaves out; leaving out anything else is a failure.
    #[arg(long, value_name = "FILE")]
    pub skips: Option<PathBuf>,
    /// Keep the results of the Java tests in `conformance/results`, as `suites --record` does.
    #[arg(long)]
    pub record: bool,
}

/// Options of `build`.
#[derive(Clone, Debug, Args)]
pub struct BuildOptions {
    /// Fail where a part cannot be built here, instead of saying so and going on.
    #[arg(long)]
    pub all: bool,
}
