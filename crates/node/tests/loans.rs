//! Segments read without asking the node: by the kernel for passthrough opens, by clients that
//! mapped them.

mod support;

use std::os::fd::AsFd;
use support::*;
use tidepool_proto::{OpenFile, PassthroughPin};

fn bytes_of(pin: &dyn PassthroughPin) -> Vec<u8> {
    let mut file = std::fs::File::from(pin.descriptor().as_fd().try_clone_to_owned().unwrap());
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut file).unwrap();
    std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    bytes
}

fn resident(fixture: &Fixture, bytes: &[u8]) -> std::sync::Arc<dyn OpenFile> {
    fixture.put("f", bytes);
    let open = fixture.open("f");
    assert!(open.passthrough().is_none(), "not resident yet");
    read_all(&*open).unwrap();
    open
}

#[test]
fn the_kernel_sees_what_local_writers_do() {
    let fixture = Fixture::new();
    let mut expected = content(1, 5 << 20);
    let open = resident(&fixture, &expected);
    let pin = open.passthrough().expect("wholly resident");
    let writer = fixture.writer("f", Wish::default());
    for (offset, length) in [(0, 100), (5 << 20, 3000), ((5 << 20) + 5000, 4 << 20), (1, 9 << 20)] {
        let data = content(offset as u64 + 9, length);
        writer.write_at(offset as u64, &data).unwrap();
        expected.resize(expected.len().max(offset + length), 0);
        expected[offset..offset + length].copy_from_slice(&data);
        assert!(bytes_of(&*pin) == expected, "after a write of {length} at {offset}");
    }
    writer.set_size(1000).unwrap();
    writer.set_size(5000).unwrap();
    expected.truncate(1000);
    expected.resize(5000, 0);
    assert!(bytes_of(&*pin) == expected, "after truncation");
    writer.flush().unwrap();
    assert!(std::fs::read(fixture.path("f")).unwrap() == expected);
    assert!(pin.serves(&writer.version()), "the segment went along");
}

#[test]
fn growth_beyond_the_cap_on_loans_leaves_the_kernel_at_the_old_end() {
    let fixture = Fixture::new();
    let before = content(1, 20 << 20);
    let open = resident(&fixture, &before);
    let pin = open.passthrough().expect("wholly resident");
    let writer = fixture.writer("f", Wish::default());
    let growth = content(2, 16 << 20);
    writer.write_at(20 << 20, &growth).unwrap();
    writer.flush().unwrap();
    let seen = bytes_of(&*pin);
    let after = [before, growth].concat();
    assert!(after.starts_with(&seen), "only bytes that are there");
    assert!(!pin.serves(&writer.version()) || seen == after);
    assert!(fixture.read("f").0 == after);
}

#[test]
fn another_programs_change_ends_what_a_loan_serves() {
    let fixture = Fixture::new();
    let open = resident(&fixture, &content(1, 5 << 20));
    let pin = open.passthrough().expect("wholly resident");
    overwrite(&fixture.path("f"), 0, b"changed");
    let version = fixture.open("f").version();
    assert!(!pin.serves(&version));
    assert!(bytes_of(&*pin) == content(1, 5 << 20), "one open, one version");
}

#[test]
fn what_a_client_mapped_never_changes() {
    let fixture = Fixture::new();
    let open = resident(&fixture, &content(1, 5 << 20));
    let pin = open.pin_range(0, 4096).unwrap().expect("wholly resident");
    let writer = fixture.writer("f", Wish::default());
    writer.write_at(0, b"changed").unwrap();
    writer.set_size(10).unwrap();
    writer.flush().unwrap();
    assert!(bytes_of(&*pin) == content(1, 5 << 20));
    assert_eq!(fixture.read("f").0[..7], *b"changed");
}

#[test]
fn loans_keep_to_their_share_and_end() {
    let fixture = Fixture::new();
    let opens: Vec<_> = (0..5)
        .map(|number| {
            let name = format!("f{number}");
            fixture.put(&name, &content(number, 12 << 20));
            let open = fixture.open(&name);
            read_all(&*open).unwrap();
            open
        })
        .collect();
    let pins: Vec<_> = opens.iter().filter_map(|open| open.passthrough()).collect();
    let pinned = fixture.node.status().store.pinned_bytes;
    assert!(!pins.is_empty() && pinned <= CAPACITY / 2, "{pinned}");
    drop(pins);
    assert_eq!(fixture.node.status().store.pinned_bytes, 0);
}

/// Bytes read from the PFS by each of `passes` sweeps over files of which the kernel reads the
/// wholly resident ones by itself.
fn swept(fixture: &Fixture, files: u64, passes: usize) -> Vec<u64> {
    let sweep = |_| {
        let before = fixture.pfs_read_bytes();
        for number in 0..files {
            let open = fixture.open(&format!("f{number}"));
            if open.passthrough().is_none() {
                read_all(&*open).unwrap();
            }
        }
        fixture.pfs_read_bytes() - before
    };
    (0..passes).map(sweep).collect()
}

#[test]
fn what_the_kernel_reads_by_itself_counts_as_read() {
    const FILES: u64 = 32;
    let fixture = Fixture::with(|config| config.capacity_bytes = 24 * 2 * BLOCK);
    for number in 0..FILES {
        fixture.put(&format!("f{number}"), &content(number, 2 * BLOCK as usize));
    }
    let missed = swept(&fixture, FILES, 12);
    let steady: u64 = missed[2..].iter().sum();
    let asked = (missed.len() - 2) as u64 * FILES * 2 * BLOCK;
    // A quarter does not fit. Without the marks the loop's own files go, pass after pass.
    assert!(steady < asked * 4 / 10, "{missed:?}");
}
