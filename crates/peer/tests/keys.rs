//! Key files: which are taken, and what is said of the others.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use tidepool_peer::SharedKey;

fn key_file(directory: &Path, bytes: usize, mode: u32) -> std::path::PathBuf {
    let path = directory.join(format!("key-{bytes}-{mode:o}"));
    std::fs::write(&path, vec![0x42; bytes]).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    path
}

fn refusal(path: &Path) -> String {
    let text = SharedKey::load(path).expect_err("not taken").to_string();
    assert!(text.contains(&path.display().to_string()), "{text}");
    text
}

#[test]
fn a_file_that_only_its_owner_reads_is_taken() {
    let directory = tempfile::tempdir().expect("a directory");
    for (bytes, mode) in [(32, 0o600), (4096, 0o400), (100, 0o700)] {
        SharedKey::load(&key_file(directory.path(), bytes, mode)).expect("a key");
    }
    // By another name as well: what counts is the file.
    let link = directory.path().join("link");
    symlink(key_file(directory.path(), 32, 0o600), &link).expect("a link");
    SharedKey::load(&link).expect("a key");
}

#[test]
fn a_file_that_others_can_read_or_write_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    for mode in [0o640, 0o620, 0o604, 0o602, 0o644, 0o660, 0o666, 0o610, 0o601] {
        let text = refusal(&key_file(directory.path(), 32, mode));
        assert!(text.contains(&format!("{mode:04o}")) && text.contains("chmod"), "{text}");
    }
}

#[test]
fn a_key_of_another_length_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    for bytes in [0, 31, 4097, 100_000] {
        let text = refusal(&key_file(directory.path(), bytes, 0o600));
        assert!(text.contains("32 to 4096"), "{text}");
    }
    SharedKey::from_bytes(&[0; 31]).expect_err("too short");
    SharedKey::from_bytes(&[0; 32]).expect("long enough");
    SharedKey::from_bytes(&[0; 4096]).expect("short enough");
    SharedKey::from_bytes(&[0; 4097]).expect_err("too long");
}

#[test]
fn what_is_no_file_is_refused_without_waiting() {
    let directory = tempfile::tempdir().expect("a directory");
    assert!(refusal(directory.path()).contains("regular file"));
    let pipe = directory.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    assert!(refusal(&pipe).contains("regular file"));
    assert!(refusal(Path::new("/dev/null")).contains("regular file"));
    assert!(refusal(&directory.path().join("nothing")).contains("urandom"));
}

#[test]
fn a_file_of_another_user_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = key_file(directory.path(), 32, 0o600);
    if std::os::unix::fs::chown(&path, Some(4242), None).is_err() {
        return; // Only root can give files away.
    }
    assert!(refusal(&path).contains("4242"));
}

#[test]
fn a_key_does_not_show_itself() {
    let key = SharedKey::from_bytes(&[b'k'; 64]).expect("a key");
    assert_eq!(format!("{key:?}"), "SharedKey");
}
