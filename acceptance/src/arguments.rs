//! Options of benchmarks, suites, examples, the demo and the test cluster. One place for names,
//! defaults and help; no behaviour.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Options of `visit`.
#[derive(Clone, Debug, Args)]
pub struct VisitOptions {
    /// What to do.
    #[command(subcommand)]
    pub task: VisitTask,
}

/// What a visitor of a mount does.
#[derive(Clone, Debug, Subcommand)]
pub enum VisitTask {
    /// Open, read and close one file.
    Open {
        /// The file.
        #[arg(long)]
        file: PathBuf,
        /// How often.
        #[arg(long)]
        times: u32,
    },
    /// Open and read in directories by turns, and print how long it took.
    Read {
        /// A directory.
        #[arg(long = "directory")]
        directories: Vec<PathBuf>,
        /// How often in each.
        #[arg(long)]
        times: usize,
    },
    /// Take all of something, until the standard input ends.
    Take {
        /// Of what.
        #[arg(long, value_enum)]
        what: Taken,
        /// Directory of the user on the mount.
        #[arg(long)]
        directory: PathBuf,
        /// The same directory below.
        #[arg(long)]
        pfs: PathBuf,
        /// Socket of the node.
        #[arg(long)]
        socket: PathBuf,
    },
}

/// What one user takes all of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Taken {
    /// Open descriptors.
    Descriptors,
    /// Opens of which the kernel reads the memory itself.
    Loans,
    /// Requests that wait.
    Requests,
    /// Pinned bytes.
    Pins,
    /// Connections of the library.
    Connections,
    /// Record locks.
    Locks,
    /// Tables of names.
    Names,
    /// Memory, by large reads.
    Memory,
}

/// Options of `hog`.
#[derive(Clone, Debug, Args)]
pub struct HogOptions {
    /// The most that is ever held.
    #[arg(long, value_parser = parse_size)]
    pub most: u64,
    /// Available memory that is left to others.
    #[arg(long, value_parser = parse_size)]
    pub leave: u64,
    /// In pages of 2 MiB.
    #[arg(long)]
    pub huge: bool,
}

/// Options of `demo`.
#[derive(Clone, Debug, Args)]
pub struct DemoOptions {
    /// A directory of a real parallel file system; without it a local one is made and held to the
    /// rate below.
    #[arg(long, value_name = "DIR")]
    pub pfs: Option<PathBuf>,
    /// Bytes of the data set, for example 2GiB.
    #[arg(long, default_value = "2GiB", value_parser = parse_size)]
    pub size: u64,
    /// A small data set, three iterations and no mountain, to see that it works.
    #[arg(long)]
    pub quick: bool,
    /// Iterations of K-means.
    #[arg(long, default_value_t = 10)]
    pub iterations: u32,
    /// Rate of the local lower level in bytes a second, shared by all that use it.
    #[arg(long, default_value = "400MB", value_parser = parse_size)]
    pub rate: u64,
    /// Only write the report again, from the measurements of an earlier run.
    #[arg(long, value_name = "JSON")]
    pub from: Option<PathBuf>,
    /// Where the report goes.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// Options of `cluster`.
#[derive(Clone, Debug, Args)]
pub struct ClusterOptions {
    /// Which cluster; several can be up at once.
    #[arg(long, global = true, default_value = "main")]
    pub name: String,
    /// What to do.
    #[command(subcommand)]
    pub task: ClusterTask,
}

/// What is done with a test cluster.
#[derive(Clone, Debug, Subcommand)]
pub enum ClusterTask {
    /// Make it: network namespaces, shaped links and disks, a parallel file system, daemons.
    Up(ClusterUpOptions),
    /// Show nodes, rates, traffic, mounts and services.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run a command on a node, or on several at once with their names before each line.
    Run {
        /// A node, several with commas between them, `compute`, `data`, or `all`.
        nodes: String,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Lose every packet between two sides, silently.
    Partition {
        /// A node, several with commas between them, `compute`, `data`, or `all`.
        one: String,
        /// The other side, in the same way.
        other: String,
        /// Lose only what the first side sends to the second.
        #[arg(long)]
        one_way: bool,
    },
    /// End all partitions.
    Heal,
    /// Change the rate of a link or a disk.
    Slow {
        /// A node, several with commas between them, `compute`, `data`, or `all`.
        nodes: String,
        /// Rate of the link in each direction, for example 10MB/s; `none` lifts the limit.
        #[arg(long, value_name = "RATE", value_parser = parse_rate)]
        link: Option<Rate>,
        /// Rate of the disk in each direction; `none` lifts the limit.
        #[arg(long, value_name = "RATE", value_parser = parse_rate)]
        disk: Option<Rate>,
    },
    /// Kill the service of a node as a crash would: the daemon, or the servers of the file system.
    Kill {
        /// A node, several with commas between them, `compute`, `data`, or `all`.
        nodes: String,
        /// Kill everything on it: also the client of the file system, and jobs.
        #[arg(long)]
        whole: bool,
    },
    /// Start what a node lacks: servers, the client of the file system, the daemon.
    Start {
        /// A node, several with commas between them, `compute`, `data`, or `all`.
        nodes: String,
    },
    /// Stop the service of a node without ending it.
    Pause {
        /// A node, several with commas between them, `compute`, `data`, or `all`.
        nodes: String,
        /// Stop everything on it: also the client of the file system, and jobs.
        #[arg(long)]
        whole: bool,
    },
    /// Let what was paused go on.
    Resume {
        /// A node, several with commas between them, `compute`, `data`, or `all`.
        nodes: String,
    },
    /// Empty the page cache of this machine, which all nodes share.
    DropCaches,
    /// Undo everything, also what an interrupted `up` has left.
    Down,
}

/// Options of `cluster up`.
#[derive(Clone, Debug, Args)]
pub struct ClusterUpOptions {
    /// Nodes with a daemon and a mount: c1, c2 and so on.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub compute: u8,
    /// Nodes with a disk each, which the file system is spread over: d1, d2 and so on.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub data: u8,
    /// How many of the compute nodes, the last ones, have a burst buffer as large as their store,
    /// on this machine's disk; files below `alw` are then written in that mode.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=63))]
    pub buffers: u8,
    /// Rate of each node's link in each direction, headers included; not limited without it.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub link: Option<Rate>,
    /// Rate of each disk in each direction; not limited without it.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub disk: Option<Rate>,
    /// Size of each disk; its image is sparse.
    #[arg(long, value_name = "SIZE", default_value = "8GiB", value_parser = parse_size)]
    pub disk_size: u64,
    /// Capacity of each daemon's store.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub memory: String,
    /// The parallel file system.
    #[arg(long, value_enum, default_value = "gluster")]
    pub pfs: PfsKind,
    /// What else runs, with commas between them.
    #[arg(long, value_enum, value_name = "SERVICES", value_delimiter = ',')]
    pub with: Vec<ClusterService>,
    /// The cluster plane of memory control: Kafka and the job on `mgr`, and an agent beside each
    /// daemon.
    #[arg(long)]
    pub plane: bool,
    /// Policy of the plane: dynims, dynims-printed, fair or follow.
    #[arg(long, value_name = "POLICY", default_value = "dynims")]
    pub plane_policy: String,
    /// An option of the plane's job, for example used-share=0.5.
    #[arg(long, value_name = "NAME=VALUE", requires = "plane")]
    pub plane_option: Vec<String>,
    /// Encrypt what daemons say to each other, with a certificate for each.
    #[arg(long)]
    pub tls: bool,
    /// Leave every daemon alone, with no list of the others.
    #[arg(long)]
    pub single: bool,
    /// An option of the daemons, for example passthrough=off.
    #[arg(long, value_name = "NAME=VALUE")]
    pub node_option: Vec<String>,
    /// Where images of disks and logs are; a directory on a disk.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/tidepool-cluster")]
    pub directory: PathBuf,
}

impl ClusterUpOptions {
    /// All that runs beside the file system and daemons.
    pub fn services(&self) -> Vec<ClusterService> {
        let plane = self.plane.then_some(ClusterService::Plane);
        self.with.iter().copied().chain(plane).collect()
    }
}

/// Bytes a second, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Rate(pub Option<u64>);

/// What runs on a test cluster beside its file system and daemons; heads are on a node `mgr`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterService {
    /// etcd, in which daemons find each other.
    Etcd,
    /// HDFS, with a data node on each disk.
    Hdfs,
    /// YARN, with a node manager on each compute node.
    Yarn,
    /// Spark's own master, with a worker on each compute node.
    Spark,
    /// The cluster plane of memory control: `--plane`, which has options of its own.
    #[value(skip)]
    Plane,
}

/// The parallel file system of a test cluster.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum PfsKind {
    /// GlusterFS, each file whole on one data node.
    Gluster,
    /// GlusterFS with files in shards of 16 MiB: its clients do not see each other's time stamps.
    GlusterSharded,
    /// MooseFS, with its master on a node of its own.
    Moosefs,
}

/// What `bench` measures instead of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchSuite {
    /// Many nodes, on a shaped test cluster; needs root.
    Cluster,
    /// The burst buffer beside HDFS and the bare file system, on a shaped test cluster; needs root,
    /// Maven and a JDK.
    Bursts,
    /// The cluster plane of memory control: Kafka, the job, a node with its agent, and simulated
    /// nodes; needs Maven and a JDK.
    Plane,
}

/// Options of `bench`.
#[derive(Clone, Debug, Args)]
pub struct BenchOptions {
    /// What is measured; one node without it.
    #[arg(value_enum)]
    pub suite: Option<BenchSuite>,
    /// Sizes of a smoke test: shows that the benchmark runs, not how fast anything is.
    #[arg(long)]
    pub quick: bool,
    /// Interleaved rounds of every measurement.
    #[arg(long, value_name = "COUNT")]
    pub rounds: Option<usize>,
    /// Run only the rows whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// The lower level; a directory on disk.
    #[arg(long, value_name = "DIR")]
    pub pfs: Option<PathBuf>,
    /// Simulated nodes of each row of `plane`, instead of as many as the goals are of.
    #[arg(long, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub nodes: Option<u32>,
    /// Where the JSON goes.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `example`.
#[derive(Clone, Debug, Args)]
pub struct ExampleOptions {
    /// Which example.
    pub name: Option<String>,
    /// Bytes of its data, for example 1GiB.
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// Where the data is.
    #[arg(long, value_enum, default_value = "tide")]
    pub storage: Storage,
    /// Directory of a PFS; without it, one in the target directory.
    #[arg(long, value_name = "DIR")]
    pub pfs: Option<PathBuf>,
    /// Meanwhile resize the store, evict everything, kill the node and start it again.
    #[arg(long)]
    pub turmoil: bool,
    /// Seed of the turmoil; a new one each time without it, and always shown.
    #[arg(long, value_name = "NUMBER", requires = "turmoil")]
    pub seed: Option<u64>,
    /// Empty the page cache of the data before this step.
    #[arg(long, value_name = "STEP")]
    pub forget_before: Option<String>,
    /// Another version of what it runs on: hadoop.version=3.3.6, spark.version or flink.version.
    #[arg(long, value_name = "NAME=VERSION")]
    pub with: Vec<String>,
    /// Where the figures go, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Where the data of an example is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Storage {
    /// The directory through a node.
    Tide,
    /// HDFS, started for the run.
    Hdfs,
    /// The bare directory.
    Pfs,
}

/// Options of `suites`.
#[derive(Clone, Debug, Default, Args)]
pub struct SuiteOptions {
    /// Which suites; all that run in the tests if none is named.
    pub names: Vec<String>,
    /// Where to run: `bare`, `node`, or `both`.
    #[arg(long, default_value = "both")]
    pub on: String,
    /// Directory of the lower level; a temporary one without it.
    #[arg(long, value_name = "DIR")]
    pub pfs: Option<PathBuf>,
    /// Seeds of random suites.
    #[arg(long, value_delimiter = ',')]
    pub seed: Vec<u64>,
    /// Operations of each seed.
    #[arg(long, default_value_t = 20_000)]
    pub operations: u64,
    /// Run only the applications, tests of ltp and xfstests, or steps of plane-faults, whose name
    /// contains this text.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// List of the Linux Test Project: fs or syscalls.
    #[arg(long, default_value = "fs")]
    pub list: String,
    /// An option of the nodes under test, for example passthrough=off.
    #[arg(long, value_name = "NAME=VALUE")]
    pub node_option: Vec<String>,
    /// Keep the results in `conformance/results`, which `./x docs` makes a page of.
    #[arg(long)]
    pub record: bool,
}

/// Options of `vm`.
#[derive(Clone, Debug, Args)]
pub struct VmOptions {
    /// Series of the kernel, of which the newest package is taken.
    #[arg(long, default_value = "6.1")]
    pub kernel: String,
    /// Run only the tests whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Also run the tests that take minutes.
    #[arg(long)]
    pub long: bool,
}

/// Reads `3GiB`, `400MB` or `4096` as bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let factor = match unit.trim() {
        "" | "B" => 1.0,
        "KiB" => f64::from(1 << 10),
        "MiB" => f64::from(1 << 20),
        "GiB" => f64::from(1 << 30),
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        other => return Err(format!("unknown unit `{other}`; write 3GiB or 400MB")),
    };
    let value: f64 = number.parse().map_err(|_| format!("`{text}` is no size; write 3GiB"))?;
    Ok((value * factor) as u64)
}

/// Reads `100MB/s`, or `none` for no limit.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    if text == "none" {
        return Ok(Rate(None));
    }
    match parse_size(text.strip_suffix("/s").unwrap_or(text))? {
        // Too slow for one packet in a burst, or a limit that the kernel takes for none.
        0..10_000 => Err(format!("`{text}` is less than 10KB/s; write `none` for no limit")),
        rate => Ok(Rate(Some(rate))),
    }
}
