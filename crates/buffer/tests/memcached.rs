//! The server answers what memcached answers: random commands go to both, and each answer is
//! compared. Needs the program `memcached`, of a version that knows the meta commands.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use support::Memcached;
use tidepool_buffer::memory::Memory;
use tidepool_buffer::server::{InMemory, Server, Settings};

/// A connection that says one thing at a time.
struct Client(BufReader<TcpStream>);

impl Client {
    fn to(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(BufReader::new(stream))
    }

    /// Everything that is answered to `request`, up to the answer of a barrier behind it.
    fn ask(&mut self, request: &[u8]) -> String {
        self.0.get_mut().write_all(&[request, b"mn\r\n"].concat()).unwrap();
        let mut answer = String::new();
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "closed after {answer:?}");
            if line == "MN\r\n" {
                return answer;
            }
            answer.push_str(&without_numbers_of_changes(&line));
        }
    }
}

/// After a malformed line an answer more may come, and what is asked next is not done yet when its
/// answer seems to be there: the next client would find what this one stores.
impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.get_mut().write_all(b"quit\r\n");
        let _ = self.0.read_to_end(&mut Vec::new());
    }
}

fn memory() -> std::sync::Arc<Memory> {
    Memory::new(1 << 30).into()
}

/// Each server counts changes by itself; 0 stands for no change.
fn without_numbers_of_changes(line: &str) -> String {
    let mut words: Vec<String> = line.trim_end().split(' ').map(str::to_owned).collect();
    for word in &mut words[1..] {
        let is_number = word.len() > 1 && word[1..].bytes().all(|it| it.is_ascii_digit());
        if word.starts_with('c') && is_number && word != "c0" {
            *word = "c#".to_owned();
        }
    }
    words.join(" ") + "\r\n"
}

fn stored() -> impl Strategy<Value = Vec<u8>> {
    let verb = prop::sample::select(vec!["set", "add", "replace", "append", "prepend"]);
    let words = (verb, "[abc]", 0..5_u32, "([1-9a-z][0-9a-z]{0,5})?", any::<bool>());
    words.prop_map(|(verb, key, flags, value, is_quiet)| {
        let quiet = if is_quiet { " noreply" } else { "" };
        format!("{verb} {key} {flags} 0 {}{quiet}\r\n{value}\r\n", value.len()).into_bytes()
    })
}

fn meta_set() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop::collection::vec(
        prop::sample::select(vec![
            "q",
            "c",
            "k",
            "Ox1",
            "F7",
            "T100",
            "ME",
            "MA",
            "MP",
            "MR",
            "C99999999",
            "MZ",
            "z",
        ]),
        0..4,
    );
    ("[abc]", "([1-9a-z][0-9a-z]{0,5})?", flags).prop_map(|(key, value, flags)| {
        format!("ms {key} {} {}\r\n{value}\r\n", value.len(), flags.join(" ")).into_bytes()
    })
}

fn meta(name: &'static str, flags: Vec<&'static str>) -> impl Strategy<Value = Vec<u8>> {
    let flags = prop::collection::vec(prop::sample::select(flags), 0..5);
    ("[abc]", flags)
        .prop_map(move |(key, flags)| format!("{name} {key} {}\r\n", flags.join(" ")).into_bytes())
}

fn plain() -> impl Strategy<Value = Vec<u8>> {
    let lines = prop::sample::select(vec![
        "get a",
        "get a b c",
        "gets",
        "get",
        "gat 100 a b",
        "delete a",
        "delete b noreply",
        "delete c 0",
        "incr a 5",
        "decr a 7",
        "incr b 18446744073709551615",
        "incr c x",
        "decr b 1 noreply",
        "touch a 100",
        "touch b 0 noreply",
        "touch c x",
        "bogus",
        "set a",
        "incr a",
        "mn x",
        "flush_all noreply",
        "verbosity 1",
        "verbosity x",
        "",
        "set a 0 0 2147483647",
        "set a 0 0 4294967295",
    ]);
    lines.prop_map(|line| format!("{line}\r\n").into_bytes())
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let get = vec!["v", "f", "h", "k", "s", "u", "q", "Oabc", "c", "N30", "T60", "R1000", "x"];
    let delete = vec!["q", "k", "Oabc", "I", "T50", "C99999999"];
    let count = vec!["v", "c", "N60", "J7", "D3", "MD", "MI", "k"];
    prop_oneof![
        3 => stored(),
        3 => meta_set(),
        3 => meta("mg", get),
        1 => meta("md", delete),
        2 => meta("ma", count),
        3 => plain(),
    ]
}

/// What differs on purpose, or between versions of memcached itself.
fn differs_as_known(request: &str, theirs: &str, ours: &str) -> bool {
    // A number that got shorter has blanks behind it there.
    let trimmed = |text: &str| text.replace(" \r\n", "\r\n");
    // Errors have the same kind; some are worded otherwise.
    let kind = |text: &str| text.split(' ').next().unwrap_or_default().trim_end().to_owned();
    let are_errors = [theirs, ours].iter().all(|it| kind(it).ends_with("ERROR"));
    are_errors || trimmed(theirs) == trimmed(ours) || request.starts_with("verbosity")
}

/// memcached's `flush_all` has a clock of seconds, and now and then leaves what was stored in this
/// one.
fn forget(clients: [&mut Client; 2]) {
    for client in clients {
        client.ask(b"delete a noreply\r\ndelete b noreply\r\ndelete c noreply\r\n");
    }
}

#[test]
fn answers_are_those_of_memcached() {
    let Some(memcached) = Memcached::start() else {
        println!("SKIPPED answers_are_those_of_memcached: there is no `memcached` here");
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server =
        Server::start(Some(listener), Settings::default(), memory(), Box::new(InMemory)).unwrap();
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    // The same commands each time: memcached itself has rare quirks that are not ours.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let outcome = TestRunner::new_with_rng(config, rng).run(
        &prop::collection::vec(request(), 1..40),
        |requests| {
            let mut theirs = Client::to(memcached.port);
            let mut ours = Client::to(server.address().unwrap().port());
            forget([&mut theirs, &mut ours]);
            for request in &requests {
                let text = String::from_utf8_lossy(request).into_owned();
                let (from_theirs, from_ours) = (theirs.ask(request), ours.ask(request));
                if text.contains("flush_all") {
                    forget([&mut theirs, &mut ours]);
                }
                let agrees =
                    from_theirs == from_ours || differs_as_known(&text, &from_theirs, &from_ours);
                let all = || requests.iter().map(|it| it.escape_ascii().to_string());
                prop_assert!(
                    agrees,
                    "{text:?}: memcached {from_theirs:?}, ours {from_ours:?}, of {:?}",
                    all().collect::<Vec<_>>()
                );
            }
            Ok(())
        },
    );
    outcome.unwrap();
}

#[test]
fn a_large_value_and_many_keys_come_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server =
        Server::start(Some(listener), Settings::default(), memory(), Box::new(InMemory)).unwrap();
    let mut stream = TcpStream::connect(server.address().unwrap()).unwrap();
    let value: Vec<u8> = (0..1 << 20).map(|at: u32| (at * 7 / 3) as u8).collect();
    // In pieces, as a network brings them.
    let message = [format!("ms key {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    for piece in message.chunks(70_001) {
        stream.write_all(piece).unwrap();
    }
    stream.write_all(b"mg key v\r\nmn\r\n").unwrap();
    let mut expected = format!("HD\r\nVA {}\r\n", value.len()).into_bytes();
    expected.extend_from_slice(&value);
    expected.extend_from_slice(b"\r\nMN\r\n");
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer == expected);
}
