//! Flink: a job manager and a task manager.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::artifacts::{self, Project};
use super::daemon::{Daemon, free_ports};
use super::hadoop::Hadoop;
use super::java::{self, Java, Ran};
use crate::scratch::Scratch;

/// A running cluster.
#[derive(Debug)]
pub struct Flink {
    java: Java,
    logs: PathBuf,
    page: u16,
    project: Project,
    _task_manager: Daemon,
    _job_manager: Daemon,
    directory: Scratch,
}

impl Flink {
    /// Starts both, with the file systems of `hadoop`.
    pub fn start(hadoop: &Hadoop) -> Result<Self> {
        let project = artifacts::project("flink")?;
        let directory = Scratch::short()?;
        let [rpc, page, blobs, task_rpc, task_data] = free_ports()?;
        hadoop.site.write(&hadoop.configuration())?;
        let configuration = hadoop.configuration().display().to_string();
        let text = format!(
            "jobmanager.rpc.address: 127.0.0.1\n\
             jobmanager.rpc.port: {rpc}\n\
             jobmanager.memory.process.size: 1024m\n\
             blob.server.port: {blobs}\n\
             rest.address: 127.0.0.1\n\
             rest.port: {page}\n\
             taskmanager.host: 127.0.0.1\n\
             taskmanager.rpc.port: {task_rpc}\n\
             taskmanager.data.port: {task_data}\n\
             taskmanager.numberOfTaskSlots: 2\n\
             taskmanager.cpu.cores: 2\n\
             taskmanager.memory.task.heap.size: 512m\n\
             taskmanager.memory.managed.size: 256m\n\
             taskmanager.memory.network.min: 64m\n\
             taskmanager.memory.network.max: 64m\n\
             taskmanager.memory.jvm-metaspace.size: 256m\n\
             taskmanager.memory.jvm-overhead.min: 192m\n\
             taskmanager.memory.jvm-overhead.max: 192m\n\
             taskmanager.memory.task.off-heap.size: 128m\n\
             taskmanager.memory.framework.heap.size: 128m\n\
             taskmanager.memory.framework.off-heap.size: 128m\n\
             parallelism.default: 2\n\
             execution.attached: true\n\
             execution.target: remote\n\
             fs.hdfs.hadoopconf: {configuration}\n\
             io.tmp.dirs: {}\n",
            directory.path().display()
        );
        let conf = directory.path().join("conf");
        std::fs::create_dir(&conf)?;
        std::fs::write(conf.join("config.yaml"), text)?;
        let class_path = java::class_path(&[
            &configuration,
            hadoop.jars(),
            &project.jar.display().to_string(),
            &project.dependencies,
        ]);
        let mut java = Java::new(class_path, "1g").light();
        java.environment = vec![
            ("HADOOP_CONF_DIR".into(), configuration),
            ("FLINK_CONF_DIR".into(), conf.display().to_string()),
        ];
        let arguments = ["--configDir".to_owned(), conf.display().to_string()];
        let package = "org.apache.flink.runtime";
        let main = format!("{package}.entrypoint.StandaloneSessionClusterEntrypoint");
        let logs = hadoop.logs.clone();
        let mut command = java.command(&main, &arguments);
        let job_manager = Daemon::start("flink-job-manager", &mut command, &logs)?;
        job_manager.wait_for_port(page)?;
        let main = format!("{package}.taskexecutor.TaskManagerRunner");
        let mut command = java.command(&main, &arguments);
        let task_manager = Daemon::start("flink-task-manager", &mut command, &logs)?;
        task_manager.wait_for_port(task_data)?;
        Ok(Flink {
            java,
            logs,
            page,
            project,
            _task_manager: task_manager,
            _job_manager: job_manager,
            directory,
        })
    }

    /// Runs a program of `examples/flink` on the cluster.
    pub fn run(&self, name: &str, arguments: &[String]) -> Result<Ran> {
        let conf = self.directory.path().join("conf").display().to_string();
        let mut all = vec![
            "run".to_owned(),
            "-m".into(),
            format!("127.0.0.1:{}", self.page),
            "-c".into(),
            format!("io.tidepool.examples.{name}"),
            self.project.jar.display().to_string(),
        ];
        all.extend_from_slice(arguments);
        let mut java = self.java.clone();
        java.environment.push(("FLINK_CONF_DIR".into(), conf));
        let log = self.logs.join("flink-client.log");
        let main = "org.apache.flink.client.cli.CliFrontend";
        java.run(main, &all, &log).with_context(|| format!("{name} on Flink"))
    }
}
