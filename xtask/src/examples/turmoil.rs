//! What may happen to a node while a job runs: its store is resized, everything is evicted, the
//! daemon is killed as by a crash and started again. Jobs must not notice, except in their time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::node::Node;
use crate::process;

/// Between two disturbances.
const PAUSE: Duration = Duration::from_millis(300);
/// How long the daemon stays away.
const AWAY: Duration = Duration::from_millis(700);

const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// A thread that disturbs a node.
#[derive(Debug)]
pub struct Turmoil {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Count>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    resizes: u32,
    evictions: u32,
    kills: u32,
}

impl Turmoil {
    /// Begins at once.
    pub fn start(node: Arc<Mutex<Node>>, memory_bytes: u64) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stopped);
        let thread = std::thread::spawn(move || disturb(&node, memory_bytes, &seen));
        Turmoil { stopped, thread: Some(thread) }
    }

    /// Ends, with the node running at its full size, and says what was done. An error where the
    /// node could not be disturbed, or where the work was too short for every disturbance.
    pub fn stop(mut self) -> Result<String> {
        self.stopped.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { bail!("the turmoil has ended already") };
        let Ok(count) = thread.join() else { bail!("the turmoil ended in a panic") };
        let Count { resizes, evictions, kills } = count?;
        if kills == 0 || evictions == 0 || resizes == 0 {
            bail!(
                "too short for turmoil: {resizes} resizes, {evictions} evictions, {kills} kills; \
                 take a larger --size"
            );
        }
        Ok(format!("{resizes} resizes, {evictions} evictions, {kills} times killed and restarted"))
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

fn disturb(node: &Mutex<Node>, memory_bytes: u64, stopped: &AtomicBool) -> Result<Count> {
    let mut count = Count::default();
    let full = memory_bytes.to_string();
    let sizes = ["0".into(), full.clone(), (memory_bytes / 4).to_string(), full.clone()];
    'work: loop {
        for (index, size) in sizes.iter().enumerate() {
            tell(&lock(node), &["resize", size])?;
            count.resizes += 1;
            pause(PAUSE, stopped);
            tell(&lock(node), &["evict", "--all"])?;
            count.evictions += 1;
            pause(PAUSE, stopped);
            if index == 1 {
                lock(node).kill()?;
                std::thread::sleep(AWAY);
                lock(node).start_again()?;
                count.kills += 1;
                pause(PAUSE, stopped);
            }
            if stopped.load(Ordering::Relaxed) {
                break 'work;
            }
        }
    }
    lock(node).ask(&["resize", &full])?;
    Ok(count)
}

/// Gives a command. Its status 1 says that readers hold some of the memory, as they may.
fn tell(node: &Node, arguments: &[&str]) -> Result<()> {
    let mut command = node.command(arguments);
    let output = process::capture_within(&mut command, COMMAND_LIMIT)?;
    if !matches!(output.status.code(), Some(0 | 1)) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("`{}` ended with {}: {said}", process::describe(&command), output.status);
    }
    Ok(())
}

/// Waits in small parts, so that the end of the work is seen soon.
fn pause(time: Duration, stopped: &AtomicBool) {
    let started = Instant::now();
    while started.elapsed() < time && !stopped.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn lock(node: &Mutex<Node>) -> MutexGuard<'_, Node> {
    node.lock().unwrap_or_else(PoisonError::into_inner)
}
