//! What must hold at the end: every file reads right everywhere, memory and descriptors of the
//! nodes are within their bounds, and other nodes' memory was of use.

use std::fs;
use std::time::{Duration, Instant};

use tidepool_proto::admin::{AdminRequest, Status};

use super::content::Wrong;
use super::held::Reader;
use super::nodes::{MEMORY_MIB, Member, Nodes};
use super::operation::{KEPT_DIRECTORY, Way, name};
use super::world::World;
use crate::product::is_mounted;

/// Beyond its capacity a node may hold: code, stacks and heap, tables, transfers in flight.
const OVERHEAD_BYTES: u64 = 200 << 20;
/// Descriptors that a node may have when nobody uses it: a few, two a connection, two a segment.
const DESCRIPTORS_MAX: usize = 250;
/// How long a node may take to come to rest.
const REST_LIMIT: Duration = Duration::from_secs(60);

/// Reads all files by all nodes. All nodes run, and nobody has anything open.
pub fn check_files(nodes: &Nodes, world: &World) -> Result<(), (usize, Wrong)> {
    for (file, content) in world.files.iter().enumerate() {
        let wrong = |what: String| (file, what);
        let pages = content.pages();
        let check = |bytes: &[u8]| content.check(file, 0, pages + 1, &[pages], bytes);
        let ways = [Way::Library, Way::Mount];
        let ways = if nodes.are_mounted { &ways[..] } else { &ways[..1] };
        for node in 0..nodes.members.len() {
            for way in ways {
                let at = |reason: String| wrong(format!("at the end, n{node} {way:?}: {reason}"));
                let opened = Reader::open(nodes, node, *way, file);
                let opened = opened.map_err(|failure| at(failure.message))?;
                let piece = opened.map(|it| it.read(0, pages + 1)).transpose();
                let piece = piece.map_err(|failure| at(failure.message))?;
                piece.map_or(Ok(()), |piece| check(&piece.bytes)).map_err(at)?;
            }
        }
        // After that: a file in memory alone came there when another node opened it.
        let on_pfs = fs::read(nodes.pfs().join(name(file)))
            .map_err(|error| wrong(format!("at the end, on the PFS: {error}")))?;
        check(&on_pfs).map_err(|reason| wrong(format!("at the end, on the PFS: {reason}")))?;
    }
    Ok(())
}

fn memory_peak_bytes(process_id: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process_id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(u64::MAX >> 10) << 10
}

fn status_when(member: &Member, wanted: impl Fn(&Status) -> bool) -> std::io::Result<Status> {
    let deadline = Instant::now() + REST_LIMIT;
    loop {
        let status = member.status()?;
        if wanted(&status) || Instant::now() > deadline {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Looks at what a node holds when nobody uses it.
pub fn check_bounds(number: usize, member: &Member) -> Result<(), Wrong> {
    let said = |error: std::io::Error| format!("status of n{number}: {error}");
    let process_id = member.process_id();
    let peak = memory_peak_bytes(process_id);
    if peak > (MEMORY_MIB << 20) + OVERHEAD_BYTES {
        return Err(format!("n{number} held {} MiB at its peak", peak >> 20));
    }
    let _ = member.client.admin(AdminRequest::EvictAll, None);
    let status = status_when(member, |status| status.open_files == 0).map_err(said)?;
    if status.open_files != 0 {
        return Err(format!("n{number} has {} files open that nobody has", status.open_files));
    }
    if status.store.resident_bytes_peak > MEMORY_MIB << 20 {
        return Err(format!("n{number}: more than its capacity: {:?}", status.store));
    }
    let count =
        || fs::read_dir(format!("/proc/{process_id}/fd")).map_or(usize::MAX, Iterator::count);
    let deadline = Instant::now() + REST_LIMIT;
    let mut open = count();
    // Copies of what was just written are still being told of.
    while open > DESCRIPTORS_MAX {
        if Instant::now() > deadline {
            return Err(format!("n{number} has {open} descriptors"));
        }
        std::thread::sleep(Duration::from_millis(50));
        open = count();
    }
    println!("n{number}: peak {} MiB, {open} descriptors", peak >> 20);
    Ok(())
}

/// Stops all nodes and looks for what they left.
pub fn stop_all(nodes: &Nodes) -> Result<(), Wrong> {
    for (number, member) in nodes.members.iter().enumerate() {
        member.node.stop().map_err(|error| format!("stop of n{number}: {error}"))?;
        if is_mounted(member.node.mount()) {
            return Err(format!("n{number} left its mount behind"));
        }
        let path = format!("/proc/{}/stat", member.process_id());
        let deadline = Instant::now() + REST_LIMIT;
        while fs::read_to_string(&path).is_ok_and(|stat| !stat.contains(") Z ")) {
            if Instant::now() > deadline {
                return Err(format!("n{number} still runs after its stop"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    for directory in [nodes.pfs(), nodes.pfs().join(KEPT_DIRECTORY)] {
        let entries = fs::read_dir(directory).map_err(|error| error.to_string())?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        // Programs that wrote through a node that was killed left some of these, and so does a node
        // that is killed as it begins to put a copy in place, if no other one has a copy.
        let is_ours = |it: &String| {
            let is_left = it.ends_with(".new") || it.starts_with(".tidepool-copy-");
            it.starts_with("file") || is_left || it == KEPT_DIRECTORY
        };
        let left: Vec<String> = names.filter(|it| !is_ours(it)).collect();
        if !left.is_empty() {
            return Err(format!("left in the PFS directory: {left:?}"));
        }
    }
    Ok(())
}
