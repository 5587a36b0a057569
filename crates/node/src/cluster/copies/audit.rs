//! Both sides compare what is counted on and what is held: the node of a file writes it back where
//! a copy is missing, and a holder frees what nobody counts on.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_cluster::NodeName;
use tidepool_proto::FileId;

use super::held::HeldCopy;
use super::message::{Asked, Audit, AuditAnswer, path_of};
use crate::cluster::recall::{Answer, Running};
use crate::cluster::removed::Removed;
use crate::cluster::{Cluster, threads};
use crate::core::Core;
use crate::file::copied::Copied;
use crate::file::memory_only;
use crate::file::state::FileState;

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The same where there is nothing to look at.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);
/// Files that were given up to a copy about which the holders are asked at a time.
const GIVEN_UP_ASKED: usize = 64;
/// Longest time between two comparisons with a holder.
const AUDIT_INTERVAL: Duration = Duration::from_secs(10);
/// Files that a holder is asked about in one message, and those that it is told are over.
const EPOCHS_MAX: usize = 30_000;
/// Bytes of paths in one message, but for the last one's.
const PATHS_BYTES_MAX: usize = 128 << 10;
/// A copy that is not counted on stays for this time: the message that says so may be older.
const YOUNG: Duration = Duration::from_secs(15);
/// A holder is compared with for this time after it was to hold anything.
const FORGET: Duration = Duration::from_secs(60);
/// Time between two looks at the names of files, for each of them.
const NAME_INTERVAL: Duration = Duration::from_micros(100);
/// Copies that are given back at a time; one fewer than may be, so that opens need not wait.
const WORKERS: usize = 3;
/// How long copies are given back before something else is looked at.
const BATCH_LIMIT: Duration = Duration::from_secs(2);
/// Time after which a copy that could not be given back is tried again, at first and at most.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What the thread remembers.
#[derive(Default)]
pub struct Follow {
    /// Holders to compare with.
    told: HashMap<NodeName, Told>,
    /// Files that were looked for names last, and when that was.
    named: Option<(usize, Instant)>,
    /// When the nodes whose files are held were asked whether they were started anew.
    asked: Option<Instant>,
    /// Copies that could not be given back: when that was, and how long the pause is.
    failed: HashMap<u64, (Instant, Duration)>,
    removed: Removed,
}

/// What a holder was told last.
struct Told {
    epochs: Vec<u64>,
    at: Option<Instant>,
    /// When it last was to hold anything.
    needed: Instant,
}

impl Default for Told {
    fn default() -> Self {
        Told { epochs: Vec::new(), at: None, needed: Instant::now() }
    }
}

/// One step of the thread that looks after copies.
pub fn follow(cluster: &Cluster, memory: &mut Follow) {
    let Some(core) = cluster.core.upgrade() else { return };
    let counted_on = cluster.counted_on(&core);
    cluster.audit_holders(&core, &counted_on, memory);
    cluster.ask_owners(memory);
    memory.removed.free(&core);
    cluster.answer_for_owed(&core);
    cluster.release_owed(&core);
    let is_more = cluster.look_after_held(&core, memory);
    let is_idle =
        counted_on.is_empty() && memory.told.is_empty() && cluster.copies.held.count() == 0;
    drop((core, counted_on));
    let mut wanted = cluster.copies.wanted_bytes.lock();
    if *wanted == 0 && !is_more && !cluster.is_stopping() {
        let interval = if is_idle { IDLE_INTERVAL } else { LOOK_INTERVAL };
        cluster.copies.wake.wait_for(&mut wanted, interval);
    }
}

/// The messages that tell a holder what is counted on, by rising names; what is over; and what was
/// moved.
fn audits(
    node: &str,
    epochs: &[u64],
    over: &[u64],
    moved: Vec<(u64, Vec<u8>)>,
) -> impl Iterator<Item = Audit> {
    let mut counted: Vec<&[u64]> = epochs.chunks(EPOCHS_MAX).collect();
    counted.resize(counted.len().max(1), &[]);
    let first = |at: usize| counted.get(at).and_then(|of_it| of_it.first());
    let from = |at: usize| if at == 0 { 0 } else { first(at).copied().unwrap_or(u64::MAX) };
    let to = |at: usize| first(at + 1).map_or(u64::MAX, |next| next - 1);
    let ranges: Vec<_> = (0..counted.len()).map(|at| (from(at), to(at), counted[at])).collect();
    let mut paths = vec![Vec::new()];
    let mut bytes = 0;
    for (epoch, path) in moved {
        if bytes > PATHS_BYTES_MAX {
            paths.push(Vec::new());
            bytes = 0;
        }
        bytes += path.len();
        paths.last_mut().expect("it begins with one").push((epoch, path));
    }
    let over: Vec<&[u64]> = over.chunks(EPOCHS_MAX).collect();
    let count = ranges.len().max(over.len()).max(paths.len());
    (0..count).map(move |at| {
        // A message more tells of no range.
        let (from, to, epochs) = ranges.get(at).copied().unwrap_or((1, 0, &[]));
        Audit {
            node: node.to_owned(),
            range: (from, to),
            epochs: epochs.to_vec(),
            over: over.get(at).map_or(Vec::new(), |over| over.to_vec()),
            moved: paths.get_mut(at).map(std::mem::take).unwrap_or_default(),
        }
    })
}

/// A file in burst buffers that got another name is to be written back: who answers for it could
/// put it in the place of one name alone.
fn end_with_names(core: &Core, counted_on: &[(Arc<Copied>, FileId)]) {
    for (copied, id) in counted_on.iter().filter(|(copied, _)| copied.owing.is_some()) {
        let stub = core.files.get(*id).and_then(|file| file.inner.lock().stub.clone());
        if stub.is_some_and(|stub| stub.has_names()) {
            copied.end();
        }
    }
}

/// Copies could not be given back, for these reasons: the next try is later.
fn note_failed(memory: &mut Follow, failed: Vec<(Arc<HeldCopy>, String)>) {
    for (copy, reason) in failed {
        if copy.is_reason_new(&reason) {
            tracing::warn!(path = %copy.path().display(), reason, "a copy stays in memory");
        }
        // Each try may leave something on a PFS that fails.
        let before = memory.failed.get(&copy.epoch).map_or(Duration::ZERO, |(_, pause)| *pause);
        let pause = (before * 2).clamp(RETRY, RETRY_MAX);
        memory.failed.insert(copy.epoch, (Instant::now(), pause));
    }
}

fn is_written(core: &Core, id: FileId) -> bool {
    core.files.get(id).is_some_and(|file| file.inner.lock().writers > 0)
}

impl Cluster {
    /// Asks each holder whether it has what is counted on.
    fn audit_holders(
        &self,
        core: &Arc<Core>,
        counted_on: &[(Arc<Copied>, FileId)],
        memory: &mut Follow,
    ) {
        for holder in std::mem::take(&mut *self.copies.pushed_to.lock()) {
            memory.told.entry(holder).or_default().needed = Instant::now();
        }
        let names = memory.told.keys().cloned();
        let mut by_holder: BTreeMap<NodeName, Vec<u64>> =
            names.map(|holder| (holder, Vec::new())).collect();
        let moved = self.moved(core, counted_on, memory);
        let given_up = self.copies.given_up.lock().clone();
        for (copied, _) in counted_on.iter().chain(&given_up) {
            for holder in copied.copies.holders.iter().filter_map(|it| NodeName::new(it).ok()) {
                by_holder.entry(holder).or_default().push(copied.copies.epoch);
            }
        }
        for (holder, mut epochs) in by_holder {
            epochs.sort_unstable();
            let missing = match self.why_not_asked(&holder) {
                Some(_) => epochs.clone(),
                None => match self.audit(core, &holder, &epochs, &moved, memory) {
                    Some(missing) => missing,
                    None => continue,
                },
            };
            for (copied, _) in counted_on {
                // What was never brought up to date is not there yet.
                let is_begun = copied.lacking().is_none_or(|lacking| lacking.first > 1);
                if is_begun && missing.binary_search(&copied.copies.epoch).is_ok() {
                    copied.end();
                }
            }
        }
        memory.told.retain(|holder, told| {
            if self.why_not_asked(holder).is_some() {
                // What it has on its disk it has when it is there again.
                told.needed = Instant::now();
            }
            !told.epochs.is_empty() || told.needed.elapsed() < FORGET
        });
        for (copied, path) in moved {
            copied.note_told(&path);
        }
        self.end_without_buffers(counted_on);
        end_with_names(core, counted_on);
        let is_due = |(copied, id): &&(Arc<Copied>, FileId)| {
            copied.is_over() || copied.is_due(is_written(core, *id))
        };
        let due = counted_on.iter().filter(is_due);
        let (over, due): (Vec<_>, Vec<_>) = due.partition(|(copied, _)| copied.is_over());
        let named = |(copied, id): &(Arc<Copied>, FileId)| (copied.copies.epoch, *id);
        *self.copies.over.waiting.lock() = over.into_iter().map(named).collect();
        *self.copies.due.waiting.lock() = due.into_iter().map(named).collect();
        self.write_back_without_copies(core, false);
        self.write_back_without_copies(core, true);
    }

    /// What one of its buffers has is to be written back where that is gone.
    fn end_without_buffers(&self, counted_on: &[(Arc<Copied>, FileId)]) {
        // One that was started anew may have another disk.
        let is_gone = |(server, start): (&NodeName, u64)| {
            self.why_not_asked(server).is_some() || self.buffers.start_of(server) != Some(start)
        };
        for (copied, _) in counted_on {
            if copied.owing.as_ref().is_some_and(|owing| owing.servers().any(is_gone)) {
                copied.end();
            }
        }
    }

    /// Files that have another name than their holders know.
    fn moved(
        &self,
        core: &Core,
        counted_on: &[(Arc<Copied>, FileId)],
        memory: &mut Follow,
    ) -> Vec<(Arc<Copied>, PathBuf)> {
        let is_early = |(count, at): (usize, Instant)| at.elapsed() < NAME_INTERVAL * count as u32;
        let is_asked = self.copies.are_names_new.swap(false, Ordering::AcqRel);
        if !is_asked && memory.named.is_some_and(is_early) {
            return Vec::new();
        }
        memory.named = Some((counted_on.len(), Instant::now()));
        let moved = |(copied, id): &(Arc<Copied>, FileId)| {
            let file = core.files.get(*id)?;
            let lower = file.inner.lock().stub.as_ref()?.lower().clone();
            let path = lower.relative_path_known()?;
            copied.is_elsewhere(&path).then(|| (copied.clone(), path))
        };
        counted_on.iter().filter_map(moved).collect()
    }

    /// Which of these a holder lacks; `None` where it was not asked, or did not answer.
    fn audit(
        &self,
        core: &Core,
        holder: &NodeName,
        epochs: &[u64],
        moved: &[(Arc<Copied>, PathBuf)],
        memory: &mut Follow,
    ) -> Option<Vec<u64>> {
        let told = memory.told.entry(holder.clone()).or_default();
        let is_recent = told.at.is_some_and(|at| at.elapsed() < AUDIT_INTERVAL);
        let moved: Vec<(u64, Vec<u8>)> = moved
            .iter()
            .filter(|(copied, _)| epochs.binary_search(&copied.copies.epoch).is_ok())
            .map(|(copied, path)| (copied.copies.epoch, path.as_os_str().as_bytes().to_vec()))
            .collect();
        let is_told = is_recent && told.epochs == epochs && moved.is_empty();
        if is_told {
            return None;
        }
        let is_over = |epoch: &&u64| epochs.binary_search(epoch).is_err();
        let over: Vec<u64> = told.epochs.iter().filter(is_over).copied().collect();
        let mut missing = Vec::new();
        for audit in audits(core.memory_only.node(), epochs, &over, moved) {
            let request = threads::about_copies(&postcard::to_stdvec(&Asked::Audit(audit)).ok()?);
            let reply =
                self.transport.call(holder.as_str(), &request, self.config.peer_timeout).ok()?;
            missing.extend(postcard::from_bytes::<AuditAnswer>(&reply).ok()?.ok()?);
        }
        missing.sort_unstable();
        (told.epochs, told.at) = (epochs.to_vec(), Some(Instant::now()));
        if !epochs.is_empty() {
            told.needed = Instant::now();
        }
        Some(missing)
    }

    /// Writes files back beside this thread, one after the other: those that have no copy any more,
    /// or those that are due, which nobody waits for.
    fn write_back_without_copies(&self, core: &Arc<Core>, are_due: bool) {
        while let Some(first) = self.next_without_copy(core, are_due) {
            let (Some(cluster), core) = (self.myself.upgrade(), core.clone()) else { return };
            let run = move || {
                let mut next = Some(first);
                while let Some((running, file)) = next {
                    let written = match are_due {
                        true => memory_only::write_back_in_background(&core, &file),
                        false => memory_only::write_back_for_another(&core, &file),
                    };
                    if let Err(error) = written {
                        running.failed(error.to_string());
                    }
                    drop(running);
                    next = cluster.next_without_copy(&core, are_due);
                }
            };
            // Where no thread is to be had it is tried at the next look.
            if std::thread::Builder::new().name("copies-missing".into()).spawn(run).is_err() {
                return;
            }
        }
    }

    /// The next file that is to be written back, and its turn.
    fn next_without_copy(
        &self,
        core: &Core,
        are_due: bool,
    ) -> Option<(Running<u64>, Arc<FileState>)> {
        let files = if are_due { &self.copies.due } else { &self.copies.over };
        let has_turn = || match are_due {
            true => files.has_turn_in_background(core),
            false => files.running.has_turn(),
        };
        while has_turn() && !self.is_stopping() {
            let (epoch, id) = files.waiting.lock().pop_front()?;
            let (answer, running) = files.running.ask(epoch);
            if let Answer::Stays(reason) = &answer {
                tracing::debug!(inode = id.inode, reason, "it is tried again");
            }
            if let (Some(running), Some(file)) = (running, core.files.get(id)) {
                return Some((running, file));
            }
        }
        None
    }

    /// Answers which copies of a node's files are not held here, and frees those that it does not
    /// count on.
    pub(super) fn answer_audit(&self, from: &NodeName, audit: &Audit) -> Vec<u64> {
        let held = self.copies.held.all();
        for (epoch, path) in &audit.moved {
            let copy = held.iter().find(|copy| copy.epoch == *epoch && copy.node == audit.node);
            copy.map(|copy| copy.set_path(path_of(path)));
        }
        for copy in held.iter().filter(|copy| copy.owner == *from) {
            if copy.node != audit.node {
                copy.is_orphan.store(true, Ordering::Release);
                continue;
            }
            let is_told = (audit.range.0..=audit.range.1).contains(&copy.epoch);
            let is_old = is_told
                && copy.since.elapsed() > YOUNG
                && audit.epochs.binary_search(&copy.epoch).is_err();
            if is_old || audit.over.contains(&copy.epoch) {
                self.copies.held.drop_unneeded(copy);
            }
        }
        let is_held =
            |epoch: u64| held.iter().any(|copy| copy.epoch == epoch && copy.node == audit.node);
        audit.epochs.iter().copied().filter(|epoch| !is_held(*epoch)).collect()
    }

    /// Asks nodes whose files are held now and then whether they were started anew: one that has no
    /// copies since says nothing by itself.
    fn ask_owners(&self, memory: &mut Follow) {
        if memory.asked.is_some_and(|at| at.elapsed() < AUDIT_INTERVAL) {
            return;
        }
        memory.asked = Some(Instant::now());
        self.forget_given_up();
        self.find_orphans(&|_| true);
    }

    /// Asks those whose copies are meant now; whether each of them is known to be the same or not,
    /// or to be gone.
    pub(super) fn find_orphans(&self, is_meant: &dyn Fn(&HeldCopy) -> bool) -> bool {
        let mut held = self.copies.held.all();
        held.retain(|copy| is_meant(copy));
        let starts: BTreeSet<_> = held.iter().map(|copy| (&copy.owner, &copy.node)).collect();
        let mut are_known = true;
        for (owner, node) in starts {
            if self.why_not_asked(owner).is_some() {
                continue;
            }
            match self.is_start(owner.as_str(), node) {
                Some(true) => {}
                Some(false) => {
                    let of_it = held.iter().filter(|it| &it.owner == owner && &it.node == node);
                    of_it.for_each(|copy| copy.is_orphan.store(true, Ordering::Release));
                }
                None => are_known = false,
            }
        }
        are_known
    }

    /// Forgets files that were given up to a copy which is in its place by now: other holders may
    /// free theirs.
    fn forget_given_up(&self) {
        let given_up: Vec<_> =
            self.copies.given_up.lock().iter().take(GIVEN_UP_ASKED).cloned().collect();
        for (copied, _) in given_up {
            let copies = &copied.copies;
            if self.was_placed(&copies.holders, copies.epoch) {
                let is_it = |other: &Arc<Copied>| other.copies.epoch == copies.epoch;
                self.copies.given_up.lock().retain(|(other, _)| !is_it(other));
            }
        }
    }

    /// Gives copies back whose nodes are gone, and those whose memory is needed, large ones first.
    /// Whether some are left because there was no time.
    fn look_after_held(&self, core: &Arc<Core>, memory: &mut Follow) -> bool {
        let mut copies = self.copies.held.all();
        note_failed(memory, self.copies.others.take_failed());
        // For a while after the pause it is remembered how long the next one is.
        memory.failed.retain(|_, (at, pause)| at.elapsed() < *pause * 2);
        let is_paused =
            |epoch| memory.failed.get(&epoch).is_some_and(|(at, pause)| at.elapsed() < *pause);
        copies.sort_by_key(|copy| std::cmp::Reverse(copy.bytes()));
        let wanted = std::mem::take(&mut *self.copies.wanted_bytes.lock());
        let (mut coming, mut due) = (0, Vec::new());
        for copy in copies {
            let is_needed = coming < wanted && copy.bytes() > 0;
            // Its node wrote it back where this one was away, and knows that as long as it runs.
            let is_asked_for = copy.was_away.load(Ordering::Acquire);
            let is_due = is_needed || is_asked_for || self.is_gone(&copy);
            if is_due && !is_paused(copy.epoch) {
                coming += copy.bytes();
                due.push(copy);
            }
        }
        let is_slow = |copy: &Arc<HeldCopy>| copy.is_in_no_hurry();
        let (slow, due): (VecDeque<_>, VecDeque<_>) = due.into_iter().partition(is_slow);
        self.bring_in_background(core, slow);
        let (due, failed) = (Mutex::new(due), Mutex::new(Vec::new()));
        let begun = Instant::now();
        let work = || {
            while begun.elapsed() < BATCH_LIMIT && !self.is_stopping() {
                let Some(copy) = due.lock().pop_front() else { return };
                if let Err(reason) = self.give_back_now(core, &copy) {
                    failed.lock().push((copy, reason));
                }
            }
        };
        let helpers = due.lock().len().min(WORKERS).saturating_sub(1);
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                // Where no thread is to be had this one does it all.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        note_failed(memory, failed.into_inner());
        !due.into_inner().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_there_is_to_tell_is_told_once_and_no_message_is_too_long() {
        let many: Vec<u64> = (0..100_000).map(|it| it * 1_000_000_007 + 5).collect();
        let moved: Vec<_> = many.iter().map(|epoch| (*epoch, vec![b'x'; 90])).collect();
        let none = Vec::new();
        for (epochs, over) in [(&many, &none), (&none, &many), (&many, &many), (&none, &none)] {
            let messages: Vec<Audit> = audits("n", epochs, over, moved.clone()).collect();
            let all = |of: fn(&Audit) -> &Vec<u64>| -> Vec<u64> {
                messages.iter().flat_map(of).copied().collect()
            };
            assert_eq!((all(|it| &it.epochs), all(|it| &it.over)), (epochs.clone(), over.clone()));
            let told: Vec<_> = messages.iter().flat_map(|it| it.moved.clone()).collect();
            assert!(told == moved);
            // Each name is in one range: that of the message which has it.
            for name in [0, 5, many[29_999], many[30_000] - 1, many[30_000], u64::MAX] {
                let of_it = messages.iter().filter(|it| (it.range.0..=it.range.1).contains(&name));
                let of_it: Vec<_> = of_it.collect();
                let is_counted = epochs.binary_search(&name).is_ok();
                assert_eq!(of_it.len(), 1, "{name}");
                assert_eq!(of_it[0].epochs.binary_search(&name).is_ok(), is_counted, "{name}");
            }
            for message in messages {
                let bytes = postcard::to_stdvec(&Asked::Audit(message)).unwrap().len();
                assert!(bytes < 900_000, "{bytes} bytes");
            }
        }
    }
}
