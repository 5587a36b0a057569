//! Alluxio: a master and a worker with a memory tier, over a local directory. A peer to measure
//! beside; the product does not need it.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::artifacts::{self, Project};
use super::daemon::{Daemon, free_ports};
use super::java::{self, Java};
use crate::cleanup;
use crate::loop_volume::unmount_hard;
use crate::process;
use crate::scratch::Scratch;

/// File of its settings.
const SETTINGS: &str = "alluxio-site.properties";

/// A running master and worker.
#[derive(Debug)]
pub struct Alluxio {
    /// Its root, as paths begin with it.
    pub uri: String,
    /// Class path of its client, with the configuration.
    pub class_path: String,
    /// The memory file system of its worker.
    pub memory: PathBuf,
    _worker: Daemon,
    _master: Daemon,
    _memory: cleanup::Guard,
    _directory: Scratch,
}

impl Alluxio {
    /// Formats and starts it over `lower`, with `memory_bytes` on a tmpfs of its own (needs root).
    pub fn start(lower: &Path, memory_bytes: u64, logs: &Path) -> Result<Self> {
        Self::start_with(lower, memory_bytes, &[], logs)
    }

    /// The same with further settings.
    pub fn start_with(
        lower: &Path,
        memory_bytes: u64,
        settings: &[&str],
        logs: &Path,
    ) -> Result<Self> {
        let project = artifacts::project("alluxio")?;
        std::fs::create_dir_all(logs)?;
        let directory = Scratch::short()?;
        let memory = directory.path().join("memory");
        std::fs::create_dir(&memory)?;
        let size = format!("size={}", memory_bytes + memory_bytes / 8);
        let mut mount = process::command("mount", &["-t", "tmpfs", "-o", &size, "tmpfs"]);
        process::read(mount.arg(&memory)).context("a tmpfs for the memory tier")?;
        let mounted = memory.clone();
        let guard = cleanup::guard(move || unmount_hard(&mounted));
        let ports: [u16; 4] = free_ports()?;
        configure(directory.path(), lower, &memory, memory_bytes, &ports)?;
        let file = directory.path().join("conf").join(SETTINGS);
        let text = settings.iter().map(|setting| format!("{setting}\n")).collect::<String>();
        std::fs::File::options().append(true).open(&file)?.write_all(text.as_bytes())?;
        let java = machine(&project, directory.path(), logs);
        for kind in ["master", "worker"] {
            let log = logs.join(format!("alluxio-format-{kind}.log"));
            java.run("alluxio.cli.Format", &[kind], &log)?;
        }
        let start = |name: &str, main: &str, port: u16| -> Result<Daemon> {
            let daemon = Daemon::start(name, &mut java.command::<&str>(main, &[]), logs)?;
            daemon.wait_for_port(port)?;
            Ok(daemon)
        };
        let master = start("alluxio-master", "alluxio.master.AlluxioMaster", ports[0])?;
        let worker = start("alluxio-worker", "alluxio.worker.AlluxioWorker", ports[2])?;
        Ok(Alluxio {
            uri: format!("alluxio://127.0.0.1:{}", ports[0]),
            class_path: java.class_path,
            memory,
            _worker: worker,
            _master: master,
            _memory: guard,
            _directory: directory,
        })
    }

    /// Bytes in the memory of the worker.
    pub fn resident_bytes(&self) -> Result<u64> {
        let facts = rustix::fs::statvfs(&self.memory)?;
        Ok((facts.f_blocks - facts.f_bfree) * facts.f_frsize)
    }

    /// Numbers of the blocks in the memory of the worker that are whole.
    pub fn blocks(&self) -> Result<Vec<u64>> {
        let mut blocks = Vec::new();
        for directory in std::fs::read_dir(&self.memory)? {
            let Ok(entries) = std::fs::read_dir(directory?.path()) else { continue };
            let names = entries.flatten().map(|entry| entry.file_name());
            blocks.extend(names.filter_map(|name| name.to_str()?.parse::<u64>().ok()));
        }
        Ok(blocks)
    }

    /// Blocks that clients began to write and have neither committed nor given up.
    pub fn reservations(&self) -> Result<usize> {
        let mut count = 0;
        for directory in std::fs::read_dir(&self.memory)? {
            let Ok(sessions) = std::fs::read_dir(directory?.path().join(".tmp_blocks")) else {
                continue;
            };
            let sessions = sessions.flatten().filter_map(|it| std::fs::read_dir(it.path()).ok());
            count += sessions.map(Iterator::count).sum::<usize>();
        }
        Ok(count)
    }
}

fn machine(project: &Project, directory: &Path, logs: &Path) -> Java {
    let conf = directory.join("conf").display().to_string();
    let class_path = java::class_path(&[&conf, &project.dependencies]);
    Java::new(class_path, "1500m")
        .property("alluxio.home", directory.display())
        .property("alluxio.logs.dir", logs.display())
        .property("alluxio.site.conf.dir", conf)
        .property("com.amazonaws.sdk.disableEc2Metadata", true)
        .property("io.netty.tryReflectionSetAccessible", true)
}

fn configure(
    directory: &Path,
    lower: &Path,
    memory: &Path,
    memory_bytes: u64,
    ports: &[u16; 4],
) -> Result<()> {
    let conf: PathBuf = directory.join("conf");
    std::fs::create_dir(&conf)?;
    let [rpc, page, worker, worker_page] = ports;
    let (directory, lower) = (directory.display(), lower.display());
    let text = format!(
        "alluxio.master.hostname=127.0.0.1\n\
         alluxio.master.bind.host=127.0.0.1\n\
         alluxio.master.web.bind.host=127.0.0.1\n\
         alluxio.master.rpc.port={rpc}\n\
         alluxio.master.web.port={page}\n\
         alluxio.web.ui.enabled=false\n\
         alluxio.master.journal.type=UFS\n\
         alluxio.master.journal.folder={directory}/journal\n\
         alluxio.master.metastore=HEAP\n\
         alluxio.master.metastore.dir={directory}/metastore\n\
         alluxio.master.mount.table.root.ufs={lower}\n\
         alluxio.worker.hostname=127.0.0.1\n\
         alluxio.worker.bind.host=127.0.0.1\n\
         alluxio.worker.web.bind.host=127.0.0.1\n\
         alluxio.worker.rpc.port={worker}\n\
         alluxio.worker.web.port={worker_page}\n\
         alluxio.worker.ramdisk.size={memory_bytes}\n\
         alluxio.worker.tieredstore.levels=1\n\
         alluxio.worker.tieredstore.level0.alias=MEM\n\
         alluxio.worker.tieredstore.level0.dirs.path={memory}\n\
         alluxio.worker.tieredstore.level0.dirs.quota={memory_bytes}\n\
         alluxio.user.hostname=127.0.0.1\n\
         alluxio.user.short.circuit.enabled=true\n\
         alluxio.user.metrics.collection.enabled=false\n\
         alluxio.security.authorization.permission.enabled=false\n\
         alluxio.security.login.impersonation.username=_NONE_\n\
         alluxio.master.audit.logging.enabled=false\n\
         alluxio.master.daily.backup.enabled=false\n\
         alluxio.master.update.check.enabled=false\n",
        memory = memory.display(),
    );
    std::fs::write(conf.join(SETTINGS), text)?;
    let logging = "log4j.rootLogger=WARN, A\n\
         log4j.appender.A=org.apache.log4j.ConsoleAppender\n\
         log4j.appender.A.target=System.err\n\
         log4j.appender.A.layout=org.apache.log4j.PatternLayout\n\
         log4j.appender.A.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} - %m%n\n";
    std::fs::write(conf.join("log4j.properties"), logging)?;
    Ok(())
}
