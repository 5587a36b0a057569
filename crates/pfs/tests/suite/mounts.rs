//! Mounts that do not answer: dead, hanging, or Tidepool's own. A FUSE device that nobody serves
//! stands for each. Needs root; without it nothing is tested.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use tidepool_pfs::{PosixOptions, PosixStore};
use tidepool_proto::{Error, ErrorKind};

/// A FUSE mount without a server.
struct Unserved<'a> {
    point: &'a Path,
    device: Option<File>,
}

impl<'a> Unserved<'a> {
    fn mount(point: &'a Path, fs_type: &str) -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let text = |text: &str| CString::new(text).unwrap();
        let data = text(&format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd()));
        let target = CString::new(point.as_os_str().as_bytes()).unwrap();
        let (source, fs_type) = (text("server"), text(fs_type));
        // SAFETY: all strings end in zero and outlive the call.
        let result = unsafe {
            let flags = libc::MS_NOSUID | libc::MS_NODEV;
            let data = data.as_ptr().cast();
            libc::mount(source.as_ptr(), target.as_ptr(), fs_type.as_ptr(), flags, data)
        };
        (result == 0).then_some(Unserved { point, device: Some(device) })
    }
}

impl Drop for Unserved<'_> {
    fn drop(&mut self) {
        self.device = None;
        let target = CString::new(self.point.as_os_str().as_bytes()).unwrap();
        // SAFETY: the string ends in zero and outlives the call.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    }
}

fn open_error(point: &Path) -> Error {
    let options =
        PosixOptions { open_timeout: Duration::from_millis(300), ..PosixOptions::default() };
    PosixStore::open(point, options).err().expect("nobody serves it")
}

#[test]
fn a_mount_without_an_answer_is_given_up_and_a_dead_one_named() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut mount) = Unserved::mount(directory.path(), "fuse.somefs") else {
        eprintln!("no FUSE mount here: not tested");
        return;
    };
    let hanging = open_error(directory.path());
    assert_eq!(hanging.kind(), ErrorKind::TimedOut, "{hanging}");
    mount.device = None;
    let dead = open_error(directory.path());
    assert_eq!(dead.errno(), libc::ENOTCONN, "{dead}");
    assert!(dead.to_string().contains("fusermount3 -u"), "{dead}");
}

#[test]
fn a_mount_of_our_own_is_refused_without_asking_it() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut mount) = Unserved::mount(directory.path(), "fuse.tidepool") else {
        eprintln!("no FUSE mount here: not tested");
        return;
    };
    for _ in 0..2 {
        let own = open_error(directory.path());
        assert_eq!(own.kind(), ErrorKind::InvalidInput, "{own}");
        assert!(own.to_string().contains("Tidepool itself"), "{own}");
        mount.device = None;
    }
}
