//! What of the plane should worry an admin, and what to do about it. Only what keeps the plane from
//! its work is critical: foreign or odd messages are worth a look, and no more.

use serde::Serialize;

use super::gathered::Gathered;
use super::view::Site;

/// Ceilings later than this are of little use where memory runs short.
const LAG_MS: u64 = 1000;
/// One in so many samples may come again or late, as after a restart.
const ODD_SHARE: u64 = 50;

/// All names of alarms.
pub const NAMES: [&str; 16] = [
    "kafka",
    "no_summary",
    "silent",
    "no_nodes",
    "two_runs",
    "silent_nodes",
    "lag",
    "garbage",
    "refused",
    "skewed",
    "foreign",
    "repeated",
    "late",
    "incomplete",
    "trimmed",
    "strange",
];

/// Something that should worry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alarm {
    /// Its stable name.
    pub name: &'static str,
    /// Whether the plane does not do its work.
    pub is_critical: bool,
    /// What is so.
    pub text: String,
    /// What to do.
    pub remedy: &'static str,
}

/// All alarms; `trouble` is what the client of Kafka says.
pub fn of(site: &Site, gathered: &Gathered, trouble: Option<String>) -> Vec<Alarm> {
    let mut alarms: Vec<Alarm> =
        of_the_job(site, gathered, trouble).into_iter().map(|it| it.alarm(true)).collect();
    let others = of_nodes(site).into_iter().chain(of_messages(site, gathered));
    alarms.extend(others.map(|it| it.alarm(false)));
    alarms
}

/// Its name, what is so, what to do.
struct Found(&'static str, String, &'static str);

impl Found {
    fn alarm(self, is_critical: bool) -> Alarm {
        let Found(name, text, remedy) = self;
        Alarm { name, is_critical, text, remedy }
    }
}

fn of_the_job(site: &Site, gathered: &Gathered, trouble: Option<String>) -> Vec<Found> {
    let mut found = Vec::new();
    if let (true, Some(why)) = (site.is_silent, trouble) {
        found.push(Found(
            "kafka",
            format!("no broker answers: {why}"),
            "nodes keep to their own limits; start the brokers, or look at the network",
        ));
    } else if gathered.newest().is_none() {
        found.push(Found(
            "no_summary",
            format!("no summary is in the topic {}", site.topic),
            "start the job, and agents, or name the topic of its summaries: --summaries-topic",
        ));
    } else if site.is_silent {
        let age = site.age_ms.map(|age_ms| format!("for {} s", age_ms / 1000));
        let age = age.unwrap_or_else(|| "since this command began to read".to_owned());
        found.push(Found(
            "silent",
            format!("the job is silent {age}"),
            "nodes keep to their own limits; start the job again, with --restore latest",
        ));
    } else if site.sums.nodes == 0 {
        found.push(Found(
            "no_nodes",
            "no node is heard from".to_owned(),
            "start agents with the job's --kafka and --cluster; on a node `tidepool plane status` \
             tells why its samples do not come",
        ));
    }
    if let Some((one, other)) = gathered.two_runs() {
        found.push(Found(
            "two_runs",
            format!("two runs of the job send: {one} and {other}"),
            "stop one of them: agents follow one and refuse the other. Jobs of two clusters \
             need topics of their own: --summaries-topic, --ceilings-topic",
        ));
    }
    found
}

fn of_nodes(site: &Site) -> Vec<Found> {
    let mut found = Vec::new();
    if site.sums.silent_nodes > 0 {
        let names = site.silent.join(", ");
        let more = if site.sums.silent_nodes > site.silent.len() as u64 { ", ..." } else { "" };
        found.push(Found(
            "silent_nodes",
            format!("{} of the nodes silent: {names}{more}", site.sums.silent_nodes),
            "look at them with `tidepool plane status`; they are forgotten after ten minutes",
        ));
    }
    if let Some(lag_ms) = site.lag_ms.filter(|lag_ms| *lag_ms > LAG_MS) {
        found.push(Found(
            "lag",
            format!("samples wait {lag_ms} ms for their decision"),
            "after a restart it is over in seconds; else give the job more of a processor, more \
             --parallelism, or agents a longer --interval-ms",
        ));
    }
    found
}

fn of_messages(site: &Site, gathered: &Gathered) -> Vec<Found> {
    let counts = &site.counts;
    let odd = |count: u64| if count > counts.samples / ODD_SHARE { count } else { 0 };
    let causes = [
        (
            "garbage",
            counts.garbage,
            "no samples that are understood",
            "run agents and job of one release; see who may write to the topic of samples",
        ),
        (
            "refused",
            counts.refused,
            "of nodes beyond --max-nodes",
            "give the job more --max-nodes; see whether names of nodes are made up",
        ),
        (
            "skewed",
            counts.skewed,
            "of clocks that are more than a minute off",
            "set the clocks of nodes and of the job's machine; ceilings go on all the same",
        ),
        (
            "foreign",
            counts.foreign,
            "of clusters that the job does not serve",
            "start the job without --cluster to serve all, or give each cluster its own topic",
        ),
        (
            "repeated",
            odd(counts.repeated),
            "that came before",
            "after a restart it is over in seconds; else see who else sends for these nodes",
        ),
        (
            "late",
            odd(counts.late),
            "behind newer ones",
            "look for two agents of one name, and for a topic whose partitions grew",
        ),
        (
            "incomplete",
            counts.incomplete,
            "of collectd with parts missing",
            "give the plug-in memory its defaults, and write_kafka a Key",
        ),
        (
            "trimmed",
            counts.trimmed,
            "of jobs beyond --max-jobs or --max-all-jobs",
            "give the job more of them",
        ),
    ];
    let seconds = site.span_ms.div_ceil(1000);
    let found = causes.into_iter().filter(|(_, count, ..)| *count > 0);
    let found = found.map(|(name, count, what, remedy)| {
        Found(name, format!("{count} messages in {seconds} s are {what}"), remedy)
    });
    let strange = (gathered.strange > 0).then(|| {
        Found(
            "strange",
            format!("{} messages in {} are no summaries", gathered.strange, site.topic),
            "let only the user of the job write to this topic",
        )
    });
    found.chain(strange).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::super::summary::tests::message;
    use super::super::view::tests::site;
    use super::*;

    fn round(changes: &[(&str, Value)]) -> Value {
        let mut round = message("plane", "", "", 1);
        changes.iter().for_each(|(field, value)| round[*field] = value.clone());
        round
    }

    fn names(rounds: &[Value], age: Option<Duration>) -> (Vec<&'static str>, bool) {
        let site = site(rounds, age);
        assert!(site.alarms.iter().all(|alarm| NAMES.contains(&alarm.name)));
        (site.alarms.iter().map(|alarm| alarm.name).collect(), site.works())
    }

    fn of(changes: &[(&str, Value)]) -> (Vec<&'static str>, bool) {
        names(&[round(changes)], Some(Duration::ZERO))
    }

    #[test]
    fn a_plane_that_does_not_work_is_critical() {
        assert_eq!(of(&[]), (vec![], true));
        assert_eq!(names(&[], None), (vec!["no_summary"], false));
        let silent = Some(Duration::from_secs(12));
        assert_eq!(names(&[round(&[])], silent), (vec!["silent"], false));
        assert_eq!(names(&[round(&[])], None), (vec!["silent"], false), "another clock");
        assert_eq!(of(&[("nodes", json!(0))]), (vec!["no_nodes"], false));
        let other = round(&[("plane", json!("p2"))]);
        let runs = [round(&[]), other, round(&[])];
        assert_eq!(names(&runs, Some(Duration::ZERO)), (vec!["two_runs"], false));
        let text = &site(&[round(&[])], silent).alarms[0].text;
        assert_eq!(text, "the job is silent for 12 s");
    }

    #[test]
    fn counts_that_should_worry_are_told_and_not_critical() {
        for name in ["garbage", "refused", "skewed", "foreign", "incomplete", "trimmed"] {
            assert_eq!(of(&[(name, json!(1))]), (vec![name], true));
        }
        for name in ["repeated", "late"] {
            assert_eq!(of(&[("samples", json!(500)), (name, json!(10))]), (vec![], true));
            assert_eq!(of(&[("samples", json!(500)), (name, json!(11))]), (vec![name], true));
        }
        assert_eq!(of(&[("lag_ms", json!(1001))]), (vec!["lag"], true));
        let silent = [("silent_nodes", json!(2)), ("silent", json!(["n1", "n2"]))];
        assert_eq!(of(&silent), (vec!["silent_nodes"], true));
    }
}
