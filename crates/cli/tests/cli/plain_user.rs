//! A node of a plain user, mounted by `fusermount3`: in a mount name space of its own, because the
//! device may be closed to users on this machine.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::{stderr, stdout};

/// Runs as root in directory `$1`: gives the device mode `$2`, for a user without any privilege.
const AS_USER: &str = r#"
set -e
cd "$1"
mknod fuse c 10 229; chmod "$2" fuse; mount --bind fuse /dev/fuse
user() { setpriv --reuid nobody --regid nogroup --clear-groups env HOME="$PWD" "$@"; }
# A machine that is short of memory must not change what a test sees.
start() {
    user TIDEPOOL_CONTROL=off ./tidepool node start --pfs pfs --memory 64MiB --mount mnt --socket s
}
"#;

const WORKS: &str = r#"
start
user cat mnt/here
user sh -c 'echo written through the mount > mnt/there'
cat pfs/there
user ./tidepool doctor --socket s --json > doctor.json
if cat mnt/here 2>/dev/null; then echo "root reads the mount of another user"; exit 9; fi
process=$(user ./tidepool status --socket s --json | sed -n 's/^  "process_id": *\([0-9]*\).*/\1/p')
kill -KILL "$process" || exit 8
start
user cat mnt/here
user ./tidepool node stop --socket s
if grep -q "$PWD/mnt" /proc/mounts; then echo "still mounted"; exit 7; fi
"#;

const WITHOUT_MOUNT_TABLE: &str = r#"
start
cp -a /etc etc; rm -f etc/mtab; mount --bind etc /etc
if user ./tidepool node stop --socket s; then echo "it is said to be stopped"; exit 9; fi
grep -q "$PWD/mnt" /proc/mounts || { echo "it was unmounted"; exit 8; }
umount --lazy mnt
"#;

fn run(directory: &Path, device_mode: &str, script: &str) -> Output {
    let whole = format!("{AS_USER}{script}");
    let shell = ["--mount", "--propagation", "private", "sh", "-c", &whole, "sh"];
    let mut command = Command::new("unshare");
    command.args(shell).arg(directory).arg(device_mode).output().unwrap()
}

/// A directory with the program, a PFS directory of the user and a mount point; none without root.
fn prepare() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("SKIPPED a plain user's mount: needs root and /dev/fuse to set the stage");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let owner = Command::new("chown").arg("nobody:nogroup").arg(path).status().unwrap();
        assert!(owner.success());
    };
    let at = |name: &str| directory.path().join(name);
    std::fs::copy(env!("CARGO_BIN_EXE_tidepool"), at("tidepool")).unwrap();
    for name in ["pfs", "mnt"] {
        std::fs::create_dir(at(name)).unwrap();
        open(&at(name));
    }
    open(directory.path());
    std::fs::write(at("pfs/here"), "on the PFS\n").unwrap();
    Some(directory)
}

#[test]
fn a_plain_user_mounts_by_the_helper() {
    let Some(directory) = prepare() else { return };
    let output = run(directory.path(), "666", WORKS);
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("on the PFS\n").count(), 2, "{said}");
    assert!(said.contains("written through the mount\n"), "{said}");
    assert!(said.contains("passthrough is off: it needs root"), "{said}");
    let report = std::fs::read(directory.path().join("doctor.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["healthy"], true, "{report:#}");
    assert_eq!(report["mount_served_by"], "store", "loaded files are served from memory");
}

#[test]
fn a_stop_that_leaves_a_dead_mount_says_so() {
    let Some(directory) = prepare() else { return };
    let output = run(directory.path(), "666", WITHOUT_MOUNT_TABLE);
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("is still mounted") && said.contains("umount --lazy"), "{said}");
}

#[test]
fn a_closed_device_is_named_with_its_cure() {
    let Some(directory) = prepare() else { return };
    let output = run(directory.path(), "600", "start");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("chmod 666 /dev/fuse"), "{said}");
}

const NO_HELPER: &str = r#"
helper=$(command -v fusermount3) || { echo "no fusermount3"; exit 9; }
cp "$helper" helper; chmod 644 helper; mount --bind helper "$helper"
user ./tidepool doctor --socket none > doctor.txt || true
grep "may run" doctor.txt
start
"#;

#[test]
fn a_helper_that_users_may_not_run_is_named_with_its_cure() {
    let Some(directory) = prepare() else { return };
    let output = run(directory.path(), "666", NO_HELPER);
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("fusermount3, which this user may not run"), "{said}");
    assert!(said.contains("no fusermount3 that this user may run, so no mount"), "{said}");
    assert!(said.contains("mode 4755") && !said.contains("chmod 666"), "{said}");
}
