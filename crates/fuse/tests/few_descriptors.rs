//! A node that has few descriptors left. Alone in its program: the limit is that of the process.

mod support;

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, setrlimit};
use support::mounted;
use tidepool_fake_node::FakeService;

const LIMIT: u64 = 256;

#[test]
fn look_ups_leave_the_last_descriptors_alone() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) }).unwrap();
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    for number in 0..30 {
        fs::write(mount.lower.join(number.to_string()), b"bytes").unwrap();
    }
    let mut taken = Vec::new();
    while taken.last().is_none_or(|file: &File| (file.as_raw_fd() as u64) < LIMIT - LIMIT / 16) {
        taken.push(File::open("/dev/null").unwrap());
    }
    for number in 0..30 {
        let upper = mount.upper.join(number.to_string());
        assert_eq!(fs::metadata(upper).unwrap().len(), 5);
    }
    let links = fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let held = targets.filter(|it| it.parent() == Some(&*mount.lower)).count();
    assert_eq!(held, 0);
}
