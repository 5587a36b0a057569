//! Writers whose node ended, or was not there yet, and who go on with the next one: nothing that
//! they wrote before becomes zeros, and what is lost is told.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_client::{Client, ClientOptions, File, OpenOptions};
use tidepool_proto::{ErrorKind, WriteMode};

use crate::place::Place;

const MODES: [WriteMode; 3] = [WriteMode::Memory, WriteMode::Through, WriteMode::Bypass];
/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

fn client(place: &Place) -> Client {
    let notice: tidepool_client::Notice = Arc::new(|_| ());
    place.client_with(ClientOptions {
        retry_interval: Duration::ZERO,
        notice,
        ..Default::default()
    })
}

fn new_file(client: &Client, path: &Path, mode: WriteMode) -> File {
    let options = OpenOptions { write_mode: Some(mode), create_new: true, ..OpenOptions::write() };
    client.open(path, options).unwrap()
}

/// Ends the node by `end` and waits until the client knows.
fn without_node(place: &mut Place, client: &Client, end: impl FnOnce(&mut Place)) {
    end(place);
    let begun = Instant::now();
    while client.is_connected() {
        assert!(begun.elapsed() < PATIENCE, "its end is not noticed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn bytes(seed: u8) -> Vec<u8> {
    (0..300_000u32).map(|at| (at % 251) as u8 | 1 ^ seed).collect()
}

/// What a new client reads of a file.
fn read(place: &Place, path: &Path) -> Vec<u8> {
    let file = place.client().open(path, OpenOptions::read()).unwrap();
    let mut bytes = vec![0; file.size_at_open() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// The first half is written while nobody is there, or at a node that then stops.
#[test]
fn a_writer_who_goes_on_at_the_next_node_keeps_what_he_wrote_before() {
    let halves = [bytes(1), bytes(7)];
    for mode in MODES {
        for first in ["nobody", "a node"] {
            let mut place = Place::new();
            let (client, path) = (client(&place), place.path("file"));
            if first == "nobody" {
                without_node(&mut place, &client, Place::kill_node);
            }
            let file = new_file(&client, &path, mode);
            file.write_at(0, &halves[0]).unwrap();
            if first == "a node" {
                file.sync().unwrap();
                without_node(&mut place, &client, Place::stop_node);
            }
            place.start_node();
            file.write_at(halves[0].len() as u64, &halves[1]).unwrap();
            file.close().unwrap();
            assert!(client.is_connected(), "it went on at the node");
            assert!(read(&place, &path) == halves.concat(), "{mode:?}, begun at {first}");
        }
    }
}

#[test]
fn bytes_that_a_killed_node_had_alone_are_told_lost_and_not_followed_by_others() {
    for synced in [true, false] {
        let mut place = Place::new();
        let (client, path) = (client(&place), place.path("file"));
        let file = new_file(&client, &path, WriteMode::Memory);
        file.write_at(0, &bytes(1)).unwrap();
        if synced {
            file.sync().unwrap();
        }
        without_node(&mut place, &client, Place::kill_node);
        place.start_node();
        let error = file.write_at(bytes(1).len() as u64, b"more").unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Lost, libc::EIO), "{error}");
        assert_eq!(file.close().unwrap_err().kind(), ErrorKind::Lost);
        let error = place.client().open(&path, OpenOptions::read()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
}

/// Also what was synced, when another program then wrote over what stood for it.
#[test]
fn bytes_that_gave_way_to_another_program_while_no_node_was_there_are_told_lost() {
    for is_back in [false, true] {
        let mut place = Place::new();
        let (client, path) = (client(&place), place.path("file"));
        let file = new_file(&client, &path, WriteMode::Memory);
        file.write_at(0, &bytes(1)).unwrap();
        file.sync().unwrap();
        without_node(&mut place, &client, Place::kill_node);
        std::fs::write(&path, b"theirs").unwrap();
        if is_back {
            place.start_node();
        }
        let wrote = file.write_at(300_000, &bytes(7));
        assert_eq!(wrote.unwrap_err().kind(), ErrorKind::Lost, "a node: {is_back}");
        assert_eq!(file.close().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
    }
}

/// The node is there: it knows what gave way.
#[test]
fn bytes_that_gave_way_to_another_program_at_a_node_are_told_lost() {
    let place = Place::new();
    let (client, path) = (client(&place), place.path("file"));
    let file = new_file(&client, &path, WriteMode::Memory);
    file.write_at(0, &bytes(1)).unwrap();
    file.sync().unwrap();
    std::fs::write(&path, b"theirs").unwrap();
    assert_eq!(file.close().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
}

#[test]
fn what_another_program_wrote_to_a_new_file_before_it_is_bound_stays() {
    for mode in MODES {
        let mut place = Place::new();
        let (client, path) = (client(&place), place.path("file"));
        without_node(&mut place, &client, Place::kill_node);
        let file = new_file(&client, &path, mode);
        std::fs::write(&path, bytes(1)).unwrap();
        place.start_node();
        file.write_at(bytes(1).len() as u64, b"more").unwrap();
        file.close().unwrap();
        assert!(read(&place, &path) == [&bytes(1)[..], b"more"].concat(), "{mode:?}");
    }
}
