//! What can go wrong around the plane, part by part, on a broker where every user has a name, a
//! password and the rights of the guide, and no others: wrong passwords and certificates, rights
//! that are missing, clocks, messages, clusters and jobs that should not be there, a job that is
//! killed and upgraded, and a broker that stops, is slow and has a full disk. It takes minutes and
//! asserts order, numbers and words, and no times.

mod clock;
mod outage;
mod rights;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use self::rights::Users;
use super::site::SiteCommand;
use super::{BY_AGENT, PARTITIONS, Rig, Starting, Step, TOPICS, job_arguments, walk};
use crate::environment;
use crate::jvm::kafka::{Kafka, KafkaOptions};
use crate::jvm::plane::Plane;
use crate::loop_volume::{LoopVolume, VolumeOptions};
use crate::outcome::Outcome;
use crate::scratch::Scratch;
use crate::suites::{Places, need};

/// Has a memory controller of its own.
const GOVERNED: &str = "n2";
/// The disk of the broker, which is full once.
const DISK: VolumeOptions = VolumeOptions {
    file_system: "ext4",
    format_arguments: &["-q", "-F", "-m", "0"],
    size_bytes: 192 << 20,
    mount_options: "noatime",
    direct: false,
};

/// Runs the parts through all of it.
pub fn run(places: &Places) -> Result<Vec<Outcome>> {
    let mut outcome = Outcome::new("plane faults");
    if !places.wants_node() || !environment::is_root() {
        outcome.skipped.push("plane faults: needs nodes, and root for a disk".to_owned());
        return Ok(vec![outcome]);
    }
    need(&[("mvn", "maven"), ("faketime", "faketime")])?;
    let (images, mounts) = places.corner()?;
    // Dropped behind the rig: the broker ends before its disk.
    let disk = LoopVolume::create(images.path(), mounts.path(), &DISK)?;
    let began = Instant::now();
    let mut rig = Rig::start_secured(&places.lower, &images, &disk.mount)?;
    eprintln!("x: plane faults: started in {:.1} s", began.elapsed().as_secs_f64());
    let mut steps: Vec<Step> = vec![
        ("the guide's rights are enough", Rig::ceilings_come_to_users),
        ("wrong users and certificates are named", Rig::wrong_users_are_named),
        ("a hostile user writes no ceilings", Rig::a_hostile_user_writes_nothing),
        ("a clock is an hour off", Rig::a_clock_is_off),
        ("odd messages are counted", Rig::odd_messages_are_counted),
        ("two clusters share the topics", Rig::two_clusters_share_topics),
        ("two jobs run, and the followed one ends", Rig::the_followed_job_ends),
        ("the job is upgraded", Rig::the_job_is_upgraded),
        ("the job stands still", Rig::the_job_stands_still),
        ("Kafka stands still", Rig::kafka_stands_still),
        ("Kafka is slow", Rig::kafka_is_slow),
        ("Kafka's disk is full", Rig::kafka_has_a_full_disk),
    ];
    if let Some(only) = &places.options.only {
        let first = steps[0].0;
        steps.retain(|(name, _)| *name == first || name.contains(only.as_str()));
    }
    walk(&mut rig, &steps, &mut outcome);
    Ok(vec![outcome])
}

impl Rig {
    /// All parts with names and passwords, and two nodes whose agents send samples.
    fn start_secured(lower: &Path, directory: &Scratch, disk: &Path) -> Result<Self> {
        let logs = environment::target().join("suites/plane-faults-logs");
        std::fs::create_dir_all(&logs)?;
        let data = disk.join("data");
        let options = KafkaOptions { users: &rights::USERS, data: Some(&data) };
        let kafka = Kafka::start_with(&logs, &options)?;
        kafka.create(PARTITIONS, &TOPICS)?;
        let users = Users::new(&kafka, directory.path());
        users.allow_as_the_guide_says(&kafka)?;
        let connection = users.connection_in_java(&kafka, rights::JOB)?;
        let mut plane = Plane::new(job_arguments(&connection, directory.path()), &logs)?;
        plane.start()?;
        let connection = users.connection(&kafka, rights::NODE)?;
        let (lower, directory) = (lower.to_owned(), directory.path().to_owned());
        let starting = Starting { lower, logs, directory, connection };
        let agents = [starting.start(BY_AGENT, "off", &[])?, starting.start(GOVERNED, "on", &[])?];
        let tidepool = agents[0].node.program().to_owned();
        let connection = users.connection(&kafka, rights::ADMIN)?;
        let site = SiteCommand { tidepool, connection };
        let (talk, collectd) = (kafka.talk()?, None);
        Ok(Rig { plane, collectd, agents, talk, kafka, site, starting })
    }

    /// Where the broker's messages are.
    fn disk(&self) -> Result<PathBuf> {
        let data = self.kafka.data().context("the broker has a disk of its own")?;
        data.parent().map(Path::to_path_buf).context("its data are on it")
    }
}
