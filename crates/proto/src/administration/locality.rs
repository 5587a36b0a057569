//! Where the splits of a file are, for schedulers: what a client asks its node, and the answer.

use serde::{Deserialize, Serialize};

/// Most splits of one answer: with [`HOSTS_MAX`] hosts each it fits a reply
/// ([`crate::wire::REPLY_BODY_BYTES_MAX`]). Of longer files the next part is asked for.
pub const SPLITS_MAX: u32 = 1 << 14;
/// Most hosts of one split.
pub const HOSTS_MAX: usize = 3;

/// Which splits of a file are asked about. Split `n` begins at `n * split_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRange {
    /// Length of a split in bytes; the last one of the file may be shorter.
    pub split_bytes: u64,
    /// First split.
    pub first: u64,
    /// How many, of which those before the end of the file are answered, [`SPLITS_MAX`] at most.
    pub count: u32,
}

/// Where splits are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Locality {
    /// The node is of no cluster: every split is as near as any other.
    Alone,
    /// Where they are.
    Splits(SplitHosts),
}

/// Hosts of neighbouring splits, from the first that was asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitHosts {
    /// Names of nodes, as members are listed; each once.
    pub names: Vec<String>,
    /// One entry a split.
    pub splits: Vec<LocatedSplit>,
}

/// Where one split is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocatedSplit {
    /// Places in [`SplitHosts::names`], best first, [`HOSTS_MAX`] at most, at least one.
    pub hosts: Vec<u16>,
    /// Each of the hosts has at least half of the split in memory. Otherwise nobody has, and the
    /// only host is the one that is to read it: the same for all that ask, as long as members
    /// neither come nor go.
    pub in_memory: bool,
}

impl SplitHosts {
    /// Names of the hosts of a split, in their order.
    pub fn names_of<'a>(&'a self, split: &'a LocatedSplit) -> impl Iterator<Item = &'a str> {
        let name = |place: &u16| self.names.get(usize::from(*place));
        split.hosts.iter().filter_map(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_answer_fits_a_message() {
        let split = LocatedSplit { hosts: vec![u16::MAX; HOSTS_MAX], in_memory: true };
        // As many names as splits can have, each as long as a member's may be.
        let names = vec!["n".repeat(64); HOSTS_MAX * SPLITS_MAX as usize];
        let answer = SplitHosts { names, splits: vec![split; SPLITS_MAX as usize] };
        let bytes = postcard::to_allocvec(&answer).unwrap().len();
        assert!(bytes <= crate::wire::REPLY_BODY_BYTES_MAX as usize - 64, "{bytes}");
    }
}
