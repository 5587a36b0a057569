//! A job and a broker that stand still, are slow or have no room: leases end, nodes decide for
//! themselves, agents keep little, and all goes on by itself later.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::{MAX_BYTES, MIB, MIN_BYTES, Rig, wait};
use super::rights::{all_works, is_itself};
use crate::{cleanup, environment, process};

/// What an agent may have more of while nobody takes its samples.
const GROWTH_BYTES: u64 = 8 * MIB;
/// Samples of an agent's queue, which holds those of 3 s.
const QUEUED_MAX: u64 = 1000;
/// Turns of a slow broker, and how long it stands still and goes on in each.
const TURNS: u32 = 6;
const STILL: Duration = Duration::from_millis(1500);
const GOES: Duration = Duration::from_millis(500);

/// Stands still until it is dropped.
struct Still(Option<cleanup::Guard>);

impl Still {
    fn new(process_id: u32) -> Self {
        process::signal(process_id, libc::SIGSTOP);
        Still(Some(cleanup::guard(move || process::signal(process_id, libc::SIGCONT))))
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

impl Rig {
    /// The job does nothing for longer than a lease; what waited for it is said to be late.
    pub(super) fn the_job_stands_still(&mut self) -> Result<()> {
        let still = Still::new(self.plane.process_id().context("the job runs")?);
        self.nodes_are_on_their_own()?;
        let (code, facts) = self.site.wait_for_alarm("silent")?;
        ensure!(code == Some(1), "it is critical: {facts}");
        drop(still);
        self.site.wait_for_alarm("lag")?;
        self.all_goes_on()?;
        self.ceilings_are_what_they_were()
    }

    /// The broker answers nobody, and its connections stay.
    pub(super) fn kafka_stands_still(&mut self) -> Result<()> {
        let agent = &self.agents[0];
        let (process_id, dropped) = (agent.agent.process_id(), dropped(&agent.status()?));
        let before_bytes = process::resident_bytes(process_id)?;
        let still = Still::new(self.kafka.process_id().context("the broker runs")?);
        self.nodes_are_on_their_own()?;
        let agent = &self.agents[0];
        // Twice as many as may wait have come and gone.
        wait("samples that are dropped", &mut Value::Null, || {
            let status = agent.status()?;
            keeps_little(&status)?;
            Ok((self::dropped(&status) > dropped + 60, status))
        })?;
        agent.wait_status("samples that do not go out", |it| !it["samples_trouble"].is_null())?;
        let now_bytes = process::resident_bytes(process_id)?;
        ensure!(now_bytes < before_bytes + GROWTH_BYTES, "{before_bytes}, then {now_bytes} bytes");
        self.a_node_gives_back_by_itself()?;
        drop(still);
        self.all_goes_on()
    }

    /// The broker works a quarter of the time.
    pub(super) fn kafka_is_slow(&mut self) -> Result<()> {
        let process_id = self.kafka.process_id().context("the broker runs")?;
        for _ in 0..TURNS {
            let still = Still::new(process_id);
            std::thread::sleep(STILL);
            for agent in &self.agents {
                keeps_little(&agent.status()?)?;
                agent.control()?;
            }
            drop(still);
            std::thread::sleep(GOES);
        }
        self.all_goes_on()
    }

    /// The broker cannot write any more, and ends, as Kafka's do; with room it is started again.
    pub(super) fn kafka_has_a_full_disk(&mut self) -> Result<()> {
        let ballast = self.disk()?.join("ballast");
        fill(&ballast)?;
        self.nodes_are_on_their_own()?;
        for agent in &self.agents {
            agent
                .wait_status("samples that do not go out", |it| !it["samples_trouble"].is_null())?;
            keeps_little(&agent.status()?)?;
        }
        self.a_node_gives_back_by_itself()?;
        std::fs::remove_file(&ballast)?;
        self.kafka.kill();
        self.kafka.start_again()?;
        self.all_goes_on()
    }

    /// Leases end, and the node without a controller is as large as its owner said.
    fn nodes_are_on_their_own(&self) -> Result<()> {
        for agent in &self.agents {
            agent.wait("the end of the lease", |control| control["leased_ceiling"].is_null())?;
        }
        self.agents[0].wait("its own most", |it| it["capacity_bytes"] == MAX_BYTES)?;
        is_itself(&self.agents[0])
    }

    /// The node with a controller has all of its store, and gives it back where jobs need memory.
    fn a_node_gives_back_by_itself(&self) -> Result<()> {
        let agent = &self.agents[1];
        let set = |bytes: &str| agent.node.ask(&["control", "set", "headroom-bytes", bytes]);
        agent.wait("its own most", |control| control["capacity_bytes"] == MAX_BYTES)?;
        // Nearly all that the machine has: the store is to give back all that it may.
        set(&(environment::memory_field("MemTotal")? / 20 * 19).to_string())?;
        agent
            .wait("memory that is given back", |control| control["capacity_bytes"] == MIN_BYTES)?;
        set("0")?;
        agent.wait("its own most again", |it| it["capacity_bytes"] == MAX_BYTES).map(drop)
    }

    fn all_goes_on(&self) -> Result<()> {
        for agent in &self.agents {
            agent.wait_status("that all works", all_works)?;
            agent.wait("a ceiling in force", |control| {
                control["leased_ceiling"]["ceiling_bytes"] == MIN_BYTES
                    && control["capacity_bytes"] == MIN_BYTES
            })?;
            agent.goes_on(agent.count("applied")?)?;
        }
        wait("both nodes in the view", &mut Value::Null, || {
            let (code, facts) = self.site.facts()?;
            Ok((code == Some(0) && facts["nodes"] == 2, facts))
        })
    }
}

fn dropped(status: &Value) -> u64 {
    status["samples"]["dropped"].as_u64().unwrap_or(0)
}

/// Samples that were taken and of which nothing became yet are few.
fn keeps_little(status: &Value) -> Result<()> {
    let count = |name: &str| status["samples"][name].as_u64().unwrap_or(0);
    let gone = count("sent") + count("dropped") + count("failed");
    let kept = count("taken").saturating_sub(gone);
    ensure!(kept <= QUEUED_MAX, "an agent keeps {kept} samples: {status}");
    Ok(())
}

/// Writes until there is no room.
fn fill(path: &std::path::Path) -> Result<()> {
    let mut file = File::create(path)?;
    let mut bytes = vec![0; 1 << 20];
    while !bytes.is_empty() {
        match file.write(&bytes) {
            Ok(written) if written == bytes.len() => {}
            _ => bytes.truncate(bytes.len() / 2),
        }
    }
    file.sync_all().context("what was written is kept")
}
