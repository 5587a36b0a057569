//! A shaped test cluster on this machine: a network namespace a node, links and disks held to
//! rates, a real parallel file system over the data nodes, a Tidepool daemon a compute node.
//!
//! ```text
//!   c1 daemon, mount     c2 ...                 d1 server, disk    d2 ...
//!      │ shaped both ways │                        │                │
//!   ───┴──────────────────┴── bridge, namespace of its own ─────────┴───
//! ```
//!
//! Every step is in a journal before it is done, so that [`down`] finds what to undo after any end
//! of `up`, also after SIGKILL. Needs root; the network of this machine is not touched.

mod actions;
mod daemon;
mod disk;
mod gluster;
mod hadoop;
mod journal;
mod moosefs;
mod network;
mod pfs;
mod plan;
mod plane;
mod processes;
mod services;
mod space;
mod state;
mod status;
mod task;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::arguments::{ClusterService, PfsKind};
use crate::cleanup::{self, Guard};
use crate::{environment, process};

pub use disk::DiskTraffic;
pub use journal::Death;
use journal::{Journal, Step};
pub use network::LinkTraffic;
pub use plan::{Node, Plan, Role, check_name};
pub use plane::PlaneStatus;
use state::State;
pub use status::{NodeStatus, Status};
pub use task::run;

const POLL: Duration = Duration::from_millis(10);
/// Programs that every cluster needs, each with the package of Debian that has it.
const PROGRAMS: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("bridge", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("hostname", "hostname"),
    ("losetup", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("fusermount3", "fuse3"),
];

/// A cluster that is up.
#[derive(Debug)]
pub struct Cluster {
    plan: Plan,
    // Takes the cluster down when dropped or interrupted.
    down: Option<Guard>,
}

/// What this machine lacks for a cluster, with the remedy, in one line.
pub fn missing(kind: PfsKind, services: &[ClusterService]) -> Option<String> {
    if !environment::is_root() {
        return Some("a test cluster needs root: run it as root or with sudo".into());
    }
    let directories: Vec<PathBuf> = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    let lacks = |program: &str| !directories.iter().any(|path| path.join(program).is_file());
    let services = services::programs(services);
    let programs = PROGRAMS.iter().chain(pfs::programs(kind)).chain(&services);
    let mut packages: Vec<&str> =
        programs.filter(|(program, _)| lacks(program)).map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    if !packages.is_empty() {
        return Some(format!("a test cluster needs packages: install {}", packages.join(" ")));
    }
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
    fuse.err().map(|error| format!("/dev/fuse cannot be opened: {error}"))
}

impl Cluster {
    /// Makes a cluster. What an earlier `up` of the same name left half-made is undone first.
    ///
    /// # Errors
    /// What the machine lacks, a cluster of this name that is up, and each step that fails; then
    /// what was done is undone.
    pub fn up(plan: &Plan) -> Result<Self> {
        Self::up_until(plan, None)
    }

    /// Makes a cluster, and ends this very process by SIGKILL at a step; for tests.
    ///
    /// # Errors
    /// Those of [`Cluster::up`].
    pub fn up_until(plan: &Plan, death: Option<Death>) -> Result<Self> {
        check_name(&plan.name)?;
        if let Some(missing) = missing(plan.pfs, &plan.services) {
            bail!("{missing}");
        }
        let state = State::claim(&plan.name)?;
        if state.is_complete() {
            bail!("cluster {0} is up: ./x cluster --name {0} down", plan.name);
        }
        clear(plan, &state)?;
        let name = plan.name.clone();
        let down = cleanup::guard(move || take_down_and_say(&name));
        let mut plan = plan.clone();
        make(&mut plan, &state, death)?;
        state.complete(&plan)?;
        Ok(Cluster { plan, down: Some(down) })
    }

    /// A cluster that another process made and that stays up.
    ///
    /// # Errors
    /// Where none of this name is up.
    pub fn open(name: &str) -> Result<Self> {
        check_name(name)?;
        Ok(Cluster { plan: State::plan(name)?, down: None })
    }

    /// Leaves the cluster up when this value and this process end.
    pub fn keep(mut self) -> Self {
        if let Some(guard) = self.down.take() {
            cleanup::forget(guard);
        }
        self
    }

    /// What it consists of.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A command on a node, with `tidepool` in its search path. Its paths are those of the node.
    ///
    /// # Errors
    /// A node that is not there or not up.
    pub fn command(&self, node: &str, program: &str) -> Result<Command> {
        space::command_on(&self.plan, self.plan.node(node)?, program)
    }

    /// Runs a command on a node and returns what it printed.
    ///
    /// # Errors
    /// A node that is not there or not up, and a command that fails, with both its outputs.
    pub fn run(&self, node: &str, command: &[&str]) -> Result<String> {
        let (program, arguments) = command.split_first().context("no command")?;
        process::read(self.command(node, program)?.args(arguments))
    }

    /// The daemon's mount of a compute node, as this machine sees it.
    ///
    /// # Errors
    /// A node that is not there or not up.
    pub fn mount(&self, node: &str) -> Result<PathBuf> {
        space::seen_from_here(&self.plan, self.plan.node(node)?, space::MOUNT)
    }

    /// The bare file system of a compute node, as this machine sees it.
    ///
    /// # Errors
    /// A node that is not there or not up.
    pub fn pfs(&self, node: &str) -> Result<PathBuf> {
        space::seen_from_here(&self.plan, self.plan.node(node)?, space::PFS)
    }

    /// Bytes that left the data nodes since they were made, with headers: what the file system
    /// gave out, whether it came from disks or from the memory of data nodes.
    ///
    /// # Errors
    /// A data node that is not up.
    pub fn pfs_bytes_read(&self) -> Result<u64> {
        let links = self.plan.of(Role::Data).map(|node| self.link(&node.name));
        links.map(|link| Ok(link?.sent_bytes)).sum()
    }

    /// Bytes that were read from and written to the disks of data nodes since they were made.
    ///
    /// # Errors
    /// A data node that is not up.
    pub fn disks(&self) -> Result<DiskTraffic> {
        let mut sum = DiskTraffic::default();
        for node in self.plan.of(Role::Data) {
            let disk = disk::traffic(&self.plan, node)?;
            sum.read_bytes += disk.read_bytes;
            sum.written_bytes += disk.written_bytes;
        }
        Ok(sum)
    }

    /// What the link of a node carried since it was made.
    ///
    /// # Errors
    /// A node that is not there or not up.
    pub fn link(&self, node: &str) -> Result<LinkTraffic> {
        network::traffic(space::holder(&self.plan, self.plan.node(node)?)?)
    }

    /// The network of a node, which a thread may enter.
    ///
    /// # Errors
    /// A node that is not there or not up.
    pub fn network(&self, node: &str) -> Result<fs::File> {
        let holder = space::holder(&self.plan, self.plan.node(node)?)?;
        fs::File::open(format!("/proc/{holder}/ns/net")).context("opening a node's network")
    }

    /// Starts a service that was not asked for when the cluster was made, and waits until it has
    /// all its workers. It ends with [`Cluster::stop_service`], or with the cluster.
    ///
    /// # Errors
    /// A program that does not start.
    pub fn start_service(&self, service: ClusterService) -> Result<()> {
        services::prepare(&self.plan, &[service])?;
        services::start(&self.plan, service)
    }

    /// Address of HDFS, where it runs.
    ///
    /// # Errors
    /// A cluster without nodes.
    pub fn hdfs(&self) -> Result<String> {
        hadoop::address(&self.plan)
    }

    /// Ends a service on all nodes.
    ///
    /// # Errors
    /// A process that does not end.
    pub fn stop_service(&self, service: ClusterService) -> Result<()> {
        services::stop(&self.plan, service)
    }

    /// Writes everything back and empties the page cache of this machine, which all nodes share.
    ///
    /// # Errors
    /// Where the kernel refuses it.
    pub fn drop_caches(&self) -> Result<()> {
        rustix::fs::sync();
        fs::write("/proc/sys/vm/drop_caches", "3").context("emptying the page cache")
    }

    /// Undoes everything. Returns what could not be undone, a line each.
    ///
    /// # Errors
    /// Where the journal cannot be read, or another command works on the cluster.
    pub fn down(self) -> Result<Vec<String>> {
        let name = self.plan.name.clone();
        let problems = down(&name)?;
        drop(self.keep());
        Ok(problems)
    }
}

/// Undoes the cluster of a name, and what an `up` that was killed has left of it. Returns what
/// could not be undone, a line each; a second call tries that again.
///
/// # Errors
/// Where the journal cannot be read, or another command works on the cluster.
pub fn down(name: &str) -> Result<Vec<String>> {
    check_name(name)?;
    match State::find(name)? {
        Some(state) => state.remove(),
        None => Ok(Vec::new()),
    }
}

fn take_down_and_say(name: &str) {
    let problems = State::reopen(name).and_then(State::remove);
    match problems {
        Ok(problems) => problems.iter().for_each(|line| eprintln!("x: cluster {name}: {line}")),
        Err(error) => eprintln!("x: cluster {name}: {error:#}"),
    }
}

/// Undoes what an `up` that was killed has left.
fn clear(plan: &Plan, state: &State) -> Result<()> {
    if journal::read(&state.journal())?.is_empty() {
        return Ok(());
    }
    say(plan, "undoing what an earlier `up` has left");
    let problems = state.undo()?;
    if !problems.is_empty() {
        bail!("cluster {}: cannot be undone: {}", plan.name, problems.join("; "));
    }
    Ok(())
}

/// All steps from nothing to a cluster.
fn make(plan: &mut Plan, state: &State, death: Option<Death>) -> Result<()> {
    let mut journal = Journal::create(&state.journal(), death)?;
    make_directory(plan, &mut journal)?;
    say(plan, "network");
    let switch = Step::Namespace { name: plan.switch() };
    network::refuse_foreign(&plan.switch())?;
    journal.perform(&switch, || network::make_switch(plan))?;
    let limiter = find_limiter(plan);
    for node in &plan.nodes {
        make_node(plan, node, limiter.as_ref(), &mut journal)?;
    }
    say(plan, "parallel file system");
    pfs::make(plan, &mut journal)?;
    together(plan, Role::Compute, "client", &mut journal, |node| pfs::start_client(plan, node))?;
    start_services(plan, &mut journal)?;
    say(plan, "daemons");
    if !plan.single && !daemon::knows_others(&plan.binary)? {
        say(plan, "this tidepool has no option cluster_nodes: every daemon is alone");
        plan.single = true;
    }
    daemon::write_key(plan)?;
    if plan.is_encrypted {
        daemon::write_certificates(plan)?;
    }
    together(plan, Role::Compute, "daemon", &mut journal, |node| daemon::start(plan, node))
}

fn start_services(plan: &Plan, journal: &mut Journal) -> Result<()> {
    services::prepare(plan, &plan.services)?;
    for service in &plan.services {
        say(plan, &format!("{service:?}"));
        let steps: Vec<Step> =
            plan.nodes.iter().map(|node| step_of(plan, node, "services")).collect();
        journal.perform_all(&steps, || services::start(plan, *service))?;
    }
    Ok(())
}

/// The directory of images and logs, with what all nodes read.
fn make_directory(plan: &mut Plan, journal: &mut Journal) -> Result<()> {
    let above = plan.directory.parent().context("the directory has one above it")?.to_path_buf();
    if !above.exists() {
        let step = Step::EmptyDirectory { path: above.clone() };
        journal.perform(&step, || {
            fs::create_dir(&above).with_context(|| above.display().to_string())
        })?;
    }
    plan.directory = above.canonicalize()?.join(&plan.name);
    if plan.directory.exists() {
        bail!(
            "{} exists and no cluster made it: remove it, or take another --directory",
            plan.directory.display()
        );
    }
    let step = Step::Directory { path: plan.directory.clone() };
    journal.perform(&step, || Ok(fs::create_dir(&plan.directory)?))?;
    let mut hosts = "127.0.0.1 localhost\n".to_owned();
    for node in &plan.nodes {
        fs::create_dir(plan.files(node))?;
        hosts.push_str(&format!("{} {}\n", node.address(), node.name));
    }
    fs::create_dir(services::scripts(plan))?;
    Ok(fs::write(plan.directory.join("hosts"), hosts)?)
}

/// How disks are held to a rate; says where they are not, though the plan asks for it.
fn find_limiter(plan: &Plan) -> Option<disk::Limiter> {
    match disk::Limiter::find() {
        Ok(limiter) => Some(limiter),
        Err(error) => {
            if plan.nodes.iter().any(|node| node.disk.0.is_some()) {
                say(plan, &format!("disks are not held to a rate here: {error:#}"));
            }
            None
        }
    }
}

fn make_node(
    plan: &Plan,
    node: &Node,
    limiter: Option<&disk::Limiter>,
    journal: &mut Journal,
) -> Result<()> {
    let name = plan.namespace(node);
    network::refuse_foreign(&name)?;
    journal.perform(&Step::Namespace { name }, || network::make_node(plan, node))?;
    if node.role == Role::Data {
        disk::format(plan, node)?;
        let step = Step::LoopDevice { image: plan.image(node) };
        journal.perform(&step, || disk::attach(plan, node))?;
        match limiter {
            // In the journal even where there is no limit yet: `slow` may set one later.
            Some(disk::Limiter::RootGroup) => {
                let numbers = disk::numbers(&disk::device_of(plan, node)?)?;
                let step = Step::DiskLimit { numbers };
                journal.perform(&step, || disk::limit(plan, node, node.disk))?;
            }
            Some(disk::Limiter::OwnGroup) => {
                let step = Step::ControlGroup { path: disk::group(plan, node) };
                journal.perform(&step, || {
                    disk::make_group(plan, node)?;
                    disk::limit(plan, node, node.disk)
                })?;
            }
            None => {}
        }
    }
    journal.perform(&step_of(plan, node, "holder"), || space::make(plan, node))
}

/// Starts the same on all nodes of a role at once, as on a real cluster.
fn together(
    plan: &Plan,
    role: Role,
    what: &str,
    journal: &mut Journal,
    start: impl Fn(&Node) -> Result<()> + Sync,
) -> Result<()> {
    let nodes: Vec<&Node> = plan.of(role).collect();
    let steps: Vec<Step> = nodes.iter().map(|node| step_of(plan, node, what)).collect();
    if nodes.is_empty() {
        return Ok(());
    }
    journal.perform_all(&steps, || at_once(&nodes, start))
}

/// Does the same on nodes at once; the first failure is told when all have ended.
fn at_once(nodes: &[&Node], action: impl Fn(&Node) -> Result<()> + Sync) -> Result<()> {
    let action = &action;
    std::thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(move || action(node))).collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.collect::<Vec<_>>().into_iter().collect()
    })
}

/// The step of starting processes on a node.
fn step_of(plan: &Plan, node: &Node, what: &str) -> Step {
    Step::Processes {
        namespace: plan.namespace(node),
        mark: plan.mark(node),
        what: what.to_owned(),
    }
}

/// A line of progress.
fn say(plan: &Plan, what: &str) {
    eprintln!("x: cluster {}: {what}", plan.name);
}

/// Waits until a condition holds.
///
/// # Errors
/// When `limit` has passed.
fn wait_until(limit: Duration, mut holds: impl FnMut() -> bool) -> Result<()> {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > limit {
            bail!("not so within {} s", limit.as_secs());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
