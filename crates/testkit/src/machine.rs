//! Requirements of tests on the machine: the product's binary, root, FUSE. A test that cannot run
//! says why, in one line, and is counted as skipped; it never just passes.

use std::path::{Path, PathBuf};

/// A reason to skip.
#[derive(Clone, Debug)]
pub struct Missing(pub String);

/// Whether the tests of a node with a mount can run here.
pub fn can_mount() -> Result<(), Missing> {
    if !rustix::process::geteuid().is_root() {
        return Err(Missing("needs root: run it as root or with sudo".into()));
    }
    match std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(error) => Err(Missing(format!("/dev/fuse cannot be opened: {error}"))),
    }
}

/// Prints why a test is skipped, past the capture of the test runner.
pub fn print_skip(test: &str, Missing(reason): &Missing) {
    use std::io::Write;
    let line = format!("SKIPPED {test}: {reason}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Skips the test with a printed reason where the machine cannot mount.
#[macro_export]
macro_rules! needs_mount {
    () => {
        if let Err(missing) = $crate::machine::can_mount() {
            $crate::machine::print_skip(module_path!(), &missing);
            return;
        }
    };
}

/// The binary under test: `TIDEPOOL_BINARY`, or the one built into the same target directory,
/// of this profile or else of the release profile.
///
/// # Panics
/// Where there is none: a test of the product without the product must not pass.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TIDEPOOL_BINARY") {
        return path.into();
    }
    let here = std::env::current_exe().expect("the running program has a path");
    let profile = here.ancestors().find(|path| path.join(".fingerprint").is_dir());
    let candidates = profile.into_iter().flat_map(|profile| {
        let target = profile.parent().unwrap_or(profile);
        [profile.join("tidepool"), target.join("release/tidepool")]
    });
    let found = candidates
        .filter(|path| path.is_file())
        .max_by_key(|path| std::fs::metadata(path).and_then(|facts| facts.modified()).ok());
    found.expect("no `tidepool` binary: run `cargo build --release -p tidepool-cli` first")
}

/// Lets other users look up names in a directory, which temporary ones do not by themselves.
pub fn open_to_all(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}
