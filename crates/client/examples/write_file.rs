//! Writes standard input to a file through the library, and returns when it is closed: what the
//! library promises then can be looked at from outside, for example after a loss of power.
//!
//! `cargo run -p tidepool-client --example write_file -- SOCKET FILE < bytes`

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;

use tidepool_client::{Client, ClientOptions, OpenOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(socket), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: write_file SOCKET FILE".into());
    };
    let client =
        Client::connect(ClientOptions { socket: Some(socket), ..ClientOptions::default() });
    if !client.is_connected() {
        return Err("no node answers at that socket".into());
    }
    let file = client.open(path, OpenOptions::write())?;
    let mut input = std::io::stdin().lock();
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        let bytes = input.read(&mut buffer)?;
        if bytes == 0 {
            return Ok(file.close()?);
        }
        file.write_at(offset, &buffer[..bytes])?;
        offset += bytes as u64;
    }
}
