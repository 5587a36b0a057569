//! Kafka: one broker that is its own controller, on ports of its own, one of them with TLS, and one
//! where users have names and rights where a test wants that.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use tidepool_test_authority::{Authority, Files, write_secret};

use super::artifacts;
use super::daemon::{Daemon, free_ports};
use super::java::{self, Java};
use super::talk::Talk;
use crate::scratch::Scratch;

/// Any 16 bytes: the name of the cluster of one broker.
pub const CLUSTER_ID: &str = "dGlkZXBvb2wtcGxhbmUtMQ";

/// Lays out the directory of a broker.
pub const STORAGE_TOOL: &str = "kafka.tools.StorageTool";

/// May do everything.
pub const SUPER_USER: &str = "super";

/// What a broker has that most need not.
#[derive(Clone, Copy, Debug, Default)]
pub struct KafkaOptions<'a> {
    /// Users, whose passwords are their names, beside [`SUPER_USER`]. Where there are any, those
    /// who come by the port for users may do what ACLs allow and no more, all others everything.
    pub users: &'a [&'a str],
    /// Where its messages are, instead of its own directory.
    pub data: Option<&'a Path>,
}

/// A broker. Its data outlives a kill.
#[derive(Debug)]
pub struct Kafka {
    java: Java,
    port: u16,
    tls_port: u16,
    users_port: u16,
    data: Option<PathBuf>,
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
        Self::start_with(logs, &KafkaOptions::default())
    }

    /// The same with more.
    pub fn start_with(logs: &Path, options: &KafkaOptions<'_>) -> Result<Self> {
        let mut kafka = Self::new(logs, options)?;
        kafka.start_again()?;
        Ok(kafka)
    }

    /// The same for measurements, as a site would run it.
    pub fn start_steady(logs: &Path) -> Result<Self> {
        let mut kafka = Self::new(logs, &KafkaOptions::default())?;
        kafka.java = kafka.java.steady();
        kafka.start_again()?;
        Ok(kafka)
    }

    fn new(logs: &Path, options: &KafkaOptions<'_>) -> Result<Self> {
        let project = artifacts::project("kafka")?;
        let jar = project.jar.display().to_string();
        let class_path = java::class_path(&[&jar, &project.dependencies]);
        let directory = Scratch::short()?;
        let ports = free_ports()?;
        let [port, tls_port, _, users_port] = ports;
        let certificate = Authority::new(directory.path())?.issue("127.0.0.1")?;
        let store = directory.path().join("broker.pem");
        let pem = |file| std::fs::read_to_string(file);
        let both = pem(&certificate.private_key)? + &pem(&certificate.certificate)?;
        write_secret(&store, both.as_bytes())?;
        let settings = directory.path().join("server.properties");
        std::fs::write(&settings, text(ports, &store, directory.path(), options))?;
        let java = Java::new(class_path, "192m").light().logged();
        let file = settings.display().to_string();
        let mut arguments = ["format", "-t", CLUSTER_ID, "-c", &file].map(String::from).to_vec();
        if !options.users.is_empty() {
            for user in options.users.iter().chain([&SUPER_USER]) {
                let user = format!("SCRAM-SHA-512=[name={user},password={user}]");
                arguments.extend(["--add-scram".to_owned(), user]);
            }
        }
        java.run(STORAGE_TOOL, &arguments, &logs.join("kafka-format.log"))?;
        let logs = logs.to_owned();
        let broker = None;
        Ok(Kafka {
            java,
            port,
            tls_port,
            users_port,
            data: options.data.map(Path::to_path_buf),
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

    /// Where clients with a user's name and password find it, with TLS.
    pub fn users_address(&self) -> String {
        format!("127.0.0.1:{}", self.users_port)
    }

    /// Where its messages are, where that is not its own directory.
    pub fn data(&self) -> Option<&Path> {
        self.data.as_deref()
    }

    /// Programs of Kafka's own, and of `examples/kafka`.
    pub fn java(&self) -> Java {
        self.java.clone().heap("96m")
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
        let ran = self.java().run("io.tidepool.examples.Topics", &arguments, &log)?;
        ensure!(ran.text.contains("DONE"), "topics were not made: {}", ran.text);
        Ok(())
    }

    /// Somebody who talks with it, by the port where all may do everything.
    pub fn talk(&self) -> Result<Talk> {
        Talk::start(&self.java(), &self.address(), None, &self.logs.join("kafka-talk.log"))
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

fn text(ports: [u16; 4], store: &Path, directory: &Path, options: &KafkaOptions<'_>) -> String {
    let [plain, tls, controller, users] = ports.map(|port| Listener { host: "127.0.0.1", port });
    let data = directory.join("data");
    let mut text = settings(plain, Some((tls, store)), controller, &data);
    // Of two lines of one name the later one holds.
    if let Some(messages) = options.data {
        let (data, messages) = (data.display(), messages.display());
        text += &format!("metadata.log.dir={data}\nlog.dirs={messages}\n");
    }
    if !options.users.is_empty() {
        let clients = format!("PLAINTEXT://{plain},SSL://{tls},SASL_SSL://{users}");
        text += &format!(
            "listeners={clients},CONTROLLER://{controller}\n\
             advertised.listeners={clients}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,\
             CONTROLLER:PLAINTEXT\n\
             sasl.enabled.mechanisms=SCRAM-SHA-512\n\
             listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\
             org.apache.kafka.common.security.scram.ScramLoginModule required;\n\
             authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
             super.users=User:{SUPER_USER};User:ANONYMOUS\n"
        );
    }
    text
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
