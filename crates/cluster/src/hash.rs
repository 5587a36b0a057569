//! Hashes that all nodes compute alike, and choices by the highest of them (rendezvous hashing).

use std::hash::{BuildHasherDefault, Hasher};

use crate::{FileKey, SharedVersion};

/// Spreads the bits of `value` (finalizer of MurmurHash3, variant "moremur").
pub(crate) const fn mix(mut value: u64) -> u64 {
    value ^= value >> 27;
    value = value.wrapping_mul(0x3C79_AC49_2BA7_B653);
    value ^= value >> 33;
    value = value.wrapping_mul(0x1C69_B3F7_4AC4_AE35);
    value ^ (value >> 27)
}

/// Hash of a text, the same on every machine.
pub(crate) fn text(bytes: &[u8]) -> u64 {
    let mut state = mix(bytes.len() as u64 ^ 0x9E37_79B9_7F4A_7C15);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = mix(state ^ u64::from_le_bytes(word)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    }
    mix(state)
}

/// What stands for a file in maps and messages; never 0. Two files with the same hash cost misses.
pub(crate) const fn file(file: FileKey) -> u64 {
    let hash = mix(mix(file.inode ^ 0x9E37_79B9_7F4A_7C15) ^ file.generation);
    if hash == 0 { 1 } else { hash }
}

/// Twelve bits that tell versions with the same change time apart.
pub(crate) const fn tag(version: &SharedVersion) -> u16 {
    (mix(mix(version.size ^ 0x5851_F42D_4C95_7F2D) ^ version.mtime_ns as u64) >> 52) as u16
}

/// Claim of a member, given by the hash of its name, to what `key` stands for.
pub(crate) const fn claim(member: u64, key: u64) -> u64 {
    mix(key ^ member)
}

/// Key of a part of a file, to share out parts rather than files.
pub(crate) const fn part(file: u64, part: u64) -> u64 {
    mix(file ^ mix(part.wrapping_add(0x2545_F491_4F6C_DD1D)))
}

/// The part of a file that stands for its copies; splits are counted from 0.
pub(crate) const COPIES: u64 = u64::MAX;

/// For maps whose keys are hashes already: takes them as they are, the same in each run.
#[derive(Clone, Copy, Default)]
pub(crate) struct Plain(u64);

impl Hasher for Plain {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = mix(self.0 ^ text(bytes));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map with the same order in each run of the same calls.
pub(crate) type Map<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<Plain>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_the_same_on_every_machine() {
        // A change of these splits a cluster of old and new nodes.
        assert_eq!(text(b"node-01"), text(b"node-01"));
        assert_ne!(text(b"node-01"), text(b"node-1"));
        assert_ne!(text(b"a"), text(b"a\0"));
        assert_ne!(text(b""), text(b"\0\0\0\0\0\0\0\0"));
        let of = |inode, generation| file(FileKey { inode, generation });
        assert_ne!(of(1, 2), of(2, 1));
        assert_ne!(of(0, 0), 0);
    }

    #[test]
    fn claims_share_out_evenly() {
        let members: Vec<u64> = (0..10).map(|n| text(format!("n{n}").as_bytes())).collect();
        let mut shares = [0_u32; 10];
        for inode in 0..100_000 {
            let key = file(FileKey { inode, generation: 7 });
            let best = (0..10).max_by_key(|&n| claim(members[n], key)).unwrap();
            shares[best] += 1;
        }
        for share in shares {
            assert!((9_500..10_500).contains(&share), "{shares:?}");
        }
    }
}
