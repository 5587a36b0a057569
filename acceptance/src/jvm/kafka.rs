//! Kafka: one broker that is its own controller, on ports of its own, one of them with TLS.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tidepool_test_authority::{Authority, Files, write_secret};

use super::artifacts;
use super::daemon::{Daemon, free_ports};
use super::java::{self, Dialogue, Java};
use crate::process;
use crate::scratch::Scratch;

/// Any 16 bytes: the name of the cluster of one broker.
pub const CLUSTER_ID: &str = "dGlkZXBvb2wtcGxhbmUtMQ";

/// Lays out the directory of a broker.
pub const STORAGE_TOOL: &str = "kafka.tools.StorageTool";

/// A broker. Its data outlives a kill.
#[derive(Debug)]
pub struct Kafka {
    java: Java,
    port: u16,
    tls_port: u16,
    certificate: Files,
    settings: PathBuf,
    logs: PathBuf,
    broker: Option<Daemon>,
    // Last: it goes away after the broker has.
    _directory: Scratch,
}

impl Kafka {
    /// Starts a broker, with a certificate of an authority of its own.
    pub fn start(logs: &Path) -> Result<Self> {
        let mut kafka = Self::new(logs)?;
        kafka.start_again()?;
        Ok(kafka)
    }

    /// The same for measurements, as a site would run it.
    pub fn start_steady(logs: &Path) -> Result<Self> {
        let mut kafka = Self::new(logs)?;
        kafka.java = kafka.java.steady();
        kafka.start_again()?;
        Ok(kafka)
    }

    fn new(logs: &Path) -> Result<Self> {
        let project = artifacts::project("kafka")?;
        let jar = project.jar.display().to_string();
        let class_path = java::class_path(&[&jar, &project.dependencies]);
        let directory = Scratch::short()?;
        let ports = free_ports()?;
        let [port, tls_port, _] = ports;
        let certificate = Authority::new(directory.path())?.issue("127.0.0.1")?;
        let store = directory.path().join("broker.pem");
        let pem = |file| std::fs::read_to_string(file);
        let both = pem(&certificate.private_key)? + &pem(&certificate.certificate)?;
        write_secret(&store, both.as_bytes())?;
        let settings = directory.path().join("server.properties");
        std::fs::write(&settings, text(ports, &store, &directory.path().join("data")))?;
        let java = Java::new(class_path, "192m").light().logged();
        let file = settings.display().to_string();
        let arguments = ["format", "-t", CLUSTER_ID, "-c", &file];
        java.run(STORAGE_TOOL, &arguments, &logs.join("kafka-format.log"))?;
        let logs = logs.to_owned();
        let broker = None;
        Ok(Kafka {
            java,
            port,
            tls_port,
            certificate,
            settings,
            logs,
            broker,
            _directory: directory,
        })
    }

    /// Starts the broker, after the first time where the last one was killed.
    pub fn start_again(&mut self) -> Result<()> {
        let mut command = self.java.command("kafka.Kafka", &[&self.settings]);
        let broker = Daemon::start("kafka", &mut command, &self.logs)?;
        broker.wait_for_port(self.port)?;
        self.broker = Some(broker);
        Ok(())
    }

    /// Kills the broker as a crash would.
    pub fn kill(&mut self) {
        if let Some(broker) = self.broker.take() {
            broker.kill();
        }
    }

    /// Its process, while it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.broker.as_ref().map(Daemon::process_id)
    }

    /// Where clients find it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Where clients find it with TLS.
    pub fn tls_address(&self) -> String {
        format!("127.0.0.1:{}", self.tls_port)
    }

    /// The certificate of the authority that clients must trust for that.
    pub fn authority(&self) -> &Path {
        &self.certificate.authority
    }

    /// Creates topics.
    pub fn create(&self, partitions: u32, topics: &[&str]) -> Result<()> {
        let mut arguments = vec![self.address(), partitions.to_string()];
        arguments.extend(topics.iter().map(ToString::to_string));
        let log = self.logs.join("kafka-topics.log");
        let ran =
            self.java.clone().heap("64m").run("io.tidepool.examples.Topics", &arguments, &log)?;
        ensure!(ran.text.contains("DONE"), "topics were not made: {}", ran.text);
        Ok(())
    }

    /// A program that sends each line that it is given as a message with this key.
    pub fn sender(&self, topic: &str, key: &str) -> Result<Dialogue> {
        let java = self.java.clone().heap("64m");
        let address = self.address();
        let arguments = [address.as_str(), topic, key];
        java.talk("io.tidepool.examples.Send", &arguments, &self.logs.join("kafka-sender.log"))
    }

    /// Sends messages with a key.
    pub fn send(&self, topic: &str, key: &str, messages: &[String]) -> Result<()> {
        let java = self.java.clone().heap("64m");
        let mut command = java.command("io.tidepool.examples.Send", &[&self.address(), topic, key]);
        let log = std::fs::File::create(self.logs.join("kafka-send.log"))?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn()?;
        let mut input = child.stdin.take().context("the input is a pipe")?;
        for message in messages {
            writeln!(input, "{message}")?;
        }
        drop(input);
        let status = child.wait()?;
        ensure!(status.success(), "`{}` ended with {status}", process::describe(&command));
        Ok(())
    }
}

/// Where a broker listens.
#[derive(Clone, Copy, Debug)]
pub struct Listener<'a> {
    /// Its host, as clients name it.
    pub host: &'a str,
    /// Its port.
    pub port: u16,
}

impl std::fmt::Display for Listener<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn text([port, tls_port, controller]: [u16; 3], store: &Path, data: &Path) -> String {
    let at = |port: u16| Listener { host: "127.0.0.1", port };
    settings(at(port), Some((at(tls_port), store)), at(controller), data)
}

/// Settings of one broker that is its own controller, with or without TLS.
pub fn settings(
    plain: Listener<'_>,
    tls: Option<(Listener<'_>, &Path)>,
    controller: Listener<'_>,
    data: &Path,
) -> String {
    let data = data.display();
    let clients = match tls {
        Some((listener, _)) => format!("PLAINTEXT://{plain},SSL://{listener}"),
        None => format!("PLAINTEXT://{plain}"),
    };
    let store = tls.map(|(_, store)| {
        format!("ssl.keystore.type=PEM\nssl.keystore.location={}\n", store.display())
    });
    let store = store.unwrap_or_default();
    format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@{controller}\n\
         listeners={clients},CONTROLLER://{controller}\n\
         advertised.listeners={clients}\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT\n\
         {store}\
         controller.listener.names=CONTROLLER\n\
         inter.broker.listener.name=PLAINTEXT\n\
         log.dirs={data}\n\
         offsets.topic.num.partitions=1\n\
         offsets.topic.replication.factor=1\n\
         transaction.state.log.num.partitions=1\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         share.coordinator.state.topic.num.partitions=1\n\
         share.coordinator.state.topic.replication.factor=1\n\
         share.coordinator.state.topic.min.isr=1\n\
         group.initial.rebalance.delay.ms=0\n\
         num.network.threads=1\n\
         num.io.threads=2\n\
         background.threads=1\n\
         num.recovery.threads.per.data.dir=1\n\
         log.cleaner.threads=1\n\
         log.cleaner.dedupe.buffer.size=2097152\n\
         log.segment.bytes=67108864\n\
         log.index.size.max.bytes=1048576\n\
         metadata.log.segment.bytes=16777216\n\
         auto.create.topics.enable=false\n"
    )
}
