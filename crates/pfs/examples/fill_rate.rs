//! Rates at which blocks of a file come in: bare sequential reads, block reads with direct I/O and
//! through the page cache, with one and eight threads, caches dropped before each; and what a rate
//! limit makes of it. For measuring a mount by hand; it judges nothing.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tidepool_pfs::{FaultStore, LowerFile, LowerStore, PosixOptions, PosixStore};

const BLOCK_BYTES: usize = 4 << 20;

fn fill(file: &dyn LowerFile, threads: usize) -> f64 {
    let size = file.version().expect("a version").size;
    file.drop_cached(0, size);
    let next = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut memory = vec![0u8; BLOCK_BYTES + 4096];
                let start = memory.as_ptr().align_offset(4096);
                let block = &mut memory[start..start + BLOCK_BYTES];
                loop {
                    let offset = next.fetch_add(BLOCK_BYTES as u64, Ordering::Relaxed);
                    if offset >= size {
                        return;
                    }
                    file.read_block(offset, block).expect("a block");
                }
            });
        }
    });
    size as f64 / 1e6 / began.elapsed().as_secs_f64()
}

fn main() {
    let path = std::env::args_os().nth(1).expect("usage: fill_rate FILE [RATE, such as 400MB/s]");
    let path = std::path::PathBuf::from(path);
    let root = path.parent().expect("a directory").to_path_buf();
    let open = || File::open(&path).expect("the file");
    let store = |direct_io: bool| -> Arc<dyn LowerStore> {
        let began = Instant::now();
        let options = PosixOptions { direct_io, ..PosixOptions::default() };
        let store = PosixStore::open(&root, options).expect("the directory");
        println!("opened and probed in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
        store
    };
    let direct = store(true);
    println!("{:#?}", direct.features());
    let file = direct.file(open().into()).expect("a regular file");
    file.drop_cached(0, u64::MAX >> 1);
    let mut buffer = vec![0; 1 << 20];
    let (began, mut bytes) = (Instant::now(), 0);
    let mut bare = open();
    loop {
        match bare.read(&mut buffer).expect("a read") {
            0 => break,
            count => bytes += count,
        }
    }
    println!("bare read, 1 MiB: {:.0} MB/s", bytes as f64 / 1e6 / began.elapsed().as_secs_f64());
    for (name, store) in [("direct", direct.clone()), ("page cache", store(false))] {
        let file = store.file(open().into()).expect("a regular file");
        for threads in [1, 8] {
            println!("{name}, {threads} threads: {:.0} MB/s", fill(&*file, threads));
        }
    }
    if let Some(rate) = std::env::args().nth(2) {
        let rules = format!("rate={rate}").parse().expect("a rate");
        let limited = FaultStore::new(direct, rules).expect("a store");
        let file = limited.file(open().into()).expect("a regular file");
        for threads in [1, 2, 8] {
            println!("limited to {rate}, {threads} threads: {:.1} MB/s", fill(&*file, threads));
        }
    }
}
