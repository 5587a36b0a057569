//! The client, with servers of ours, with stock memcached, and with such as answer late, wrong or
//! not at all.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use support::{Memcached, serve_at};
use tempfile::TempDir;
use tidepool_buffer::client::{Client, ClientSettings, Fault, Keep, Kept, messages, tcp};
use tidepool_buffer::key::{BlockName, PACKET_BYTES_MAX, PacketKey, flag};
use tidepool_buffer::placement::{Member, Placement, Pool};
use tidepool_buffer::server::Server;

const BLOCK: BlockName = BlockName { epoch: 0x77, block: 3 };

fn serve(at: &str, memory_bytes: u64, disk: Option<&TempDir>) -> Server {
    serve_at(at, memory_bytes, disk.map(TempDir::path), Duration::from_millis(300))
}

fn client(addresses: &[SocketAddr], placement: Placement) -> Client {
    let members = (0..addresses.len()).map(|at| Member { name: format!("s{at}"), weight: 1.0 });
    let pool = Pool::new(members.collect(), placement).unwrap();
    let deadline = Duration::from_secs(2);
    let ways = addresses.iter().copied().map(tcp).collect();
    Client::new(pool, ways, ClientSettings { deadline, ..ClientSettings::default() })
}

fn packets(count: u32, length: usize) -> Vec<(u32, Vec<u8>)> {
    let bytes = |packet: u32| (0..length).map(|at| (at as u32 * 7 + packet) as u8).collect();
    (0..count).map(|packet| (packet, bytes(packet))).collect()
}

fn borrowed(packets: &[(u32, Vec<u8>)]) -> Vec<(u32, &[u8])> {
    packets.iter().map(|(packet, bytes)| (*packet, &bytes[..])).collect()
}

/// A key by libmemcached's `memccat`; `None` where there is none to run.
fn by_tool_of_others(address: SocketAddr, key: &PacketKey) -> Option<Vec<u8>> {
    let servers = format!("--servers={address}");
    let output = std::process::Command::new("memccat").arg(servers).arg(key.to_string()).output();
    let output = output.ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

/// What our client stored is a value as any other.
#[test]
fn a_client_that_others_wrote_reads_what_ours_stored() {
    let ours = serve("127.0.0.1:0", 64 << 20, None);
    let memcached = Memcached::start();
    let theirs = memcached.as_ref().map(|it| SocketAddr::from(([127, 0, 0, 1], it.port)));
    for address in [ours.address(), theirs].into_iter().flatten() {
        let client = client(&[address], Placement::Block);
        let text: Vec<u8> = (0..PACKET_BYTES_MAX - 512).map(|at| b'a' + (at % 23) as u8).collect();
        client.put(&BLOCK, &[(7, &text[..])], Keep::Owed).unwrap();
        let key = PacketKey { block: BLOCK, packet: 7 };
        let Some(read) = by_tool_of_others(address, &key) else {
            println!("SKIPPED a_client_that_others_wrote_reads_what_ours_stored: no `memccat`");
            return;
        };
        // It ends what it shows by a line's end.
        assert!(read.strip_suffix(b"\n") == Some(&text[..]), "{} bytes", read.len());
    }
}

/// Stores, fetches and removes packets of all lengths.
fn goes_there_and_back(client: &Client) {
    for (count, length) in [(1, 0), (200, 1), (40, 4097), (9, PACKET_BYTES_MAX - 512)] {
        let sent = packets(count, length);
        client.put(&BLOCK, &borrowed(&sent), Keep::Owed).unwrap();
        let asked: Vec<u32> = (0..count + 2).collect();
        let fetched = client.get(&BLOCK, &asked).unwrap();
        for (packet, bytes) in &sent {
            assert!(fetched[*packet as usize].as_ref() == Some(bytes), "packet {packet}");
        }
        assert_eq!(fetched[count as usize..], [None, None]);
        client.remove(&BLOCK, &asked).unwrap();
        assert!(client.get(&BLOCK, &asked).unwrap().iter().all(Option::is_none));
    }
    client.put(&BLOCK, &borrowed(&packets(3, 100)), Keep::Durable).unwrap();
    client.settle(&BLOCK, 3).unwrap();
    client.remove(&BLOCK, &[0, 1, 2]).unwrap();
}

#[test]
fn packets_go_to_servers_and_back() {
    let directory = TempDir::new().unwrap();
    let servers =
        [serve("127.0.0.1:0", 64 << 20, None), serve("127.0.0.1:0", 64 << 20, Some(&directory))];
    let addresses = servers.each_ref().map(|server| server.address().unwrap());
    for placement in [Placement::Block, Placement::Packet] {
        goes_there_and_back(&client(&addresses, placement));
    }
    let kept = client(&addresses, Placement::Block).kept().unwrap();
    assert_eq!(kept, [Kept::InMemory, Kept::OnDisk]);
    for server in &servers {
        assert_eq!(server.usage().owed_bytes, 0, "all is settled or removed");
    }
}

#[test]
fn packets_go_there_and_back_by_messages() {
    let server = serve("127.0.0.1:0", 64 << 20, None);
    let shared = server.shared().clone();
    let most = PACKET_BYTES_MAX + 1000;
    let way = messages(most, Vec::new(), move |commands, _| {
        assert!(commands.len() <= most, "{} bytes", commands.len());
        shared.obey(commands, most)
    });
    let pool = Pool::new(vec![Member { name: "s0".into(), weight: 1.0 }], Placement::Block);
    let client = Client::new(pool.unwrap(), vec![way], ClientSettings::default());
    goes_there_and_back(&client);
    assert_eq!(client.kept().unwrap(), [Kept::InMemory]);
}

#[test]
fn packets_go_to_stock_memcached_and_back() {
    let Some(memcached) = Memcached::start() else {
        println!("SKIPPED packets_go_to_stock_memcached_and_back: no `memcached` is here");
        return;
    };
    let address = SocketAddr::from(([127, 0, 0, 1], memcached.port));
    let client = client(&[address], Placement::Block);
    goes_there_and_back(&client);
    assert_eq!(client.kept().unwrap(), [Kept::AsAnythingElse]);
}

#[test]
fn a_server_that_was_started_again_has_what_is_on_its_disk() {
    let directory = TempDir::new().unwrap();
    let server = serve("127.0.0.1:0", 64 << 20, Some(&directory));
    let address = server.address().unwrap();
    let [client, other] = [(); 2].map(|()| client(&[address], Placement::Block));
    let sent = packets(20, 5000);
    client.put(&BLOCK, &borrowed(&sent), Keep::Durable).unwrap();
    drop(server);
    let error = other.get(&BLOCK, &[0]).unwrap_err();
    assert!(matches!(error.fault, Fault::Unreachable(_)), "{error}");
    assert!(error.to_string().contains("`s0`"), "{error}");
    let _server = serve(&address.to_string(), 64 << 20, Some(&directory));
    // Over the connection from before, which is closed by now.
    let fetched = client.get(&BLOCK, &(0..20).collect::<Vec<_>>()).unwrap();
    assert!(fetched.into_iter().zip(sent).all(|(found, (_, bytes))| found == Some(bytes)));
}

#[test]
fn a_full_server_says_what_is_full_and_takes_more_when_it_is_told() {
    let server = serve("127.0.0.1:0", 3 << 20, None);
    let client = client(&[server.address().unwrap()], Placement::Block);
    let (first, second) = (packets(5, 500_000), BlockName { block: 4, ..BLOCK });
    client.put(&BLOCK, &borrowed(&first), Keep::Owed).unwrap();
    let error = client.put(&second, &borrowed(&first), Keep::Owed).unwrap_err();
    assert!(matches!(&error.fault, Fault::Refused(reason) if reason.starts_with("full: ")));
    assert!(error.to_string().contains("bytes of its memory are owed to the PFS"), "{error}");
    let fetched = client.get(&BLOCK, &[0, 1, 2, 3, 4]).unwrap();
    assert!(fetched.iter().all(Option::is_some), "what is owed stays");
    client.settle(&BLOCK, 5).unwrap();
    client.remove(&second, &[0, 1, 2, 3, 4]).unwrap();
    client.put(&second, &borrowed(&first), Keep::Owed).unwrap();
}

/// A server that knows no names of connections, as memcached, then answers each with these bytes,
/// and then nothing.
fn answers(bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            for answer in [b"ERROR\r\n", &bytes[..]] {
                let _ = stream.read(&mut [0; 1000]);
                stream.write_all(answer).unwrap();
            }
            open.push(stream);
        }
    });
    address
}

#[test]
fn what_no_server_answers_fails_the_call_in_time() {
    let key = PacketKey { block: BLOCK, packet: 0 };
    let fault = |bytes: &[u8]| {
        let client = client(&[answers(bytes.to_vec())], Placement::Block);
        client.get(&BLOCK, &[0]).unwrap_err().fault
    };
    assert!(matches!(fault(b""), Fault::Late(_)));
    assert!(matches!(fault(b"HTTP/1.1 400 Bad Request\r\n"), Fault::Strange(_)));
    assert!(matches!(fault(&[b'x'; 5000]), Fault::Strange(_)));
    assert!(matches!(fault(b"VA 99999999999 f0 k\r\n"), Fault::Strange(_)));
    let value = |key: PacketKey, flags: u32| format!("VA 3 f{flags} k{key} c1\r\nabc\r\nMN\r\n");
    let other = PacketKey { packet: 1, ..key };
    assert!(matches!(fault(value(other, 0).as_bytes()), Fault::Strange(_)));
    assert!(matches!(fault(value(key, 4).as_bytes()), Fault::Broken(broken) if broken == key));
    assert!(matches!(
        fault(format!("VA 3 f0 k{key} c1\r\nabcd\r\n").as_bytes()),
        Fault::Strange(_)
    ));
    assert!(matches!(fault(b"SERVER_ERROR out of memory\r\nMN\r\n"), Fault::Refused(_)));
    assert!(matches!(fault(value(key, 0).as_bytes()), Fault::Broken(_)), "it has no checksum");
    // After a broken one nothing is taken for an answer that is in a value.
    let out_of_step = format!("{}VA x\r\nMN\r\n", value(key, 4).replace("MN\r\n", ""));
    assert!(matches!(fault(out_of_step.as_bytes()), Fault::Strange(_)));
    let flags = flag::checked(0, key.to_string().as_bytes(), b"abc");
    let sound = client(&[answers(value(key, flags).into_bytes())], Placement::Block);
    let abc = Some(b"abc".to_vec());
    assert_eq!(sound.get(&BLOCK, &[0, 0]).unwrap(), [abc.clone(), abc]);
}

#[test]
fn a_packet_that_changed_on_its_way_is_not_stored() {
    let server = serve("127.0.0.1:0", 1 << 20, None);
    let mut stream = std::net::TcpStream::connect(server.address().unwrap()).unwrap();
    let key = PacketKey { block: BLOCK, packet: 0 };
    let flags = flag::checked(flag::OWED, key.to_string().as_bytes(), b"sent");
    let other = PacketKey { packet: 1, ..key };
    let message = format!(
        "ms {key} 4 F{flags}\r\nsEnt\r\nms {other} 4 F{flags}\r\nsent\r\n\
         ms {key} 4 F{}\r\nsent\r\nms {key} 4 F{flags}\r\nsent\r\nmn\r\n",
        flags & !flag::OWED
    );
    stream.write_all(message.as_bytes()).unwrap();
    let mut answer = String::new();
    while !answer.ends_with("MN\r\n") {
        let mut bytes = [0; 200];
        let length = stream.read(&mut bytes).unwrap();
        answer.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
    }
    let changed = "CLIENT_ERROR the packet was changed on its way\r\n";
    assert_eq!(answer, format!("{}HD\r\nMN\r\n", changed.repeat(3)));
}

#[test]
fn commands_of_a_message_are_answered_as_those_of_a_connection() {
    let server = serve("127.0.0.1:0", 4 << 20, None);
    let key = |packet| PacketKey { block: BLOCK, packet };
    let value = [b"x\r\n".repeat(100_000), b"end".to_vec()].concat();
    let store = |packet| {
        let flags = flag::checked(0, key(packet).to_string().as_bytes(), &value);
        let head = format!("ms {} {} F{flags}\r\n", key(packet), value.len());
        [head.as_bytes(), &value, b"\r\n"].concat()
    };
    let commands = [store(0), store(1), b"mn\r\n".to_vec()].concat();
    let shared = server.shared();
    assert_eq!(shared.obey(&commands, 1000).unwrap(), b"HD\r\nHD\r\nMN\r\n");
    let fetch = format!("mg {} v\r\nmg {} v\r\n", key(1), key(2));
    let head = format!("VA {}\r\n", value.len());
    let expected = [head.as_bytes(), &value, b"\r\nEN\r\n"].concat();
    assert!(shared.obey(fetch.as_bytes(), 1 << 20).unwrap() == expected);
    assert!(shared.obey(fetch.as_bytes(), value.len()).is_err(), "they are too long");
    assert!(shared.obey(&store(3)[..5000], 1000).is_err(), "a value that ends early");
    assert_eq!(shared.obey(format!("mg {} v\r\n", key(3)).as_bytes(), 1000).unwrap(), b"EN\r\n");
}
