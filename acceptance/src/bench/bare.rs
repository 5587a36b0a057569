//! What a transfer between two nodes reaches without Tidepool: a bare `sendfile` server, whose
//! threads enter the networks of the nodes, and iperf3. Both by cubic, as the daemons, and 4
//! streams.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::process;

const STREAMS: u64 = 4;
const CONGESTION: &str = "cubic";
const PIECE: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(10);

/// Whether iperf3 is installed.
pub fn has_iperf() -> bool {
    process::capture(&mut process::command("iperf3", &["--version"])).is_ok()
}

/// Runs something on a thread in a node's network.
fn on<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    network: File,
    work: impl FnOnce() -> Result<T> + Send + 'scope,
) -> std::thread::ScopedJoinHandle<'scope, Result<T>> {
    scope.spawn(move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    })
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What becomes of the bytes at the reader.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// They go to one small buffer, again and again.
    Forgets,
    /// They go to memory that was not used before, as what is to be cached does.
    Keeps,
}

/// MB/s of `bytes` of a file in memory from one node to another.
pub fn sendfile(
    cluster: &Cluster,
    (from, to): (&str, &str),
    bytes: u64,
    reader: Reader,
) -> Result<f64> {
    let share = bytes / STREAMS;
    let file = memory_file(share)?;
    let address: SocketAddr = format!("{}:0", cluster.plan().node(from)?.address()).parse()?;
    std::thread::scope(|scope| {
        let listener = join(on(scope, cluster.network(from)?, move || {
            let listener = TcpListener::bind(address)?;
            rustix::net::sockopt::set_tcp_congestion(&listener, CONGESTION)?;
            Ok(listener)
        }))?;
        let address = listener.local_addr()?;
        let network = cluster.network(to)?;
        let streams = join(on(scope, network, move || {
            (0..STREAMS).map(|_| Ok(TcpStream::connect(address)?)).collect::<Result<Vec<_>>>()
        }))?;
        let accepted: Vec<TcpStream> =
            (0..STREAMS).map(|_| Ok(listener.accept()?.0)).collect::<Result<_>>()?;
        let begun = Instant::now();
        for stream in accepted {
            let file = &file;
            scope.spawn(move || send(&stream, file, share));
        }
        let receivers: Vec<_> = streams
            .into_iter()
            .map(|stream| scope.spawn(move || receive(stream, share, reader)))
            .collect();
        let received: u64 = receivers.into_iter().map(join).sum::<Result<u64>>()?;
        ensure!(received == share * STREAMS, "{received} bytes came of {bytes}");
        Ok(received as f64 / begun.elapsed().as_secs_f64() / 1e6)
    })
}

fn memory_file(bytes: u64) -> Result<OwnedFd> {
    let file = rustix::fs::memfd_create("bare", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut writer = File::from(file.try_clone()?);
    let piece = vec![7; PIECE];
    for _ in 0..bytes / PIECE as u64 {
        writer.write_all(&piece)?;
    }
    writer.write_all(&piece[..bytes as usize % PIECE])?;
    Ok(file)
}

fn send(stream: &TcpStream, file: &OwnedFd, bytes: u64) -> Result<()> {
    let mut at = 0;
    while at < bytes {
        let sent = rustix::fs::sendfile(stream, file, Some(&mut at), PIECE)?;
        ensure!(sent > 0, "the file ends early");
    }
    Ok(stream.shutdown(std::net::Shutdown::Write)?)
}

fn receive(mut stream: TcpStream, bytes: u64, reader: Reader) -> Result<u64> {
    if reader == Reader::Keeps {
        let mut kept = Vec::with_capacity(bytes as usize);
        return Ok(stream.read_to_end(&mut kept)? as u64);
    }
    let mut piece = vec![0; PIECE];
    let mut received = 0;
    loop {
        match stream.read(&mut piece)? {
            0 => return Ok(received),
            count => received += count as u64,
        }
    }
}

/// A program that is killed when it is not needed any more.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// MB/s that iperf3 reaches from one node to another in two seconds.
pub fn iperf(cluster: &Cluster, from: &str, to: &str) -> Result<f64> {
    let mut server = cluster.command(to, "iperf3")?;
    server.args(["-s", "-1"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Killed(server.spawn().context("starting iperf3")?);
    let address = cluster.plan().node(to)?.address();
    let streams = STREAMS.to_string();
    let line = ["iperf3", "-c", &address, "-t", "2", "-P", &streams, "-C", CONGESTION, "-J"];
    let begun = Instant::now();
    loop {
        // While it does not listen yet, it fails or reports no rate.
        let text = cluster.run(from, &line).unwrap_or_default();
        let report: Value = serde_json::from_str(&text).unwrap_or_default();
        let rate = report.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
        if let Some(rate) = rate {
            return Ok(rate / 8e6);
        }
        ensure!(begun.elapsed() < LIMIT, "iperf3 tells no rate: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
