//! Messages that nobody should send: garbage, numbers that are none, what came before, what is out
//! of order, 10 MB, and those of another cluster. Each kind is counted by its name, nothing of it
//! holds, and the ceilings of others go on.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::site::has_alarm;
use super::{
    Agent, BLOCK_BYTES, BY_AGENT, BY_COLLECTD, CEILINGS, CLUSTER, LONG_BYTES, MAX_BYTES, MIN_BYTES,
    Rig, SAMPLES, refused, wait,
};

/// Longer than a broker takes by default, and than anything that agents and job look at.
const HUGE_BYTES: usize = 10_000_000;
const HUGE_BOUND: &str = "16777216";
/// A broker's own bound.
const BOUND: &str = "1048588";
/// What the guide gives the topic of ceilings.
const CEILINGS_BOUND: &str = "65536";
/// Messages that are played again, from both ends of what there is.
const AGAIN: usize = 5;
const HOUR_MS: u64 = 3_600_000;
/// A node that exists in samples alone.
const MADE: &str = "made";
const OF_OTHERS: &str = "site2";

impl Rig {
    /// Whatever lies in a topic: it is counted, and no more.
    pub(super) fn odd_messages_are_counted(&mut self) -> Result<()> {
        let agent = &self.agents[0];
        let (plane, applied, before) =
            (agent.followed()?.0, agent.count("applied")?, refusals(agent)?);
        self.odd_samples_are_counted()?;
        self.samples_are_played_again()?;
        self.made_nodes_have_ceilings_within_their_limits()?;
        let agent = &self.agents[0];
        agent.goes_on(applied)?;
        ensure!(agent.followed()?.0 == plane, "another run is followed: {}", agent.status()?);
        ensure!(refusals(agent)? == before, "odd samples made odd ceilings: {}", agent.status()?);
        self.odd_ceilings_are_refused(&plane)?;
        self.a_huge_ceiling_is_refused()
    }

    fn odd_samples_are_counted(&mut self) -> Result<()> {
        self.talk.set(SAMPLES, "max.message.bytes", HUGE_BOUND)?;
        wait("a count of nothing odd", &mut Value::Null, || {
            let (_, facts) = self.site.facts()?;
            Ok((ODD.iter().all(|name| facts["counts"][name] == 0), facts))
        })?;
        // A broker hears of a bound a moment later. First, for counts are of ten seconds alone.
        wait("10 MB in the topic of samples", &mut Value::Null, || {
            let answer = self.talk.send_long(SAMPLES, MADE, HUGE_BYTES);
            Ok((answer.is_ok(), format!("{answer:?}").into()))
        })?;
        let (garbage, now_ms) = (garbage(), now_ms()?);
        self.talk.send(SAMPLES, MADE, &garbage)?;
        self.talk.send(SAMPLES, BY_COLLECTD, &[sample(MADE, 1, now_ms).to_string()])?;
        // In and out of order, again, and of another start.
        let mut messages = [1, 3, 2, 3, 1].map(|number| sample(MADE, number, now_ms)).to_vec();
        messages.push(sample(MADE, 4, now_ms));
        messages[5]["start"] = json!("another");
        let mut of_others = sample(MADE, 4, now_ms);
        of_others["cluster"] = json!(OF_OTHERS);
        messages.extend([of_others.clone(), of_others]);
        messages.push(sample(MADE, 5, now_ms - HOUR_MS));
        messages.push(sample(MADE, 6, now_ms + HOUR_MS));
        self.talk.send(SAMPLES, MADE, &texts(&messages))?;
        self.talk.send(SAMPLES, "giant", &[giant()])?;
        let wanted = json!({
            // The long one, and the one of another key.
            "garbage": garbage.len() + 2, "repeated": 2, "late": 2, "foreign": 2, "skewed": 2,
        });
        let is = |facts: &Value, holds: fn(u64, u64) -> bool| {
            ODD.iter().all(|name| {
                let [count, wanted] = [&facts["counts"][name], &wanted[name]].map(Value::as_u64);
                holds(count.unwrap_or(0), wanted.unwrap_or(0))
            })
        };
        let mut last = Value::Null;
        wait("all counts of odd samples", &mut last, || {
            let (_, facts) = self.site.facts()?;
            Ok((is(&facts, |count, wanted| count >= wanted), facts))
        })?;
        ensure!(is(&last, |count, wanted| count == wanted), "not as sent, {wanted}: {last}");
        let named = ["garbage", "foreign", "skewed"].iter().all(|name| has_alarm(&last, name));
        ensure!(named, "an alarm is missing: {last}");
        self.talk.set(SAMPLES, "max.message.bytes", BOUND)
    }

    /// The first and the last messages of a node, as whoever recorded them would send them.
    fn samples_are_played_again(&mut self) -> Result<()> {
        let messages = self.talk.read(SAMPLES)?;
        let own: Vec<&Value> =
            messages.iter().filter(|it| it.0 == BY_AGENT).map(|it| &it.1).collect();
        let oldest = own.iter().take(AGAIN);
        let again: Vec<Value> =
            oldest.chain(own.iter().rev().take(AGAIN)).copied().cloned().collect();
        let samples: usize = again.iter().map(|it| it.as_array().map_or(1, Vec::len)).sum();
        self.talk.send(SAMPLES, BY_AGENT, &texts(&again))?;
        // More than the made ones, which are still counted for a while.
        let least = u64::try_from(samples)?;
        wait("samples that came again", &mut Value::Null, || {
            let (_, facts) = self.site.facts()?;
            let count = |name: &str| facts["counts"][name].as_u64().unwrap_or(0);
            Ok((count("repeated") + count("late") >= least, facts))
        })
    }

    fn made_nodes_have_ceilings_within_their_limits(&mut self) -> Result<()> {
        let messages = self.talk.read(CEILINGS)?;
        let of =
            |node: &'static str| messages.iter().filter(move |it| it.0 == node).map(|it| &it.1);
        let numbers = |name: &str| of(MADE).filter_map(|it| it[name].as_u64()).collect::<Vec<_>>();
        let answered = numbers("sample_number");
        // A number is not answered again, and a clock that is an hour off is.
        let is_new = |number: &u64| [1, 3, 5, 6].contains(number);
        ensure!(answered.iter().all(is_new), "others were answered: {answered:?}");
        ensure!(answered.ends_with(&[5, 6]), "clocks were compared: {answered:?}");
        ensure!(numbers("number").is_sorted_by(|a, b| a < b), "{:?}", numbers("number"));
        let is_within = |ceiling: &Value, most: u64| {
            let bytes = ceiling["stores"][0]["ceiling_bytes"].as_u64();
            bytes.is_some_and(|bytes| (MIN_BYTES..=most).contains(&bytes))
        };
        for ceiling in of(MADE) {
            ensure!(is_within(ceiling, MAX_BYTES), "out of limits: {ceiling}");
        }
        ensure!(of("giant").count() > 0, "huge numbers are answered");
        for ceiling in of("giant") {
            ensure!(is_within(ceiling, u64::MAX), "out of limits: {ceiling}");
        }
        Ok(())
    }

    /// Ceilings that answer a sample of now, and are wrong in one thing each, or right and old.
    fn odd_ceilings_are_refused(&mut self, plane: &str) -> Result<()> {
        let (agent, talk) = (&self.agents[0], &mut self.talk);
        let before = agent.status()?;
        let wanted = ["range", "store", "number", "plane"];
        let mut last = Value::Null;
        wait("each to be refused", &mut last, || {
            let messages = talk.read(CEILINGS)?;
            let is_real =
                |ceiling: &&Value| ceiling["policy"] == "dynims" && ceiling["plane"] == plane;
            let own = messages.iter().filter(|it| it.0 == BY_AGENT).map(|it| &it.1);
            let real: Vec<&Value> = own.filter(is_real).collect();
            let newest = real.last().copied().context("a ceiling of the job")?;
            talk.send(CEILINGS, BY_AGENT, &texts(&forged(newest)))?;
            // The last ones, backwards.
            let again: Vec<Value> = real.iter().rev().take(5).copied().cloned().collect();
            talk.send(CEILINGS, BY_AGENT, &texts(&again))?;
            let status = agent.status()?;
            let is_more = |reason: &&str| refused(&status, reason) > refused(&before, reason);
            Ok((wanted.iter().all(is_more), status))
        })?;
        ensure!(last["followed"]["plane"] == plane, "another run is followed: {last}");
        Ok(())
    }

    /// The guide's bound of the topic keeps it away; without that the agent does.
    fn a_huge_ceiling_is_refused(&mut self) -> Result<()> {
        let (agent, talk) = (&self.agents[0], &mut self.talk);
        let size = || Ok::<_, anyhow::Error>(refused(&agent.status()?, "size"));
        talk.set(CEILINGS, "max.message.bytes", CEILINGS_BOUND)?;
        wait("the topic's bound", &mut Value::Null, || {
            let answer = talk.send_long(CEILINGS, BY_AGENT, LONG_BYTES);
            let said = answer.err().map(|error| error.to_string()).unwrap_or_default();
            Ok((said.contains("RecordTooLarge"), said.into()))
        })?;
        let before = size()?;
        talk.set(CEILINGS, "max.message.bytes", HUGE_BOUND)?;
        wait("10 MB in the topic of ceilings", &mut Value::Null, || {
            let answer = talk.send_long(CEILINGS, BY_AGENT, HUGE_BYTES);
            Ok((answer.is_ok(), format!("{answer:?}").into()))
        })?;
        agent.wait_status("the long one to be refused", |it| refused(it, "size") > before)?;
        agent.goes_on(agent.count("applied")?)?;
        talk.set(CEILINGS, "max.message.bytes", CEILINGS_BOUND)
    }

    /// Two clusters, each with its job and a node of one name, have the same topics.
    pub(super) fn two_clusters_share_topics(&mut self) -> Result<()> {
        let ours = &self.agents[0];
        let (plane, applied, before) =
            (ours.followed()?.0, ours.count("applied")?, refused(&ours.status()?, "cluster"));
        let checkpoints = self.starting.directory.join("checkpoints-of-others");
        let more = ["--cluster", OF_OTHERS, "--checkpoints", &checkpoints.display().to_string()];
        let mut other = self.plane.another("plane-of-others", &more);
        other.start()?;
        let connection: Vec<&str> = self.starting.connection.iter().map(String::as_str).collect();
        let node = ["--control", "off"];
        let theirs =
            self.starting.start_as("of-others", BY_AGENT, OF_OTHERS, &node, &connection)?;
        theirs.wait("a ceiling of its own job", |control| {
            control["leased_ceiling"]["ceiling_bytes"] == MIN_BYTES
        })?;
        let run = theirs.followed()?.0;
        ensure!(run != plane, "it goes by our job");
        for (agent, run, before) in [(ours, &plane, before), (&theirs, &run, 0)] {
            agent.wait_status("ceilings of the other cluster to be refused", |status| {
                refused(status, "cluster") > before + 2
            })?;
            let status = agent.status()?;
            ensure!(status["followed"]["plane"] == **run, "another run is followed: {status}");
        }
        ours.goes_on(applied)?;
        self.site.wait_for_alarm("foreign")?;
        let (code, facts) = self.site.wait_for_alarm("two_runs")?;
        ensure!(code == Some(1), "it is critical: {facts}");
        ensure!(facts["alarms"].to_string().contains("--summaries-topic"), "no remedy: {facts}");
        other.kill();
        Ok(())
    }
}

/// Counts of a summary that are 0 while nobody sends odd things.
const ODD: [&str; 5] = ["garbage", "repeated", "late", "foreign", "skewed"];

/// Each one of them is one message that is not understood.
fn garbage() -> Vec<String> {
    let with = |field: &str, text: &str| {
        let mut sample = sample(MADE, 1, 1);
        sample[field] = json!("HERE");
        sample.to_string().replace("\"HERE\"", text)
    };
    let mut messages = vec![
        String::new(),
        "NaN".to_owned(),
        "{}".to_owned(),
        "\u{0}\u{1b}[2J".to_owned(),
        // Deeper than any sample.
        "[".repeat(50_000),
    ];
    for number in ["NaN", "-Infinity", "-1", "1e300", "\"9\"", "{}"] {
        messages.push(with("memory_total_bytes", number));
        messages.push(with("number", number));
    }
    messages.push(with("stores", "[{\"name\":\"tidepool\",\"capacity_bytes\":NaN}]"));
    messages.push(with("form", "2"));
    messages
}

/// As an agent would write it of a machine that is short of memory.
fn sample(node: &str, number: u64, at_ms: u64) -> Value {
    json!({
        "form": 1, "cluster": CLUSTER, "node": node, "start": "one", "interval_ms": 100,
        "number": number, "at_ms": at_ms, "memory_total_bytes": 1_u64 << 30,
        "available_bytes": 1 << 20, "demand_bytes": 1_u64 << 29,
        "stores": [{
            "name": "tidepool", "resident_bytes": MIN_BYTES, "capacity_bytes": MAX_BYTES,
            "min_bytes": MIN_BYTES, "max_bytes": MAX_BYTES, "block_bytes": BLOCK_BYTES,
        }],
    })
}

/// A machine with more of everything than a number has place for.
fn giant() -> String {
    let mut giant = sample("giant", 1, 1);
    for field in ["memory_total_bytes", "available_bytes", "demand_bytes"] {
        giant[field] = json!("HERE");
    }
    for field in ["resident_bytes", "capacity_bytes", "max_bytes"] {
        giant["stores"][0][field] = json!("HERE");
    }
    // Its clock is right: others are counted.
    giant["at_ms"] = json!(now_ms().unwrap_or(0));
    giant.to_string().replace("\"HERE\"", "99999999999999999999999999")
}

/// Ceilings as the newest one of the job, each wrong in one thing.
fn forged(newest: &Value) -> Vec<Value> {
    let with = |field: &str, value: Value| {
        let mut ceiling = newest.clone();
        ceiling["policy"] = json!("forged");
        // Where one is taken all the same, it is soon over.
        ceiling["lease_ms"] = json!(1000);
        ceiling["number"] = json!(newest["number"].as_u64().unwrap_or(0) + 1);
        ceiling[field] = value;
        ceiling
    };
    let of = |bytes: u64| json!([{"name": "tidepool", "ceiling_bytes": bytes}]);
    let outside = [0, MIN_BYTES - 1, MAX_BYTES + 1, u64::MAX];
    let mut messages = outside.map(|bytes| with("stores", of(bytes))).to_vec();
    messages.push(with("stores", json!([])));
    messages.push(with("stores", json!([of(MIN_BYTES)[0], of(MAX_BYTES)[0]])));
    messages.push(with("number", json!(1)));
    messages.push(with("plane", json!("of nobody")));
    messages
}

fn texts(messages: &[Value]) -> Vec<String> {
    messages.iter().map(Value::to_string).collect()
}

fn refusals(agent: &Agent) -> Result<Value> {
    Ok(agent.status()?["ceilings"]["refused"].clone())
}

fn now_ms() -> Result<u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_millis())?)
}
