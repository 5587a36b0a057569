//! `./x cluster`: the command line of the test cluster.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::plan::Plan;
use super::{Cluster, check_name, down, say, space};
use crate::arguments::{ClusterOptions, ClusterTask, ClusterUpOptions};
use crate::environment;

/// Does what the command line says.
///
/// # Errors
/// Those of the action; `run` ends with the status of a command on one node.
pub fn run(options: &ClusterOptions) -> Result<()> {
    if !environment::is_root() {
        bail!("a test cluster needs root: run `sudo ./x cluster`");
    }
    let name = options.name.as_str();
    check_name(name)?;
    let open = || Cluster::open(name);
    match &options.task {
        ClusterTask::Up(up) => make(name, up),
        ClusterTask::Down => take_down(name),
        ClusterTask::Status { json } => show(&open()?, *json),
        ClusterTask::Run { nodes, command } => run_on(&open()?, nodes, command),
        ClusterTask::Partition { one, other, one_way } => open()?.partition(one, other, *one_way),
        ClusterTask::Heal => open()?.heal(),
        ClusterTask::Slow { link: None, disk: None, .. } => {
            bail!("nothing to change: give --link RATE, --disk RATE or both")
        }
        ClusterTask::Slow { nodes, link, disk } => open()?.slow(nodes, *link, *disk),
        ClusterTask::Kill { nodes, whole } => open()?.kill(nodes, *whole),
        ClusterTask::Start { nodes } => open()?.start(nodes),
        ClusterTask::Pause { nodes, whole } => open()?.pause(nodes, *whole),
        ClusterTask::Resume { nodes } => open()?.resume(nodes),
        ClusterTask::DropCaches => open()?.drop_caches(),
    }
}

fn make(name: &str, options: &ClusterUpOptions) -> Result<()> {
    // Before the build, which takes longer.
    if let Some(missing) = super::missing(options.pfs, &options.services()) {
        bail!("{missing}");
    }
    let plan = Plan::new(name, options, environment::binary()?)?;
    let started = Instant::now();
    let cluster = Cluster::up(&plan)?.keep();
    say(cluster.plan(), &format!("up in {:.1} s", started.elapsed().as_secs_f64()));
    show(&cluster, false)
}

fn take_down(name: &str) -> Result<()> {
    let problems = down(name)?;
    for problem in &problems {
        eprintln!("x: cluster {name}: not undone: {problem}");
    }
    if !problems.is_empty() {
        bail!("cluster {name}: {} steps are not undone; try `down` again", problems.len());
    }
    Ok(())
}

fn show(cluster: &Cluster, json: bool) -> Result<()> {
    let status = cluster.status()?;
    let text =
        if json { serde_json::to_string_pretty(&status)? + "\n" } else { status.to_string() };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn run_on(cluster: &Cluster, nodes: &str, line: &[String]) -> Result<()> {
    let (program, arguments) = line.split_first().context("no command")?;
    let plan = cluster.plan();
    let nodes = plan.select(nodes)?;
    if let [node] = nodes[..] {
        // In place of this program: signals, terminal and exit status are the command's.
        let error = space::command_on(plan, node, program)?.args(arguments).exec();
        return Err(error).context("starting nsenter");
    }
    let mut failed = Vec::new();
    let mut running = Vec::new();
    for node in &nodes {
        let mut command = space::command_on(plan, node, program)?;
        running.push((&node.name, spawn_named(command.args(arguments), &node.name)?));
    }
    for (name, (mut child, threads)) in running {
        let status = child.wait()?;
        threads.into_iter().for_each(|thread| _ = thread.join());
        if !status.success() {
            failed.push(format!("{name}: {status}"));
        }
    }
    if !failed.is_empty() {
        bail!("`{}` failed on {}", line.join(" "), failed.join(", "));
    }
    Ok(())
}

type Copying = Vec<std::thread::JoinHandle<()>>;

/// Starts a command whose lines are shown with the name of their node before them.
fn spawn_named(command: &mut Command, node: &str) -> Result<(std::process::Child, Copying)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting nsenter")?;
    let outputs: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|pipe| Box::new(pipe) as _),
        child.stderr.take().map(|pipe| Box::new(pipe) as _),
    ];
    let copy = |pipe: Box<dyn Read + Send>| {
        let node = node.to_owned();
        std::thread::spawn(move || copy_lines(pipe, &node))
    };
    Ok((child, outputs.into_iter().flatten().map(copy).collect()))
}

fn copy_lines(pipe: Box<dyn Read + Send>, node: &str) {
    let mut lines = BufReader::new(pipe);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        let text = String::from_utf8_lossy(&line);
        // Who reads no more of us need not be told.
        let _ = writeln!(std::io::stdout(), "{node}| {}", text.trim_end_matches('\n'));
        line.clear();
    }
}
