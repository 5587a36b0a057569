//! The node that wrote a file in memory alone is gone, and other programs write to what it left,
//! before its copy takes the place and between any two steps of that: what they were told is
//! durable stays.

mod support;

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use support::hooked::{Call, Hooks, inode};
use support::nodes::*;
use support::{content, read_all, scratch_rule};
use tidepool_node::Node;
use tidepool_proto::config::NodeConfig;
use tidepool_proto::stub::{Copies, Mark, PAST_ATTRIBUTE, STUB_ATTRIBUTE, taken_attribute};
use tidepool_proto::{Access, ErrorKind, FileService, OpenRequest, WriteMode};

/// Longer than a taking over has steps.
const STEPS: u64 = 16;
const OLD: &[u8] = b"what the node wrote that is gone";
const NEW: &[u8] = b"what was written later";

fn nodes(hooks: &Arc<Hooks>) -> Nodes {
    let nodes = Nodes::hooked(3, hooks, |config: &mut NodeConfig| {
        let mut rule = scratch_rule("d");
        (rule.expendable, rule.copies) = (false, 2);
        config.rules.push(rule);
    });
    nodes.wait_joined();
    std::fs::create_dir(nodes.pfs("d")).unwrap();
    nodes
}

fn synced(nodes: &Nodes, name: &str, bytes: &[u8]) {
    synced_by(nodes, 0, name, bytes);
}

fn synced_by(nodes: &Nodes, node: usize, name: &str, bytes: &[u8]) {
    let file = nodes.create_in_memory(node, name);
    file.write_at(0, bytes).unwrap();
    file.sync(false).unwrap();
}

/// A program at a node opens a file, which empties it, and writes it.
fn rewrite(node: &Node, path: &std::path::Path, mode: WriteMode) {
    loop {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let (access, write_mode) = (Access::ReadWrite, Some(mode));
        let plain = OpenRequest::to_read(file.into(), 0);
        let opened = node.open(OpenRequest { access, truncate: true, write_mode, ..plain });
        match opened {
            Ok(file) => {
                file.set_size(0).unwrap();
                file.write_at(0, NEW).unwrap();
                return file.sync(false).unwrap();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Changed, "{error}"),
        }
    }
}

/// A program that knows nothing of Tidepool.
fn overwrite(path: &std::path::Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(NEW, 0).unwrap();
}

fn held(nodes: &Nodes) -> u64 {
    (1..3).map(|node| nodes.cluster(node).copies.held).sum()
}

fn on_pfs(nodes: &Nodes, name: &str) -> Vec<u8> {
    std::fs::read(nodes.pfs(name)).unwrap()
}

/// Waits until all that is in memory is on the PFS, and looks for what is left beside it.
fn settle(nodes: &Nodes) {
    (1..3).for_each(|node| nodes.nodes[node].drain().unwrap());
    assert_eq!(held(nodes), 0, "copies are given back");
    for entry in std::fs::read_dir(nodes.pfs("d")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(!name.contains("tidepool"), "{name}");
        let mut names = vec![0; 4096];
        let length = rustix::fs::listxattr(&path, &mut names).unwrap();
        let names = String::from_utf8_lossy(&names[..length]).into_owned();
        // It stays at what another node made an ordinary file.
        let names = names.replace(PAST_ATTRIBUTE, "");
        assert!(!names.contains("tidepool"), "{path:?}: {names}");
    }
}

#[test]
fn no_copy_comes_back_over_what_was_written_after_it() {
    let hooks = Arc::<Hooks>::default();
    let nodes = nodes(&hooks);
    let names = ["d/by-another", "d/emptied", "d/emptied-2", "d/late", "d/late-emptied", "d/left"];
    names.iter().for_each(|name| synced(&nodes, name, OLD));
    // The node of the files is there, and does not look at them.
    overwrite(&nodes.pfs("d/by-another"));
    rewrite(&nodes.nodes[1], &nodes.pfs("d/emptied"), WriteMode::Through);
    rewrite(&nodes.nodes[2], &nodes.pfs("d/emptied-2"), WriteMode::Memory);
    nodes.nodes[0].stop();
    overwrite(&nodes.pfs("d/late"));
    rewrite(&nodes.nodes[1], &nodes.pfs("d/late-emptied"), WriteMode::Through);
    until("all but the copy of a later time are freed", || held(&nodes) <= 1);
    settle(&nodes);
    for name in &names[..5] {
        let there = on_pfs(&nodes, name);
        assert!(there == NEW, "{name}: {}", there.escape_ascii());
    }
    assert_eq!(on_pfs(&nodes, "d/left"), OLD);
}

/// Which step of the taking over of a file is another program's moment, and how many came.
type Moments = Arc<Mutex<HashMap<u64, (u64, Arc<AtomicU64>, String)>>>;

/// Another program, or node, does what the name of the file says.
fn come_in_between(
    node: Arc<Node>,
    name: &str,
    path: std::path::PathBuf,
) -> Option<JoinHandle<()>> {
    if name.contains("emptied") {
        // It waits for the taker, which waits for the end of this.
        return Some(std::thread::spawn(move || rewrite(&node, &path, WriteMode::Through)));
    }
    if name.contains("overwritten") {
        overwrite(&path);
    } else if name.contains("chmod") {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
    } else {
        // As another node does to which this one is gone.
        let epoch = format!("{:016x}", mark_at(&path)?.copies?.epoch);
        for entry in std::fs::read_dir(path.parent()?).unwrap() {
            let beside = entry.unwrap().path();
            if beside.to_string_lossy().contains(&epoch) {
                std::fs::remove_file(&beside).unwrap();
            }
        }
    }
    Some(std::thread::spawn(|| ()))
}

#[test]
fn between_any_two_steps_of_a_taking_over_what_others_write_stays() {
    let hooks = Arc::<Hooks>::default();
    let nodes = nodes(&hooks);
    let moments = Moments::default();
    for step in 0..STEPS {
        for kind in ["overwritten", "emptied-1", "emptied-2", "chmod", "barred"] {
            let name = format!("d/{kind}-{step}");
            synced(&nodes, &name, &content(1, 5000));
            let inode = std::fs::metadata(nodes.pfs(&name)).unwrap().ino();
            moments.lock().unwrap().insert(inode, (step, Arc::default(), name));
        }
    }
    let programs = Arc::<Mutex<Vec<(String, JoinHandle<()>)>>>::default();
    let (theirs, started) = (moments.clone(), programs.clone());
    let others = [nodes.nodes[1].clone(), nodes.nodes[2].clone()];
    let pfs = nodes.pfs("");
    nodes.nodes[0].stop();
    hooks.set(move |_, make| {
        make()?;
        let moment = theirs.lock().unwrap().get(&inode()).cloned();
        let Some((step, count, name)) = moment else { return Ok(()) };
        if count.fetch_add(1, Ordering::SeqCst) != step {
            return Ok(());
        }
        let node = others[usize::from(!name.contains("emptied-1"))].clone();
        let begun = come_in_between(node, &name, pfs.join(&name));
        started.lock().unwrap().extend(begun.map(|begun| (name, begun)));
        std::thread::sleep(Duration::from_millis(30));
        Ok(())
    });
    until("all copies are freed", || held(&nodes) == 0);
    hooks.clear();
    let programs = std::mem::take(&mut *programs.lock().unwrap());
    assert!(programs.len() > 3 * 5, "{} programs came in between", programs.len());
    let mut came = Vec::new();
    for (name, program) in programs {
        program.join().unwrap();
        came.push(name);
    }
    settle(&nodes);
    for (_, _, name) in moments.lock().unwrap().values() {
        let there = on_pfs(&nodes, name);
        if name.contains("chmod") && came.contains(name) {
            let mode = std::fs::metadata(nodes.pfs(name)).unwrap().mode();
            assert_eq!(mode & 0o7777, 0o604, "{name}");
        }
        let is_changed = !name.contains("chmod") && !name.contains("barred");
        let is_right = match came.contains(name) && is_changed {
            true => there.starts_with(NEW),
            false => there == content(1, 5000),
        };
        assert!(is_right, "{name}: {}", there[..there.len().min(60)].escape_ascii());
    }
}

fn set(path: &std::path::Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

/// The copies that the mark of a stub names.
fn marked(nodes: &Nodes, name: &str) -> Copies {
    mark_at(&nodes.pfs(name)).unwrap().copies.unwrap()
}

fn mark_at(path: &std::path::Path) -> Option<Mark> {
    let mut value = vec![0; 4096];
    let length = rustix::fs::getxattr(path, STUB_ATTRIBUTE, &mut value).ok()?;
    Mark::parse(&value[..length])
}

#[test]
fn who_had_the_right_and_died_keeps_nobody_from_it() {
    let hooks = Arc::<Hooks>::default();
    let nodes = nodes(&hooks);
    let mut barred = Vec::new();
    for name in ["d/own", "d/others", "d/barred"] {
        synced(&nodes, name, OLD);
        let copies = marked(&nodes, name);
        let epoch = copies.epoch;
        let inode = std::fs::metadata(nodes.pfs(name)).unwrap().ino();
        let beside = |number: u32| format!(".tidepool-copy-{epoch:016x}-{inode:x}-{number}");
        std::fs::write(nodes.pfs(&format!("d/{}", beside(7))), b"half").unwrap();
        let claim = |words: String| sealed_claim(&nodes.pfs(name), epoch, &words);
        let half = key_of(&nodes.pfs(&format!("d/{}", beside(7))));
        let dead = claim(format!("nobody:0:{}:{}.{}:", beside(7), half.0, half.1));
        let stub = std::fs::metadata(nodes.pfs(name)).unwrap().ino();
        barred.push((stub, nodes.pfs(&format!("d/{}", beside(7)))));
        if name == "d/barred" {
            // A holder that stood still was barred by another one, which died.
            let barred = claim(format!("{}:0:{}:1.1:", copies.holders[0], beside(8)));
            set(&nodes.pfs(name), &taken_attribute(epoch, 1), &barred);
            set(&nodes.pfs(name), &taken_attribute(epoch, 2), &dead);
        } else {
            set(&nodes.pfs(name), &taken_attribute(epoch, 1), &dead);
        }
    }
    // Who died may only have been cut off: its copy is taken out of its hands.
    let seen = Arc::new(Mutex::new(vec![false; barred.len()]));
    let noted = seen.clone();
    hooks.set(move |_, make| {
        let mut noted = noted.lock().unwrap();
        let left = barred.iter().zip(noted.iter_mut()).filter(|((stub, _), _)| *stub == inode());
        left.for_each(|((_, path), seen)| *seen |= !path.exists());
        drop(noted);
        make()
    });
    // The node of the file goes on from there.
    assert_eq!(nodes.read(1, "d/own").0, OLD);
    nodes.nodes[0].stop();
    for name in ["d/others", "d/barred"] {
        until("the copy is in its place", || on_pfs(&nodes, name) == OLD);
    }
    settle(&nodes);
    assert_eq!(on_pfs(&nodes, "d/own"), OLD);
    assert_eq!(seen.lock().unwrap()[1..], [true, true], "both holders keep the dead one off");
}

#[test]
fn a_file_that_is_emptied_while_it_is_written_back_has_what_was_written_then() {
    let hooks = Arc::<Hooks>::default();
    let nodes = nodes(&hooks);
    for name in ["d/file", "plain"] {
        synced_by(&nodes, 1, name, &content(2, 5 * BLOCK as usize));
        hooks.set(move |call, make| {
            if call == Call::Write {
                std::thread::sleep(Duration::from_millis(100));
            }
            make()
        });
        std::thread::scope(|scope| {
            let path = nodes.pfs(name);
            let reader = scope.spawn(|| nodes.try_open(2, name, Access::Read).map(drop));
            std::thread::sleep(Duration::from_millis(250));
            rewrite(&nodes.nodes[0], &path, WriteMode::Through);
            let _ = reader.join().unwrap();
        });
        hooks.clear();
        assert!(on_pfs(&nodes, name) == NEW, "{name}");
        for node in 0..3 {
            assert_eq!(nodes.read(node, name).0, NEW, "{name} on node {node}");
        }
    }
}

/// An access list as the kernel takes it.
fn default_list() -> Vec<u8> {
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [
        entry(1, 7, none),
        entry(2, 7, 1001),
        entry(4, 5, none),
        entry(0x10, 7, none),
        entry(0x20, 0, none),
    ];
    [2_u32.to_le_bytes().to_vec(), entries.concat()].concat()
}

#[test]
fn what_a_directory_hands_on_is_not_given_to_a_copy() {
    let nodes = nodes(&Arc::default());
    synced(&nodes, "d/secret", OLD);
    std::fs::set_permissions(nodes.pfs("d/secret"), PermissionsExt::from_mode(0o640)).unwrap();
    // As `cp -p` does.
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let times = std::fs::FileTimes::new().set_modified(long_ago);
    let file = File::options().write(true).open(nodes.pfs("d/secret")).unwrap();
    file.set_times(times).unwrap();
    drop(file);
    set(&nodes.pfs("d"), "system.posix_acl_default", &default_list());
    nodes.nodes[0].stop();
    until("the copy is in its place", || on_pfs(&nodes, "d/secret") == OLD);
    let mut value = [0; 256];
    let list = rustix::fs::getxattr(nodes.pfs("d/secret"), "system.posix_acl_access", &mut value);
    assert_eq!(list, Err(rustix::io::Errno::NODATA));
    let there = std::fs::metadata(nodes.pfs("d/secret")).unwrap();
    assert_eq!(there.mode() & 0o7777, 0o640);
    assert_eq!(there.modified().unwrap(), long_ago);
}

/// Holds the first call of a kind on one file until it is told to go on.
#[derive(Default)]
struct Held {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Held {
    fn stand_still(&self) {
        let mut state = self.state.lock().unwrap();
        if !state.0 {
            state.0 = true;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| !state.1).unwrap());
        }
    }

    fn wait_until_it_stands(&self) {
        let limit = Duration::from_secs(60);
        let state = self.state.lock().unwrap();
        let (state, late) =
            self.changed.wait_timeout_while(state, limit, |state| !state.0).unwrap();
        assert!(state.0 && !late.timed_out(), "the call never comes");
    }

    fn go_on(&self) {
        *self.state.lock().unwrap() = (true, true);
        self.changed.notify_all();
    }
}

/// Also where an assertion fails: threads wait for it.
impl Drop for GoOn {
    fn drop(&mut self) {
        self.0.go_on();
    }
}

struct GoOn(Arc<Held>);

/// Node 1 writes a file of its own back for node 2, and stands still in a call of this kind.
fn stands_still(nodes: &Nodes, hooks: &Arc<Hooks>, name: &str, kind: Call) -> GoOn {
    let held = Arc::<Held>::default();
    let (number, stands) = (std::fs::metadata(nodes.pfs(name)).unwrap().ino(), held.clone());
    hooks.set(move |call, make| {
        if call == kind && inode() == number {
            stands.stand_still();
        }
        make()
    });
    let reader = nodes.nodes[2].clone();
    let file = File::open(nodes.pfs(name)).unwrap();
    std::thread::spawn(move || reader.open(OpenRequest::to_read(file.into(), 0)).map(drop));
    held.wait_until_it_stands();
    GoOn(held)
}

#[test]
fn who_empties_a_file_is_not_written_over_by_the_node_that_had_it() {
    for name in ["d/file", "plain"] {
        let hooks = Arc::<Hooks>::default();
        let nodes = nodes(&hooks);
        synced_by(&nodes, 1, name, &content(2, 2 * BLOCK as usize));
        let stands = stands_still(&nodes, &hooks, name, Call::Write);
        // The others hear nothing more of it.
        nodes.nodes[1].stop();
        rewrite(&nodes.nodes[0], &nodes.pfs(name), WriteMode::Through);
        drop(stands);
        let is_idle = || nodes.nodes[1].status().memory_only_files == 0;
        let _ = nodes.nodes[1].drain();
        until("it has gone on", is_idle);
        hooks.clear();
        assert_eq!(on_pfs(&nodes, name), NEW, "{name}");
        assert_eq!(nodes.read(2, name).0, NEW, "{name}");
    }
}

#[test]
fn who_is_slow_to_take_a_mark_off_takes_off_no_later_one() {
    let hooks = Arc::<Hooks>::default();
    let nodes = nodes(&hooks);
    synced_by(&nodes, 1, "d/file", OLD);
    // Its bytes are on the PFS, and it has the right to take the mark off.
    let stands = stands_still(&nodes, &hooks, "d/file", Call::RemoveAttribute);
    rewrite(&nodes.nodes[0], &nodes.pfs("d/file"), WriteMode::Memory);
    drop(stands);
    let is_idle = || nodes.nodes[1].status().memory_only_files == 0;
    until("it has gone on", is_idle);
    hooks.clear();
    for node in [2, 0] {
        assert_eq!(nodes.read(node, "d/file").0, NEW, "node {node}");
    }
    nodes.nodes[0].drain().unwrap();
    assert_eq!(on_pfs(&nodes, "d/file"), NEW);
}

#[test]
fn who_opens_a_file_amid_the_last_steps_of_its_write_back_reads_it_to_its_end() {
    let hooks = Arc::new(Hooks::default());
    let nodes = Arc::new(nodes(&hooks));
    let bytes = content(5, 3 * BLOCK as usize);
    let mut opened = 0;
    for step in 0..5 {
        let name = format!("d/{step}");
        synced_by(&nodes, 1, &name, &bytes);
        let (sender, receiver) = std::sync::mpsc::channel();
        let (sender, seen) = (Mutex::new(sender), AtomicU64::new(0));
        let (others, path) = (Arc::downgrade(&nodes), name.clone());
        hooks.set(move |call, make| {
            let is_it =
                call == Call::RemoveAttribute && seen.fetch_add(1, Ordering::Relaxed) == step;
            if let Some(nodes) = others.upgrade().filter(|_| is_it) {
                let (sender, path) = (sender.lock().unwrap().clone(), path.clone());
                let open = move || sender.send(nodes.try_open(0, &path, Access::Read));
                std::thread::spawn(open);
                // It may wait until this is over.
                std::thread::sleep(Duration::from_millis(200));
            }
            make()
        });
        assert!(nodes.read(2, &name).0 == bytes, "it is written back");
        hooks.clear();
        // There are not so many steps.
        let Ok(open) = receiver.recv() else { continue };
        opened += 1;
        let open = open.unwrap_or_else(|error| panic!("step {step}: {error}"));
        let (read, _) = read_all(&*open).unwrap_or_else(|error| panic!("step {step}: {error}"));
        assert!(read == bytes, "step {step}");
    }
    assert!(opened >= 2, "{opened} steps");
}
