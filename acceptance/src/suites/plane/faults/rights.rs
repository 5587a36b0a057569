//! Users of the broker: the guide's commands give each what it needs and no more, and whatever is
//! wrong with a user or a certificate is named where an admin looks.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tidepool_test_authority::{Authority, write_secret};

use super::super::site::SiteCommand;
use super::super::{
    Agent, BY_AGENT, CEILINGS, CLUSTER, MAX_BYTES, MIN_BYTES, Rig, SAMPLES, SUMMARIES,
};
use crate::environment;
use crate::jvm::kafka::{Kafka, SUPER_USER};
use crate::jvm::talk::Talk;
use crate::process;

/// As the guide names it.
pub const NODE: &str = "node7";
/// As the guide names it.
pub const JOB: &str = "plane";
/// As the guide names it.
pub const ADMIN: &str = "admin";
/// May read ceilings, and only see the topic of samples.
const MUTE: &str = "mute";
/// May write samples, and only see the topic of ceilings.
const DEAF: &str = "deaf";
/// May do nothing.
const HOSTILE: &str = "hostile";
/// All of them.
pub const USERS: [&str; 6] = [NODE, JOB, ADMIN, MUTE, DEAF, HOSTILE];

/// Name of an agent, its connection, what must not work, and words for why.
type Case<'a> = (&'static str, &'a [String], &'a [&'static str], &'a [&'static str]);

/// Where the guide says it.
const GUIDE: &str = "docs/guide/plane.md";
/// The broker, and the file of its admin, as the guide names them.
const BROKER: &str = "broker1:9094";
const ADMIN_FILE: &str = "admin.properties";
/// Commands in the guide, at the least.
const COMMANDS: usize = 7;

/// Makes files of properties for users.
#[derive(Debug)]
pub struct Users {
    directory: PathBuf,
    authority: PathBuf,
}

impl Users {
    /// Files below a directory.
    pub fn new(kafka: &Kafka, directory: &Path) -> Self {
        Users { directory: directory.to_owned(), authority: kafka.authority().to_owned() }
    }

    /// Arguments for agents and operators, as a user.
    pub fn connection(&self, kafka: &Kafka, user: &str) -> Result<Vec<String>> {
        self.connection_with(kafka, user, user, &self.authority, user)
    }

    fn connection_with(
        &self,
        kafka: &Kafka,
        user: &str,
        password: &str,
        authority: &Path,
        name: &str,
    ) -> Result<Vec<String>> {
        let file = self.directory.join(format!("{name}.properties"));
        let authority = authority.display();
        let text = format!(
            "security.protocol = SASL_SSL\nssl.ca.location = {authority}\n\
             sasl.mechanism = SCRAM-SHA-512\nsasl.username = {user}\nsasl.password = {password}\n"
        );
        write_secret(&file, text.as_bytes())?;
        let file = file.display().to_string();
        let words = ["--kafka", &kafka.users_address(), "--kafka-properties", &file];
        Ok(words.map(String::from).to_vec())
    }

    /// The same for programs of Java.
    pub fn connection_in_java(&self, kafka: &Kafka, user: &str) -> Result<Vec<String>> {
        let file = self.java_file(user, &format!("{user}-java.properties"))?.display().to_string();
        let words = ["--kafka", &kafka.users_address(), "--kafka-properties", &file];
        Ok(words.map(String::from).to_vec())
    }

    fn java_file(&self, user: &str, name: &str) -> Result<PathBuf> {
        let file = self.directory.join(name);
        let authority = self.authority.display();
        let module = "org.apache.kafka.common.security.scram.ScramLoginModule";
        let text = format!(
            "security.protocol=SASL_SSL\nssl.truststore.type=PEM\n\
             ssl.truststore.location={authority}\nsasl.mechanism=SCRAM-SHA-512\n\
             sasl.jaas.config={module} required username=\"{user}\" password=\"{user}\";\n"
        );
        write_secret(&file, text.as_bytes())?;
        Ok(file)
    }

    /// Runs the commands of the guide as they stand there, but for the broker's name and what the
    /// guide leaves out where it says it again.
    pub fn allow_as_the_guide_says(&self, kafka: &Kafka) -> Result<()> {
        self.java_file(SUPER_USER, ADMIN_FILE)?;
        let program = self.directory.join("kafka-acls.sh");
        let command = kafka.java().command("org.apache.kafka.tools.AclCommand", &[] as &[&str]);
        let script = format!("#!/bin/sh\nexec {} \"$@\"\n", process::describe(&command));
        std::fs::write(&program, script)?;
        process::read(process::command("chmod", &["+x"]).arg(&program))?;
        let commands = commands_of_the_guide()?;
        ensure!(commands.len() >= COMMANDS, "{GUIDE} has other commands: {commands:?}");
        // Beside each other: each is a program of Java, which mostly waits for the broker.
        std::thread::scope(|scope| {
            let run = |command: &String| self.run_of_the_guide(kafka, command);
            let started: Vec<_> = commands.iter().map(|it| scope.spawn(move || run(it))).collect();
            started.into_iter().try_for_each(|it| it.join().expect("it hands on what is wrong"))
        })
    }

    fn run_of_the_guide(&self, kafka: &Kafka, command: &str) -> Result<()> {
        let again = format!("--bootstrap-server {BROKER} --command-config {ADMIN_FILE}");
        let line = command.replace("...", &again).replace(BROKER, &kafka.users_address());
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).current_dir(&self.directory);
        let path = std::env::var("PATH").unwrap_or_default();
        shell.env("PATH", format!("{}:{path}", self.directory.display()));
        process::read(&mut shell).map(drop).with_context(|| format!("{GUIDE}: {command}"))
    }
}

/// Lines of the guide's blocks that begin with the command, each with those that go on with it.
fn commands_of_the_guide() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(environment::checkout().join(GUIDE))?;
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().filter_map(|line| line.strip_prefix("    "));
    Ok(lines.filter(|line| line.starts_with("kafka-acls.sh")).map(String::from).collect())
}

impl Rig {
    /// With these rights ceilings come to both nodes, and the view shows them.
    pub(super) fn ceilings_come_to_users(&mut self) -> Result<()> {
        self.talk.set(CEILINGS, "max.message.bytes", "65536")?;
        self.talk.set(SUMMARIES, "max.message.bytes", "65536")?;
        for agent in &self.agents {
            agent.wait("a ceiling", |control| {
                control["leased_ceiling"]["ceiling_bytes"] == MIN_BYTES
                    && control["capacity_bytes"] == MIN_BYTES
            })?;
            agent.wait_status("that all works", all_works)?;
        }
        self.site.shows_nodes(MIN_BYTES)
    }

    /// Each is named by its agent, whose node goes on, and nobody else notices.
    pub(super) fn wrong_users_are_named(&mut self) -> Result<()> {
        let applied = self.agents[0].count("applied")?;
        self.talk.allow(MUTE, "Describe", SAMPLES)?;
        self.talk.allow(MUTE, "Read", CEILINGS)?;
        self.talk.allow(DEAF, "Write", SAMPLES)?;
        self.talk.allow(DEAF, "Describe", CEILINGS)?;
        let users = Users::new(&self.kafka, &self.starting.directory);
        let others = self.starting.directory.join("other-authority");
        std::fs::create_dir_all(&others)?;
        Authority::new(&others)?;
        let others = others.join("authority");
        let (kafka, right) = (&self.kafka, self.kafka.authority());
        let with = |user: &str, password: &str, authority: &Path, name: &str| {
            users.connection_with(kafka, user, password, authority, name)
        };
        let password = with(NODE, "wrong", right, "wrong-password")?;
        let authority = with(NODE, NODE, &others, "wrong-authority")?;
        let mut host = with(NODE, NODE, right, "wrong-host")?;
        // The certificate is of 127.0.0.1.
        host[1] = host[1].replace("127.0.0.1", "localhost");
        let (mute, deaf) = (users.connection(kafka, MUTE)?, users.connection(kafka, DEAF)?);
        let both = ["samples_trouble", "ceilings_trouble"];
        let cases: [Case<'_>; 5] = [
            ("wrong-password", &password, &both, &["uthentication"]),
            ("wrong-authority", &authority, &both, &["certificate"]),
            ("wrong-host", &host, &both, &["certificate", "localhost"]),
            (MUTE, &mute, &both[..1], &["authorization", SAMPLES]),
            (DEAF, &deaf, &both[1..], &["authorization", CEILINGS]),
        ];
        for (name, connection, troubles, words) in cases {
            self.is_named(name, connection, troubles, words).context(name)?;
        }
        self.site_names(&authority, "certificate")?;
        self.site_names(&password, "uthentication")?;
        self.site_names(&users.connection(&self.kafka, NODE)?, SUMMARIES)?;
        self.agents[0].goes_on(applied)?;
        self.agents.iter().try_for_each(|agent| agent.wait_status("that all works", all_works))
    }

    /// An agent says what is wrong, in what it is asked and in its log, and its node stays itself.
    fn is_named(
        &self,
        name: &str,
        connection: &[String],
        troubles: &[&str],
        words: &[&str],
    ) -> Result<()> {
        let connection: Vec<&str> = connection.iter().map(String::as_str).collect();
        let node = ["--control", "off"];
        let agent = self.starting.start_as(name, name, CLUSTER, &node, &connection)?;
        for trouble in troubles {
            let is_named = |status: &Value| {
                let why = status[trouble]["why"].as_str().unwrap_or_default();
                words.iter().all(|word| why.contains(word))
            };
            agent.wait_status(&format!("{trouble} with {words:?}"), is_named)?;
        }
        let output = process::capture(&mut agent.node.command(&["plane", "status"]))?;
        ensure!(output.status.code() == Some(1), "all is well: {output:?}");
        let (text, said) = (String::from_utf8_lossy(&output.stdout), agent.agent.said());
        for word in words {
            ensure!(text.contains(word) && said.contains(word), "no `{word}`: {text}; {said}");
        }
        is_itself(&agent)
    }

    fn site_names(&self, connection: &[String], word: &str) -> Result<()> {
        let tidepool = self.site.tidepool.clone();
        let output = SiteCommand { tidepool, connection: connection.to_vec() }.run(&[])?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "{output:?}");
        ensure!(text.contains(word) && text.contains("--"), "no `{word}`, no remedy: {text}");
        Ok(())
    }

    /// Neither a stranger nor a node may write what only the job may.
    pub(super) fn a_hostile_user_writes_nothing(&mut self) -> Result<()> {
        let (plane, applied) = (self.agents[0].followed()?.0, self.agents[0].count("applied")?);
        let users = Users::new(&self.kafka, &self.starting.directory);
        let cases: [(&str, &[&str]); 3] = [
            (HOSTILE, &[SAMPLES, CEILINGS, SUMMARIES]),
            (NODE, &[CEILINGS, SUMMARIES]),
            (JOB, &[SAMPLES]),
        ];
        for (user, topics) in cases {
            let file = users.java_file(user, &format!("{user}-java.properties"))?;
            let log = self.starting.logs.join("kafka-hostile.log");
            let address = self.kafka.users_address();
            let mut talk = Talk::start(&self.kafka.java(), &address, Some(&file), &log)?;
            let mut said = String::new();
            for topic in topics {
                let sent = talk.send(topic, BY_AGENT, &["{}".to_owned()]);
                let error = sent.err().with_context(|| format!("{user} may write {topic}"))?;
                write!(said, "{error:#}; ")?;
            }
            let refusals = said.matches("TopicAuthorization").count();
            ensure!(refusals == topics.len(), "refused for another reason: {said}");
            let read = talk.read(SUMMARIES);
            ensure!(read.is_err(), "{user} may read {SUMMARIES}");
        }
        self.agents[0].goes_on(applied)?;
        ensure!(self.agents[0].followed()?.0 == plane, "another run is followed");
        Ok(())
    }
}

/// Nothing is wrong, and samples go out.
pub fn all_works(status: &Value) -> bool {
    let troubles = ["node_trouble", "samples_trouble", "ceilings_trouble"];
    troubles.iter().all(|name| status[name].is_null())
        && status["samples"]["sent"].as_u64() > Some(0)
}

/// The node is as without a plane.
pub fn is_itself(agent: &Agent) -> Result<()> {
    let control = agent.control()?;
    ensure!(control["leased_ceiling"].is_null(), "a ceiling holds: {control}");
    ensure!(control["capacity_bytes"] == MAX_BYTES, "the node is another: {control}");
    Ok(())
}
