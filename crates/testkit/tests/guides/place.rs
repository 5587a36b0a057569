//! A machine for a page: the present one with everything that is written kept apart, a parallel
//! file system in `/lustre` and `/pfs`, the product installed, and stand-ins for what a test cannot
//! have (`stand-ins/`). Namespaces end with their first process, and all that ran in them too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tidepool_testkit::machine;
use tidepool_testkit::product::{program, run_within, said};

/// How long a page may take, on a machine that does other things as well.
const LIMIT: Duration = Duration::from_secs(300);

/// The machine of a page.
pub struct Place {
    directory: tempfile::TempDir,
    checkout: PathBuf,
}

impl Place {
    /// With nothing on it yet.
    pub fn new(checkout: &Path) -> std::io::Result<Place> {
        let directory = tempfile::Builder::new().prefix("tidepool-guide-").tempdir()?;
        machine::open_to_all(directory.path())?;
        Ok(Place { directory, checkout: checkout.to_path_buf() })
    }

    /// Runs the script to its end, or names the block that failed by its line.
    pub fn run(&self, script: &str) -> Result<Option<usize>, String> {
        let at = |name: &str| self.directory.path().join(name);
        std::fs::write(at("script"), script).map_err(|error| error.to_string())?;
        let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guides/stand-ins");
        let binary = machine::binary();
        let mut command: Command = program(Path::new("unshare"));
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-eu"]);
        command.arg(stand_ins.join("enter")).arg(self.directory.path());
        command.arg(&self.checkout).arg(&stand_ins);
        command.arg(binary.canonicalize().map_err(|error| error.to_string())?);
        command.arg(tasks(&binary)?);
        let output = run_within(&mut command, LIMIT).map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(None);
        }
        let reached = std::fs::read_to_string(at("at")).unwrap_or_default();
        reached.trim().parse().map(Some).map_err(|_| said(&output))
    }

    /// What a block said.
    pub fn output(&self, line: usize) -> String {
        let path = self.directory.path().join(format!("{line}.out"));
        std::fs::read_to_string(path).unwrap_or_default()
    }
}

/// The program of `./x`, which stands in the target directory that the binary is from or the tests.
fn tasks(binary: &Path) -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let targets = [binary, &here].into_iter().flat_map(Path::ancestors);
    let candidates = targets.map(|directory| directory.join("release/xtask"));
    let mut found = candidates.filter(|path| path.is_file());
    found.next().ok_or_else(|| "no `xtask` program: run `./x --help` first".to_owned())
}
