//! Links between nodes: a node knows each other one by the address of a link, which carries TCP and
//! UDP on to it, slowly or not at all where it is told to.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::operation::Weather;

/// Bytes that are carried at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Longer than any datagram between nodes.
const DATAGRAM_BYTES: usize = 4096;
/// Value of `Link::weather` for a link that is cut; others are milliseconds.
const CUT: u64 = u64::MAX;

/// One direction of two nodes.
struct Link {
    to: SocketAddr,
    weather: AtomicU64,
    stopping: AtomicBool,
    streams: Mutex<(u64, HashMap<u64, TcpStream>)>,
}

impl Link {
    fn streams(&self) -> MutexGuard<'_, (u64, HashMap<u64, TcpStream>)> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits as the weather wants it. False: what is carried is lost.
    fn wait(&self, is_lost_where_cut: bool) -> bool {
        loop {
            match self.weather.load(Ordering::Acquire) {
                _ if self.is_stopping() => return false,
                0 => return true,
                CUT if is_lost_where_cut => return false,
                CUT => std::thread::sleep(Duration::from_millis(5)),
                slow_ms => {
                    std::thread::sleep(Duration::from_millis(slow_ms));
                    return true;
                }
            }
        }
    }

    /// Keeps a stream where it can be ended, until `carry` returns.
    fn with(&self, stream: &TcpStream, carry: impl FnOnce()) {
        let Ok(kept) = stream.try_clone() else { return };
        let number = {
            let mut streams = self.streams();
            streams.0 += 1;
            let number = streams.0;
            streams.1.insert(number, kept);
            number
        };
        if !self.is_stopping() {
            carry();
        }
        self.streams().1.remove(&number);
    }

    fn end_streams(&self) {
        for stream in self.streams().1.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// One direction of a connection, to its end.
    fn carry(&self, from: &TcpStream, to: &TcpStream) {
        let mut piece = vec![0; PIECE_BYTES];
        self.with(from, || {
            let (mut from, mut to) = (from, to);
            while let Ok(count @ 1..) = from.read(&mut piece) {
                if !self.wait(false) || to.write_all(&piece[..count]).is_err() {
                    break;
                }
            }
        });
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for near in listener.incoming() {
            if self.is_stopping() {
                return;
            }
            let Ok(near) = near else { continue };
            // Who is not there refuses; the near end then sees its connection end.
            let Ok(far) = TcpStream::connect(self.to) else { continue };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let (near, far) = (Arc::new(near), Arc::new(far));
            for (from, to) in [(near.clone(), far.clone()), (far, near)] {
                let link = self.clone();
                std::thread::spawn(move || link.carry(&from, &to));
            }
        }
    }

    fn forward(&self, socket: &UdpSocket) {
        let mut datagram = vec![0; DATAGRAM_BYTES];
        while let Ok((count, _)) = socket.recv_from(&mut datagram) {
            if self.is_stopping() {
                return;
            }
            if self.wait(true) {
                let _ = socket.send_to(&datagram[..count], self.to);
            }
        }
    }
}

/// A link that is there until it drops.
pub struct RunningLink {
    at: SocketAddr,
    link: Arc<Link>,
    threads: Vec<JoinHandle<()>>,
}

impl RunningLink {
    /// Carries what comes `at` an address on `to` another.
    pub fn start(at: SocketAddr, to: SocketAddr) -> io::Result<Self> {
        let (listener, socket) = (TcpListener::bind(at)?, UdpSocket::bind(at)?);
        let link = Arc::new(Link {
            to,
            weather: 0.into(),
            stopping: false.into(),
            streams: Mutex::default(),
        });
        let (accepting, forwarding) = (link.clone(), link.clone());
        let threads = vec![
            std::thread::spawn(move || accepting.accept(&listener)),
            std::thread::spawn(move || forwarding.forward(&socket)),
        ];
        Ok(RunningLink { at, link, threads })
    }

    /// Changes how it behaves.
    pub fn set(&self, weather: Weather) {
        let value = match weather {
            Weather::Fair => 0,
            Weather::Slow(slow_ms) => slow_ms,
            Weather::Cut => CUT,
            Weather::Reset => return self.link.end_streams(),
        };
        self.link.weather.store(value, Ordering::Release);
    }
}

impl Drop for RunningLink {
    fn drop(&mut self) {
        self.link.stopping.store(true, Ordering::Release);
        self.link.end_streams();
        // Both threads wait for something to come.
        let _ = TcpStream::connect(self.at);
        if let Ok(socket) = UdpSocket::bind((self.at.ip(), 0)) {
            let _ = socket.send_to(&[0], self.at);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_carries_both_ways_and_ends_its_connections() {
        let far = TcpListener::bind("127.0.0.1:0").unwrap();
        // A port that is free for both, most likely: it was for the one.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let link = RunningLink::start(free, far.local_addr().unwrap()).unwrap();
        let mut near = TcpStream::connect(free).unwrap();
        near.write_all(b"there").unwrap();
        let (mut peer, _) = far.accept().unwrap();
        let mut bytes = [0; 5];
        peer.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"there");
        peer.write_all(b"again").unwrap();
        near.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"again");
        link.set(Weather::Reset);
        assert_eq!(near.read(&mut bytes).unwrap_or(0), 0, "it ended");
        drop(link);
        assert!(TcpStream::connect(free).is_err());
    }
}
