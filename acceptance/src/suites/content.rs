//! Recognisable test content: bytes that are a function of a seed and an offset.

/// Fills `buffer` with the content of file `seed` from `offset` on; both multiples of eight are
/// fastest, any are right.
pub fn fill(seed: u64, offset: u64, buffer: &mut [u8]) {
    let mut position = offset;
    let mut rest = buffer;
    while !rest.is_empty() {
        let word = mix(seed, position / 8).to_le_bytes();
        let skip = (position % 8) as usize;
        let count = (8 - skip).min(rest.len());
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&word[skip..skip + count]);
        position += count as u64;
        rest = later;
    }
}

/// The first `length` bytes of file `seed`.
pub fn of(seed: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![0; length];
    fill(seed, 0, &mut buffer);
    buffer
}

/// Word `index` of the sequence `seed` of Splitmix64; sequences start far from each other.
pub fn mix(seed: u64, index: u64) -> u64 {
    scramble(
        seed.wrapping_mul(0xd134_2543_de82_ef95)
            .wrapping_add(index.wrapping_add(1).wrapping_mul(SPLITMIX_STEP)),
    )
}

/// What Splitmix64 adds for each word.
pub const SPLITMIX_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of Splitmix64.
pub fn scramble(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::{fill, of};

    #[test]
    fn any_window_equals_the_whole() {
        let whole = of(7, 100);
        for start in 0..40 {
            for length in [0, 1, 7, 8, 9, 33] {
                let mut window = vec![0; length];
                fill(7, start as u64, &mut window);
                assert_eq!(window, whole[start..start + length], "{start} {length}");
            }
        }
        assert_ne!(of(7, 100), of(8, 100));
    }
}
