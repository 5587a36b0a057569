//! The partition that Kafka's own clients choose for a key: murmur2, so that an agent reads only
//! the partition in which the ceilings of its node are.

const SEED: u32 = 0x9747_b28c;
const MULTIPLIER: u32 = 0x5bd1_e995;
const ROTATION: u32 = 24;

/// Partition of `key` among `partitions`, which is not 0.
pub fn of_key(key: &[u8], partitions: u32) -> i32 {
    // As Kafka does it: the sign is dropped.
    let positive = murmur2(key) & (u32::MAX >> 1);
    (positive % partitions.max(1)) as i32
}

fn murmur2(bytes: &[u8]) -> u32 {
    // Kafka counts in 32 bits as well; keys are far shorter.
    let mut hash = SEED ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut mixed = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        mixed ^= mixed >> ROTATION;
        hash = hash.wrapping_mul(MULTIPLIER) ^ mixed.wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |all, byte| all << 8 | u32::from(*byte));
        hash = (hash ^ last).wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_kafka() {
        // From the tests of Kafka's own clients.
        let known = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ];
        for (key, hash) in known {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn every_key_has_a_partition() {
        for partitions in [1, 2, 7, 1000] {
            for key in ["", "n", "n1", "node7", "a-much-longer-name-of-a-node.example"] {
                let partition = of_key(key.as_bytes(), partitions);
                assert!((0..partitions as i32).contains(&partition), "{key} of {partitions}");
            }
        }
    }
}
