//! Reports that a test could not run here: on the runner's output, never as a silent pass.

use std::io::Write;

/// Says that a test is skipped, past the capture of the test runner.
pub fn skip(test: &str, reason: &str) {
    say(&format!("SKIPPED {test}: {reason}\n"));
}

/// Writes a line past the capture of the test runner.
pub fn say(line: &str) {
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
