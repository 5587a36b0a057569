//! The test cluster of `./x cluster`: bytes that one node writes reach the others, what is shaped,
//! cut or killed behaves so, and nothing of a cluster is left after `down`, wherever its `up`
//! ended.
//!
//! One test at a time: each takes the machine's processors, and leftovers are told apart by it.
//! This program is also the process that makes a cluster and is killed meanwhile.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use acceptance::arguments::{ClusterUpOptions, PfsKind, Rate};
use acceptance::cluster::{Cluster, Death, Plan, Status, down, missing};
use acceptance::{cleanup, environment, process};
use libtest_mimic::{Arguments, Failed, Trial};

/// First argument of the process that makes a cluster for a test.
const UP: &str = "up-for-a-test";
const LINK: u64 = 40_000_000;
/// First step that starts servers, in a cluster of two nodes: the others make a directory, the
/// switch, and a namespace and a view a node, with a disk, its limit, for one of them.
const SERVERS: usize = 8;
const PAYLOAD: usize = 24 << 20;
/// How long a process may take that ends by itself.
const LIMIT: Duration = Duration::from_secs(120);

type Tested = Result<(), Failed>;
/// Name, the file system that it needs, and what it does.
type Test = (&'static str, PfsKind, fn() -> Tested);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == UP) {
        return up_for_a_test(&words[1..]);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tests: [Test; 6] = [
        ("nodes_share_files_and_links_obey", PfsKind::Gluster, nodes_share_files_and_links_obey),
        ("hidden_changes_are_found", PfsKind::GlusterSharded, hidden_changes_are_found),
        ("moosefs_is_shared", PfsKind::Moosefs, moosefs_is_shared),
        ("a_killed_up_is_undone_at_every_step", PfsKind::Gluster, a_killed_up_is_undone),
        ("an_interrupted_up_undoes_itself", PfsKind::Gluster, an_interrupted_up_undoes_itself),
        ("a_second_up_takes_over", PfsKind::Gluster, a_second_up_takes_over),
    ];
    let trial = |(name, kind, test): Test| {
        Trial::test(name, move || match missing(kind, &[]) {
            Some(reason) => {
                eprintln!("SKIPPED {name}: {reason}");
                Ok(())
            }
            None => test(),
        })
    };
    libtest_mimic::run(&arguments, tests.map(trial).into()).exit();
}

fn nodes_share_files_and_links_obey() -> Tested {
    let place = Place::new("share")?;
    let mut cluster = Cluster::up(&place.plan(2, PfsKind::Gluster)?)?;
    bytes_cross(&cluster, Cluster::mount)?;
    overwrites_are_seen(&cluster)?;
    mounts_are_private(&place)?;
    links_obey(&mut cluster)?;
    partitions_cut(&cluster)?;
    services_end_and_start(&cluster)?;
    copies_outlive_their_node(&cluster)?;
    synced_bytes_outlive_their_node(&cluster)?;
    no_problems(&cluster.down()?)?;
    place.is_clean()
}

fn moosefs_is_shared() -> Tested {
    let place = Place::new("moose")?;
    let cluster = Cluster::up(&place.plan(2, PfsKind::Moosefs)?)?;
    // Its other clients see the size of a new file that the daemon wrote a moment after `close`.
    bytes_cross(&cluster, Cluster::pfs)?;
    chunks_have_servers(&cluster)?;
    synced_bytes_outlive_their_node(&cluster)?;
    // Dropped as a test that fails drops it.
    drop(cluster);
    place.is_clean()
}

/// `explain` names the chunk server of every chunk, as MooseFS does, and the class of a directory's
/// rule decides which one that is.
fn chunks_have_servers(cluster: &Cluster) -> Tested {
    let servers = |path: &str| -> Result<Vec<String>, Failed> {
        let text = cluster.run("c1", &["tidepool", "explain", "--json", path])?;
        let explained: serde_json::Value = serde_json::from_str(&text)?;
        let stripes = explained[0]["stripes"].as_array().cloned().unwrap_or_default();
        let server = |stripe: &serde_json::Value| Some(stripe["server"].as_str()?.to_owned());
        let named: Vec<String> = stripes.iter().filter_map(server).collect();
        ensure(named.len() == stripes.len(), &format!("a chunk has no server: {text}"))?;
        Ok(named)
    };
    let long = vec![7; 130 << 20];
    fs::write(cluster.mount("c1")?.join("chunks"), &long)?;
    let named = servers("/run/tide/chunks")?;
    let told = cluster.run("c1", &["mfsfileinfo", "/run/pfs/chunks"])?;
    let told: Vec<&str> = told
        .lines()
        .filter_map(|line| line.trim().strip_prefix("copy 1: ")?.split(' ').next())
        .collect();
    ensure(named == told && named.len() == 3, &format!("{named:?}, MooseFS: {told:?}"))?;

    fs::create_dir(cluster.mount("c1")?.join("placed"))?;
    for name in ["one", "two"] {
        fs::write(cluster.mount("c1")?.join("placed").join(name), &long[..70 << 20])?;
        let named = servers(&format!("/run/tide/placed/{name}"))?;
        let first = "10.77.0.101:9422";
        ensure(named == [first; 2], &format!("{name}, asked for on d1: {named:?}"))?;
    }
    let read = fs::read(cluster.mount("c2")?.join("placed/two"))?;
    ensure(read == long[..70 << 20], "c2 reads other bytes")
}

/// What one node writes, through its daemon or beside it, the other one reads through its own.
fn bytes_cross(cluster: &Cluster, writer: fn(&Cluster, &str) -> anyhow::Result<PathBuf>) -> Tested {
    let bytes: Vec<u8> = (0..PAYLOAD).map(|at| (at / 4096 * 7 + at % 251) as u8).collect();
    fs::write(writer(cluster, "c1")?.join("file"), &bytes)?;
    let sent = cluster.pfs_bytes_read()?;
    ensure(fs::read(cluster.mount("c2")?.join("file"))? == bytes, "c2 reads other bytes")?;
    let sent = cluster.pfs_bytes_read()? - sent;
    ensure(sent >= bytes.len() as u64, &format!("data nodes sent {sent} bytes only"))?;
    ensure(fs::read(cluster.pfs("c2")?.join("file"))? == bytes, "the PFS has other bytes")?;
    // Changed by the other node, and seen by the first.
    fs::write(writer(cluster, "c2")?.join("file"), "changed")?;
    ensure(cluster.run("c1", &["cat", "/run/tide/file"])? == "changed", "c1 reads stale bytes")?;
    let hosts = cluster.run("c1", &["hostname"])?;
    ensure(hosts.trim() == "c1", &format!("host name {hosts}"))
}

/// Files that both nodes overwrite in turn, with bytes of the same length, through the mount and
/// beside it: packed ones, and one of several blocks. Each read after a close has the new bytes, in
/// spite of what GlusterFS's client keeps in the page cache.
fn overwrites_are_seen(cluster: &Cluster) -> Tested {
    for (name, length) in [("small", 12), ("packed", 100 << 10), ("blocks", 9 << 20)] {
        for round in 0..8_u8 {
            let (writer, reader) = if round % 2 == 0 { ("c1", "c2") } else { ("c2", "c1") };
            let beside = round % 4 >= 2;
            let place = if beside { cluster.pfs(writer)? } else { cluster.mount(writer)? };
            let bytes = vec![b'a' + round; length];
            fs::write(place.join(name), &bytes)?;
            for node in [reader, writer] {
                let read = fs::read(cluster.mount(node)?.join(name))?;
                let at = format!("{name}, round {round}, written by {writer}, beside: {beside}");
                ensure(read == bytes, &format!("{node} reads old bytes: {at}"))?;
            }
        }
    }
    Ok(())
}

/// With shards, GlusterFS's clients do not see each other's changes: each node finds that out, and
/// keeps nothing.
fn hidden_changes_are_found() -> Tested {
    let place = Place::new("hidden")?;
    let cluster = Cluster::up(&place.plan(2, PfsKind::GlusterSharded)?)?;
    for node in ["c1", "c2"] {
        wait_until(&format!("{node} finds it out"), || {
            let status = cluster.run(node, &["tidepool", "status", "--json"])?;
            Ok(status.contains("all reads are in mode `bypass`"))
        })?;
    }
    no_problems(&cluster.down()?)?;
    place.is_clean()
}

/// This machine sees no mount and no interface of a cluster.
fn mounts_are_private(place: &Place) -> Tested {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let own = place.directory.path().display().to_string();
    let seen: Vec<&str> = mounts.lines().filter(|line| line.contains(&own)).collect();
    ensure(seen.is_empty(), &format!("mounts on this machine: {seen:?}"))?;
    let links = process::read(Command::new("ip").args(["-brief", "address"]))?;
    ensure(!links.contains("10.77.0."), &format!("addresses on this machine: {links}"))
}

/// Prints the rate of a link as a share of what was asked for; a busy machine reaches less.
fn links_obey(cluster: &mut Cluster) -> Tested {
    let bytes = vec![7; PAYLOAD];
    fs::write(cluster.pfs("c1")?.join("large"), &bytes)?;
    cluster.slow("c2", Some(Rate(Some(LINK / 2))), None)?;
    cluster.slow("d1", Some(Rate(None)), Some(Rate(None)))?;
    let started = Instant::now();
    fs::read(cluster.pfs("c2")?.join("large"))?;
    let rate = bytes.len() as f64 / started.elapsed().as_secs_f64();
    eprintln!("link of c2: {:.2} of its rate", rate / (LINK / 2) as f64);
    let status = Cluster::open(&cluster.plan().name)?.status()?;
    let link = |name: &str| node(&status, name).map(|node| node.link_bytes_per_s);
    ensure(link("c2")? == Some(LINK / 2), "the rate of c2 is not kept")?;
    ensure(link("d1")?.is_none(), "the rate of d1 is not lifted")?;
    let space = format!("tp-{}-d1", cluster.plan().name);
    let show = process::read(Command::new("tc").args(["-n", &space, "qdisc", "show"]))?;
    ensure(!show.contains("tbf"), &format!("d1 is shaped: {show}"))
}

/// A connection from one node to another, as the kernel tells it.
fn connects(cluster: &Cluster, from: &str, to: &str) -> bool {
    let to = format!("/dev/tcp/{to}/24007");
    let line = format!("exec 3<>{to}");
    cluster.run(from, &["timeout", "2", "bash", "-c", &line]).is_ok()
}

fn partitions_cut(cluster: &Cluster) -> Tested {
    ensure(connects(cluster, "c1", "d1"), "c1 does not reach d1")?;
    cluster.partition("c1", "d1,c2", false)?;
    let status = cluster.status()?;
    ensure(node(&status, "c1")?.lost == ["d1", "c2"], "c1 cannot send to d1 and c2")?;
    ensure(node(&status, "d1")?.lost == ["c1"], "d1 cannot send to c1")?;
    ensure(!connects(cluster, "c1", "d1"), "c1 reaches d1")?;
    ensure(connects(cluster, "c2", "d1"), "c2 does not reach d1")?;
    cluster.heal()?;
    ensure(connects(cluster, "c1", "d1"), "c1 does not reach d1 again")?;
    cluster.partition("c1", "d1", true)?;
    let status = cluster.status()?;
    ensure(node(&status, "d1")?.lost.is_empty(), "the other way is not cut")?;
    cluster.heal()?;
    ensure(node(&cluster.status()?, "c1")?.lost.is_empty(), "c1 is whole again")
}

fn services_end_and_start(cluster: &Cluster) -> Tested {
    let service = || -> Result<String, Failed> {
        Ok(format!("{:?}", node(&cluster.status()?, "c1")?.service))
    };
    ensure(service()? == "Running", "c1 runs")?;
    cluster.pause("c1", false)?;
    ensure(service()? == "Paused", "c1 is paused")?;
    cluster.resume("c1")?;
    cluster.kill("c1", false)?;
    ensure(service()? == "Ended", "c1 is killed")?;
    cluster.start("c1")?;
    ensure(fs::read(cluster.mount("c1")?.join("file"))? == b"changed", "c1 reads again")?;
    cluster.kill("c1", true)?;
    cluster.start("c1")?;
    ensure(fs::read(cluster.mount("c1")?.join("file"))? == b"changed", "c1 mounts again")
}

/// What is in memory alone on one node is read on the other: as that one writes it back, and where
/// it is killed as the copy takes its place.
fn copies_outlive_their_node(cluster: &Cluster) -> Tested {
    let knows_the_other = |node: &str| -> anyhow::Result<bool> {
        let status = cluster.run(node, &["tidepool", "status", "--json"])?;
        Ok(status.replace(' ', "").contains("\"sees_same_pfs\":true"))
    };
    // A node refuses copies from one that it does not know yet.
    wait_until("the nodes know each other", || {
        Ok(knows_the_other("c1")? && knows_the_other("c2")?)
    })?;
    fs::create_dir(cluster.pfs("c1")?.join("copies"))?;
    let stub = |name: &str| -> anyhow::Result<u64> {
        Ok(cluster.pfs("c2")?.join("copies").join(name).metadata()?.len())
    };
    let bytes = |seed: u8| (0..5 << 20).map(|at: u32| (at / 4096 + at) as u8 ^ seed).collect();
    let contents: [Vec<u8>; 3] = [bytes(1), bytes(2), bytes(3)];
    for (number, bytes) in contents.iter().enumerate() {
        let name = number.to_string();
        let path = cluster.mount("c1")?.join("copies").join(&name);
        // A copy that is late, as on a machine with much else to do, has the file written back.
        wait_until("it is in memory alone", || {
            let _ = fs::remove_file(&path);
            let mut file = fs::File::create(&path)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            Ok(stub(&name)? == 0)
        })?;
    }
    let read = |number: usize| -> Tested {
        let path = cluster.mount("c2")?.join("copies").join(number.to_string());
        ensure(fs::read(path)? == contents[number], &format!("other bytes of file {number}"))
    };
    read(0)?;
    cluster.kill("c1", false)?;
    read(1)?;
    wait_until("the last copy is in its place", || Ok(stub("2")? > 0))?;
    ensure(fs::read(cluster.pfs("c2")?.join("copies/2"))? == contents[2], "other bytes there")?;
    cluster.start("c1")?;
    Ok(())
}

/// What is synced in mode `alw` is in the burst buffer of the other node, which brings it to the
/// PFS where its own node is killed; what is closed, its own node brings there.
fn synced_bytes_outlive_their_node(cluster: &Cluster) -> Tested {
    let directory = |node: &str| Ok::<_, Failed>(cluster.mount(node)?.join("alw"));
    let on_pfs = |name: &str| -> Result<Vec<u8>, Failed> {
        Ok(fs::read(cluster.pfs("c2")?.join("alw").join(name))?)
    };
    fs::create_dir(directory("c1")?)?;
    let bytes: Vec<u8> = (0..5 << 20).map(|at: u32| (at / 4096 + at) as u8 ^ 9).collect();
    let path = directory("c1")?.join("synced");
    // Until its node knows of the buffer.
    let mut open = None;
    wait_until("it is in the buffer", || {
        let _ = fs::remove_file(&path);
        let mut file = fs::File::create(&path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        let is_owed = on_pfs("synced")?.is_empty();
        open = Some(file);
        Ok(is_owed)
    })?;
    cluster.kill("c1", false)?;
    drop(open);
    ensure(fs::read(directory("c2")?.join("synced"))? == bytes, "c2 reads other bytes")?;
    ensure(on_pfs("synced")? == bytes, "the PFS has other bytes")?;
    cluster.start("c1")?;
    wait_until("what is closed is on the PFS", || {
        fs::write(directory("c1")?.join("closed"), &bytes)?;
        cluster.run("c1", &["tidepool", "flush"])?;
        Ok(on_pfs("closed")? == bytes)
    })?;
    ensure(fs::read(directory("c2")?.join("closed"))? == bytes, "c2 reads other bytes, closed")?;
    wait_until("nothing is owed", || {
        let owed = cluster.run("c2", &["tidepool", "status", "--owed", "--json"])?;
        Ok(owed.trim() == "[]")
    })
}

fn wait_until(what: &str, mut holds: impl FnMut() -> Result<bool, Failed>) -> Tested {
    let deadline = Instant::now() + LIMIT;
    while !holds()? {
        ensure(Instant::now() < deadline, &format!("in vain: {what}"))?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn node<'a>(status: &'a Status, name: &str) -> Result<&'a acceptance::cluster::NodeStatus, Failed> {
    let found = status.nodes.iter().find(|node| node.name == name);
    found.ok_or_else(|| Failed::from(format!("no node {name}")))
}

/// Kills `up` behind every step until one comes through, and in front of those that make something
/// else than processes of the file system and the daemon, which all end in the same way.
fn a_killed_up_is_undone() -> Tested {
    let place = Place::new("kill")?;
    for step in 0.. {
        for done in if step < SERVERS { vec![false, true] } else { vec![true] } {
            let ended = place.up(Some(Death { step, done }))?;
            let at = format!("step {step}, done: {done}");
            if ended.success() {
                // All steps are behind us. A second one is refused, and changes nothing.
                ensure(step > SERVERS, &format!("{at}: too few steps"))?;
                ensure(!place.up(None)?.success(), "a second `up` of the name")?;
                ensure(Cluster::open(&place.name)?.status().is_ok(), "the first is up")?;
                no_problems(&down(&place.name)?)?;
                return place.is_clean();
            }
            ensure(ended.signal() == Some(libc::SIGKILL), &format!("{at}: {ended}"))?;
            ensure(Cluster::open(&place.name).is_err(), &format!("{at}: half-made is not up"))?;
            no_problems(&down(&place.name)?)?;
            place.is_clean().map_err(|error| format!("{at}: {:?}", error.message()))?;
        }
    }
    Ok(())
}

fn an_interrupted_up_undoes_itself() -> Tested {
    let place = Place::new("int")?;
    let mut child = place.start_up(None)?;
    let journal = Path::new("/run/tidepool-cluster").join(&place.name).join("journal");
    let started = Instant::now();
    // In the middle: there are namespaces and a disk, and servers that start.
    while !fs::read_to_string(&journal).is_ok_and(|text| text.contains("servers")) {
        ensure(started.elapsed() < LIMIT, "`up` does not come to its servers")?;
        std::thread::sleep(Duration::from_millis(2));
    }
    process::signal(child.id(), libc::SIGINT);
    let ended = child.wait()?;
    ensure(ended.code() == Some(130), &format!("{ended}"))?;
    place.is_clean()
}

fn a_second_up_takes_over() -> Tested {
    let place = Place::new("again")?;
    // Behind the disk of the data node.
    let ended = place.up(Some(Death { step: 5, done: true }))?;
    ensure(ended.signal() == Some(libc::SIGKILL), &format!("{ended}"))?;
    ensure(place.up(None)?.success(), "the second `up`")?;
    no_problems(&down(&place.name)?)?;
    // What is not there is down.
    no_problems(&down(&place.name)?)?;
    place.is_clean()
}

/// A name and a directory of a test's cluster.
struct Place {
    name: String,
    directory: tempfile::TempDir,
}

impl Place {
    fn new(what: &str) -> Result<Self, Failed> {
        let name = format!("{what}-{}", std::process::id());
        Ok(Place { name, directory: tempfile::tempdir()? })
    }

    fn plan(&self, compute: u8, pfs: PfsKind) -> Result<Plan, Failed> {
        plan(&self.name, self.directory.path(), compute, pfs)
    }

    /// Makes a cluster in a process of its own.
    fn up(&self, death: Option<Death>) -> Result<ExitStatus, Failed> {
        Ok(self.start_up(death)?.wait()?)
    }

    fn start_up(&self, death: Option<Death>) -> Result<std::process::Child, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([UP, &self.name]).arg(self.directory.path());
        if let Some(Death { step, done }) = death {
            command.args([step.to_string(), done.to_string()]);
        }
        command.stdin(Stdio::null()).stderr(Stdio::null());
        Ok(command.spawn()?)
    }

    /// Nothing of the cluster is on this machine.
    fn is_clean(&self) -> Tested {
        let mut left = Vec::new();
        let namespace = format!("tp-{}-", self.name);
        left.extend(names_in("/run/netns").filter(|name| name.starts_with(&namespace)));
        left.extend(names_in("/run/tidepool-cluster").filter(|name| *name == self.name));
        left.extend(names_in(&self.directory.path().display().to_string()));
        left.extend(
            loops()
                .filter(|(_, file)| file.starts_with(self.directory.path()))
                .map(|(name, file)| format!("{name} of {}", file.display())),
        );
        left.extend(marked_processes(&self.name));
        // Those of others go away.
        let started = Instant::now();
        while !limits_of_nothing().is_empty() && started.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(50));
        }
        left.extend(limits_of_nothing());
        ensure(left.is_empty(), &format!("left behind: {left:?}"))
    }
}

fn plan(name: &str, directory: &Path, compute: u8, pfs: PfsKind) -> Result<Plan, Failed> {
    let options = ClusterUpOptions {
        compute,
        data: if pfs == PfsKind::Moosefs { 2 } else { 1 },
        link: Some(Rate(Some(LINK))),
        disk: Some(Rate(Some(400_000_000))),
        // MooseFS leaves 256 MiB of a disk free, and goes elsewhere before it fills one.
        disk_size: if pfs == PfsKind::Moosefs { 4 << 30 } else { 1 << 30 },
        memory: "64MiB".into(),
        pfs,
        with: Vec::new(),
        plane: false,
        plane_policy: String::new(),
        plane_option: Vec::new(),
        tls: false,
        // The last one has it.
        buffers: u8::from(compute > 1),
        single: false,
        node_option: Vec::new(),
        directory: directory.to_path_buf(),
    };
    Ok(Plan::new(name, &options, binary())?)
}

/// Makes a cluster that stays up, or dies on the way.
fn up_for_a_test(words: &[String]) {
    cleanup::on_interrupt();
    let death = words.get(2).map(|step| Death {
        step: step.parse().expect("number of a step"),
        done: words[3] == "true",
    });
    let plan = plan(&words[0], Path::new(&words[1]), 1, PfsKind::Gluster);
    let plan = plan.map_err(|error| error.message().map(str::to_owned)).expect("a plan");
    match Cluster::up_until(&plan, death) {
        Ok(cluster) => _ = cluster.keep(),
        Err(error) => {
            eprintln!("{error:#}");
            std::process::exit(1);
        }
    }
}

/// The program under test: `TIDEPOOL_BINARY`, or the newest in the target directory.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TIDEPOOL_BINARY") {
        return path.into();
    }
    let built = ["release/tidepool", "debug/tidepool"].map(|path| environment::target().join(path));
    let built = built.into_iter().filter(|path| path.is_file());
    let newest = built.max_by_key(|path| path.metadata().and_then(|facts| facts.modified()).ok());
    newest.expect("no `tidepool`: run `cargo build --release -p tidepool-cli` first")
}

fn names_in(directory: &str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Loop devices that show a file, with its path.
fn loops() -> impl Iterator<Item = (String, PathBuf)> {
    names_in("/sys/block").filter_map(|name| {
        let file = Path::new("/sys/block").join(&name).join("loop/backing_file");
        Some((name, PathBuf::from(fs::read_to_string(file).ok()?.trim())))
    })
}

/// Processes that carry the mark of a cluster in their environment.
fn marked_processes(cluster: &str) -> Vec<String> {
    let mark = format!("TEST_CLUSTER_NODE={cluster}/").into_bytes();
    let is_marked = |id: &String| {
        fs::read(format!("/proc/{id}/environ"))
            .is_ok_and(|text| text.split(|byte| *byte == 0).any(|word| word.starts_with(&mark)))
    };
    let ids = names_in("/proc").filter(|name| name.parse::<u32>().is_ok());
    ids.filter(is_marked).map(|id| format!("process {id}")).collect()
}

/// Limits of loop devices that show nothing.
fn limits_of_nothing() -> Vec<String> {
    let used: Vec<String> = loops()
        .filter_map(|(name, _)| {
            let numbers = fs::read_to_string(format!("/sys/block/{name}/dev")).ok()?;
            Some(numbers.trim().to_owned())
        })
        .collect();
    let text = fs::read_to_string("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device");
    let text = text.unwrap_or_default();
    let devices = text.lines().filter_map(|line| line.split(' ').next());
    let loops = devices.filter(|numbers| numbers.starts_with("7:"));
    loops.filter(|numbers| !used.iter().any(|it| it == numbers)).map(str::to_owned).collect()
}

fn no_problems(problems: &[String]) -> Tested {
    ensure(problems.is_empty(), &format!("not undone: {problems:?}"))
}

fn ensure(holds: bool, otherwise: &str) -> Tested {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}
