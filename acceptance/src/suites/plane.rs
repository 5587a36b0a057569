//! The cluster plane of memory control as a whole: Kafka, the Flink job, collectd as the
//! distribution has it, and two nodes with an agent each. Ceilings come to both, the job is killed
//! and goes on, a hostile producer moves no store out of its limits, and where Kafka dies the
//! stores come back by themselves. The view of operators is looked at in each of these. It asserts
//! order and numbers, and no times.

pub mod faults;
mod jobs;
mod messages;
mod other_store;
mod site;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tidepool_test_authority::Authority;

use self::site::SiteCommand;
use super::{Places, need};
use crate::environment;
use crate::jvm::daemon::{Daemon, last_lines};
use crate::jvm::kafka::Kafka;
use crate::jvm::plane::Plane;
use crate::jvm::talk::Talk;
use crate::node::{Node, NodeOptions};
use crate::outcome::Outcome;
use crate::process;
use crate::scratch::Scratch;

const MIB: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 4 * MIB;
const MIN_BYTES: u64 = 8 * MIB;
const MAX_BYTES: u64 = 64 * MIB;
const CLUSTER: &str = "site1";
/// Sends its samples by its agent.
const BY_AGENT: &str = "n1";
/// Has collectd send them.
const BY_COLLECTD: &str = "n2";
const PARTITIONS: u32 = 4;
const TOPICS: [&str; 4] =
    ["tidepool-samples", "tidepool-ceilings", "tidepool-summaries", "collectd"];
const SAMPLES: &str = TOPICS[0];
const CEILINGS: &str = TOPICS[1];
const SUMMARIES: &str = TOPICS[2];
const COLLECTD: &str = TOPICS[3];
/// Longer than any message that an agent reads.
const LONG_BYTES: usize = 200_000;
const WAIT: Duration = Duration::from_millis(100);
const WAITS_MAX: u32 = 1200;

/// Its name, and what it does.
type Step = (&'static str, fn(&mut Rig) -> Result<()>);

/// All parts.
struct Rig {
    // In this order they end: who asks before who answers.
    plane: Plane,
    collectd: Option<Daemon>,
    agents: [Agent; 2],
    /// May do everything.
    talk: Talk,
    kafka: Kafka,
    site: SiteCommand,
    starting: Starting,
}

/// What agents are started with.
struct Starting {
    lower: PathBuf,
    logs: PathBuf,
    directory: PathBuf,
    /// Which broker, and as whom.
    connection: Vec<String>,
}

/// A node with its agent.
struct Agent {
    agent: Daemon,
    node: Node,
}

/// Runs the parts through what can happen to them.
pub fn run(places: &Places) -> Result<Vec<Outcome>> {
    let mut outcome = Outcome::new("plane");
    if !places.wants_node() {
        outcome.skipped.push("plane: needs nodes".to_owned());
        return Ok(vec![outcome]);
    }
    let collectd = ("collectd", "collectd-core librdkafka1 libyajl2");
    need(&[collectd, ("mvn", "maven"), ("memcached", "memcached")])?;
    let (directory, _) = places.corner()?;
    let mut rig = Rig::start(&places.lower, &directory)?;
    let steps: [Step; 10] = [
        ("ceilings come to both nodes", Rig::ceilings_come),
        ("the job is killed and goes on", Rig::the_job_goes_on),
        ("a node starts anew", Rig::a_node_starts_anew),
        ("another store follows its ceiling", Rig::another_store_follows),
        ("a hostile producer moves nothing", Rig::a_hostile_producer_moves_nothing),
        ("odd messages are counted", Rig::odd_messages_are_counted),
        ("two jobs run by mistake", Rig::two_jobs_run),
        ("a topic comes late", Rig::a_topic_comes_late),
        ("only a broker with the right certificate is believed", Rig::certificates_count),
        ("Kafka dies and comes back", Rig::kafka_dies),
    ];
    walk(&mut rig, &steps, &mut outcome);
    Ok(vec![outcome])
}

/// Goes from step to step, up to the first that fails: those behind it build on it.
fn walk(rig: &mut Rig, steps: &[Step], outcome: &mut Outcome) {
    for (name, step) in steps {
        eprintln!("x: {}: {name}", outcome.name);
        let began = Instant::now();
        let failure = step(rig).err();
        eprintln!("x: {}: {:.1} s", outcome.name, began.elapsed().as_secs_f64());
        let is_good = failure.is_none();
        outcome.check(is_good, || format!("{name}: {:#}; {}", failure.unwrap(), rig.said()));
        if !is_good {
            break;
        }
    }
}

impl Rig {
    fn start(lower: &Path, directory: &Scratch) -> Result<Self> {
        let logs = environment::target().join("suites/plane-logs");
        std::fs::create_dir_all(&logs)?;
        let kafka = Kafka::start(&logs)?;
        kafka.create(PARTITIONS, &TOPICS)?;
        let address = kafka.address();
        let connection = vec!["--kafka".to_owned(), address.clone()];
        let mut arguments = job_arguments(&connection, directory.path());
        arguments.extend(of_collectd());
        let mut plane = Plane::new(arguments, &logs)?;
        plane.start()?;
        let collectd = Some(collectd(directory.path(), &logs, &address)?);
        let (lower, directory) = (lower.to_owned(), directory.path().to_owned());
        let starting = Starting { lower, logs, directory, connection: connection.clone() };
        // One node with a memory controller of its own, one without.
        let agents = [
            starting.start(BY_AGENT, "off", &[])?,
            starting.start(BY_COLLECTD, "on", &["--no-samples"])?,
        ];
        let site = SiteCommand { tidepool: agents[0].node.program().to_owned(), connection };
        Ok(Rig { plane, collectd, agents, talk: kafka.talk()?, kafka, site, starting })
    }

    fn ceilings_come(&mut self) -> Result<()> {
        for agent in &self.agents {
            let control = agent.wait("a ceiling", |control| {
                control["leased_ceiling"]["ceiling_bytes"] == MIN_BYTES
            })?;
            ensure!(control["capacity_bytes"] == MIN_BYTES, "it is not in force: {control}");
            ensure!(control["ceiling_bytes"] == MAX_BYTES, "the configured most moved: {control}");
            let text = agent.node.ask(&["status"])?;
            ensure!(text.contains("leased ceiling"), "status does not tell of it: {text}");
            let metrics = agent.node.ask(&["metrics"])?;
            ensure!(metrics.contains("tidepool_control_ceiling_leased 1"), "nor the metrics");
        }
        let sent = self.agents[0].status()?["samples"]["sent"].clone();
        ensure!(sent.as_u64() > Some(0), "no sample was sent: {sent}");
        let sent = self.agents[1].status()?["samples"]["sent"].clone();
        ensure!(sent == 0, "collectd sends those of the other node: {sent}");
        self.site.shows_nodes(MIN_BYTES)
    }

    /// No ceiling has to come for that: with `follow` none ever does.
    fn a_topic_comes_late(&mut self) -> Result<()> {
        let agent =
            self.starting.start("late", "off", &["--ceilings-topic", "late", "--no-samples"])?;
        let has_trouble = |status: &Value| !status["ceilings_trouble"].is_null();
        agent.wait_status("a topic that is not there", has_trouble)?;
        self.kafka.create(1, &["late"])?;
        agent.wait_status("the topic", |status| !has_trouble(status))
    }

    fn the_job_goes_on(&mut self) -> Result<()> {
        let mut before = Vec::new();
        for agent in &self.agents {
            // Renewed twice: by then the first is in a checkpoint.
            agent.wait_status("renewed ceilings", |it| {
                it["followed"]["number"].as_u64() > Some(2)
            })?;
            before.push(agent.followed()?);
        }
        self.plane.kill();
        for agent in &self.agents {
            agent.wait("the end of the lease", |control| control["leased_ceiling"].is_null())?;
        }
        let back = self.agents[0].wait("its own most", |it| it["capacity_bytes"] == MAX_BYTES);
        back.context("nobody else keeps it lower")?;
        self.site.tells_of_silence()?;
        self.plane.start()?;
        for (agent, (plane, number)) in self.agents.iter().zip(before) {
            agent.wait("the ceiling of the restored job", |control| {
                control["leased_ceiling"]["ceiling_bytes"] == MIN_BYTES
            })?;
            ensure!(agent.followed()?.0 == plane, "the run has another name than {plane}");
            agent.wait_status("numbers that rise", |status| {
                status["followed"]["number"].as_u64() > Some(number)
            })?;
        }
        Ok(())
    }

    fn a_node_starts_anew(&mut self) -> Result<()> {
        let agent = &mut self.agents[0];
        agent.node.kill()?;
        agent.wait_status("no node", |status| !status["node_trouble"].is_null())?;
        agent.node.start_again()?;
        agent.wait("a ceiling for the new node", |control| {
            control["leased_ceiling"]["ceiling_bytes"] == MIN_BYTES
        })?;
        agent.wait_status("the node", |status| status["node_trouble"].is_null())
    }

    fn a_hostile_producer_moves_nothing(&mut self) -> Result<()> {
        self.site.bears_a_hostile_producer(&mut self.talk)?;
        let agent = &self.agents[0];
        let plane = agent.followed()?.0;
        let applied = agent.count("applied")?;
        let message = |field: &str, value: Value| {
            let mut message = json!({
                "form": 1, "cluster": CLUSTER, "node": BY_AGENT, "plane": plane,
                "number": u64::MAX, "sample_start": "", "sample_number": 0, "sample_at_ms": 0,
                "lease_ms": 5000, "policy": "dynims",
                "stores": [{"name": "tidepool", "ceiling_bytes": MAX_BYTES}],
            });
            message[field] = value;
            message.to_string()
        };
        let bytes = |bytes: Value| json!([{"name": "tidepool", "ceiling_bytes": bytes}]);
        let messages = [
            message("stores", bytes(json!(-1))),
            message("stores", bytes(json!("1"))),
            message("stores", bytes(json!(0))),
            message("stores", bytes(json!(u64::MAX))),
            message("lease_ms", json!(365 * 24 * 3_600_000_u64)),
            message("cluster", json!("site2")),
            message("node", json!(BY_COLLECTD)),
            message("sample_start", json!("of another start")),
            "NaN".to_owned(),
            "[".repeat(LONG_BYTES),
        ];
        self.talk.send(CEILINGS, BY_AGENT, &messages)?;
        let wanted = ["size", "form", "cluster", "node", "lease", "sample"];
        agent.wait_status("each to be refused", |status| {
            wanted.iter().all(|reason| refused(status, reason) > 0)
        })?;
        agent.goes_on(applied)
    }

    fn certificates_count(&mut self) -> Result<()> {
        let address = self.kafka.tls_address();
        let other = self.starting.directory.join("other");
        std::fs::create_dir_all(&other)?;
        Authority::new(&other)?;
        let agent = |name: &str, authority: &Path| {
            let file = self.starting.directory.join(format!("{name}.properties"));
            let authority = authority.display();
            let text = format!("security.protocol = ssl\nssl.ca.location = {authority}\n");
            std::fs::write(&file, text)?;
            let file = file.display().to_string();
            let arguments = ["--kafka", &address, "--kafka-properties", &file];
            self.starting.start_as(name, name, CLUSTER, &["--control", "off"], &arguments)
        };
        let wrong = agent("n4", &other.join("authority"))?;
        let right = agent("n3", self.kafka.authority())?;
        right.wait("a ceiling by TLS", |control| {
            control["leased_ceiling"]["ceiling_bytes"] == MIN_BYTES
        })?;
        for trouble in ["samples_trouble", "ceilings_trouble"] {
            wrong.wait_status("a certificate that is not believed", |status| {
                status[trouble]["why"].as_str().is_some_and(|why| why.contains("certificate"))
            })?;
        }
        let (control, status) = (wrong.control()?, wrong.status()?);
        ensure!(status["samples"]["sent"] == 0, "it was told of the node: {status}");
        ensure!(control["capacity_bytes"] == MAX_BYTES, "the node is another: {control}");
        Ok(())
    }

    fn kafka_dies(&mut self) -> Result<()> {
        self.kafka.kill();
        for agent in &self.agents {
            agent.wait("the end of the lease", |control| control["leased_ceiling"].is_null())?;
            agent.wait_status("no Kafka", |status| !status["ceilings_trouble"].is_null())?;
        }
        self.agents[0].wait("its own most", |control| control["capacity_bytes"] == MAX_BYTES)?;
        let dropped = |status: &Value| status["samples"]["dropped"].as_u64() > Some(0);
        self.agents[0].wait_status("samples that were dropped", dropped)?;
        self.site.tells_of_no_broker()?;
        self.kafka.start_again()?;
        for agent in &self.agents {
            agent.wait_status("Kafka again", |status| {
                status["ceilings_trouble"].is_null() && status["samples_trouble"].is_null()
            })?;
            agent.wait("a ceiling after Kafka is back", |control| {
                control["leased_ceiling"]["ceiling_bytes"] == MIN_BYTES
            })?;
            let said = agent.agent.said();
            let times = said.matches("no ceilings can come").count();
            // Once when it broke and once when it was over.
            ensure!(times <= 4, "it was said {times} times: {said}");
        }
        Ok(())
    }

    /// What the agents and collectd said, and the end of what the job did.
    fn said(&self) -> String {
        let daemons = self.agents.iter().map(|agent| &agent.agent).chain(&self.collectd);
        let said: String = daemons.map(Daemon::said).collect();
        said + &last_lines(&self.plane.said())
    }
}

impl Starting {
    /// A node, with or without a controller of its memory, and its agent.
    fn start(&self, name: &str, control: &str, agent: &[&str]) -> Result<Agent> {
        self.start_with(name, &["--control", control], agent)
    }

    fn start_with(&self, name: &str, node: &[&str], agent: &[&str]) -> Result<Agent> {
        let connection = self.connection.iter().map(String::as_str);
        let agent: Vec<&str> = connection.chain(agent.iter().copied()).collect();
        self.start_as(name, name, CLUSTER, node, &agent)
    }

    /// The same in any cluster, with another name in samples than that of its log.
    fn start_as(
        &self,
        label: &str,
        name: &str,
        cluster: &str,
        node: &[&str],
        agent: &[&str],
    ) -> Result<Agent> {
        let node = self.start_node(label, node)?;
        let mut command = node.command(&["plane", "agent", "--name", name]);
        command.args(["--cluster", cluster]).args(agent);
        let agent = Daemon::start(&format!("plane-agent-{label}"), &mut command, &self.logs)?;
        Ok(Agent { agent, node })
    }

    fn start_node(&self, label: &str, arguments: &[&str]) -> Result<Node> {
        let pfs = self.lower.join(format!("plane-{label}"));
        std::fs::create_dir_all(&pfs)?;
        let (min, block) = (MIN_BYTES.to_string(), BLOCK_BYTES.to_string());
        let sizes = ["--memory-min", &min, "--block-bytes", &block];
        let arguments = sizes.iter().chain(arguments).map(ToString::to_string).collect();
        Node::start_unmounted(&NodeOptions { pfs, memory: MAX_BYTES.to_string(), arguments })
    }
}

impl Agent {
    /// What the agent says, with exit code 1 where something is away.
    fn status(&self) -> Result<Value> {
        let output = process::capture(&mut self.node.command(&["plane", "status", "--json"]))?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// What holds on the node, which is within the limits of its owner whenever it is looked at.
    fn control(&self) -> Result<Value> {
        let control = self.node.status()?["control"].clone();
        let capacity_bytes = control["capacity_bytes"].as_u64().unwrap_or(0);
        ensure!((MIN_BYTES..=MAX_BYTES).contains(&capacity_bytes), "out of limits: {control}");
        Ok(control)
    }

    fn count(&self, name: &str) -> Result<u64> {
        self.status()?["ceilings"][name].as_u64().with_context(|| format!("no count {name}"))
    }

    /// Run and number of the ceiling that holds.
    fn followed(&self) -> Result<(String, u64)> {
        let mut last = Value::Null;
        wait("a ceiling", &mut last, || {
            let status = self.status()?;
            Ok((!status["followed"].is_null(), status))
        })?;
        let followed = &last["followed"];
        let plane = followed["plane"].as_str().context("no run")?.to_owned();
        Ok((plane, followed["number"].as_u64().context("no number")?))
    }

    fn wait(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        wait(what, &mut last, || self.control().map(|it| (holds(&it), it)))?;
        Ok(last)
    }

    fn wait_status(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
        wait(what, &mut Value::Null, || self.status().map(|it| (holds(&it), it)))
    }

    /// Waits until it has taken two more ceilings than `applied`.
    fn goes_on(&self, applied: u64) -> Result<()> {
        self.wait_status("more ceilings of the job", |status| {
            status["ceilings"]["applied"].as_u64() > Some(applied + 1)
        })?;
        self.control().map(drop)
    }
}

/// How many ceilings were refused for a reason.
fn refused(status: &Value, reason: &str) -> u64 {
    let list = status["ceilings"]["refused"].as_array();
    let found = list.and_then(|list| list.iter().find(|it| it["reason"] == reason));
    found.and_then(|it| it["count"].as_u64()).unwrap_or(0)
}

/// Asks again and again until it is so; an error has the last answer.
fn wait(
    what: &str,
    last: &mut Value,
    mut ask: impl FnMut() -> Result<(bool, Value)>,
) -> Result<()> {
    for _ in 0..WAITS_MAX {
        let (is_so, answer) = ask()?;
        *last = answer;
        if is_so {
            return Ok(());
        }
        std::thread::sleep(WAIT);
    }
    anyhow::bail!("{what} never came: {last}")
}

/// Arguments of the job. With so little to be used, every machine is short of memory.
fn job_arguments(connection: &[String], directory: &Path) -> Vec<String> {
    let checkpoints = directory.join("checkpoints").display().to_string();
    let arguments = [
        ["--cluster", CLUSTER],
        ["--policy", "dynims"],
        ["--used-share", "0.01"],
        ["--checkpoints", &checkpoints],
        ["--restore", "latest"],
    ];
    let arguments = arguments.as_flattened().iter().map(ToString::to_string);
    connection.iter().cloned().chain(arguments).collect()
}

/// Those of nodes that only collectd tells of.
fn of_collectd() -> Vec<String> {
    let bytes = [MIN_BYTES, MAX_BYTES, BLOCK_BYTES].map(|bytes| bytes.to_string());
    let [min, max, block] = bytes;
    let options = [
        ["--collectd-topic", COLLECTD],
        ["--min-bytes", &min],
        ["--max-bytes", &max],
        ["--block-bytes", &block],
    ];
    options.as_flattened().iter().map(ToString::to_string).collect()
}

/// collectd as it comes, with the two plug-ins of the paper.
fn collectd(directory: &Path, logs: &Path, kafka: &str) -> Result<Daemon> {
    let place: PathBuf = directory.join("collectd");
    std::fs::create_dir_all(&place)?;
    let text = format!(
        "BaseDir \"{0}\"\nPIDFile \"{0}/pid\"\nHostname \"{BY_COLLECTD}\"\nFQDNLookup false\n\
         Interval 0.1\nReadThreads 1\nWriteThreads 1\nLoadPlugin memory\n\
         <Plugin memory>\n  ValuesAbsolute true\n  ValuesPercentage false\n</Plugin>\n\
         LoadPlugin write_kafka\n<Plugin write_kafka>\n\
         Property \"metadata.broker.list\" \"{kafka}\"\n  Property \"linger.ms\" \"5\"\n\
         <Topic \"collectd\">\n    Format JSON\n    Key \"{BY_COLLECTD}\"\n  </Topic>\n</Plugin>\n",
        place.display()
    );
    let file = place.join("collectd.conf");
    std::fs::write(&file, text)?;
    let program = ["/usr/sbin/collectd", "/usr/bin/collectd"];
    let program = program.into_iter().find(|path| Path::new(path).is_file());
    let mut command = Command::new(program.unwrap_or("collectd"));
    command.arg("-f").arg("-C").arg(&file);
    Daemon::start("plane-collectd", &mut command, logs)
}
