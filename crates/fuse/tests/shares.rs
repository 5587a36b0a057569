//! What one user may have open through the mount, and what the others find then.

mod support;

use std::fs::{self, File};

use support::{STRANGER, as_user, errno, mounted_with};
use tidepool_fake_node::FakeService;

const OTHER: u32 = 4_711;
const OPENS_MAX: usize = 40;

#[test]
fn opens_of_one_user_leave_room_for_others() {
    let Some(mount) = mounted_with(FakeService::bypass(), |config| {
        config.opens_max = Some(OPENS_MAX);
    }) else {
        return;
    };
    fs::write(mount.lower.join("file"), b"bytes").unwrap();
    let path = mount.upper.join("file");
    let held: Vec<File> = as_user(STRANGER, STRANGER, &[], || {
        let mut held = Vec::new();
        let refusal = loop {
            match File::open(&path) {
                Ok(file) => held.push(file),
                Err(error) => break error,
            }
        };
        assert_eq!(refusal.raw_os_error(), Some(libc::ENFILE));
        assert_eq!(errno(fs::read_dir(&mount.upper)), Some(libc::ENFILE));
        assert_eq!(fs::metadata(&path).unwrap().len(), 5, "what needs no open goes on");
        held
    });
    assert_eq!(held.len(), OPENS_MAX * 3 / 4);
    for user in [0, OTHER] {
        as_user(user, user, &[], || {
            assert_eq!(fs::read(&path).unwrap(), b"bytes");
            assert_eq!(fs::read_dir(&mount.upper).unwrap().count(), 1);
        });
    }
    // Who is refused leaves no new file behind.
    let directory = mount.lower.join("theirs");
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, Some(STRANGER), None).unwrap();
    let create = || {
        as_user(STRANGER, STRANGER, &[], || {
            File::create(mount.upper.join("theirs/new")).map(|_| ())
        })
    };
    assert_eq!(errno(create()), Some(libc::ENFILE));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    drop(held);
    // Ends of opens come after the closes.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while create().is_err() {
        assert!(std::time::Instant::now() < end, "room again after the closes");
    }
}
