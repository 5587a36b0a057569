//! Tests that generated documents are up to date and usable.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{run, stderr, stdout};

fn top_of_the_tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files
}

#[test]
fn the_reference_is_up_to_date() {
    let made = tempfile::tempdir().unwrap();
    let output = run(&["generate", "docs", made.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let files = files_below(made.path());
    assert!(files.len() >= 5, "options, metrics, errors, commands, example configuration");
    for file in files {
        let name = file.strip_prefix(made.path()).unwrap();
        let kept = std::fs::read_to_string(top_of_the_tree().join(name)).unwrap_or_default();
        let wanted = std::fs::read_to_string(&file).unwrap();
        assert!(kept == wanted, "{} is out of date: tidepool generate docs .", name.display());
    }
}

#[test]
fn names_of_settings_are_completed() {
    let script = stdout(&run(&["generate", "completion", "bash"]));
    for name in ["memory_min", "control_headroom_bytes", "control_lease_ms"] {
        assert!(script.contains(&format!("{name} ")), "{name} is not completed");
    }
    let help = stdout(&run(&["control", "set", "--help"]));
    assert!(!help.contains("control_headroom_bytes"), "the list is too long for help: {help}");
}

#[test]
fn man_pages_render() {
    let made = tempfile::tempdir().unwrap();
    let output = run(&["generate", "man", made.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = made.path().join("tidepool-node-start.1");
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("\\-\\-memory"), "{text}");
    let Ok(rendered) = Command::new("man").arg("-l").arg(&page).env("MANWIDTH", "80").output()
    else {
        println!("skipped: `man` is not installed, so the page is not rendered");
        return;
    };
    if !rendered.status.success() {
        println!("skipped: `man` cannot render here: {}", stderr(&rendered));
        return;
    }
    assert!(stdout(&rendered).contains("--memory"));
}

#[test]
fn completion_scripts_are_parsed_by_their_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["generate", "completion", shell]);
        assert!(output.status.success());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("script");
        std::fs::write(&file, &output.stdout).unwrap();
        assert!(stdout(&output).contains("explain"));
        match Command::new(shell).arg("-n").arg(&file).output() {
            Ok(parsed) => assert!(parsed.status.success(), "{shell}: {}", stderr(&parsed)),
            Err(_) => println!("skipped: {shell} is not installed"),
        }
    }
}

#[test]
fn bash_completes_commands() {
    let script = run(&["generate", "completion", "bash"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("script");
    std::fs::write(&file, &script.stdout).unwrap();
    let probe = format!(
        "source {}; COMP_WORDS=(tidepool ex); COMP_CWORD=1; _tidepool tidepool ex tidepool; \
         echo \"${{COMPREPLY[@]}}\"",
        file.display()
    );
    let Ok(output) = Command::new("bash").arg("-c").arg(probe).output() else {
        println!("skipped: bash is not installed");
        return;
    };
    assert_eq!(stdout(&output).trim(), "explain", "{}", stderr(&output));
}
