//! How fast packets go to servers and back: `rate ADDRESS... [-n BLOCKS] [-b PACKET_BYTES]
//! [-t THREADS] [--durable]`. Blocks have 128 MiB. Prints MB/s of writing and of reading.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tidepool_buffer::client::{Client, ClientError, ClientSettings, Keep, tcp};
use tidepool_buffer::key::BlockName;
use tidepool_buffer::placement::{Member, Placement, Pool};

const BLOCK_BYTES: usize = 128 << 20;
/// Packets in a call.
const AT_ONCE: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, default: usize| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1)?.parse().ok().or(Some(default))
    };
    let blocks = number("-n", 8).unwrap_or(8) as u64;
    let packet_bytes = number("-b", 512 << 10).unwrap_or(512 << 10);
    let threads = number("-t", 1).unwrap_or(1);
    let keep = if words.iter().any(|it| it == "--durable") { Keep::Durable } else { Keep::Owed };
    let addresses: Vec<SocketAddr> = words.iter().filter_map(|it| it.parse().ok()).collect();
    let members = addresses.iter().map(|it| Member { name: it.to_string(), weight: 1.0 });
    let pool = Pool::new(members.collect(), Placement::Block)?;
    let client =
        Client::new(pool, addresses.into_iter().map(tcp).collect(), ClientSettings::default());
    let packet: Vec<u8> = (0..packet_bytes).map(|at| (at * 31 / 7) as u8).collect();
    let packets = (BLOCK_BYTES / packet_bytes) as u32;
    let all: Vec<u32> = (0..packets).collect();
    let name = |block| BlockName { epoch: 0x5eed, block };

    let write = |block: u64| -> Result<(), ClientError> {
        for some in all.chunks(AT_ONCE) {
            let is_last = some.last() == all.last();
            let of_block: Vec<_> = some.iter().map(|number| (*number, &packet[..])).collect();
            client.put(&name(block), &of_block, if is_last { keep } else { Keep::Owed })?;
        }
        Ok(())
    };
    let read = |block: u64| -> Result<(), ClientError> {
        for some in all.chunks(AT_ONCE) {
            let found = client.get(&name(block), some)?;
            assert!(found.into_iter().all(|it| it.is_some_and(|bytes| bytes == packet)));
        }
        client.settle(&name(block), packets)
    };
    for (what, act) in
        [("write", &write as &(dyn Fn(u64) -> Result<(), ClientError> + Sync)), ("read", &read)]
    {
        let (begun, next) = (Instant::now(), AtomicU64::new(0));
        std::thread::scope(|scope| -> Result<(), ClientError> {
            let work = || -> Result<(), ClientError> {
                loop {
                    let block = next.fetch_add(1, Ordering::Relaxed);
                    if block >= blocks {
                        return Ok(());
                    }
                    act(block)?;
                }
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("it ends"))
        })?;
        let megabytes = (blocks as usize * BLOCK_BYTES) as f64 / 1e6;
        println!("{what}: {:.0} MB/s", megabytes / begun.elapsed().as_secs_f64());
    }
    Ok(())
}
