//! Where the splits of a file are, for schedulers: on the nodes that hold them, or on the one that
//! is to read them. Nothing of it is kept, so it is as fresh as what the file's home knows.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use tidepool_proto::admin::{Explanation, SplitOwner};
use tidepool_proto::cluster::HolderRun;
use tidepool_proto::locality::{
    HOSTS_MAX, Locality, LocatedSplit, SPLITS_MAX, SplitHosts, SplitRange,
};
use tidepool_proto::{Error, ErrorKind, FileService, Result, Version, hadoop};

use super::Cluster;
use super::shared::Shared;
use crate::node::Node;

/// Owners that are found while the members are locked.
const OWNERS_AT_A_TIME: usize = 256;
/// Owners that an explanation has.
const EXPLAINED_MAX: u32 = 1024;

/// A file as far as its splits depend on it.
#[derive(Clone, Copy, Debug)]
struct Extent {
    size_bytes: u64,
    block_bytes: u64,
}

/// Names with a number each.
#[derive(Default)]
struct Names {
    numbers: HashMap<String, u16>,
    names: Vec<String>,
}

impl Names {
    /// `None` beyond as many as a number tells apart.
    fn number(&mut self, name: &str) -> Option<u16> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let number = u16::try_from(self.names.len()).ok()?;
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        Some(number)
    }
}

/// Bytes of one split that each node holds.
#[derive(Default)]
struct Held {
    /// By the number of the node.
    bytes: Vec<u64>,
    /// Numbers of those that hold any.
    nodes: Vec<u16>,
}

impl Held {
    fn add(&mut self, node: u16, bytes: u64) {
        let at = usize::from(node);
        if self.bytes.len() <= at {
            self.bytes.resize(at + 1, 0);
        }
        if self.bytes[at] == 0 && bytes > 0 {
            self.nodes.push(node);
        }
        self.bytes[at] += bytes;
    }

    /// Nodes that hold at least half of `length` bytes: those with most first, of equal ones the
    /// `owner`, then by name. Empties it.
    fn take_hosts(&mut self, length: u64, owner: Option<u16>, names: &[String]) -> Vec<u16> {
        let mut hosts = std::mem::take(&mut self.nodes);
        let bytes = |node: &u16| self.bytes[usize::from(*node)];
        let order = |node: &u16| {
            let name = &names[usize::from(*node)];
            (std::cmp::Reverse(bytes(node)), Some(*node) != owner, name)
        };
        hosts.sort_by(|one, other| order(one).cmp(&order(other)));
        let mut fit = hosts.clone();
        fit.retain(|node| bytes(node) >= length - length / 2);
        fit.truncate(HOSTS_MAX);
        hosts.iter().for_each(|node| self.bytes[usize::from(*node)] = 0);
        fit
    }
}

/// How many splits of the range the file has, as far as one answer goes.
fn count(range: &SplitRange, size_bytes: u64) -> u32 {
    let splits = size_bytes.div_ceil(range.split_bytes);
    let left = splits.saturating_sub(range.first).min(SPLITS_MAX.into());
    range.count.min(left as u32)
}

/// Runs in order, without those that overlap the one before: another node told them, and the work
/// that they make stays in proportion.
fn disjoint(runs: &[HolderRun]) -> Vec<&HolderRun> {
    let mut runs: Vec<&HolderRun> = runs.iter().collect();
    runs.sort_by_key(|run| run.first_block);
    let mut end = 0;
    runs.retain(|run| {
        let is_apart = run.first_block >= end;
        if is_apart {
            end = run.first_block.saturating_add(run.blocks);
        }
        is_apart
    });
    runs
}

/// The hosts of splits. `runs` is who holds which blocks; `owners` has one name a split.
fn hosts(extent: Extent, range: &SplitRange, runs: &[HolderRun], owners: &[String]) -> SplitHosts {
    let runs = disjoint(runs);
    let ends = |run: &HolderRun| {
        run.first_block.saturating_add(run.blocks).saturating_mul(extent.block_bytes)
    };
    let (mut names, mut held) = (Names::default(), Held::default());
    let mut splits = Vec::with_capacity(owners.len());
    let mut next = 0;
    for (owner, split) in owners.iter().zip(range.first..) {
        let begin = split.saturating_mul(range.split_bytes);
        let end = begin.saturating_add(range.split_bytes).min(extent.size_bytes);
        while runs.get(next).is_some_and(|run| ends(run) <= begin) {
            next += 1;
        }
        for run in &runs[next..] {
            let from = run.first_block.saturating_mul(extent.block_bytes).max(begin);
            if from >= end {
                break;
            }
            let bytes = ends(run).min(end).saturating_sub(from);
            for node in &run.nodes {
                names.number(node).into_iter().for_each(|node| held.add(node, bytes));
            }
        }
        let number = names.number(owner);
        let holders = held.take_hosts(end.saturating_sub(begin), number, &names.names);
        splits.push(match holders.is_empty() {
            true => LocatedSplit { hosts: number.into_iter().collect(), in_memory: false },
            false => LocatedSplit { hosts: holders, in_memory: true },
        });
    }
    SplitHosts { names: names.names, splits }
}

impl Cluster {
    /// The owner of each split of the range.
    fn owners(&self, version: &Version, range: &SplitRange) -> Vec<String> {
        let file = Shared::named(version).file;
        let numbers: Vec<u64> =
            (0..u64::from(range.count)).map(|it| range.first.saturating_add(it)).collect();
        let mut owners = Vec::with_capacity(numbers.len());
        for numbers in numbers.chunks(OWNERS_AT_A_TIME) {
            let members = self.members.lock();
            owners.extend(numbers.iter().map(|split| members.owner(file, *split).to_string()));
        }
        owners
    }

    /// Adds who is to read the splits that nobody holds; `answer` has the holders.
    pub(super) fn explain_splits(&self, version: &Version, answer: &mut Explanation) {
        let split_bytes = hadoop::split_bytes_default();
        let extent = Extent { size_bytes: version.size, block_bytes: answer.block_bytes };
        let range = SplitRange { split_bytes, first: 0, count: EXPLAINED_MAX };
        let range = SplitRange { count: count(&range, version.size), ..range };
        let owners = self.owners(version, &range);
        let hosts = hosts(extent, &range, &answer.holder_runs, &owners);
        let absent = (0..).zip(&hosts.splits).zip(owners).filter(|((_, it), _)| !it.in_memory);
        answer.split_owners = absent.map(|((split, _), node)| SplitOwner { split, node }).collect();
    }
}

impl Node {
    /// Where splits of the file behind the descriptor are.
    pub(crate) fn locate(&self, descriptor: OwnedFd, range: SplitRange) -> Result<Locality> {
        if range.split_bytes == 0 {
            let operation = "looking for the hosts of splits";
            return Err(Error::new(ErrorKind::InvalidInput, operation, "a split has no bytes")
                .remedy("ask with the length of a split"));
        }
        let core = &self.core;
        let version = core.pfs.file(descriptor)?.version()?;
        let Some(cluster) = core.cluster() else { return Ok(Locality::Alone) };
        let in_memory_bytes = self.memory_only_size(version.id, version.size);
        let size_bytes = in_memory_bytes.unwrap_or(version.size);
        let is_small = size_bytes <= core.config.small_file_bytes_max;
        let is_packed_here = || {
            let small = core.store.small_state(version.id);
            small.is_some_and(|(cached, _)| cached.agrees_with(&version))
        };
        let extent = Extent { size_bytes, block_bytes: core.block_bytes() };
        let runs = if in_memory_bytes.is_some() || is_small && is_packed_here() {
            let blocks = size_bytes.div_ceil(extent.block_bytes);
            vec![HolderRun { first_block: 0, blocks, nodes: vec![cluster.me.to_string()] }]
        } else if is_small {
            // Nobody announces them, so nobody is asked.
            Vec::new()
        } else {
            cluster.holders(&version)
        };
        let range = SplitRange { count: count(&range, size_bytes), ..range };
        let owners = cluster.owners(&version, &range);
        Ok(Locality::Splits(hosts(extent, &range, &runs, &owners)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4;

    fn run(first_block: u64, blocks: u64, nodes: &[&str]) -> HolderRun {
        let nodes = nodes.iter().map(|it| (*it).to_owned()).collect();
        HolderRun { first_block, blocks, nodes }
    }

    /// Each split as its hosts, with a star where they have it in memory.
    fn located(size_bytes: u64, range: SplitRange, runs: &[HolderRun]) -> Vec<String> {
        let range = SplitRange { count: count(&range, size_bytes), ..range };
        let owner = |split: u64| format!("o{}", split % 3);
        let owners: Vec<_> = (range.first..).take(range.count as usize).map(owner).collect();
        let answer = hosts(Extent { size_bytes, block_bytes: BLOCK }, &range, runs, &owners);
        let words = |split: &LocatedSplit| {
            let names: Vec<&str> = answer.names_of(split).collect();
            format!("{}{}", names.join("+"), if split.in_memory { "*" } else { "" })
        };
        answer.splits.iter().map(words).collect()
    }

    fn splits(split_bytes: u64) -> SplitRange {
        SplitRange { split_bytes, first: 0, count: u32::MAX }
    }

    #[test]
    fn what_nobody_has_half_of_is_its_owners() {
        assert_eq!(located(40, splits(16), &[]), ["o0", "o1", "o2"]);
        // 4 bytes of 16, 8 of 16, 4 of the 8 that the last split has.
        let runs = [run(0, 1, &["a"]), run(4, 2, &["b"]), run(8, 1, &["c"])];
        assert_eq!(located(40, splits(16), &runs), ["o0", "b*", "c*"]);
        // The last block of the file ends with it: 1 byte of 3, then 2 of 3.
        assert_eq!(
            located(19, SplitRange { first: 1, ..splits(16) }, &[run(4, 1, &["a"])]),
            ["a*"]
        );
        assert_eq!(located(13, splits(10), &[run(3, 1, &["a"])]), ["o0", "o1"]);
    }

    #[test]
    fn those_that_hold_most_come_first_and_three_at_most() {
        let equal = [run(0, 4, &["e", "d", "c", "b"])];
        assert_eq!(located(16, splits(16), &equal), ["b+c+d*"]);
        let most = [run(0, 2, &["x", "z"]), run(2, 1, &["x", "y", "z"]), run(3, 1, &["y", "z"])];
        assert_eq!(located(16, splits(16), &most), ["z+x+y*"]);
        let owners = [run(0, 4, &["b", "o0", "a"])];
        assert_eq!(located(16, splits(16), &owners), ["o0+a+b*"], "the owner first among equals");
    }

    #[test]
    fn a_run_counts_for_each_split_that_it_touches() {
        let runs = [run(1, 5, &["a"]), run(6, 1, &["a", "b"])];
        assert_eq!(located(32, splits(8), &runs), ["a*", "a*", "a*", "a+b*"]);
        let overlapping = [run(0, 8, &["a"]), run(2, 8, &["b"]), run(0, 1, &["c"])];
        assert_eq!(located(32, splits(8), &overlapping), ["a*", "a*", "a*", "a*"]);
        // Splits need not be whole blocks, nor runs be in order.
        let runs = [run(3, 1, &["b"]), run(0, 2, &["a"])];
        assert_eq!(located(16, splits(6), &runs), ["a*", "o1", "b*"]);
    }

    #[test]
    fn only_splits_of_the_range_and_the_file_are_answered() {
        let runs = [run(0, u64::MAX, &["a"])];
        let range = SplitRange { split_bytes: 4, first: 2, count: 2 };
        assert_eq!(located(100, range, &runs), ["a*", "a*"]);
        assert_eq!(located(12, range, &runs), ["a*"]);
        assert!(located(8, range, &runs).is_empty() && located(0, range, &runs).is_empty());
        let far = SplitRange { split_bytes: u64::MAX, first: u64::MAX, count: u32::MAX };
        assert!(located(u64::MAX, far, &runs).is_empty());
        let many = located(u64::MAX, SplitRange { split_bytes: 1, ..far }, &[]);
        assert!(many.is_empty(), "beyond the last number");
        let long = SplitRange { split_bytes: 1, first: 5, count: u32::MAX };
        assert_eq!(located(1 << 40, long, &[]).len(), SPLITS_MAX as usize);
    }
}
