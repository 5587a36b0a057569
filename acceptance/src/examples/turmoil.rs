//! Fault injection while a job runs: the store is resized, everything is evicted, the daemon is
//! killed as by a crash and started again. Jobs must not notice, except in their time.
//!
//! It refuses to count what did not happen to a job: a kill counts while files are open through the
//! daemon, and the work counts as done under faults only where programs said that they went on
//! without a node and a restarted daemon served them.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::notices::Notices;
use crate::node::Node;
use crate::process;
use crate::suites::content::mix;

/// A block of the store.
const BLOCK_BYTES: u64 = 4 << 20;
/// Between two looks at what programs do.
const POLL: Duration = Duration::from_millis(20);
/// The longest pause between two disturbances.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the daemon stays away at most until a program misses it.
const MISSED_LIMIT: Duration = Duration::from_secs(3);
/// How long it stays away at most after that.
const AWAY: Duration = Duration::from_secs(1);

const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// All that is done in a round, each time in another order.
const ROUND: [Step; 7] = [
    Step::Resize { sixteenths: 0 },
    Step::Resize { sixteenths: 1 },
    Step::Resize { sixteenths: 4 },
    Step::Resize { sixteenths: 16 },
    Step::Evict,
    Step::Evict,
    Step::Kill,
];

/// One disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// To a part of the full size.
    Resize {
        sixteenths: u64,
    },
    Evict,
    Kill,
}

/// A thread that disturbs a node.
#[derive(Debug)]
pub struct Turmoil {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Count>>>,
}

/// What was done, and what came of it.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    seed: u64,
    resizes: u32,
    evictions: u32,
    /// Only those of a daemon with open files.
    kills: u32,
    /// Times that a program said that it goes on without a node.
    went_on: u32,
    /// Daemons started after a kill that moved bytes for programs.
    returns: u32,
}

impl Turmoil {
    /// Begins at once. Programs write to files below `logs`.
    pub fn start(node: Arc<Mutex<Node>>, memory_bytes: u64, seed: u64, logs: &Path) -> Self {
        eprintln!("x: turmoil with --seed {seed}");
        let stopped = Arc::new(AtomicBool::new(false));
        let disturber = Disturber {
            node,
            memory_bytes,
            stopped: Arc::clone(&stopped),
            dice: Dice { seed, turn: 0 },
            notices: Notices::of(logs),
            count: Count { seed, ..Count::default() },
            restarted: false,
        };
        let thread = std::thread::spawn(move || disturber.run());
        Turmoil { stopped, thread: Some(thread) }
    }

    /// Ends, with the node running at its full size, and says what was done. An error where the
    /// node could not be disturbed, or where not everything happened in the middle of the work.
    pub fn stop(mut self) -> Result<String> {
        self.stopped.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { bail!("the turmoil has ended already") };
        let Ok(count) = thread.join() else { bail!("the turmoil ended in a panic") };
        let count = count?;
        ensure!(count.is_enough(), "not enough turmoil, take a larger --size: {count}");
        Ok(count.to_string())
    }
}

impl Drop for Turmoil {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The task has failed otherwise; its error is the one that counts.
            let _ = thread.join();
        }
    }
}

impl Count {
    /// Whether everything happened to a job at least once.
    fn is_enough(&self) -> bool {
        let Count { seed: _, resizes, evictions, kills, went_on, returns } = *self;
        [resizes, evictions, kills, went_on, returns].iter().all(|count| *count > 0)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Count { seed, resizes, evictions, kills, went_on, returns } = self;
        write!(
            f,
            "{resizes} resizes, {evictions} evictions, {kills} kills with open files; programs \
             went on without a node {went_on} times, {returns} restarted daemons served them \
             (--seed {seed})"
        )
    }
}

/// Numbers that a seed gives.
struct Dice {
    seed: u64,
    turn: u64,
}

impl Dice {
    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.turn += 1;
        mix(self.seed, self.turn) % end.max(1)
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }

    fn time(&mut self, most: Duration) -> Duration {
        Duration::from_millis(self.below(most.as_millis() as u64))
    }
}

/// What the thread works with.
struct Disturber {
    node: Arc<Mutex<Node>>,
    memory_bytes: u64,
    stopped: Arc<AtomicBool>,
    dice: Dice,
    notices: Notices,
    count: Count,
    /// Whether the daemon that runs now was started after a kill and has not moved a byte yet.
    restarted: bool,
}

impl Disturber {
    fn run(mut self) -> Result<Count> {
        while !self.is_stopped() {
            let mut round = ROUND;
            self.dice.shuffle(&mut round);
            for step in round {
                if self.is_stopped() {
                    break;
                }
                self.do_step(step)?;
                let pause = self.dice.time(PAUSE);
                self.wait_for(pause, |disturber| disturber.is_stopped());
            }
        }
        self.look()?;
        lock(&self.node).ask(&["resize", &self.memory_bytes.to_string()])?;
        self.count.went_on = self.notices.count()?;
        Ok(self.count)
    }

    fn do_step(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Resize { sixteenths } => {
                let bytes = self.memory_bytes / 16 * sixteenths;
                // Less than a block is refused; nothing is harder on the job.
                let bytes = if bytes < BLOCK_BYTES { 0 } else { bytes };
                self.tell(&["resize", &bytes.to_string()])?;
                self.count.resizes += 1;
            }
            Step::Evict => {
                self.tell(&["evict", "--all"])?;
                self.count.evictions += 1;
            }
            Step::Kill => {
                while !self.look()? {
                    if self.is_stopped() {
                        return Ok(());
                    }
                    std::thread::sleep(POLL);
                }
                self.kill()?;
            }
        }
        Ok(())
    }

    /// Kills the daemon, waits until a program misses it, and starts it again.
    fn kill(&mut self) -> Result<()> {
        let before = self.notices.count()?;
        lock(&self.node).kill()?;
        self.count.kills += 1;
        self.wait_for(MISSED_LIMIT, |disturber| {
            disturber.is_stopped() || disturber.notices.count().is_ok_and(|now| now > before)
        });
        let away = self.dice.time(AWAY);
        self.wait_for(away, |disturber| disturber.is_stopped());
        lock(&self.node).start_again()?;
        self.restarted = true;
        Ok(())
    }

    /// Whether files are open through the daemon, and bytes were moved since its start.
    fn look(&mut self) -> Result<bool> {
        let status = lock(&self.node).status()?;
        let number = |name: &str| status[name].as_u64().unwrap_or(0);
        let has_moved = number("asked_bytes") + number("written_bytes") > 0;
        if has_moved && std::mem::take(&mut self.restarted) {
            self.count.returns += 1;
        }
        Ok(has_moved && number("open_files") > 0)
    }

    /// Gives a command. Its status 1 says that readers hold some of the memory, as they may.
    fn tell(&self, arguments: &[&str]) -> Result<()> {
        let mut command = lock(&self.node).command(arguments);
        let output = process::capture_within(&mut command, COMMAND_LIMIT)?;
        if !matches!(output.status.code(), Some(0 | 1)) {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("`{}` ended with {}: {said}", process::describe(&command), output.status);
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Waits until `ready`, not longer than `limit`.
    fn wait_for(&mut self, limit: Duration, mut ready: impl FnMut(&mut Self) -> bool) {
        let started = Instant::now();
        while started.elapsed() < limit && !ready(self) {
            std::thread::sleep(POLL);
        }
    }
}

fn lock(node: &Mutex<Node>) -> MutexGuard<'_, Node> {
    node.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Count, Dice, ROUND, Step};

    #[test]
    fn turmoil_counts_only_where_everything_happened() {
        let enough = Count { seed: 0, resizes: 1, evictions: 1, kills: 1, went_on: 1, returns: 1 };
        assert!(enough.is_enough());
        for lacking in [
            Count { resizes: 0, ..enough },
            Count { evictions: 0, ..enough },
            Count { kills: 0, ..enough },
            Count { went_on: 0, ..enough },
            Count { returns: 0, ..enough },
        ] {
            assert!(!lacking.is_enough(), "{lacking}");
        }
    }

    #[test]
    fn a_seed_gives_one_order_and_another_seed_another() {
        let orders = |seed| -> Vec<[Step; 7]> {
            let mut dice = Dice { seed, turn: 0 };
            let mut round = ROUND;
            let shuffled = |_| {
                dice.shuffle(&mut round);
                round
            };
            (0..4).map(shuffled).collect()
        };
        assert_eq!(orders(7), orders(7));
        assert_ne!(orders(7), orders(8));
        for order in orders(7) {
            assert!(ROUND.iter().all(|step| order.contains(step)));
        }
    }
}
