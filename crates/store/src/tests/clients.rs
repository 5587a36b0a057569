//! What another process does with the descriptors it was handed: reads without the node, and leaves
//! marks that nobody trusts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use tidepool_proto::SegmentExport;
use tidepool_proto::table::{self, BlockState, HEADER_BYTES, HEADER_SIZE_OFFSET, TABLE_MAGIC};

use super::support::*;
use crate::PolicyKind;

/// A reader as the client library is one, with its own read-only mapping of the table.
struct Client {
    out: SegmentExport,
    base: *mut u8,
    length: usize,
}

// SAFETY: the mapping is only read, as atomics.
unsafe impl Send for Client {}

impl Client {
    fn new(out: SegmentExport) -> Self {
        let length = HEADER_BYTES + out.blocks as usize * 8;
        // SAFETY: the kernel chooses an unused range.
        let base = unsafe {
            let null = std::ptr::null_mut();
            rustix::mm::mmap(null, length, ProtFlags::READ, MapFlags::SHARED, &out.table, 0)
        };
        Client { out, base: base.unwrap().cast(), length }
    }

    fn header(&self, offset: usize) -> u64 {
        self.word_at(offset).load(Ordering::Acquire)
    }

    fn word(&self, block: u64) -> &AtomicU64 {
        self.word_at(HEADER_BYTES + block as usize * 8)
    }

    fn word_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.length);
        // SAFETY: inside the mapping and aligned; only loads are made through it.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    fn read(&self, block: u64, buffer: &mut [u8]) -> Option<usize> {
        let offset = block * self.out.block_bytes;
        table::read_if_resident(self.word(block), || {
            rustix::io::pread(&self.out.segment, buffer, offset).unwrap()
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped only here.
        unsafe { rustix::mm::munmap(self.base.cast(), self.length) }.unwrap();
    }
}

#[test]
fn a_client_reads_what_is_resident_and_nothing_else() {
    let store = store(4);
    let segment = segment(&store, 3 * BLOCK + 7);
    assert!(fill_clean(&segment, 0, 1), "before the table exists");
    let client = Client::new(segment.export().unwrap().unwrap());
    assert!(fill_clean(&segment, 3, 4), "after it");
    assert_eq!(client.header(0), TABLE_MAGIC);
    assert_eq!(client.header(8), BLOCK);
    assert_eq!(client.header(16), client.out.blocks);
    assert_eq!(client.header(HEADER_SIZE_OFFSET), 3 * BLOCK + 7);
    let mut buffer = [0; 16];
    assert_eq!(client.read(0, &mut buffer), Some(16));
    assert_eq!(buffer, [1; 16]);
    assert_eq!(client.read(3, &mut buffer), Some(7));
    assert_eq!(client.read(1, &mut buffer), None);
    let before = client.word(0).load(Ordering::Relaxed);
    segment.set_state(0, BlockState::Dirty);
    assert_ne!(client.word(0).load(Ordering::Relaxed), before, "a change of state is a generation");
    segment.set_state(0, BlockState::Clean);
    assert!(segment.evict_block(0));
    assert_eq!(client.read(0, &mut buffer), None);
    segment.set_size(100).unwrap();
    assert_eq!(client.header(HEADER_SIZE_OFFSET), 100);
    assert!(fill_clean(&segment, 0, 9));
    assert_eq!(client.read(0, &mut buffer), Some(16));
    assert_eq!(client.read(3, &mut buffer), None);
    segment.set_size(2000 * BLOCK).unwrap();
    let larger = Client::new(segment.export().unwrap().unwrap());
    assert!(larger.out.blocks >= 2000 && client.out.blocks < 2000);
    assert_eq!(larger.read(0, &mut buffer), Some(16));
    assert_eq!(client.read(0, &mut buffer), Some(16), "the older table lives on");
    drop(segment);
    assert_eq!(larger.read(0, &mut buffer), None, "absent before the memory goes");
    assert_eq!(client.read(0, &mut buffer), None);
    assert_eq!(store.stats().resident_bytes, 0);
    assert_eq!(rustix::fs::fstat(&client.out.segment).unwrap().st_blocks, 0, "memory is back");
}

#[test]
fn a_client_that_follows_a_growing_file_finds_the_bytes_with_the_length() {
    const PIECE: usize = 700;
    let store = store(8);
    let segment = segment(&store, 100);
    assert!(fill_clean(&segment, 0, 7));
    let client = Client::new(segment.export().unwrap().unwrap());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let follower = scope.spawn(|| {
            let client = client;
            let (mut seen, mut reads) = (100, 0);
            let mut buffer = vec![0; BLOCK as usize];
            while !done.load(Ordering::Acquire) {
                let size = client.header(HEADER_SIZE_OFFSET);
                let new = seen as usize..size as usize;
                if !new.is_empty() && client.read(0, &mut buffer).is_some() {
                    assert!(buffer[new].iter().all(|byte| *byte == 7), "nobody wrote zeros");
                    (seen, reads) = (size, reads + 1);
                }
            }
            reads
        });
        while segment.size() + (PIECE as u64) < BLOCK {
            let at = segment.size();
            segment.grow_with(at - 50, &[7; PIECE]).unwrap();
            assert_eq!(segment.size(), at - 50 + PIECE as u64);
            assert_eq!(segment.write_resident(at - 50, &[7; PIECE]), PIECE as u64);
        }
        done.store(true, Ordering::Release);
        println!("{} reads of new bytes", follower.join().unwrap());
    });
    // Into blocks that are not there: their part is for the caller to bring.
    let size = segment.size();
    segment.grow_with(size, &vec![7; BLOCK as usize]).unwrap();
    assert_holds(&segment, 0, 7);
    assert_eq!(segment.state(1), BlockState::Absent);
    assert_eq!(segment.size(), size + BLOCK);
}

#[test]
fn touch_marks_of_clients_count_as_hits() {
    let store = store_with(4, PolicyKind::Lru);
    let segment = segment(&store, 8 * BLOCK);
    for block in 0..4 {
        assert!(fill_clean(&segment, block, 1));
        drop(segment.pin_block(block));
    }
    store.expire(std::time::Instant::now());
    let out = segment.export().unwrap().unwrap();
    rustix::io::pwrite(&out.touches, &[0xFF], 0).unwrap();
    // Marks beyond the file, and a hole instead of marks, are no danger.
    rustix::io::pwrite(&out.touches, &[1; 50], out.blocks - 50).unwrap();
    assert!(fill_clean(&segment, 4, 1));
    assert_eq!(segment.state(0), BlockState::Clean, "the client reads it");
    assert_eq!(segment.state(1), BlockState::Absent, "the least recently used");
    let mut marks = [7; 8];
    rustix::io::pread(&out.touches, &mut marks, 0).unwrap();
    assert_eq!(marks, [0; 8], "taken");
}

#[test]
fn clients_never_see_zeros_while_blocks_come_and_go() {
    const BLOCKS: u64 = 4;
    let store = store(2);
    let segment = segment(&store, BLOCKS * BLOCK);
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (client, stop) = (Client::new(segment.export().unwrap().unwrap()), stop.clone());
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                let mut served = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    for block in 0..BLOCKS {
                        if client.read(block, &mut buffer).is_some() {
                            let first = buffer[0];
                            assert!(first != 0, "zeros of freed memory");
                            assert!(buffer.iter().all(|byte| *byte == first), "two generations");
                            served += 1;
                        }
                    }
                }
                served
            })
        })
        .collect();
    for round in 0..1500u64 {
        let block = round % BLOCKS;
        assert!(fill_clean(&segment, block, (round % 250) as u8 + 1));
        if round % 3 == 0 {
            segment.evict_block(round / 3 % BLOCKS);
        }
        segment.evict_block((block + 1) % BLOCKS);
    }
    stop.store(true, Ordering::Relaxed);
    let served: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert!(served > 0, "nothing was ever served");
}

#[test]
fn nobody_seals_the_marks_against_the_node() {
    let store = store(4);
    let segment = segment(&store, BLOCK);
    let out = segment.export().unwrap().unwrap();
    let heartbeat = crate::HeartbeatPage::new().unwrap().descriptor().unwrap();
    for file in [&out.touches, &heartbeat] {
        let sealed = rustix::fs::fcntl_add_seals(file, rustix::fs::SealFlags::WRITE);
        assert_eq!(sealed.unwrap_err(), rustix::io::Errno::PERM);
    }
}

#[test]
fn marks_far_from_what_is_resident_are_not_looked_at() {
    const BLOCKS: u64 = 200_000;
    let store = store_with(4, PolicyKind::Lru);
    let segment = segment(&store, BLOCKS * BLOCK);
    assert!(fill_clean(&segment, BLOCKS - 1, 1) && fill_clean(&segment, 5, 1));
    let out = segment.export().unwrap().unwrap();
    for block in [5, 100_000, BLOCKS - 1] {
        rustix::io::pwrite(&out.touches, &[1], block).unwrap();
    }
    store.expire(std::time::Instant::now());
    let marks = [5, 100_000, BLOCKS - 1].map(|block| {
        let mut mark = [9];
        assert_eq!(rustix::io::pread(&out.touches, &mut mark, block).unwrap(), 1);
        mark[0]
    });
    assert_eq!(marks, [0, 1, 0]);
}

#[test]
fn tables_are_bounded_in_all_and_for_each_user() {
    let store = store(4);
    let of = |user_id: u32, blocks: u64| {
        let owner = crate::Owner { user_id, ..crate::Owner::default() };
        store.create_segment(blocks * BLOCK, owner).unwrap()
    };
    assert!(of(1, (1 << 18) + 1).export().unwrap().is_none(), "too long for a table");
    let exported = |user| {
        let segments: Vec<_> = (0..20).map(|_| of(user, 1 << 18)).collect();
        let given = segments.iter().filter(|it| it.export().unwrap().is_some()).count();
        (given, segments)
    };
    let (first, kept) = exported(1);
    let (second, _) = exported(2);
    assert_eq!((first, second), (3, 3), "8 MiB a user, 2.25 MiB a table");
    assert!(of(1, 1 << 18).export().unwrap().is_none());
    drop(kept);
    assert_eq!(exported(1).0, 3, "they come back with their segments");
}
