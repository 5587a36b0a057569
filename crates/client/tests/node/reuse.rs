//! The cached bytes of a file go to nobody else: not to the next file of its inode number, and not
//! to those who are given the file after it was emptied.

use std::fs::{File, FileTimes, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use tidepool_client::OpenOptions;

use crate::place::{NOBODY, OTHER, Place, as_user, is_root, writable};

/// Lengths of a packed file and of one with a segment.
const LENGTHS: [usize; 2] = [30_000, 300_000];

/// Has the node cache a secret of `OTHER`.
fn cached_secret(place: &Place, name: &str, length: usize) -> std::fs::Metadata {
    let secret = vec![b's'; length];
    let path = place.file(name, &secret, OTHER, 0o600);
    // Its stamps must have settled, or the next open reads it anew in any case.
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    writable(&path).set_times(FileTimes::new().set_modified(then)).unwrap();
    as_user(OTHER, || {
        let client = place.client();
        for _ in 0..2 {
            let file = client.open(&path, OpenOptions::read()).unwrap();
            let mut bytes = vec![0; length];
            file.read_at(0, &mut bytes).unwrap();
            assert!(bytes == secret);
        }
    });
    std::fs::metadata(&path).unwrap()
}

/// Makes a file look like `facts`, telling the node that it is a change of metadata.
fn disguise(place: &Place, path: &Path, facts: &std::fs::Metadata) {
    let file = writable(path);
    place.client().changing_metadata(Some(std::os::fd::AsFd::as_fd(&file)), || {
        file.set_len(facts.size()).unwrap();
        file.set_times(FileTimes::new().set_modified(facts.modified().unwrap())).unwrap();
    });
}

fn assert_zeros(place: &Place, path: &Path, what: &str) {
    let file = place.client().open(path, OpenOptions::read()).unwrap();
    let mut bytes = vec![1; file.size_at_open() as usize];
    file.read_at(0, &mut bytes).unwrap();
    assert!(!bytes.is_empty() && bytes.iter().all(|byte| *byte == 0), "{what}: foreign bytes");
}

#[test]
fn the_next_file_of_an_inode_number_gets_nothing_of_the_former_one() {
    if !is_root() {
        return;
    }
    for length in LENGTHS {
        let place = Place::with_few_inodes();
        let facts = cached_secret(&place, "secret", length);
        std::fs::remove_file(place.path("secret")).unwrap();
        as_user(NOBODY, || {
            let mine = (0..120).map(|number| place.path(&format!("mine{number}"))).find(|path| {
                File::create(path).unwrap();
                std::fs::metadata(path).unwrap().ino() == facts.ino()
            });
            let mine = mine.expect("the inode number is given to another file");
            disguise(&place, &mine, &facts);
            assert_zeros(&place, &mine, "a reused number");
        });
    }
}

#[test]
fn who_is_given_an_emptied_file_gets_nothing_of_what_it_held() {
    if !is_root() {
        return;
    }
    for length in LENGTHS {
        let place = Place::new();
        let facts = cached_secret(&place, "file", length);
        let path = place.path("file");
        writable(&path).set_len(0).unwrap();
        chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        as_user(NOBODY, || {
            disguise(&place, &path, &facts);
            assert_zeros(&place, &path, "an emptied file");
        });
    }
}

#[test]
fn a_change_of_metadata_keeps_what_is_cached() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    for length in LENGTHS {
        let name = format!("file{length}");
        cached_secret(&place, &name, length);
        let (one, two) = (place.path(&name), place.path("renamed"));
        as_user(OTHER, || {
            let file = File::open(&one).unwrap();
            let client = place.client();
            client.changing_metadata(Some(std::os::fd::AsFd::as_fd(&file)), || {
                std::fs::rename(&one, &two).unwrap();
                std::fs::set_permissions(&two, Permissions::from_mode(0o640)).unwrap();
            });
            let before = place.node.status().pfs_read_bytes;
            let file = client.open(&two, OpenOptions::read()).unwrap();
            let mut bytes = vec![0; length];
            file.read_at(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == b's'));
            assert_eq!(place.node.status().pfs_read_bytes, before, "it is read from the store");
        });
    }
}

/// Another program writes the file and sets its time back while a client stands still in the middle
/// of a change of metadata.
#[test]
fn a_change_of_metadata_that_took_long_keeps_nothing_cached() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    for length in LENGTHS {
        let name = format!("file{length}");
        let facts = cached_secret(&place, &name, length);
        let path = place.path(&name);
        let file = File::open(&path).unwrap();
        let client = place.client();
        let mut writer = writable(&path);
        client.changing_metadata(Some(std::os::fd::AsFd::as_fd(&file)), || {
            std::thread::sleep(std::time::Duration::from_millis(150));
            writer.write_all(&vec![0; length]).unwrap();
            writer.set_times(FileTimes::new().set_modified(facts.modified().unwrap())).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        });
        assert_zeros(&place, &path, "a change that took long");
    }
}

/// Another program writes the file and sets its time back in the very moment in which a client
/// renames it. It has the file open, so there is no lease that would tell that it did not.
#[test]
fn what_is_written_in_the_moment_of_a_rename_is_read() {
    let place = Place::new();
    for length in LENGTHS {
        let name = format!("file{length}");
        let (one, two) = (place.path(&name), place.path(&format!("{name}-renamed")));
        std::fs::write(&one, vec![b's'; length]).unwrap();
        let modified = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        let mut writer = writable(&one);
        writer.set_times(FileTimes::new().set_modified(modified)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let client = place.client();
        let mut bytes = vec![0; length];
        let reader = client.open(&one, OpenOptions::read()).unwrap();
        reader.read_at(0, &mut bytes).unwrap();
        let file = File::open(&one).unwrap();
        client.changing_metadata(Some(std::os::fd::AsFd::as_fd(&file)), || {
            writer.write_all(&vec![0; length]).unwrap();
            writer.set_times(FileTimes::new().set_modified(modified)).unwrap();
            std::fs::rename(&one, &two).unwrap();
        });
        assert_zeros(&place, &two, "a rename beside a write");
        reader.read_at(0, &mut bytes).expect("who has it open goes on");
    }
}
