//! The inodes that the kernel knows of a weak PFS, each with a descriptor that reaches it.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::Stat;

/// Number of the root.
pub const ROOT: u64 = 1;
/// Numbers given where inode numbers are not stable begin here.
const UNSTABLE_FIRST: u64 = 1 << 40;

/// One inode.
pub struct Node {
    /// `O_PATH` descriptor.
    pub descriptor: OwnedFd,
    /// Inode number of the file behind it.
    behind: u64,
}

#[derive(Default)]
struct Maps {
    /// Node and count of look-ups.
    by_number: HashMap<u64, (Arc<Node>, u64)>,
    by_behind: HashMap<u64, u64>,
    /// Not known any more before somebody looks a name of theirs up.
    forgotten: HashSet<u64>,
    last: u64,
}

/// The table.
#[derive(Default)]
pub struct Nodes {
    maps: Mutex<Maps>,
}

impl Nodes {
    /// With the root alone.
    pub fn new(root: OwnedFd, inode: u64) -> Self {
        let nodes = Nodes::default();
        let root = Arc::new(Node { descriptor: root, behind: inode });
        let mut maps = nodes.maps.lock();
        maps.last = UNSTABLE_FIRST;
        maps.by_number.insert(ROOT, (root, 1));
        maps.by_behind.insert(inode, ROOT);
        drop(maps);
        nodes
    }

    /// A descriptor of inode `number`.
    pub fn get(&self, number: u64) -> rustix::io::Result<Arc<Node>> {
        let maps = self.maps.lock();
        let known = maps.by_number.get(&number).filter(|_| !maps.forgotten.contains(&number));
        known.map(|(node, _)| node.clone()).ok_or(rustix::io::Errno::STALE)
    }

    /// Forgets all but the root.
    pub fn forget_all(&self) {
        let mut maps = self.maps.lock();
        maps.forgotten = maps.by_number.keys().copied().filter(|number| *number != ROOT).collect();
    }

    /// Counts a look-up of what `descriptor` leads to and returns its number.
    pub fn enter(&self, descriptor: OwnedFd, stat: &Stat, unstable: bool) -> u64 {
        let mut maps = self.maps.lock();
        if let Some(number) = maps.by_behind.get(&stat.st_ino).copied()
            && let Some((_, lookups)) = maps.by_number.get_mut(&number)
        {
            *lookups += 1;
            maps.forgotten.remove(&number);
            return number;
        }
        maps.last += 1;
        let number = if unstable { maps.last } else { stat.st_ino };
        let node = Node { descriptor, behind: stat.st_ino };
        maps.by_number.insert(number, (Arc::new(node), 1));
        maps.by_behind.insert(stat.st_ino, number);
        number
    }

    /// The kernel dropped `count` look-ups.
    pub fn forget(&self, number: u64, count: u64) {
        let mut maps = self.maps.lock();
        let Some((node, lookups)) = maps.by_number.get_mut(&number) else { return };
        *lookups = lookups.saturating_sub(count);
        if *lookups > 0 || number == ROOT {
            return;
        }
        let behind = node.behind;
        maps.by_number.remove(&number);
        maps.forgotten.remove(&number);
        maps.by_behind.remove(&behind);
    }
}
