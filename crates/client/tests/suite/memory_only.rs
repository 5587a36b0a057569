//! Files that are in the memory of a node alone, while that does not answer: their bytes are waited
//! for, since nobody else has them, and nobody is told that they are lost.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_proto::admin::AdminRequest;
use tidepool_proto::{ErrorKind, Result, WriteMode};

use crate::scene::{Kill, child, eventually, pattern};

/// One that comes with its open, and one with a segment.
const LENGTHS: [usize; 2] = [5_000, 300_000];
/// Whoever does not wait has failed by then. Only a detection depends on it.
const TOO_EARLY: Duration = Duration::from_millis(200);
/// How long a request may take where a wait is to end.
const SHORT: Duration = Duration::from_millis(300);

struct Hanging {
    node: Kill,
    directory: TempDir,
}

impl Hanging {
    /// A node with files in its memory alone.
    fn new() -> Hanging {
        let directory = tempfile::tempdir().unwrap();
        let node = child("whole::whole_node_process", directory.path());
        let hanging = Hanging { node, directory };
        let client = hanging.client(ClientOptions::default());
        eventually("the node is there", || client.admin(AdminRequest::Status, None).is_ok());
        std::fs::write(hanging.directory.path().join("durable"), b"durable").unwrap();
        for length in LENGTHS {
            let memory =
                OpenOptions { write_mode: Some(WriteMode::Memory), ..OpenOptions::write() };
            let file = client.open(hanging.path(length), memory).unwrap();
            file.write_at(0, &pattern(length, 3)).unwrap();
            file.close().unwrap();
        }
        hanging
    }

    fn path(&self, length: usize) -> PathBuf {
        self.directory.path().join(format!("memory-{length}"))
    }

    fn client(&self, options: ClientOptions) -> Client {
        let socket = Some(self.directory.path().join(".socket"));
        // A node that did not answer is not asked again within a test, but for what it alone has.
        let retry_interval = Duration::from_secs(1000);
        let notice: tidepool_client::Notice = Arc::new(|_| ());
        Client::connect(ClientOptions { socket, retry_interval, notice, ..options })
    }

    /// Stops the node, and has the client know it.
    fn hang(&self, client: &Client) {
        self.node.hang(true);
        let path = self.directory.path().join("durable");
        client.open(path, OpenOptions::read()).expect("it goes on without the node");
        assert!(!client.is_answering());
    }
}

fn existing(options: OpenOptions) -> OpenOptions {
    OpenOptions { create: false, truncate: false, ..options }
}

/// What is done to a file, and the bytes that it has then.
type Act = (&'static str, fn(&Client, &PathBuf) -> Result<Vec<u8>>);

fn read(client: &Client, path: &PathBuf) -> Result<Vec<u8>> {
    let file = client.open(path, OpenOptions::read())?;
    let mut buffer = vec![0; LENGTHS[1] + 100];
    let bytes = file.read_at(0, &mut buffer)?.bytes;
    buffer.truncate(bytes);
    Ok(buffer)
}

const ACTS: [Act; 3] = [
    ("read", read),
    ("truncate", |client, path| {
        let file = client.open(path, existing(OpenOptions::write()))?;
        file.set_size(1000)?;
        file.close()?;
        read(client, path)
    }),
    ("append", |client, path| {
        let options = OpenOptions { append: true, ..existing(OpenOptions::read_write()) };
        let file = client.open(path, options)?;
        file.append(b"more")?;
        file.close()?;
        read(client, path)
    }),
];

fn expected(what: &str, length: usize) -> Vec<u8> {
    let bytes = pattern(length, 3);
    match what {
        "truncate" => bytes[..1000].to_vec(),
        "append" => [&bytes[..], b"more"].concat(),
        _ => bytes,
    }
}

#[test]
fn what_is_in_memory_alone_waits_for_a_node_that_stands_still() {
    for (what, act) in ACTS {
        let hanging = Hanging::new();
        let warm = hanging.client(ClientOptions::default());
        hanging.hang(&warm);
        // One that never had an answer of the node.
        let cold = hanging.client(ClientOptions::default());
        std::thread::scope(|scope| {
            let waiting = LENGTHS.map(|length| {
                let (client, path) =
                    (if length == LENGTHS[0] { &warm } else { &cold }, hanging.path(length));
                scope.spawn(move || act(client, &path))
            });
            std::thread::sleep(TOO_EARLY);
            let early = waiting.iter().any(|thread| thread.is_finished());
            hanging.node.hang(false);
            for (thread, length) in waiting.into_iter().zip(LENGTHS) {
                let bytes =
                    thread.join().unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(bytes == expected(what, length), "{what} of {length}");
            }
            assert!(!early, "{what} did not wait");
        });
    }
}

#[test]
fn the_first_open_after_a_hang_finds_the_bytes() {
    let hanging = Hanging::new();
    let warm = hanging.client(ClientOptions::default());
    hanging.hang(&warm);
    let cold = hanging.client(ClientOptions::default());
    hanging.node.hang(false);
    for client in [&warm, &cold] {
        for length in LENGTHS {
            assert!(read(client, &hanging.path(length)).unwrap() == pattern(length, 3));
        }
    }
}

#[test]
fn a_wait_for_bytes_in_memory_ends_and_does_not_call_them_lost() {
    let mut hanging = Hanging::new();
    let options = || ClientOptions { request_timeout: SHORT, ..ClientOptions::default() };
    let warm = hanging.client(options());
    hanging.hang(&warm);
    let cold = hanging.client(options());
    for client in [&warm, &cold] {
        for (what, act) in ACTS {
            let error = act(client, &hanging.path(LENGTHS[0])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{what}: {error}");
            assert!(error.to_string().contains("does not answer"), "{error}");
        }
    }
    // Without a limit that a test could wait for, somebody gives it up.
    let patient = hanging.client(ClientOptions::default());
    for client in [&warm, &patient] {
        for options in [OpenOptions::read(), existing(OpenOptions::read_write())] {
            let opened = client.open_while(hanging.path(LENGTHS[0]), options, &mut || false);
            assert!(opened.unwrap().is_none());
        }
    }
    hanging.node.kill();
    for client in [&warm, &cold, &patient] {
        let error = read(client, &hanging.path(LENGTHS[0])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
}

/// The node was replaced by one that stands still. Each of two threads that read one open may give
/// up, whichever of them asks the node for both.
#[test]
fn each_of_several_who_wait_with_one_open_may_give_up() {
    let mut hanging = Hanging::new();
    // Longer than this test waits for what must happen.
    let request_timeout = Duration::from_secs(45);
    let client = hanging.client(ClientOptions { request_timeout, ..ClientOptions::default() });
    let file = client.open(hanging.path(LENGTHS[1]), OpenOptions::read()).unwrap();
    hanging.node.kill();
    hanging.node = child("whole::whole_node_process", hanging.directory.path());
    eventually("another node is there", || client.admin(AdminRequest::Status, None).is_ok());
    hanging.node.hang(true);
    let stops = [AtomicBool::new(false), AtomicBool::new(false)];
    std::thread::scope(|scope| {
        let waiting = stops.each_ref().map(|stop| {
            let file = &file;
            let thread = scope.spawn(move || {
                let mut goes_on = || !stop.load(Ordering::Relaxed);
                file.read_at_while(0, &mut [0; 100], &mut goes_on)
            });
            std::thread::sleep(TOO_EARLY);
            thread
        });
        // The first one asks, the second one waits for it.
        for (stop, thread) in stops.iter().zip(&waiting).rev() {
            stop.store(true, Ordering::Relaxed);
            eventually("it gives up", || thread.is_finished());
        }
        for thread in waiting {
            assert!(thread.join().unwrap().unwrap().is_none(), "nothing was read");
        }
    });
}
