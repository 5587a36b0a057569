//! Which server has a block: weighted rendezvous hashing over stable names.
//!
//! Each server gets a score for each key, and the highest one has it. A server that goes takes with
//! it what it had; one that comes takes its share from all others, and nothing else moves. The
//! share of a server is its weight's (Thaler and Ravishankar 1998; weights by the logarithmic
//! method).

use std::fmt;

use crate::key::PacketKey;

/// What is hashed to find the server of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The name of the block: its packets stay together (schemes `alw` and `adw`).
    #[default]
    Block,
    /// The whole key: its packets are spread (scheme `bld`).
    Packet,
}

/// A server of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its name, which stays while its address changes.
    pub name: String,
    /// Its share in comparison with those of others; more than 0.
    pub weight: f64,
}

/// Servers among which blocks are spread.
#[derive(Clone, Debug)]
pub struct Pool {
    members: Vec<Member>,
    seeds: Vec<u64>,
    placement: Placement,
}

/// Why servers make no pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// There is none.
    Empty,
    /// Two have this name.
    Twice(String),
    /// The weight of this one is no number above 0.
    Weight(String),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Empty => write!(f, "a pool needs at least one server"),
            PoolError::Twice(name) => write!(f, "two servers are called `{name}`"),
            PoolError::Weight(name) => {
                write!(f, "the weight of server `{name}` must be a number above 0")
            }
        }
    }
}

impl std::error::Error for PoolError {}

impl Pool {
    /// Of these servers. Their order does not matter.
    ///
    /// # Errors
    /// No server, two of a name, a weight that is none.
    pub fn new(members: Vec<Member>, placement: Placement) -> Result<Self, PoolError> {
        if members.is_empty() {
            return Err(PoolError::Empty);
        }
        for (at, Member { name, weight }) in members.iter().enumerate() {
            if members[..at].iter().any(|other| other.name == *name) {
                return Err(PoolError::Twice(name.clone()));
            }
            if !(weight.is_finite() && *weight > 0.0) {
                return Err(PoolError::Weight(name.clone()));
            }
        }
        let seed = |member: &Member| first_word(blake3::hash(member.name.as_bytes()).as_bytes());
        Ok(Pool { seeds: members.iter().map(seed).collect(), members, placement })
    }

    /// What is hashed to find the server of a packet.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The servers, in the order in which they were given.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Which of [`Self::members`] has a packet.
    pub fn server_of(&self, key: &PacketKey) -> usize {
        let ranked = self.scores(key).enumerate();
        let best = ranked.max_by(|(_, one), (_, other)| one.total_cmp(other));
        best.map_or(0, |(at, _)| at)
    }

    /// The servers in the order in which they are asked for a packet: the first one has it, each
    /// next one would if those before it were gone.
    pub fn order_of(&self, key: &PacketKey) -> Vec<usize> {
        let mut ranked: Vec<(usize, f64)> = self.scores(key).enumerate().collect();
        ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        ranked.into_iter().map(|(at, _)| at).collect()
    }

    fn scores(&self, key: &PacketKey) -> impl Iterator<Item = f64> {
        let packet = match self.placement {
            Placement::Block => 0,
            Placement::Packet => 1 + u64::from(key.packet),
        };
        let name = [key.block.epoch, key.block.block, packet].into_iter().fold(0, mix);
        self.members.iter().zip(&self.seeds).map(move |(member, seed)| {
            // In (0, 1): 53 bits, and half a step.
            let draw = ((mix(*seed, name) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            member.weight / -draw.ln()
        })
    }
}

/// One step of a hash: all bits of both words go into all bits of the result (the finish of
/// SplitMix64).
fn mix(state: u64, word: u64) -> u64 {
    let mut x = state.rotate_left(23) ^ word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn first_word(bytes: &[u8; 32]) -> u64 {
    bytes.iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::BlockName;

    fn pool(weights: &[f64], placement: Placement) -> Pool {
        let member =
            |(at, weight): (usize, &f64)| Member { name: format!("s{at}"), weight: *weight };
        Pool::new(weights.iter().enumerate().map(member).collect(), placement).unwrap()
    }

    fn keys() -> impl Iterator<Item = PacketKey> {
        let of = |epoch: u64| (0..100).map(move |block| BlockName { epoch: epoch * 77, block });
        (0..100).flat_map(of).map(|block| PacketKey { block, packet: 3 })
    }

    fn shares(pool: &Pool) -> Vec<f64> {
        let mut counts = vec![0; pool.members().len()];
        keys().for_each(|key| counts[pool.server_of(&key)] += 1);
        counts.into_iter().map(|count: u32| f64::from(count) / 10_000.0).collect()
    }

    #[test]
    fn shares_are_those_of_the_weights() {
        let shares = shares(&pool(&[1.0, 1.0, 2.0, 4.0], Placement::Block));
        for (share, wanted) in shares.iter().zip([0.125, 0.125, 0.25, 0.5]) {
            assert!((share - wanted).abs() < 0.02, "{shares:?}");
        }
    }

    #[test]
    fn packets_of_a_block_stay_together_or_are_spread() {
        let servers_of = |placement| {
            let pool = pool(&[1.0; 4], placement);
            let block = BlockName { epoch: 9, block: 2 };
            let servers = (0..64).map(|packet| pool.server_of(&PacketKey { block, packet }));
            servers.collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!((servers_of(Placement::Block), servers_of(Placement::Packet)), (1, 4));
    }

    #[test]
    fn a_server_that_goes_moves_what_it_had_and_nothing_else() {
        let (all, fewer) = (pool(&[1.0; 5], Placement::Block), pool(&[1.0; 4], Placement::Block));
        for key in keys() {
            let order = all.order_of(&key);
            assert_eq!(order[0], all.server_of(&key));
            let next = order.into_iter().find(|at| *at < 4);
            assert_eq!(Some(fewer.server_of(&key)), next);
        }
    }

    #[test]
    fn what_is_no_pool_says_why() {
        let member = |name: &str, weight| Member { name: name.into(), weight };
        let error = |members| Pool::new(members, Placement::Block).unwrap_err().to_string();
        assert_eq!(error(vec![]), "a pool needs at least one server");
        assert_eq!(error(vec![member("a", 1.0), member("a", 1.0)]), "two servers are called `a`");
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(error(vec![member("b", weight)]).contains("`b`"));
        }
    }

    /// A server that is started with the next release finds the blocks of this one.
    #[test]
    fn where_blocks_are_never_changes() {
        let pool = pool(&[1.0, 2.0, 1.0], Placement::Packet);
        let servers: Vec<usize> = keys().step_by(611).map(|key| pool.server_of(&key)).collect();
        assert_eq!(servers, WHERE);
    }

    const WHERE: [usize; 17] = [1, 1, 0, 2, 0, 0, 0, 0, 2, 2, 0, 1, 2, 1, 0, 1, 2];
}
