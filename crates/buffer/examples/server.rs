//! A buffer server, which takes the arguments of memcached that its tests give: `-p PORT`,
//! `-l ADDRESS`, `-m MEBIBYTES`, `-c CONNECTIONS`, `-I SIZE`. With `-D DIRECTORY` what is owed to
//! the PFS is kept there. Others mean nothing here.

use std::net::TcpListener;
use std::sync::Arc;

use tidepool_buffer::disk::{Disk, DiskSettings};
use tidepool_buffer::memory::Memory;
use tidepool_buffer::server::{InMemory, Keeper, Server, Settings};

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1)
    };
    let value = |name: &str| word(name)?.parse::<u64>().ok();
    let address = word("-l").map_or("127.0.0.1", String::as_str);
    let mut settings = Settings::default();
    if let Some(connections) = value("-c") {
        settings.connections_max = connections as usize;
    }
    let memory = Arc::new(Memory::new(value("-m").unwrap_or(1024) << 20));
    let keeper: Box<dyn Keeper> = match word("-D") {
        None => Box::new(InMemory),
        Some(directory) => {
            let (patience, threads) = (settings.patience, 4);
            let (directory, capacity_bytes) = (directory.into(), u64::MAX / 2);
            let replaced_bytes_max = 8 << 20;
            let of_disk =
                DiskSettings { directory, capacity_bytes, threads, patience, replaced_bytes_max };
            let (disk, replayed) = Disk::open(&of_disk, memory.clone())?;
            println!("replayed {} blocks, {} bytes", replayed.blocks, replayed.bytes);
            replayed.damaged.iter().for_each(|what| println!("damaged: {what}"));
            replayed.set_aside.iter().for_each(|file| println!("set aside: {file}"));
            Box::new(disk)
        }
    };
    let listener = TcpListener::bind((address, value("-p").unwrap_or(11_211) as u16))?;
    let address = listener.local_addr()?;
    let _server = Server::start(Some(listener), settings, memory, keeper)?;
    println!("listening on {address}");
    loop {
        std::thread::park();
    }
}
