//! Tests of the contract suite on file systems whose answers are known: its results, that it
//! removes what it makes, ends when told to, and says what cannot be written.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidepool_pfs::contract::{self, ContractOptions, ContractReport, Outcome};

use crate::support::{on_every_file_system, on_small_tmpfs, remount_read_only};

fn quick() -> ContractOptions {
    ContractOptions { speed_bytes: 8 << 20, small_files: 20, cancel: None }
}

fn run(root: &Path) -> ContractReport {
    contract::run(root, quick(), &mut |_| {})
}

fn is_empty(root: &Path) -> bool {
    std::fs::read_dir(root).unwrap().next().is_none()
}

#[test]
fn good_file_systems_pass() {
    on_every_file_system(|root, fs_type| {
        let mut seen = Vec::new();
        let report = contract::run(root, quick(), &mut |check| seen.push(check.clone()));
        assert_eq!(report.checks, seen, "progress tells every check");
        assert!(report.checks.len() >= 38, "{} checks", report.checks.len());
        let failed: Vec<_> =
            report.checks.iter().filter(|check| check.outcome == Outcome::Failed).collect();
        assert!(failed.is_empty(), "{fs_type}: {failed:#?}");
        assert_eq!(report.count(Outcome::Skipped), 0, "{fs_type}");
        for check in &report.checks {
            assert!(!check.measured.is_empty(), "{fs_type} {}", check.name);
            let lost = check.outcome != Outcome::Ok;
            assert_eq!(lost, !check.consequence.is_empty(), "{fs_type}: {check:?}");
        }
        assert!(is_empty(root), "{fs_type}: something was left");
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<ContractReport>(&json).unwrap(), report);
    });
}

#[test]
fn tmpfs_is_said_to_keep_nothing() {
    on_small_tmpfs(64 << 20, |root| {
        let report = run(root);
        assert_eq!(report.fs_type, "tmpfs");
        let outcome =
            |name: &str| report.checks.iter().find(|check| check.name == name).unwrap().outcome;
        assert_eq!(outcome("sync-file"), Outcome::Degraded, "tmpfs syncs to nowhere");
        assert_eq!(outcome("hard-link"), Outcome::Ok);
    });
}

#[test]
fn a_full_file_system_fails_checks_and_is_still_cleaned() {
    on_small_tmpfs(256 << 10, |root| {
        let report = run(root);
        assert!(report.count(Outcome::Failed) > 0);
        assert!(is_empty(root));
    });
}

#[test]
fn a_read_only_directory_is_told() {
    on_small_tmpfs(1 << 20, |root| {
        remount_read_only(root);
        let report = run(root);
        assert_eq!(report.checks[0].outcome, Outcome::Failed);
        assert!(report.checks[0].measured.contains("Read-only"), "{:?}", report.checks[0]);
        assert_eq!(report.count(Outcome::Skipped), report.checks.len() - 1);
    });
    let report = run(Path::new("/nonexistent/directory"));
    assert_eq!(report.checks[0].outcome, Outcome::Failed);
}

#[test]
fn a_cancelled_run_ends_and_cleans_up() {
    let directory = tempfile::tempdir().unwrap();
    let cancel = Arc::new(AtomicBool::new(false));
    let options = ContractOptions { cancel: Some(cancel.clone()), ..quick() };
    let mut count = 0;
    let report = contract::run(directory.path(), options, &mut |_| {
        count += 1;
        cancel.store(count >= 5, Ordering::Relaxed);
    });
    assert_eq!(report.checks.len() - report.count(Outcome::Skipped), 6, "five and the clean-up");
    assert!(is_empty(directory.path()));
}

#[test]
fn leftovers_of_a_killed_run_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // No process has this number: it is beyond the kernel's limit.
    let stale = directory.path().join(format!(".tidepool-doctor-{host}-{}", 1u32 << 30));
    std::fs::create_dir_all(stale.join("x")).unwrap();
    let other = directory.path().join(".tidepool-doctor-another-host-1");
    std::fs::create_dir(&other).unwrap();
    run(directory.path());
    assert!(!stale.exists());
    assert!(other.exists(), "another host's run may be going on");
}

#[test]
fn a_full_directory_says_so_once_and_blames_no_file_system() {
    crate::support::on_small_tmpfs(1 << 20, |root| {
        let full = std::fs::write(root.join("full"), vec![1; 2 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        let report = contract::run(root, quick(), &mut |_| {});
        let failed = report.checks.iter().filter(|check| check.outcome == Outcome::Failed);
        let failed: Vec<_> = failed.map(|check| (&*check.name, &*check.measured)).collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0].0, "room");
        assert!(report.count(Outcome::Skipped) > 5, "{report:?}");
    });
}
