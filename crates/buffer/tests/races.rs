//! What happens at the same time, too late, or to a part of a block.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use support::serve_at;
use tempfile::TempDir;
use tidepool_buffer::client::{Client, ClientSettings, Fault, Keep, messages, tcp};
use tidepool_buffer::key::{BlockName, PACKET_BYTES_MAX};
use tidepool_buffer::placement::{Member, Placement, Pool};
use tidepool_buffer::server::{InMemory, Server, Settings};

const BLOCK: BlockName = BlockName { epoch: 0x77, block: 3 };
const OTHER: BlockName = BlockName { epoch: 0x77, block: 4 };
const PATIENCE: Duration = Duration::from_millis(300);

fn serve(memory_bytes: u64, disk: Option<&Path>, patience: Duration) -> Server {
    serve_at("127.0.0.1:0", memory_bytes, disk, patience)
}

fn client(address: SocketAddr, deadline: Duration) -> Client {
    let members = vec![Member { name: "s0".into(), weight: 1.0 }];
    let pool = Pool::new(members, Placement::Block).unwrap();
    let settings = ClientSettings { deadline, ..ClientSettings::default() };
    Client::new(pool, vec![tcp(address)], settings)
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn what_a_client_gave_up_is_not_carried_out_later() {
    let server = serve(3 << 20, None, LONG);
    let (patient, hasty) = (
        client(server.address().unwrap(), LONG),
        client(server.address().unwrap(), Duration::from_millis(300)),
    );
    let large = vec![1; 1 << 20];
    let filling: Vec<(u32, &[u8])> = (0..2).map(|packet| (packet, &large[..])).collect();
    patient.put(&OTHER, &filling, Keep::Owed).unwrap();
    let error = hasty.put(&BLOCK, &[(0, &large)], Keep::Owed).unwrap_err();
    assert!(matches!(error.fault, Fault::Late(_)), "{error}");
    assert_eq!(server.usage().waiting, 1, "the server has it, and waits for room");
    hasty.put(&BLOCK, &[(0, b"later")], Keep::Owed).unwrap();
    patient.settle(&OTHER, 2).unwrap();
    while server.usage().waiting > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // All that it does with it is done before its connection ends.
    while server.connections() > 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(patient.get(&BLOCK, &[0]).unwrap(), [Some(b"later".to_vec())]);
}

/// What is answered to these lines on one connection.
fn answers(server: &Server, lines: &[u8]) -> String {
    let mut stream = std::net::TcpStream::connect(server.address().unwrap()).unwrap();
    stream.write_all(&[lines, b"quit\r\n"].concat()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    answers
}

#[test]
fn a_message_that_comes_after_its_fence_is_not_carried_out() {
    let server = serve(3 << 20, None, LONG);
    let shared = server.shared();
    let say = |message: &[u8]| shared.obey(message, 1 << 20);
    let packet = "tidepool:0000000000000077:3:0";
    let put = |name: &str, value: &str| {
        let length = value.len();
        say(format!("hello {name}\r\nms {packet} {length}\r\n{value}\r\n").as_bytes())
    };
    assert_eq!(say(b"fence late\r\n").unwrap(), b"FENCED\r\n");
    put("now", "new").unwrap();
    assert!(put("late", "old").is_err(), "it is refused");
    assert_eq!(say(format!("mg {packet} v\r\n").as_bytes()).unwrap(), b"VA 3\r\nnew\r\n");
    // Of what is no packet nothing is carried out either.
    assert!(say(b"hello late\r\nset k 0 0 1\r\nx\r\n").is_err());
    assert_eq!(say(b"get k\r\n").unwrap(), b"END\r\n");
}

/// Its client gave it up, and the file is over.
#[test]
fn a_packet_that_is_late_leaves_nothing_of_a_file_that_was_forgotten() {
    let server = serve(3 << 20, None, LONG);
    let client = client(server.address().unwrap(), LONG);
    client.put(&BLOCK, &[(0, b"one")], Keep::Owed).unwrap();
    client.forget(BLOCK.epoch).unwrap();
    let refused = client.put(&BLOCK, &[(1, b"late")], Keep::Owed).unwrap_err();
    assert!(refused.to_string().contains("it is late"), "{refused}");
    assert_eq!(server.usage().owed_bytes, 0);
    let other = BlockName { epoch: BLOCK.epoch + 1, ..BLOCK };
    client.put(&other, &[(0, b"another file")], Keep::Owed).unwrap();
}

#[test]
fn who_stores_learns_that_a_server_was_started_anew() {
    let server = serve(3 << 20, None, LONG);
    let address = server.address().unwrap();
    let first = client(address, LONG);
    let before = first.put(&BLOCK, &[(0, b"one")], Keep::Owed).unwrap();
    assert_eq!(first.put(&BLOCK, &[(1, b"two")], Keep::Owed).unwrap(), before);
    drop(server);
    let server = serve_at(&address.to_string(), 3 << 20, None, LONG);
    let now = first.put(&BLOCK, &[(2, b"three")], Keep::Owed).unwrap();
    assert!(before.is_some() && now.is_some() && before != now);
    // Between two messages of one call: all of it is sent again.
    let other = serve(3 << 20, None, LONG);
    let (servers, calls) = ([server.shared().clone(), other.shared().clone()], AtomicU32::new(0));
    let calls = Arc::new(calls);
    let way = messages(100_000, Vec::new(), move |commands, _| {
        let number = calls.fetch_add(1, Ordering::SeqCst);
        servers[usize::from(number >= 2)].obey(commands, 1 << 20)
    });
    let members = vec![Member { name: "s0".into(), weight: 1.0 }];
    let pool = Pool::new(members, Placement::Block).unwrap();
    let client = Client::new(pool, vec![way], ClientSettings::default());
    client.put(&BLOCK, &[(0, b"kept")], Keep::Owed).unwrap();
    let (bytes, all) = (vec![1; 70_000], [0, 1, 2]);
    let several: Vec<(u32, &[u8])> = all.iter().map(|packet| (*packet, &bytes[..])).collect();
    client.put(&OTHER, &several, Keep::Owed).unwrap();
    let found = client.get(&OTHER, &all).unwrap();
    assert_eq!(found.iter().map(|it| it.as_ref() == Some(&bytes)).collect::<Vec<_>>(), [true; 3]);
}

#[test]
fn guests_do_nothing_with_blocks() {
    let memory = Arc::new(tidepool_buffer::memory::Memory::new(16 << 20));
    let settings = Settings { blocks_are_guarded: true, ..Settings::default() };
    let listener = Some(TcpListener::bind("127.0.0.1:0").unwrap());
    let server = Server::start(listener, settings, memory, Box::new(InMemory)).unwrap();
    let packet = "tidepool:0000000000000077:3:0";
    let clean = "tidepool:0000000000000077:3:1";
    for (packet, flags) in [(packet, 1), (clean, 0)] {
        let stored = format!("ms {packet} 6 F{flags}\r\nsecret\r\n");
        assert_eq!(server.shared().obey(stored.as_bytes(), 100).unwrap(), b"HD\r\n");
    }
    let encoded = "dGlkZXBvb2w6MDAwMDAwMDAwMDAwMDA3NzozOjA=";
    let tries = [
        format!("get {packet}"),
        format!("mg {packet} v"),
        format!("mg {encoded} b v"),
        format!("md {packet}"),
        format!("delete {packet}"),
        format!("touch {packet} 1"),
        format!("set {packet} 0 0 1\r\nx"),
        format!("ms {packet} 1 F1\r\nx"),
        format!("ms {encoded} 1 b\r\nx"),
        "settle tidepool:0000000000000077:3 1".into(),
        "forget 0000000000000077".into(),
        "lru_crawler metadump all".into(),
        "flush_all".into(),
    ];
    for line in &tries {
        let said = answers(&server, format!("{line}\r\n").as_bytes());
        let is_refused = said == "CLIENT_ERROR blocks are for nodes alone\r\n";
        assert!(is_refused || line == "flush_all", "{line}: {said}");
    }
    for packet in [packet, clean] {
        let asked = format!("mg {packet} v\r\n");
        assert_eq!(server.shared().obey(asked.as_bytes(), 100).unwrap(), b"VA 6\r\nsecret\r\n");
    }
    assert_eq!(answers(&server, b"set k 0 0 1\r\nx\r\nget k\r\n").lines().count(), 4);
}

#[test]
fn a_connection_has_one_name_and_packets_have_numbers_of_the_server() {
    let server = serve(3 << 20, None, LONG);
    let said = answers(&server, b"hello a\r\nhello a\r\nhello b\r\n");
    assert_eq!(said.lines().filter(|line| line.starts_with("HELLO ")).count(), 2);
    assert!(said.ends_with("CLIENT_ERROR this connection has another name\r\n"), "{said}");
    let said = answers(&server, b"ms tidepool:0000000000000077:3:0 1 E1\r\nx\r\n");
    assert!(said.starts_with("CLIENT_ERROR a packet of a block"), "{said}");
}

#[test]
fn of_a_block_that_is_broken_no_packet_is_removed() {
    let directory = TempDir::new().unwrap();
    let name = "0000000000000077-3.block";
    let server = serve(64 << 20, Some(directory.path()), LONG);
    let first = client(server.address().unwrap(), LONG);
    first.put(&BLOCK, &[(0, b"bytes"), (1, b"bytes")], Keep::Durable).unwrap();
    drop(server);
    let file = std::fs::File::options().write(true).open(directory.path().join(name)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"x", 64 + 32).unwrap();
    let server = serve(64 << 20, Some(directory.path()), LONG);
    let client = client(server.address().unwrap(), LONG);
    for packet in [0, 1] {
        let error = client.remove(&BLOCK, &[packet]).unwrap_err().to_string();
        assert!(error.contains("is broken on the disk"), "{error}");
    }
    assert_eq!(client.get(&BLOCK, &[1]).unwrap(), [Some(b"bytes".to_vec())]);
    assert!(client.get(&BLOCK, &[0]).is_err() && directory.path().join(name).exists());
    client.settle(&BLOCK, 2).unwrap();
    assert!(!directory.path().join(name).exists());
}

#[test]
fn a_message_that_a_client_gave_up_is_not_carried_out_later() {
    let server = serve(3 << 20, None, LONG);
    let patient = client(server.address().unwrap(), LONG);
    let large = vec![1; 1 << 20];
    patient.put(&OTHER, &[(0, &large), (1, &large)], Keep::Owed).unwrap();
    // Messages are answered late, or not at all, and carried out all the same.
    let (shared, most) = (server.shared().clone(), PACKET_BYTES_MAX + 1000);
    let running = Arc::new(AtomicU32::new(0));
    let counted = running.clone();
    let way = messages(most, Vec::new(), move |commands, left| {
        let (commands, shared, counted) = (commands.to_vec(), shared.clone(), counted.clone());
        let (sender, receiver) = mpsc::channel();
        counted.fetch_add(1, Ordering::SeqCst);
        std::thread::spawn(move || {
            let _ = sender.send(shared.obey(&commands, most));
            counted.fetch_sub(1, Ordering::SeqCst);
        });
        receiver.recv_timeout(left).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    });
    let members = vec![Member { name: "s0".into(), weight: 1.0 }];
    let deadline = Duration::from_millis(300);
    let settings = ClientSettings { deadline, ..ClientSettings::default() };
    let hasty = Client::new(Pool::new(members, Placement::Block).unwrap(), vec![way], settings);
    let error = hasty.put(&BLOCK, &[(0, &large)], Keep::Owed).unwrap_err();
    assert!(matches!(error.fault, Fault::Late(_)), "{error}");
    hasty.put(&BLOCK, &[(0, b"later")], Keep::Owed).unwrap();
    patient.settle(&OTHER, 2).unwrap();
    while running.load(Ordering::SeqCst) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(patient.get(&BLOCK, &[0]).unwrap(), [Some(b"later".to_vec())]);
}

#[test]
fn a_put_of_several_packets_to_a_full_server_is_told_what_is_full() {
    let server = serve(3 << 20, None, PATIENCE);
    let client = client(server.address().unwrap(), PATIENCE * 4);
    let large = vec![1; 1 << 20];
    client.put(&OTHER, &[(0, &large), (1, &large)], Keep::Owed).unwrap();
    let many: Vec<(u32, &[u8])> = (0..10).map(|packet| (packet, &large[..])).collect();
    let error = client.put(&BLOCK, &many, Keep::Owed).unwrap_err();
    assert!(matches!(&error.fault, Fault::Refused(why) if why.starts_with("full: ")), "{error}");
}

/// Also by a client that ends nothing by `mn`, after one packet waited in vain.
#[test]
fn each_packet_that_is_answered_by_itself_waits_for_room() {
    let server = serve(3 << 20, None, PATIENCE);
    let client = client(server.address().unwrap(), LONG);
    let large = vec![1; 1 << 20];
    client.put(&OTHER, &[(0, &large), (1, &large)], Keep::Owed).unwrap();
    let mut stream = std::net::TcpStream::connect(server.address().unwrap()).unwrap();
    let mut set = || {
        let head = format!("set {BLOCK}:0 1 0 {}\r\n", large.len());
        stream.write_all(&[head.as_bytes(), &large, b"\r\n"].concat()).unwrap();
        let mut answer = [0; 1000];
        let length = stream.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    assert!(set().starts_with("SERVER_ERROR full: "));
    std::thread::sleep(PATIENCE);
    let answer = std::thread::scope(|scope| {
        let set = scope.spawn(set);
        while server.usage().waiting == 0 && !set.is_finished() {
            std::thread::yield_now();
        }
        client.settle(&OTHER, 2).unwrap();
        set.join().unwrap()
    });
    assert_eq!(answer, "STORED\r\n");
}

#[test]
fn a_server_that_answers_a_byte_now_and_then_is_late() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for answer in ["ERROR\r\n".to_owned(), format!("SERVER_ERROR {}\r\nMN\r\n", "x".repeat(99))]
        {
            let _ = stream.read(&mut [0; 1000]);
            for byte in answer.bytes() {
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let error = client(address, Duration::from_millis(500)).get(&BLOCK, &[0]).unwrap_err();
    assert!(matches!(error.fault, Fault::Late(_)), "{error}");
}

#[test]
fn what_is_on_the_disk_is_found_whatever_is_evicted_meanwhile() {
    let directory = TempDir::new().unwrap();
    let server = serve(4 << 20, Some(directory.path()), LONG);
    let address = server.address().unwrap();
    let bytes = |packet: u32| vec![packet as u8; 900_000];
    for packet in 0..12 {
        client(address, LONG).put(&BLOCK, &[(packet, &bytes(packet))], Keep::Durable).unwrap();
    }
    std::thread::scope(|scope| {
        for reader in 0..8_u32 {
            scope.spawn(move || {
                let client = client(address, LONG);
                for round in 0..100 {
                    let packet = (reader * 5 + round * 7) % 12;
                    let found = client.get(&BLOCK, &[packet]).unwrap();
                    assert!(found == [Some(bytes(packet))], "packet {packet}");
                }
            });
        }
    });
    assert!(server.usage().used_bytes <= 4 << 20);
}

/// The last one that was answered counts, in memory and on the disk.
#[test]
fn two_writers_and_one_who_removes_leave_one_state() {
    let directory = TempDir::new().unwrap();
    let server = serve(64 << 20, Some(directory.path()), LONG);
    let address = server.address().unwrap();
    std::thread::scope(|scope| {
        for writer in 0..3_u8 {
            scope.spawn(move || {
                let client = client(address, LONG);
                for round in 0..60 {
                    for packet in 0..8 {
                        let bytes = vec![writer; 100 + round];
                        match writer {
                            2 => client.remove(&BLOCK, &[packet]).unwrap(),
                            _ => drop(client.put(&BLOCK, &[(packet, &bytes)], Keep::Owed).unwrap()),
                        }
                    }
                }
            });
        }
    });
    let all: Vec<u32> = (0..8).collect();
    let in_memory = client(address, LONG).get(&BLOCK, &all).unwrap();
    drop(server);
    let server = serve(64 << 20, Some(directory.path()), LONG);
    let on_disk = client(server.address().unwrap(), LONG).get(&BLOCK, &all).unwrap();
    assert!(in_memory == on_disk, "{in_memory:?} {on_disk:?}");
}
