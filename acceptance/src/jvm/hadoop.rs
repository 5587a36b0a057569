//! Hadoop: its configuration and class path, HDFS with one data node, YARN with one node manager,
//! and programs that run on them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::artifacts::{self, Project};
use super::daemon::{Daemon, free_ports};
use super::java::{self, Java, Ran};
use super::site::Site;
use crate::process;
use crate::scratch::Scratch;

const SERVER_HEAP: &str = "768m";
const CLIENT_HEAP: &str = "1g";
/// Memory of a container; its heap is three quarters.
const CONTAINER_MIB: u64 = 1_024;
const CONTAINERS: u64 = 4;

/// Hadoop on this machine: what all programs and daemons of it share.
#[derive(Debug)]
pub struct Hadoop {
    /// The configuration; written before anything starts.
    pub site: Site,
    /// Where all logs are; they stay.
    pub logs: PathBuf,
    /// This machine's name, as the daemons give it.
    pub host: String,
    project: Project,
    /// Further jars, before all others: a file system.
    jars: String,
    runs: std::cell::Cell<u32>,
    directory: PathBuf,
    /// Where the directory goes with this.
    _scratch: Option<Scratch>,
}

impl Hadoop {
    /// Builds what is needed. Work files go below `base`; logs to `logs`.
    pub fn new(base: &Path, logs: &Path) -> Result<Self> {
        let scratch = Scratch::below(base)?;
        let hadoop = Hadoop::at(scratch.path(), logs)?;
        Ok(Hadoop { _scratch: Some(scratch), ..hadoop })
    }

    /// The same with work files in a directory that stays.
    pub fn at(directory: &Path, logs: &Path) -> Result<Self> {
        let project = artifacts::project("hadoop")?;
        std::fs::create_dir_all(logs).with_context(|| logs.display().to_string())?;
        let directory = directory.to_path_buf();
        // The servers of HDFS want directories for their pages, and work without pages.
        for pages in ["hdfs", "datanode", "static"] {
            std::fs::create_dir_all(directory.join("conf/webapps").join(pages))?;
        }
        let mut hadoop = Hadoop {
            site: Site::default(),
            logs: logs.to_path_buf(),
            host: host_name(),
            project,
            jars: String::new(),
            runs: std::cell::Cell::new(0),
            directory,
            _scratch: None,
        };
        hadoop.defaults();
        Ok(hadoop)
    }

    fn defaults(&mut self) {
        let directory = self.directory.clone();
        let temporary = directory.join("tmp");
        self.site.set("hadoop.tmp.dir", temporary.display());
        self.site.set("io.file.buffer.size", 131_072);
        // As HDFS and tide://, so that a job has as many tasks on each.
        self.site.set("fs.local.block.size", 128 << 20);
        self.site.set("mapreduce.framework.name", "local");
        self.site.set("mapreduce.local.map.tasks.maximum", 2);
        self.site.set("mapreduce.local.reduce.tasks.maximum", 2);
        self.site.set("mapreduce.task.io.sort.mb", 128);
        self.site.set("mapreduce.cluster.local.dir", directory.join("mapred").display());
    }

    /// Puts the jar of a file system before all others.
    pub fn add_jar(&mut self, jar: &Path) {
        self.jars = java::class_path(&[&jar.display().to_string(), &self.jars]);
    }

    /// The jars of file systems, separated by colons.
    pub fn jars(&self) -> &str {
        &self.jars
    }

    /// The directory with the configuration files.
    pub fn configuration(&self) -> PathBuf {
        self.directory.join("conf")
    }

    /// Where Hadoop's native library is, for this processor.
    pub fn native_library(&self) -> PathBuf {
        let processor = if cfg!(target_arch = "x86_64") { "amd64" } else { "aarch64" };
        self.project.target.join(format!("native/nativelib/Linux-{processor}"))
    }

    /// The class path of programs and daemons.
    pub fn class_path(&self) -> String {
        let text = |path: &Path| path.display().to_string();
        java::class_path(&[
            &text(&self.configuration()),
            &text(&self.project.target.join("web")),
            &self.jars,
            &text(&self.project.jar),
            &self.project.dependencies,
        ])
    }

    /// A virtual machine for a client program, with the configuration as it is now.
    pub fn java(&self) -> Result<Java> {
        self.site.write(&self.configuration())?;
        let java = Java::new(self.class_path(), CLIENT_HEAP)
            .property("java.library.path", self.native_library().display())
            .property("java.net.preferIPv4Stack", true);
        Ok(java)
    }

    /// Runs a program to its end.
    pub fn run(&self, main: &str, arguments: &[String]) -> Result<Ran> {
        self.runs.set(self.runs.get() + 1);
        let name = main.rsplit('.').next().unwrap_or(main);
        let log = self.logs.join(format!("{:02}-{name}.log", self.runs.get()));
        self.java()?.light().run(main, arguments, &log)
    }

    /// A virtual machine for a server.
    pub fn server(&self) -> Result<Java> {
        let java =
            self.java()?.light().heap(SERVER_HEAP).property("hadoop.log.dir", self.logs.display());
        Ok(java.property("yarn.log.dir", self.logs.display()))
    }

    /// Where work files are.
    pub fn work(&self) -> &Path {
        &self.directory
    }

    /// Makes jobs run on YARN with a resource manager on that host and node managers on several,
    /// which tell their directories apart by a variable of their environment.
    pub fn spread_over_nodes(&mut self, manager: &str, variable: &str) -> Result<()> {
        containers(self)?;
        let own = |name: &str| format!("{name}-${{env.{variable}}}");
        let local = self.directory.join(own("yarn"));
        let logs = self.logs.join(own("containers"));
        let site = &mut self.site;
        site.set("yarn.resourcemanager.hostname", manager);
        site.set("yarn.nodemanager.local-dirs", local.display());
        site.set("yarn.nodemanager.log-dirs", logs.display());
        site.set("yarn.nodemanager.resource.memory-mb", 2 * CONTAINER_MIB);
        site.set("yarn.nodemanager.resource.cpu-vcores", 2);
        // It waits for the node that has the data for as many offers as there are.
        site.set("yarn.resourcemanager.scheduler.class", CAPACITY);
        site.set("yarn.scheduler.capacity.root.queues", "default");
        site.set("yarn.scheduler.capacity.root.default.capacity", 100);
        site.set("yarn.scheduler.capacity.maximum-am-resource-percent", 1);
        site.set("yarn.scheduler.capacity.node-locality-delay", 40);
        Ok(())
    }

    fn daemon(&self, name: &str, main: &str) -> Result<Daemon> {
        Daemon::start(name, &mut self.server()?.command::<&str>(main, &[]), &self.logs)
    }
}

/// This machine's name as YARN and Spark find it: the first name of the address that its own name
/// leads to.
fn host_name() -> String {
    use std::net::ToSocketAddrs;
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let found = (name.as_str(), 0).to_socket_addrs().ok();
    let address = found.and_then(|mut found| found.find(|address| address.is_ipv4()));
    let Some(address) = address else { return "localhost".into() };
    let mut lookup = process::command("getent", &["hosts", &address.ip().to_string()]);
    let line = process::read(&mut lookup).unwrap_or_default();
    line.split_whitespace().nth(1).map_or(name, str::to_owned)
}

/// HDFS: one name node, one data node, one replica.
#[derive(Debug)]
pub struct Hdfs {
    /// Its root, as paths begin with it.
    pub uri: String,
    _data_node: Daemon,
    _name_node: Daemon,
    _sockets: Scratch,
}

/// A directory for the socket of HDFS, which takes none below a directory that others may change,
/// as they may `/tmp`: below `usual` where that will do, or below one that is this user's alone.
fn socket_directory(usual: &Path) -> Result<Scratch> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let places = [
        Some(usual.to_path_buf()),
        variable("XDG_RUNTIME_DIR"),
        Some(PathBuf::from("/run")),
        variable("HOME").map(|home| home.join(".cache")),
        variable("HOME"),
    ];
    let mut private = places.into_iter().flatten().filter(|place| is_private(place));
    let found = private.find_map(|place| Scratch::below(&place).ok());
    found.with_context(|| {
        format!(
            "{}: others may change a part of this path, and HDFS refuses its socket there; \
             work in a checkout elsewhere, or set XDG_RUNTIME_DIR to a directory of your own",
            usual.display()
        )
    })
}

/// Whether no other user but root may change any part of a path: what HDFS asks for.
fn is_private(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    path.is_absolute()
        && path.ancestors().all(|part| {
            std::fs::metadata(part).is_ok_and(|facts| {
                let others = facts.mode() & 0o002 != 0;
                let group = facts.mode() & 0o020 != 0 && facts.gid() != 0;
                facts.is_dir() && !others && !group && [0, own].contains(&facts.uid())
            })
        })
}

impl Hdfs {
    /// Formats and starts it, with blocks in `data`.
    pub fn start(hadoop: &mut Hadoop, data: &Path) -> Result<Self> {
        let [rpc, http, stream, stream_http, stream_ipc] = free_ports()?;
        let host = "127.0.0.1";
        let directory = hadoop.directory.clone();
        let sockets = socket_directory(&directory)?;
        std::fs::create_dir_all(data)?;
        let site = &mut hadoop.site;
        site.set("dfs.replication", 1);
        site.set("dfs.namenode.name.dir", format!("file://{}/name", directory.display()));
        site.set("dfs.datanode.data.dir", format!("file://{}", data.display()));
        site.set("dfs.namenode.rpc-address", format!("{host}:{rpc}"));
        site.set("dfs.namenode.http-address", format!("{host}:{http}"));
        site.set("dfs.datanode.address", format!("{host}:{stream}"));
        site.set("dfs.datanode.http.address", format!("{host}:{stream_http}"));
        site.set("dfs.datanode.ipc.address", format!("{host}:{stream_ipc}"));
        site.set("dfs.datanode.hostname", &hadoop.host);
        site.set("dfs.namenode.datanode.registration.ip-hostname-check", false);
        site.set("dfs.blocksize", 128 << 20);
        site.set("dfs.datanode.du.reserved", 0);
        site.set("dfs.namenode.safemode.extension", 0);
        site.set("dfs.client.read.shortcircuit", true);
        site.set("dfs.domain.socket.path", sockets.path().join("data.sock").display());
        // By default a client waits 400 ms at every close for the last block to be reported.
        site.set("dfs.client.block.write.locateFollowingBlock.initial.delay.ms", 5);
        // Checksums that do not depend on the sizes of blocks: those of other file systems compare.
        site.set("dfs.checksum.combine.mode", "COMPOSITE_CRC");
        let main = "org.apache.hadoop.hdfs.server.namenode.NameNode";
        let format = ["-format", "-force", "-nonInteractive"].map(String::from);
        hadoop.run(main, &format).context("formatting the name node")?;
        let name_node = hadoop.daemon("name-node", main)?;
        name_node.wait_for_port(rpc)?;
        let data_node =
            hadoop.daemon("data-node", "org.apache.hadoop.hdfs.server.datanode.DataNode")?;
        data_node.wait_for_port(stream_ipc)?;
        let uri = format!("hdfs://{host}:{rpc}");
        let wait = ["-D", &format!("fs.defaultFS={uri}"), "-safemode", "wait"].map(String::from);
        hadoop.run("org.apache.hadoop.hdfs.tools.DFSAdmin", &wait)?;
        Ok(Hdfs { uri, _data_node: data_node, _name_node: name_node, _sockets: sockets })
    }
}

/// YARN: one resource manager, one node manager; MapReduce jobs run on it from then on.
#[derive(Debug)]
pub struct Yarn {
    _node_manager: Daemon,
    _resource_manager: Daemon,
}

impl Yarn {
    /// Starts it and makes it the framework of jobs.
    pub fn start(hadoop: &mut Hadoop) -> Result<Self> {
        let ports: [u16; 9] = free_ports()?;
        addresses(hadoop, &ports);
        containers(hadoop)?;
        let manager = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager";
        let resource_manager = hadoop.daemon("resource-manager", manager)?;
        resource_manager.wait_for_port(ports[0])?;
        resource_manager.wait_for_port(ports[2])?;
        let node = "org.apache.hadoop.yarn.server.nodemanager.NodeManager";
        let node_manager = hadoop.daemon("node-manager", node)?;
        node_manager.wait_for_port(ports[5])?;
        // It registers after it listens; jobs wait for it where it is late.
        std::thread::sleep(Duration::from_secs(1));
        Ok(Yarn { _node_manager: node_manager, _resource_manager: resource_manager })
    }
}

fn addresses(hadoop: &mut Hadoop, ports: &[u16; 9]) {
    let host = hadoop.host.clone();
    let site = &mut hadoop.site;
    site.set("yarn.resourcemanager.hostname", "127.0.0.1");
    site.set("yarn.nodemanager.hostname", &host);
    site.set("yarn.nodemanager.bind-host", "127.0.0.1");
    let names = [
        "resourcemanager.address",
        "resourcemanager.scheduler.address",
        "resourcemanager.resource-tracker.address",
        "resourcemanager.admin.address",
        "resourcemanager.webapp.address",
        "nodemanager.address",
        "nodemanager.localizer.address",
        "nodemanager.webapp.address",
    ];
    for (name, port) in names.iter().zip(ports) {
        let host = if name.starts_with("node") { host.as_str() } else { "127.0.0.1" };
        site.set(&format!("yarn.{name}"), format!("{host}:{port}"));
    }
    site.set("mapreduce.shuffle.port", ports[8]);
}

fn containers(hadoop: &mut Hadoop) -> Result<()> {
    let directory = hadoop.directory.clone();
    let class_path = hadoop.class_path().replace(':', ",");
    let native = hadoop.native_library();
    let opens: Vec<String> = java::opens().collect();
    let heap = CONTAINER_MIB * 3 / 4;
    let options = format!(
        "-Xmx{heap}m -XX:+UseSerialGC {} -Djava.library.path={}",
        opens.join(" "),
        native.display()
    );
    let environment = format!("JAVA_HOME={}", java::home()?.display());
    let site = &mut hadoop.site;
    site.set("yarn.nodemanager.aux-services", "mapreduce_shuffle");
    site.set("yarn.nodemanager.resource.memory-mb", CONTAINER_MIB * CONTAINERS);
    site.set("yarn.nodemanager.resource.cpu-vcores", CONTAINERS);
    site.set("yarn.scheduler.minimum-allocation-mb", 256);
    site.set("yarn.nodemanager.vmem-check-enabled", false);
    site.set("yarn.nodemanager.pmem-check-enabled", false);
    // A checkout may lie on a disk that is nearly full; YARN would refuse to work at 90 %.
    site.set("yarn.nodemanager.disk-health-checker.enable", false);
    site.set("yarn.nodemanager.local-dirs", directory.join("yarn").display());
    site.set("yarn.nodemanager.log-dirs", hadoop.logs.join("containers").display());
    site.set("yarn.resourcemanager.scheduler.class", FIFO);
    site.set("yarn.application.classpath", &class_path);
    site.set("yarn.app.mapreduce.am.resource.mb", CONTAINER_MIB);
    let light = format!("{options} -XX:TieredStopAtLevel=1");
    site.set("yarn.app.mapreduce.am.command-opts", light);
    let staging =
        if site.get("fs.defaultFS").is_none() { directory.as_path() } else { Path::new("/") };
    site.set("yarn.app.mapreduce.am.staging-dir", staging.join("staging").display());
    site.set("mapreduce.framework.name", "yarn");
    site.set("mapreduce.application.classpath", &class_path);
    for kind in ["map", "reduce"] {
        site.set(&format!("mapreduce.{kind}.memory.mb"), CONTAINER_MIB);
        site.set(&format!("mapreduce.{kind}.java.opts"), &options);
        site.set(&format!("mapreduce.{kind}.env"), &environment);
    }
    site.set("yarn.app.mapreduce.am.env", &environment);
    Ok(())
}

const CAPACITY: &str =
    "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler";
const FIFO: &str = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler";

#[cfg(test)]
mod tests {
    use super::{is_private, socket_directory};

    #[test]
    fn no_socket_lies_where_others_may_change_the_path() {
        let open = tempfile::tempdir().unwrap();
        assert!(!is_private(&std::env::temp_dir()), "others may change /tmp");
        assert!(!is_private(open.path()));
        let found = socket_directory(open.path()).unwrap();
        assert!(is_private(found.path()), "{found:?}");
    }
}
