//! Tests of the default directory of a plain user's node, where another user made it first.

use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::{stderr, tidepool};

/// A user that no file of the system knows of; its directory in `/tmp` is this test's alone.
const VICTIM: u32 = 61_977;
const ATTACKER: u32 = 65_534;

/// Removes the directory again.
struct Trap(PathBuf);

impl Drop for Trap {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(directory: &Path) -> Output {
    use std::os::unix::process::CommandExt;
    let binary = directory.join("tidepool");
    std::fs::copy(env!("CARGO_BIN_EXE_tidepool"), &binary).unwrap();
    let mut command = std::process::Command::new(binary);
    command.args(["node", "start", "--memory", "64MiB", "--control", "off", "--pfs"]);
    command.arg(directory.join("pfs")).current_dir("/").env_clear().env("PATH", "/usr/bin:/bin");
    command.uid(VICTIM).gid(VICTIM).output().unwrap()
}

#[test]
fn a_directory_that_somebody_else_made_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to act as other users");
        return;
    }
    assert!(tidepool().arg("--version").output().unwrap().status.success());
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(directory.path(), 0o755);
    let pfs = directory.path().join("pfs");
    std::fs::create_dir(&pfs).unwrap();
    chown(&pfs, Some(VICTIM), Some(VICTIM)).unwrap();
    let treasure = pfs.join("treasure");
    std::fs::write(&treasure, "mine").unwrap();
    chown(&treasure, Some(VICTIM), Some(VICTIM)).unwrap();

    let trap = Trap(PathBuf::from(format!("/tmp/tidepool-{VICTIM}")));
    let inner = trap.0.join("tidepool");
    std::fs::create_dir_all(&inner).unwrap();
    for path in [&trap.0, &inner] {
        chown(path, Some(ATTACKER), Some(ATTACKER)).unwrap();
        open(path, 0o777);
    }
    let log = inner.join("node.sock.log");
    symlink(&treasure, &log).unwrap();
    lchown(&log, Some(ATTACKER), Some(ATTACKER)).unwrap();

    let said = stderr(&start(directory.path()));
    assert!(said.contains("belongs to user 65534"), "{said}");
    assert_eq!(std::fs::read(&treasure).unwrap(), b"mine");
    // The directory is the user's own, and the link in it is not followed either.
    for path in [&trap.0, &inner] {
        chown(path, Some(VICTIM), Some(VICTIM)).unwrap();
        open(path, 0o700);
    }
    let output = start(directory.path());
    assert!(!output.status.success(), "{}", stderr(&output));
    assert_eq!(std::fs::read(&treasure).unwrap(), b"mine");
}
