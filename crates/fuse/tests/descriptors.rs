//! A node that has no descriptor left. Alone in its program: the limit is that of the process.

mod support;

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{STRANGER, as_user, errno, mounted};
use tidepool_fake_node::FakeService;

#[test]
fn who_cannot_be_looked_at_for_lack_of_descriptors_is_not_refused_as_a_stranger() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    fs::write(mount.lower.join("file"), b"bytes").unwrap();
    let path = mount.upper.join("file");
    let before = getrlimit(Resource::Nofile);
    // What is open stays so; nothing more can be opened.
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: before.maximum }).unwrap();
    let refused = as_user(STRANGER, STRANGER, &[], || errno(fs::metadata(&path)));
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(refused, Some(libc::ENFILE));
    let length = as_user(STRANGER, STRANGER, &[], || fs::metadata(&path).unwrap().len());
    assert_eq!(length, 5);
}
