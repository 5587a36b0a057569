//! A run: batches from a seed or a log, what is found, and a shorter log that still shows it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::act::{Job, Outcome, Report};
use super::content::{Content, Wrong};
use super::ending;
use super::generator::Generator;
use super::held::Reader;
use super::nodes::Nodes;
use super::operation::{
    Author, Batch, Change, FILES, Manner, Operation, Way, Weather, is_kept, kept,
};
use super::world::{State, View, World};

/// A batch that takes longer hangs. Nothing in it takes more than a few seconds.
const HANG_LIMIT: Duration = Duration::from_secs(100);
/// After that and the end of all nodes, what hung ends within this time.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Fewer operations may pass without any use of other nodes' memory.
const PEERS_DUE_AFTER: u64 = 1000;
/// Bit of the number of a write that makes a file known again.
const RENEWAL: u64 = 1 << 40;

/// How long and how much.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of the operations.
    pub seed: u64,
    /// Operations to carry out.
    pub operations: u64,
    /// Nodes to kill: the run goes on until these are killed, however many operations that takes.
    pub kills: Option<u64>,
    /// Nodes.
    pub nodes: usize,
    /// Directory below which the PFS directory is; the temporary one without it.
    pub pfs: Option<PathBuf>,
    /// Whether the nodes have mounts, which needs root.
    pub are_mounted: bool,
    /// Whether what goes between them is encrypted.
    pub is_encrypted: bool,
    /// Whether nodes have burst buffers: files that are kept are in these (mode `alw`), and others
    /// are written with clean copies there (mode `bld`).
    pub has_buffers: bool,
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Operations carried out.
    pub applied: u64,
    /// Operations whose open was told that its version is gone, or that a node refused.
    pub stale: u64,
    /// Operations that failed with their node.
    pub lost: u64,
    /// Bytes that nodes read from each other's memory.
    pub peer_bytes: u64,
    /// Blocks that a node read from the PFS for another one.
    pub filled_for_peers: u64,
    /// Blocks that changed while they were sent, and were thrown away.
    pub changed_under_way: u64,
    /// Bytes that were sent to be kept in memory for another node.
    pub pushed_bytes: u64,
    /// Copies that took the place of a file whose node was gone.
    pub put_in_place: u64,
    /// By kind of operation.
    pub kinds: BTreeMap<String, u64>,
    /// Time that operations took, by kind.
    pub took: BTreeMap<String, Duration>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { applied, stale, lost, filled_for_peers, changed_under_way, .. } = self;
        write!(
            f,
            "{applied} operations, {stale} stale, {lost} lost with their node; {} MiB from other \
             nodes, {filled_for_peers} blocks filled for others, {changed_under_way} changed under \
             way; {} MiB of copies sent, {} put in place",
            self.peer_bytes >> 20,
            self.pushed_bytes >> 20,
            self.put_in_place
        )?;
        for (kind, count) in &self.kinds {
            let took = self.took.get(kind).copied().unwrap_or_default();
            write!(f, "\n  {kind} {count}, {took:.1?}")?;
        }
        Ok(())
    }
}

/// What is wrong, and with which file.
#[derive(Clone, Debug)]
pub struct Fault {
    /// In words.
    pub wrong: Wrong,
    /// The file, if it is about one.
    pub file: Option<usize>,
}

/// A run that found something.
#[derive(Debug)]
pub struct Finding {
    /// What is wrong.
    pub fault: Fault,
    /// All batches up to it; the last one shows it.
    pub log: Vec<Batch>,
    /// The ends of the nodes' logs.
    pub node_logs: String,
}

impl Finding {
    /// A text for a person: what is wrong, and the last operations that may have to do with it.
    pub fn describe(&self, plan: &Plan, lines_max: usize) -> String {
        let mut lines = Vec::new();
        let mut slots = BTreeMap::new();
        for (number, batch) in self.log.iter().enumerate() {
            for operation in batch {
                if let Operation::Hold { slot, file, .. } = operation {
                    slots.insert(*slot, *file);
                }
                let file = match operation {
                    Operation::ReadHeld { slot, .. } | Operation::Release { slot } => {
                        slots.get(slot).copied()
                    }
                    other => other.file(),
                };
                if file.is_none() || self.fault.file.is_none() || file == self.fault.file {
                    lines.push(format!("  {number}: {operation:?}\n"));
                }
            }
        }
        let text = format!(
            "seed {}, {} nodes: wrong in batch {}{}: {}\n",
            plan.seed,
            plan.nodes,
            self.log.len().saturating_sub(1),
            self.fault.file.map(|file| format!(", file {file}")).unwrap_or_default(),
            self.fault.wrong
        );
        let start = lines.len().saturating_sub(lines_max);
        text + &lines[start..].concat()
    }
}

struct Driver {
    nodes: Arc<Nodes>,
    world: World,
    held: Vec<Option<Arc<Reader>>>,
    tally: Tally,
}

type Checked = Result<(), Fault>;

fn kind(operation: &Operation) -> String {
    let text = format!("{operation:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

fn general(wrong: Wrong) -> Fault {
    Fault { wrong, file: None }
}

/// Nodes that are killed in a batch, and those that are paused.
fn struck(batch: &[Operation]) -> (Vec<usize>, Vec<usize>) {
    let (mut killed, mut paused) = (Vec::new(), Vec::new());
    for operation in batch {
        match operation {
            Operation::Kill { node, .. } => killed.push(*node),
            Operation::Pause { node, .. } => paused.push(*node),
            _ => {}
        }
    }
    (killed, paused)
}

impl Driver {
    fn start(plan: &Plan) -> io::Result<Driver> {
        let nodes = Nodes::start(plan)?;
        let world = World::new(FILES, plan.nodes);
        let held = world.views.iter().map(|_| None).collect();
        Ok(Driver { nodes: Arc::new(nodes), world, held, tally: Tally::default() })
    }

    /// The node that an operation goes through.
    fn node_of(&self, operation: &Operation) -> Option<usize> {
        match operation {
            Operation::Read { node, .. }
            | Operation::Hold { node, .. }
            | Operation::Evict { node, .. }
            | Operation::Load { node, .. }
            | Operation::EvictAll { node, .. }
            | Operation::Resize { node, .. }
            | Operation::SetPolicy { node, .. } => Some(*node),
            Operation::Change { author, .. } => author.node(),
            Operation::ReadHeld { slot, .. } => self.world.views[*slot].as_ref().map(|it| it.node),
            _ => None,
        }
    }

    fn job(&self, operation: &Operation, batch: &[Operation]) -> Job {
        let (killed, paused) = struck(batch);
        let node = self.node_of(operation);
        let mut is_lost = node.is_some_and(|node| killed.contains(&node));
        let held = match operation {
            Operation::ReadHeld { slot, .. } => {
                let reader = self.held[*slot].clone();
                reader.zip(self.world.views[*slot].clone())
            }
            _ => None,
        };
        let file = match &held {
            Some((_, view)) => Some(view.file),
            None => operation.file(),
        };
        if file.is_some_and(is_kept) {
            // Its bytes may be where this node cannot reach them, or another one took them over.
            let is_cut = batch.iter().any(|it| matches!(it, Operation::Link { .. }));
            is_lost |= is_cut || !self.world.cut.is_empty();
            is_lost |= node.is_some_and(|it| paused.contains(&it) || !self.world.is_up(it));
        }
        Job {
            operation: operation.clone(),
            nodes: self.nodes.clone(),
            before: file.map(|file| self.world.files[file].clone()).unwrap_or_default(),
            pending: file.and_then(|file| self.world.pending(batch, file)),
            is_lost,
            held,
        }
    }

    /// Carries out a batch, and looks at what came of it.
    fn apply(&mut self, batch: &[Operation]) -> Checked {
        let are_mounted = self.nodes.are_mounted;
        let fits = |operation: &&Operation| self.world.takes(operation, are_mounted);
        let batch: Batch = batch.iter().filter(fits).cloned().collect();
        for operation in &batch {
            if let Operation::Stop { node } | Operation::Kill { node, .. } = operation {
                self.note_counters(*node);
            }
            if let Operation::Stop { node } = operation {
                self.release_all(Some(*node));
            }
        }
        let reports = self.run(&batch)?;
        for (operation, report) in batch.iter().zip(&reports) {
            self.tally.applied += 1;
            *self.tally.kinds.entry(kind(operation)).or_default() += 1;
            *self.tally.took.entry(kind(operation)).or_default() += report.took;
            match &report.outcome {
                Outcome::Done => {}
                Outcome::Stale => self.tally.stale += 1,
                Outcome::Lost => self.tally.lost += 1,
                Outcome::Wrong(wrong) => {
                    let slot_file = match operation {
                        Operation::ReadHeld { slot, .. } => {
                            self.world.views[*slot].as_ref().map(|view| view.file)
                        }
                        _ => None,
                    };
                    let file = operation.file().or(slot_file);
                    return Err(Fault { wrong: format!("{operation:?}: {wrong}"), file });
                }
            }
        }
        self.note(&batch, reports)
    }

    /// Runs the operations of a batch at the same time.
    fn run(&self, batch: &[Operation]) -> Result<Vec<Report>, Fault> {
        let (sender, receiver) = mpsc::channel();
        for (number, operation) in batch.iter().enumerate() {
            let (job, sender) = (self.job(operation, batch), sender.clone());
            let run = move || {
                let began = Instant::now();
                let report = job.run();
                let report = Report { took: began.elapsed(), ..report };
                // What the job holds of the nodes is given up before anybody goes on.
                drop(job);
                let _ = sender.send((number, report));
            };
            let thread = std::thread::Builder::new().name(format!("operation-{number}"));
            thread.spawn(run).map_err(|error| general(format!("starting a thread: {error}")))?;
        }
        drop(sender);
        let mut reports: Vec<Option<Report>> = batch.iter().map(|_| None).collect();
        let deadline = Instant::now() + HANG_LIMIT;
        while let Some(left) = reports.iter().position(Option::is_none) {
            match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((number, report)) => reports[number] = Some(report),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    self.nodes.kill_all();
                    // What hung ends with the nodes, and gives their directories up.
                    while receiver.recv_timeout(END_LIMIT).is_ok() {}
                    let wrong = format!("{:?} hangs", batch[left]);
                    return Err(Fault { wrong, file: batch[left].file() });
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let wrong = format!("{:?} panicked", batch[left]);
                    return Err(Fault { wrong, file: batch[left].file() });
                }
            }
        }
        Ok(reports.into_iter().flatten().collect())
    }

    /// Takes in what a batch did.
    fn note(&mut self, batch: &[Operation], reports: Vec<Report>) -> Checked {
        let (killed, paused) = struck(batch);
        for (operation, report) in batch.iter().zip(&reports) {
            if let Operation::Change { file, change, author, generation, .. } = operation {
                match report.outcome {
                    Outcome::Lost => self.renew(*file, *generation)?,
                    _ => self.note_change(*file, *change, *author, *generation),
                }
            }
        }
        for (operation, report) in batch.iter().zip(reports) {
            match operation {
                Operation::Hold { slot, node, way, file } => {
                    self.release(*slot);
                    let is_known = self.world.pending(batch, *file).is_none()
                        && !paused.contains(node)
                        && !killed.contains(node);
                    if let Some(reader) = report.opened.filter(|_| is_known) {
                        let content = self.world.files[*file].clone();
                        self.held[*slot] = Some(Arc::new(reader));
                        self.world.views[*slot] = Some(View::new(*node, *way, *file, content));
                    }
                }
                Operation::Release { slot } => self.release(*slot),
                Operation::Kill { node, .. } | Operation::Stop { node } => {
                    self.world.nodes[*node] = State::Down;
                    self.release_all(Some(*node));
                }
                Operation::Start { node } => self.world.nodes[*node] = State::Up,
                Operation::Link { from, to, weather: Weather::Cut } => {
                    self.world.cut.insert((*from, *to));
                }
                // It ends streams, and the link stays what it was.
                Operation::Link { weather: Weather::Reset, .. } => {}
                Operation::Link { from, to, .. } => {
                    self.world.cut.remove(&(*from, *to));
                }
                _ => {}
            }
        }
        if killed.is_empty() { Ok(()) } else { self.settle() }
    }

    /// Has the files of which one copy went with a node come to the PFS, before another node goes:
    /// two copies outlive one node at a time.
    fn settle(&mut self) -> Checked {
        self.nodes.heal_links();
        self.world.cut.clear();
        let nodes = (0..self.world.nodes.len()).filter(|node| self.world.is_up(*node));
        for node in nodes.take(2).collect::<Vec<_>>() {
            let read = |file: usize| {
                let pages = self.world.files[file].pages() + 1;
                Operation::Read { node, way: Way::Library, file, pieces: vec![(0, pages)] }
            };
            let batch: Batch = kept().map(read).collect();
            let reports = self.run(&batch)?;
            for (operation, report) in batch.iter().zip(reports) {
                if report.outcome != Outcome::Done {
                    let wrong = format!("after a kill, {operation:?}: {:?}", report.outcome);
                    return Err(Fault { wrong, file: operation.file() });
                }
            }
        }
        Ok(())
    }

    fn note_change(&mut self, file: usize, change: Change, author: Author, generation: u64) {
        let after = change.apply(&self.world.files[file], generation);
        for view in self.world.views.iter_mut().flatten().filter(|view| view.file == file) {
            view.note(change, author, &after);
        }
        self.world.files[file] = after;
    }

    /// Makes a file known again whose writer was lost with its node.
    fn renew(&mut self, file: usize, generation: u64) -> Checked {
        let generation = generation | RENEWAL;
        let change = Change::Recreate { pages: self.world.files[file].pages().max(1) };
        let (author, manner) = (Author::Behind, Manner::default());
        let operation = Operation::Change { file, change, author, generation, manner };
        let batch = [operation];
        let report = self.job(&batch[0], &batch).run();
        if report.outcome != Outcome::Done {
            let wrong = format!("making the file anew: {:?}", report.outcome);
            return Err(Fault { wrong, file: Some(file) });
        }
        for slot in 0..self.held.len() {
            if self.world.views[slot].as_ref().is_some_and(|view| view.file == file) {
                self.release(slot);
            }
        }
        self.world.files[file] = change.apply(&Content::default(), generation);
        Ok(())
    }

    fn release(&mut self, slot: usize) {
        self.held[slot] = None;
        self.world.views[slot] = None;
    }

    /// Closes what is open through a node, or through any.
    fn release_all(&mut self, of: Option<usize>) {
        for slot in 0..self.held.len() {
            let view = self.world.views[slot].as_ref();
            if view.is_some_and(|view| of.is_none_or(|node| node == view.node)) {
                self.release(slot);
            }
        }
    }

    /// Keeps what a node counted, before it ends.
    fn note_counters(&mut self, node: usize) {
        if let Ok(status) = self.nodes.members[node].status() {
            self.tally.peer_bytes += status.peer_read_bytes;
            let cluster = status.cluster.unwrap_or_default();
            self.tally.filled_for_peers += cluster.blocks_filled_for_peers;
            self.tally.changed_under_way += cluster.blocks_changed;
            self.tally.pushed_bytes += cluster.copies.pushed_bytes;
            self.tally.put_in_place += cluster.copies.put_in_place;
        }
    }

    fn finish(&mut self) -> Checked {
        self.release_all(None);
        self.nodes.heal_links();
        for (number, member) in self.nodes.members.iter().enumerate() {
            if !self.world.is_up(number) {
                let started = member.start_again();
                started.map_err(|error| general(format!("start of n{number}: {error}")))?;
            }
        }
        self.world.nodes.fill(State::Up);
        ending::check_files(&self.nodes, &self.world)
            .map_err(|(file, wrong)| Fault { wrong, file: Some(file) })?;
        for node in 0..self.nodes.members.len() {
            self.note_counters(node);
        }
        for (number, member) in self.nodes.members.iter().enumerate() {
            ending::check_bounds(number, member).map_err(general)?;
        }
        let Tally { applied, peer_bytes, pushed_bytes, .. } = self.tally;
        if applied >= PEERS_DUE_AFTER && (peer_bytes == 0 || pushed_bytes == 0) {
            return Err(general("no node read from another one, or had a copy: no test".into()));
        }
        ending::stop_all(&self.nodes).map_err(general)
    }
}

/// Carries out what `next` gives until it gives no more.
fn drive(
    plan: &Plan,
    next: &mut dyn FnMut(&Driver) -> Option<Batch>,
) -> io::Result<Result<Tally, Box<Finding>>> {
    let mut driver = Driver::start(plan)?;
    let mut log = Vec::new();
    let result = (|| {
        while let Some(batch) = next(&driver) {
            log.push(batch);
            let batch = log.last().expect("just pushed");
            driver.apply(batch)?;
        }
        driver.finish()
    })();
    Ok(match result {
        Ok(()) => Ok(driver.tally),
        Err(fault) => {
            let node_logs = driver.nodes.logs();
            Err(Box::new(Finding { fault, log, node_logs }))
        }
    })
}

/// Random operations.
///
/// # Errors
/// The nodes do not start. What they do wrong is a finding.
pub fn random(plan: &Plan) -> io::Result<Result<Tally, Box<Finding>>> {
    let mut generator = match plan.kills {
        Some(_) => Generator::that_kills(plan.seed),
        None => Generator::new(plan.seed),
    };
    let mut first = Some(generator.first());
    drive(plan, &mut |driver| {
        if let Some(first) = first.take() {
            return Some(first);
        }
        let killed = || driver.tally.kinds.get("Kill").copied().unwrap_or_default();
        let goes_on = match plan.kills {
            Some(kills) => killed() < kills,
            None => driver.tally.applied < plan.operations,
        };
        goes_on.then(|| generator.next(&driver.world))
    })
}

/// The batches of a log, again. What runs at the same time may come in another order.
///
/// # Errors
/// As [`random`].
pub fn replay(plan: &Plan, log: &[Batch]) -> io::Result<Result<Tally, Box<Finding>>> {
    let mut batches = log.iter().cloned();
    drive(plan, &mut |_| batches.next())
}

/// Drops batches from the log of a finding as long as something stays wrong.
pub fn shrink(plan: &Plan, finding: Finding, limit: Duration) -> Finding {
    let started = Instant::now();
    let mut best = finding;
    let mut part = best.log.len() / 2;
    while part > 0 && started.elapsed() < limit {
        // The first batch makes the files.
        let mut start = 1;
        while start < best.log.len() && started.elapsed() < limit {
            let end = (start + part).min(best.log.len());
            let mut shorter = best.log[..start].to_vec();
            shorter.extend_from_slice(&best.log[end..]);
            match replay(plan, &shorter) {
                Err(_) => return best,
                Ok(Err(found)) if found.log.len() < best.log.len() => best = *found,
                Ok(_) => start = end,
            }
        }
        part /= 2;
    }
    best
}

/// Writes a log, one batch a line.
///
/// # Errors
/// Those of the file.
pub fn save(log: &[Batch], path: &Path) -> io::Result<()> {
    let mut file = io::BufWriter::new(std::fs::File::create(path)?);
    for batch in log {
        serde_json::to_writer(&mut file, batch)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}

/// Reads a log.
///
/// # Errors
/// Those of the file, and lines that are no batch.
pub fn load(path: &Path) -> io::Result<Vec<Batch>> {
    let lines = io::BufReader::new(std::fs::File::open(path)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}
