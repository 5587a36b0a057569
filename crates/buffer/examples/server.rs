//! A buffer server in memory alone, which takes the arguments of memcached that its tests give:
//! `-p PORT`, `-l ADDRESS`, `-m MEBIBYTES`, `-c CONNECTIONS`, `-I SIZE`. Others mean nothing here.

use std::net::TcpListener;

use tidepool_buffer::server::{InMemory, Server, Settings};

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1)?.parse::<u64>().ok()
    };
    let address = words.iter().position(|word| word == "-l").and_then(|at| words.get(at + 1));
    let address = address.map_or("127.0.0.1", String::as_str);
    let mut settings = Settings::default();
    if let Some(mebibytes) = value("-m") {
        settings.capacity_bytes = mebibytes << 20;
    }
    if let Some(connections) = value("-c") {
        settings.connections_max = connections as usize;
    }
    let listener = TcpListener::bind((address, value("-p").unwrap_or(11_211) as u16))?;
    let server = Server::start(listener, settings, Box::new(InMemory))?;
    println!("listening on {}", server.address());
    loop {
        std::thread::park();
    }
}
