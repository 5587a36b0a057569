//! Files of bytes that do not compress and repeat nowhere, for benchmarks and examples.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Result;

/// Writes a file of random-looking bytes and syncs it.
pub fn write_file(path: &Path, bytes: u64) -> Result<()> {
    let mut piece = vec![0u8; 1 << 20];
    let mut file = File::create(path)?;
    let mut left = bytes;
    let mut state = bytes | 1;
    while left > 0 {
        for word in piece.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        let count = left.min(piece.len() as u64);
        file.write_all(&piece[..usize::try_from(count)?])?;
        left -= count;
    }
    file.sync_all()?;
    Ok(())
}
