//! Transfers of whole buffers over system calls that may do less than asked: loops over short
//! results and interruptions. Knows nothing of descriptors, so that tests drive it with closures.

use std::io;

/// Repeats `read` until `buffer` is full or the file ends; an error discards what was read.
pub(crate) fn read_full(
    offset: u64,
    buffer: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match read(offset + done as u64, &mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

/// What a write that failed left behind.
#[derive(Debug)]
pub(crate) struct PartialWrite {
    /// Bytes that had been taken before the error.
    pub written: usize,
    pub error: io::Error,
}

/// Repeats `write` until all of `data` is taken.
pub(crate) fn write_full(
    offset: u64,
    data: &[u8],
    mut write: impl FnMut(u64, &[u8]) -> rustix::io::Result<usize>,
) -> Result<(), PartialWrite> {
    let mut written = 0;
    while written < data.len() {
        match write(offset + written as u64, &data[written..]) {
            // POSIX leaves no reason for 0 here; going on could loop for ever.
            Ok(0) => {
                let error = io::Error::from_raw_os_error(libc::EIO);
                return Err(PartialWrite { written, error });
            }
            Ok(count) => written += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(PartialWrite { written, error: error.into() }),
        }
    }
    Ok(())
}

/// How a read with direct I/O ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DirectRead {
    /// The buffer is full, or the file ended at an aligned place.
    Complete(usize),
    /// The kernel stopped at an unaligned place: the end of the file, or a short read that direct
    /// I/O cannot go on from.
    Stopped(usize),
}

/// Fills `buffer`, whose length is a multiple of `alignment`, in aligned steps.
pub(crate) fn read_direct(
    offset: u64,
    buffer: &mut [u8],
    alignment: usize,
    mut read: impl FnMut(u64, &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<DirectRead> {
    let mut done = 0;
    while done < buffer.len() {
        match read(offset + done as u64, &mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => {
                done += count;
                if done % alignment != 0 {
                    return Ok(DirectRead::Stopped(done));
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(DirectRead::Complete(done))
}

/// Largest buffer that unaligned direct reads go through, in bytes.
const BOUNCE_BYTES_MAX: usize = 1 << 20;

/// Fills `buffer` from any offset by aligned reads into a buffer of its own.
pub(crate) fn read_bounced(
    offset: u64,
    buffer: &mut [u8],
    alignment: usize,
    memory_alignment: usize,
    mut read: impl FnMut(u64, &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    if buffer.is_empty() {
        return Ok(0);
    }
    let span_max = BOUNCE_BYTES_MAX.next_multiple_of(alignment);
    let size = (buffer.len() + alignment).next_multiple_of(alignment).min(span_max);
    let mut memory = vec![0u8; size + memory_alignment];
    let aligned_at = memory.as_ptr().align_offset(memory_alignment);
    let bounce = &mut memory[aligned_at..aligned_at + size];
    let mut done = 0;
    while done < buffer.len() {
        let at = offset + done as u64;
        let start = at / alignment as u64 * alignment as u64;
        let skip = (at - start) as usize;
        let span = (skip + buffer.len() - done).next_multiple_of(alignment).min(size);
        let (DirectRead::Complete(count) | DirectRead::Stopped(count)) =
            read_direct(start, &mut bounce[..span], alignment, &mut read)?;
        if count <= skip {
            break;
        }
        let taken = (count - skip).min(buffer.len() - done);
        buffer[done..done + taken].copy_from_slice(&bounce[skip..skip + taken]);
        done += taken;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    /// A file of 10,000 bytes whose reads are short, and interrupted every other time.
    fn awkward(calls: &mut u32, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        *calls += 1;
        if calls.is_multiple_of(2) {
            return Err(Errno::INTR);
        }
        let left = 10_000u64.saturating_sub(offset) as usize;
        let count = buffer.len().min(left).min(777);
        for (index, byte) in buffer[..count].iter_mut().enumerate() {
            *byte = (offset as usize + index) as u8;
        }
        Ok(count)
    }

    #[test]
    fn short_and_interrupted_reads_are_completed() {
        let mut calls = 0;
        let mut buffer = vec![0xEE; 4096];
        let read = |offset, part: &mut [u8]| awkward(&mut calls, offset, part);
        assert_eq!(read_full(8_000, &mut buffer, read).unwrap(), 2_000);
        assert!((0..2_000).all(|index| buffer[index] == (8_000 + index) as u8));
        assert_eq!(buffer[2_000], 0xEE, "nothing beyond the end is touched");
    }

    #[test]
    fn an_error_after_a_part_is_an_error() {
        let mut first = true;
        let result = read_full(0, &mut [0; 100], |_, part| {
            if std::mem::take(&mut first) { Ok(part.len() / 2) } else { Err(Errno::IO) }
        });
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn a_write_that_fills_the_disk_tells_how_far_it_came() {
        let mut room = 1_000usize;
        let result = write_full(0, &[7; 4096], |_, part| {
            let count = part.len().min(room).min(300);
            room -= count;
            if count == 0 { Err(Errno::NOSPC) } else { Ok(count) }
        });
        let partial = result.unwrap_err();
        assert_eq!(partial.written, 1_000);
        assert_eq!(partial.error.raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(write_full(0, &[1], |_, _| Ok(0)).unwrap_err().written, 0);
    }

    #[test]
    fn bounced_reads_take_any_offset_and_go_on_after_short_reads() {
        let file: Vec<u8> = (0..3_000_000u32).map(|at| (at / 251) as u8).collect();
        let mut shorten = 0;
        let mut read = |at: u64, part: &mut [u8]| {
            assert!(at.is_multiple_of(512) && part.len().is_multiple_of(512));
            assert_eq!(part.as_ptr() as usize % 512, 0);
            shorten += 1;
            let count = part.len().min(file.len().saturating_sub(at as usize));
            let count = if shorten % 3 == 0 { count.min(1_000) } else { count };
            part[..count].copy_from_slice(&file[at as usize..at as usize + count]);
            Ok(count)
        };
        for (offset, length) in [(0, 10), (511, 2_000_000), (2_999_990, 4096), (3_000_000, 1)] {
            let mut buffer = vec![0; length];
            let count = read_bounced(offset as u64, &mut buffer, 512, 512, &mut read).unwrap();
            let end = file.len().min(offset + length);
            assert!(buffer[..count] == file[offset..end], "{offset} {length}");
        }
    }

    #[test]
    fn direct_reads_stop_where_they_cannot_go_on() {
        let mut buffer = vec![0; 8192];
        let short = read_direct(0, &mut buffer, 512, |offset, part| {
            Ok(if offset == 0 { 4096 } else { part.len().min(700) })
        });
        assert_eq!(short.unwrap(), DirectRead::Stopped(4796));
        let whole = read_direct(0, &mut buffer, 512, |_, part| Ok(part.len().min(1024)));
        assert_eq!(whole.unwrap(), DirectRead::Complete(8192));
        let ended =
            read_direct(0, &mut buffer, 512, |offset, _| Ok(if offset < 2048 { 1024 } else { 0 }));
        assert_eq!(ended.unwrap(), DirectRead::Complete(2048));
    }
}
