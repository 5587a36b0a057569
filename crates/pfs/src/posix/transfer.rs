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

/// What direct I/O wants its buffers and offsets aligned to, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alignment {
    pub offset: usize,
    pub memory: usize,
}

/// Fills `buffer` with direct I/O from any offset: whole aligned steps straight into it, the rest
/// by way of a buffer of our own. `size` is asked for where a read stopped short of a step.
pub(crate) fn read_unbuffered(
    offset: u64,
    buffer: &mut [u8],
    alignment: Alignment,
    mut read: impl FnMut(u64, &mut [u8]) -> rustix::io::Result<usize>,
    size: impl FnOnce() -> io::Result<u64>,
) -> io::Result<usize> {
    let aligned = offset.is_multiple_of(alignment.offset as u64)
        && (buffer.as_ptr() as usize).is_multiple_of(alignment.memory);
    let whole = if aligned { buffer.len() / alignment.offset * alignment.offset } else { 0 };
    let done = match read_direct(offset, &mut buffer[..whole], alignment.offset, &mut read)? {
        DirectRead::Complete(done) if done < whole => return Ok(done),
        DirectRead::Complete(done) => done,
        // Mostly the end of the file; else a short read, which has to be gone on from.
        DirectRead::Stopped(done) if offset + done as u64 >= size()? => return Ok(done),
        DirectRead::Stopped(done) => done,
    };
    let rest = &mut buffer[done..];
    Ok(done + read_bounced(offset + done as u64, rest, alignment, read)?)
}

/// How a read with direct I/O ended.
#[derive(Debug, PartialEq, Eq)]
enum DirectRead {
    /// The buffer is full, or the file ended at an aligned place.
    Complete(usize),
    /// The kernel stopped at an unaligned place: the end of the file, or a short read that direct
    /// I/O cannot go on from.
    Stopped(usize),
}

/// Fills `buffer`, whose length is a multiple of `alignment`, in aligned steps.
fn read_direct(
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
fn read_bounced(
    offset: u64,
    buffer: &mut [u8],
    alignment: Alignment,
    mut read: impl FnMut(u64, &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    if buffer.is_empty() {
        return Ok(0);
    }
    let step = alignment.offset;
    let span_max = BOUNCE_BYTES_MAX.next_multiple_of(step);
    let size = (buffer.len() + step).next_multiple_of(step).min(span_max);
    let mut memory = vec![0u8; size + alignment.memory];
    let aligned_at = memory.as_ptr().align_offset(alignment.memory);
    let bounce = &mut memory[aligned_at..aligned_at + size];
    let mut done = 0;
    while done < buffer.len() {
        let at = offset + done as u64;
        let start = at / step as u64 * step as u64;
        let skip = (at - start) as usize;
        let span = (skip + buffer.len() - done).next_multiple_of(step).min(size);
        let (DirectRead::Complete(count) | DirectRead::Stopped(count)) =
            read_direct(start, &mut bounce[..span], step, &mut read)?;
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
    fn unbuffered_reads_take_any_offset_and_go_on_after_short_reads() {
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
        // Where the buffer lies decides whether reads go straight into it: both happen here.
        let places = [(0, 10), (511, 2_000_000), (2_999_990, 4096), (3_000_000, 1)];
        for (offset, length) in places.into_iter().chain((0..8).map(|i| (i * 512, 100_000))) {
            let mut memory = vec![0; length + 512];
            let start = memory.as_ptr().align_offset(512);
            let buffer = &mut memory[start..start + length];
            let alignment = Alignment { offset: 512, memory: 512 };
            let size = || Ok(file.len() as u64);
            let count = read_unbuffered(offset as u64, buffer, alignment, &mut read, size);
            let count = count.unwrap();
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
