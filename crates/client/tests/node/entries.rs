//! A new file is closed without an error wherever its directory is by then, and whoever may read
//! it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tidepool_client::{Client, ClientOptions, OpenOptions};

use crate::place::{NOBODY, Place, as_user, is_root};

/// Clients with the node and without, which do the syncing in different places.
fn clients(place: &Place) -> [(&'static str, Client); 2] {
    let alone = ClientOptions { socket: Some(PathBuf::from("/nowhere")), ..Default::default() };
    let alone = ClientOptions { notice: std::sync::Arc::new(|_| ()), ..alone };
    [("with the node", place.client()), ("without a node", Client::connect(alone))]
}

fn create(client: &Client, path: &Path) -> tidepool_client::File {
    let file = client.open(path, OpenOptions::write()).unwrap();
    file.write_at(0, b"bytes").unwrap();
    file
}

fn directory(place: &Place, name: &str, mode: u32) -> PathBuf {
    let path = place.path(name);
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn a_new_file_is_closed_in_a_directory_that_its_user_may_not_read() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let shut = directory(&place, "drop", 0o733);
    std::fs::create_dir(shut.join("below")).unwrap();
    std::fs::set_permissions(shut.join("below"), std::fs::Permissions::from_mode(0o777)).unwrap();
    as_user(NOBODY, || {
        for (what, client) in clients(&place) {
            for directory in [&shut, &shut.join("below")] {
                let path = directory.join(what);
                create(&client, &path).close().unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(std::fs::read(&path).unwrap(), b"bytes");
            }
        }
    });
}

#[test]
fn a_new_file_is_closed_after_its_directory_was_renamed() {
    let place = Place::new();
    for (what, client) in clients(&place) {
        let old = directory(&place, &format!("{what}-old"), 0o755);
        let file = create(&client, &old.join("file"));
        let new = place.path(&format!("{what}-new"));
        std::fs::rename(&old, &new).unwrap();
        file.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(std::fs::read(new.join("file")).unwrap(), b"bytes");
    }
}

#[test]
fn a_new_file_is_closed_after_the_working_directory_changed() {
    let place = Place::new();
    let root = place.path("");
    for (what, client) in clients(&place) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: takes a number; this thread has a working directory of its own then.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0);
                std::env::set_current_dir(&root).unwrap();
                let file = create(&client, Path::new(what));
                std::env::set_current_dir("/").unwrap();
                file.close().unwrap_or_else(|error| panic!("{what}: {error}"));
            });
        });
        assert_eq!(std::fs::read(root.join(what)).unwrap(), b"bytes");
    }
}
