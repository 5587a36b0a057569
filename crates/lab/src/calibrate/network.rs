//! Measures the network in one direction: one machine listens, the other sends. Bytes count when
//! the listener has confirmed them. The listener stores nothing and needs no privilege.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidepool_proto::{Error, ErrorKind, Result};

use super::file::Measured;
use tidepool_terminal::interruption::check;
use tidepool_terminal::output;

/// First bytes of a connection, so that a listener serves only its own kind.
const GREETING: [u8; 8] = *b"TIDENET1";
const PART_BYTES: usize = 1 << 20;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Serves measurements until interrupted, or for one connection.
pub fn listen(address: SocketAddr, interrupted: &AtomicBool) -> Result<()> {
    let failed = |source| Error::pfs(format!("listening at {address}"), source);
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    output::line(&format!("listening at {at}; measure with `calibrate --network-to {at}`"));
    while !interrupted.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                std::thread::spawn(move || {
                    // A sender that goes away is its own loss; the next one is served.
                    let _ = receive(stream);
                });
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(LOOK_EVERY);
            }
            Err(source) => return Err(failed(source)),
        }
    }
    Ok(())
}

/// Counts what one connection sends and tells the sender.
fn receive(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting)?;
    if greeting != GREETING {
        return Ok(());
    }
    let mut buffer = vec![0; PART_BYTES];
    let mut received = 0_u64;
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            length => received += length as u64,
        }
    }
    stream.write_all(&received.to_le_bytes())
}

/// Sends to a listener from `streams` connections, `repeats` times for `span` each.
pub fn measure(
    address: SocketAddr,
    streams: u32,
    repeats: u32,
    span: Duration,
    interrupted: &AtomicBool,
) -> Result<Measured> {
    let mut rates = Vec::new();
    for _ in 0..repeats {
        check(interrupted)?;
        let begun = Instant::now();
        let received = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..streams).map(|_| scope.spawn(|| send(address, begun, span))).collect();
            let parts = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a sender failed")))
            });
            parts.sum::<std::io::Result<u64>>()
        });
        let received = received.map_err(|source| {
            Error::new(ErrorKind::TimedOut, format!("sending to {address}"), "no measurement")
                .caused_by(source)
                .remedy("run `tidepool calibrate --network-listen ADDRESS` there first")
        })?;
        rates.push(received as f64 / begun.elapsed().as_secs_f64());
    }
    let how = format!("TCP to {address}, bytes confirmed by the receiver");
    Ok(Measured::of(rates, streams, &how))
}

fn send(address: SocketAddr, begun: Instant, span: Duration) -> std::io::Result<u64> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&GREETING)?;
    let buffer = vec![0; PART_BYTES];
    while begun.elapsed() < span {
        stream.write_all(&buffer)?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut count = [0; 8];
    stream.read_exact(&mut count)?;
    Ok(u64::from_le_bytes(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_when_they_are_confirmed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for _ in 0..4 {
                let (stream, _) = listener.accept().unwrap();
                std::thread::spawn(|| receive(stream).unwrap());
            }
        });
        let quiet = AtomicBool::new(false);
        let span = Duration::from_millis(50);
        let found = measure(address, 2, 2, span, &quiet).unwrap();
        server.join().unwrap();
        assert_eq!((found.repeats, found.streams), (2, 2));
        assert!(found.bytes_per_second > 1e6, "{found:?}");
    }

    #[test]
    fn nobody_listening_is_told_with_the_remedy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let quiet = AtomicBool::new(false);
        let error = measure(address, 1, 1, Duration::from_millis(10), &quiet).unwrap_err();
        assert!(error.to_string().contains("--network-listen"), "{error}");
    }

    #[test]
    fn strangers_get_no_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        receive(listener.accept().unwrap().0).unwrap();
        let mut answer = Vec::new();
        // Unread bytes may turn the end into a reset; there is no answer either way.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
}
