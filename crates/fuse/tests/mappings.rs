//! Memory mappings of files of the mount, shared and private, and programs run from it.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use std::sync::Arc;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use support::{Mounted, mounted_with};
use tidepool_fake_node::FakeService;
use tidepool_fuse::MountConfig;
use tidepool_proto::FileService;

const LENGTH: usize = 64 << 10;

struct Mapping(*mut u8);

impl Mapping {
    fn new(file: &File, writable: bool, flags: MapFlags) -> Self {
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice, unmapped on drop.
        let address =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), LENGTH, protection, flags, file, 0) };
        Mapping(address.expect("the file maps").cast())
    }

    fn byte(&self, offset: usize) -> u8 {
        assert!(offset < LENGTH);
        // SAFETY: within the mapping, and the files of these tests are that long.
        unsafe { self.0.add(offset).read_volatile() }
    }

    fn set(&self, offset: usize, byte: u8) {
        assert!(offset < LENGTH);
        // SAFETY: as above; only called on writable mappings.
        unsafe { self.0.add(offset).write_volatile(byte) }
    }

    fn write_back(&self) {
        // SAFETY: the range is the whole mapping.
        unsafe { rustix::mm::msync(self.0.cast(), LENGTH, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the whole mapping, and nothing else uses it.
        let _ = unsafe { rustix::mm::munmap(self.0.cast(), LENGTH) };
    }
}

/// Mounts of all services, each with direct input and output and without, as on older kernels.
fn mounts() -> Vec<Mounted> {
    let services = || -> [Arc<dyn FileService>; 3] {
        [FakeService::bypass(), FakeService::memory(), FakeService::memory_without_pins()]
    };
    let mount = |direct_io: bool| {
        let adjust = move |config: &mut MountConfig| config.direct_io = direct_io;
        services().into_iter().filter_map(move |service| mounted_with(service, adjust))
    };
    mount(true).chain(mount(false)).collect()
}

#[test]
fn shared_mappings_write_through_to_the_pfs() {
    for mount in mounts() {
        let (lower, upper) = mount.both("file");
        fs::write(&upper, vec![1; LENGTH]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&upper).unwrap();
        let mapping = Mapping::new(&file, true, MapFlags::SHARED);
        assert_eq!(mapping.byte(5_000), 1);
        mapping.set(5_000, 2);
        mapping.write_back();
        assert_eq!(fs::read(&lower).unwrap()[5_000], 2);
        mapping.set(6_000, 3);
        drop(mapping);
        drop(file);
        assert_eq!(fs::read(&lower).unwrap()[6_000], 3, "written when the mapping went");
        assert_eq!(fs::read(&upper).unwrap()[6_000], 3);
    }
}

#[test]
fn a_mapping_of_an_append_only_open_writes_in_place() {
    for mount in mounts().iter().filter(|mount| mount.mount().has_direct_io()) {
        let (lower, upper) = mount.both("file");
        fs::write(&upper, vec![1; LENGTH]).unwrap();
        let file = OpenOptions::new().read(true).append(true).open(&upper).unwrap();
        let mapping = Mapping::new(&file, true, MapFlags::SHARED);
        mapping.set(100, 9);
        mapping.write_back();
        drop(mapping);
        let now = fs::read(&lower).unwrap();
        assert_eq!((now.len(), now[100]), (LENGTH, 9));
    }
}

#[test]
fn what_is_stored_in_a_hole_is_data_at_once() {
    for mount in mounts() {
        let (lower, upper) = mount.both("file");
        File::create(&lower).unwrap().set_len(LENGTH as u64).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&upper).unwrap();
        // An open writes pages back.
        let other = File::options().read(true).write(true).open(&upper).unwrap();
        let mapping = Mapping::new(&file, true, MapFlags::SHARED);
        mapping.set(20_000, 1);
        let data = rustix::fs::seek(&other, rustix::fs::SeekFrom::Data(0)).unwrap();
        let hole = rustix::fs::seek(&other, rustix::fs::SeekFrom::Hole(data)).unwrap();
        assert!((data..hole).contains(&20_000), "{data} to {hole}");
        assert_eq!(mapping.byte(20_000), 1);
    }
}

#[test]
fn private_and_read_only_mappings_see_the_file() {
    for mount in mounts() {
        let (lower, upper) = mount.both("file");
        fs::write(&lower, vec![4; LENGTH]).unwrap();
        let file = File::open(&upper).unwrap();
        let private = Mapping::new(&file, true, MapFlags::PRIVATE);
        let shared = Mapping::new(&file, false, MapFlags::SHARED);
        assert_eq!((private.byte(0), shared.byte(LENGTH - 1)), (4, 4));
        private.set(0, 5);
        assert_eq!(shared.byte(0), 4, "private changes stay private");
        drop((private, shared));
        assert_eq!(fs::read(&lower).unwrap()[0], 4);
    }
}

#[test]
fn a_new_mapping_shows_what_changed_on_the_pfs() {
    for mount in mounts() {
        let (lower, upper) = mount.both("file");
        for value in 1..4 {
            fs::write(&lower, vec![value; LENGTH]).unwrap();
            let file = File::open(&upper).unwrap();
            let mapping = Mapping::new(&file, false, MapFlags::PRIVATE);
            assert_eq!(mapping.byte(1234), value);
        }
    }
}

#[test]
fn positioned_writes_show_in_mappings_of_the_same_file() {
    for mount in mounts() {
        let upper = mount.upper.join("file");
        fs::write(&upper, vec![1; LENGTH]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&upper).unwrap();
        let mapping = Mapping::new(&file, false, MapFlags::SHARED);
        assert_eq!(mapping.byte(10), 1);
        file.write_all_at(b"\x07", 10).unwrap();
        assert_eq!(mapping.byte(10), 7);
    }
}

#[test]
fn programs_run_from_the_mount() {
    for mount in mounts() {
        let upper = mount.upper.join("program");
        fs::copy("/bin/echo", &upper).unwrap();
        fs::set_permissions(&upper, fs::Permissions::from_mode(0o755)).unwrap();
        for _ in 0..2 {
            let output = Command::new(&upper).arg("it runs").output().unwrap();
            assert_eq!(output.stdout, b"it runs\n");
        }
        let script = mount.upper.join("script");
        fs::write(&script, "#!/bin/sh\necho scripted\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(Command::new(&script).output().unwrap().stdout, b"scripted\n");
    }
}

#[test]
fn appends_and_writes_show_in_reads_and_mappings_of_others() {
    for mount in mounts() {
        let (lower, upper) = mount.both("log");
        fs::write(&upper, vec![1; LENGTH - 5_000]).unwrap();
        let reader = File::open(&upper).unwrap();
        let mapping = Mapping::new(&reader, false, MapFlags::SHARED);
        assert_eq!(mapping.byte(LENGTH - 5_001), 1);
        let appender = OpenOptions::new().append(true).open(&upper).unwrap();
        std::io::Write::write_all(&mut &appender, &[2; 5_000]).unwrap();
        let writer = OpenOptions::new().write(true).open(&upper).unwrap();
        writer.write_all_at(&[3], 7).unwrap();
        let mut bytes = vec![0; LENGTH];
        reader.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((bytes[7], bytes[LENGTH - 5_001], bytes[LENGTH - 5_000]), (3, 1, 2));
        assert_eq!(bytes, fs::read(&lower).unwrap());
        assert_eq!(fs::metadata(&upper).unwrap().len(), LENGTH as u64);
        assert_eq!((mapping.byte(7), mapping.byte(LENGTH - 5_000)), (3, 2));
        assert_eq!(mapping.byte(LENGTH - 1), 2);
    }
}
