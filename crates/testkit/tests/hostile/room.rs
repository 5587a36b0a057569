//! Tests that what a user writes through the mount takes no more room on the PFS than the user may
//! have: nothing of what is reserved for root, by whichever path the bytes go there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec, said};
use tidepool_testkit::user::User;

const USER: u32 = 54_321;
const IMAGE_BYTES: u64 = 64 << 20;
const MORE: usize = 2 << 20;
/// What the names and marks of the tests themselves may take.
const SLACK_BYTES: u64 = 256 << 10;

/// An ext4 in a file, mounted; gone when dropped.
struct Image {
    at: PathBuf,
    _directory: tempfile::TempDir,
}

impl Image {
    /// A third of it is kept for root.
    fn mount() -> Image {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let (file, at) = (directory.path().join("image"), directory.path().join("pfs"));
        File::create(&file).unwrap().set_len(IMAGE_BYTES).unwrap();
        fs::create_dir(&at).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "30"]).arg(&file));
        run(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(&at));
        fs::set_permissions(&at, Permissions::from_mode(0o777)).unwrap();
        Image { at, _directory: directory }
    }

    /// Bytes that nobody has, root's reserve included.
    fn free_bytes(&self) -> u64 {
        let root = File::open(&self.at).unwrap();
        rustix::fs::syncfs(&root).unwrap();
        let totals = rustix::fs::fstatvfs(&root).unwrap();
        totals.f_bfree * totals.f_frsize
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        run(Command::new("umount").arg("-l").arg(&self.at));
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", said(&output));
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Takes all that the user may have, to the last block.
fn fill(path: &Path) {
    let file = File::create(path).unwrap();
    let (mut at, mut step) = (0, 1 << 20);
    let bytes = vec![b'f'; step];
    while step >= 4096 {
        match file.write_at(&bytes[..step], at) {
            Ok(written) => at += written as u64,
            Err(error) if is_no_room(&error) => step /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    file.sync_all().unwrap();
}

fn is_no_room(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSPC)
}

type Way = (&'static str, fn(&Path) -> io::Result<()>);

/// Ways in which bytes get to the PFS. Each is tried on an empty file of the user.
const WAYS: [Way; 8] = [
    ("write", |path| {
        let file = read_write(path);
        file.write_all_at(&vec![b'm'; MORE], 0)?;
        file.sync_all()
    }),
    ("append", |path| {
        let mut file = OpenOptions::new().append(true).open(path)?;
        file.write_all(&vec![b'm'; MORE])?;
        file.sync_all()
    }),
    ("write behind a reader", |path| {
        let _reader = File::open(path)?;
        let file = OpenOptions::new().write(true).open(path)?;
        file.write_all_at(&vec![b'm'; MORE], 0)?;
        file.sync_all()
    }),
    ("write, synchronous", |path| {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(path)?;
        file.write_all_at(&vec![b'm'; MORE], 0)
    }),
    ("write to a new file", |path| {
        let file = File::create(path.with_extension("new"))?;
        file.write_all_at(&vec![b'm'; MORE], 0)?;
        file.sync_all()
    }),
    ("allocation", |path| {
        let all = rustix::fs::FallocateFlags::empty();
        Ok(rustix::fs::fallocate(read_write(path), all, 0, MORE as u64)?)
    }),
    ("copy", |path| {
        let source = File::open(path.with_file_name("source"))?;
        let target = read_write(path);
        let (mut from, mut to) = (0, 0);
        while rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut to), MORE)?
            > 0
        {}
        target.sync_all()
    }),
    ("truncation and writes", |path| {
        fs::write(path, b"")?;
        OpenOptions::new().write(true).open(path)?.set_len(MORE as u64)?;
        let file = read_write(path);
        file.write_all_at(&vec![b'm'; MORE], 0)?;
        file.sync_all()
    }),
];

/// Tries all ways on a node of these options over an image whose user has taken all it may.
fn nothing_more_is_taken(image: &Image, options: [&str; 2]) {
    let in_memory = options.contains(&"memory");
    let arguments = options.map(str::to_owned).to_vec();
    let spec = NodeSpec { arguments, pfs: Some(image.at.clone()), ..NodeSpec::default() };
    let node = Node::start(spec).expect("a node starts");
    let before = image.free_bytes();
    for (number, (what, way)) in WAYS.into_iter().enumerate() {
        let case = format!("{what}, {options:?}");
        let path = node.mount().join(number.to_string());
        let outcome = User::new(USER).run(|| {
            File::create(&path).unwrap();
            way(&path)
        });
        match outcome {
            Ok(()) => assert!(in_memory, "{case}: it was said to be written"),
            Err(error) => assert!(is_no_room(&error), "{case}: {error}"),
        }
        if in_memory {
            // What is kept in memory has to go down; it cannot.
            let _ = node.run(&["resize", "0"]).unwrap();
            let _ = node.run(&["resize", "64MiB"]).unwrap();
        }
        let now = image.free_bytes();
        assert!(now + SLACK_BYTES >= before, "{case}: {before} bytes were free, {now} are");
    }
    for number in 0..WAYS.len() {
        let path = node.mount().join(number.to_string());
        let _ = fs::remove_file(path.with_extension("new"));
        fs::remove_file(&path).unwrap();
    }
    // Root has what is kept for it.
    let file = File::create(node.mount().join("of root")).unwrap();
    file.write_all_at(&vec![b'r'; MORE], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    fs::remove_file(node.mount().join("of root")).unwrap();
}

const OPTIONS: [[&str; 2]; 4] = [
    ["--passthrough", "off"],
    ["--passthrough", "auto"],
    ["--write-mode", "bypass"],
    ["--write-mode", "memory"],
];

fn fill_as_user(image: &Image) {
    let source = image.at.join("source");
    fs::write(&source, vec![b's'; MORE]).unwrap();
    chown(&source, Some(0), Some(0)).unwrap();
    User::new(USER).run(|| fill(&image.at.join("full")));
}

#[test]
fn what_is_kept_for_root_stays() {
    needs_mount!();
    let image = Image::mount();
    fill_as_user(&image);
    for options in OPTIONS {
        nothing_more_is_taken(&image, options);
    }
}
