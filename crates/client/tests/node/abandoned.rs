//! Changes that wait at the node for another change of their file, while nobody waits for them any
//! more.

use std::time::{Duration, Instant};

use tidepool_client::{ClientOptions, OpenOptions};

use crate::place::{NOBODY, Place};

const BYTES: usize = 300_000;
const STEP: u64 = 65_536;
/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Several threads write, and give up while the PFS takes its time for the first of their writes.
/// It has begun, so it ends; the others are not made. Whoever writes the file past the node
/// meanwhile keeps his bytes there.
#[test]
fn a_change_that_waited_too_long_for_its_turn_is_not_made() {
    let place = Place::with_faults("write:slow=1500ms");
    let path = place.file("file", &vec![b'-'; BYTES], NOBODY, 0o666);
    // Somebody reads it too, so that the node does the writing.
    let _reader = place.client().open(&path, OpenOptions::read()).unwrap();
    let request_timeout = Duration::from_millis(400);
    let client = place.client_with(ClientOptions { request_timeout, ..ClientOptions::default() });
    let options = OpenOptions { create: false, ..OpenOptions::read_write() };
    let file = client.open(&path, options).unwrap();
    std::thread::scope(|scope| {
        for step in 0..4 {
            let file = &file;
            scope.spawn(move || file.write_at(step * STEP, b"late").unwrap_err());
        }
    });
    let begun = Instant::now();
    while place.counts().handles > 1 {
        assert!(begun.elapsed() < PATIENCE, "the node works on for ever");
        std::thread::sleep(Duration::from_millis(10));
    }
    // It lived all the while.
    drop((file, client));
    let bytes = std::fs::read(&path).unwrap();
    let made = (0..4).filter(|step| bytes[step * STEP as usize..].starts_with(b"late")).count();
    assert!(made <= 1, "{made} changes of four, of which one can have begun in time");
}
