//! Collects failures of a command about many files: equal ones are printed once, with their number,
//! and files that went away meanwhile are counted.

use tidepool_proto::Error;

use crate::output::{count, note};

/// Lines that are printed; more are counted.
const LINES_MAX: usize = 20;
const ENOENT: i32 = 2;

/// What failed so far.
#[derive(Debug, Default)]
pub struct Failures {
    /// Each line with how often it came, in the order of the first times.
    lines: Vec<(String, u64)>,
    /// Files and directories that were gone when it was their turn.
    gone: u64,
}

impl Failures {
    /// One more.
    pub fn add(&mut self, error: &Error) {
        if is_gone(error) {
            self.gone += 1;
            return;
        }
        let text = error.to_string();
        match self.lines.iter_mut().find(|(line, _)| *line == text) {
            Some((_, times)) => *times += 1,
            None => self.lines.push((text, 1)),
        }
    }

    /// Whether nothing failed.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.gone == 0
    }

    /// Says all of it on standard error.
    pub fn tell(&self) {
        self.words().iter().for_each(|line| note(line));
    }

    fn words(&self) -> Vec<String> {
        let shown = self.lines.iter().take(LINES_MAX).map(|(line, times)| match times {
            1 => format!("tidepool: {line}"),
            _ => format!("tidepool: {line} ({})", count(*times, "time")),
        });
        let mut words: Vec<String> = shown.collect();
        let left = self.lines.iter().skip(LINES_MAX).map(|(_, times)| times).sum();
        if left > 0 {
            words.push(format!("tidepool: {}", count(left, "more failure")));
        }
        if self.gone > 0 {
            words.push(gone(self.gone));
        }
        words
    }
}

/// Whether a file failed only because it is not there any more.
pub fn is_gone(error: &Error) -> bool {
    error.errno() == ENOENT
}

/// How many files went away, in words.
pub fn gone(files: u64) -> String {
    format!("tidepool: {} went away meanwhile", count(files, "file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_proto::ErrorKind;

    #[test]
    fn what_is_the_same_is_told_once() {
        let mut failures = Failures::default();
        assert!(failures.is_empty());
        for _ in 0..3 {
            let error = Error::new(ErrorKind::PermissionDenied, "evicting a file", "not yours");
            failures.add(&error);
        }
        failures.add(&Error::pfs("opening a", std::io::Error::from_raw_os_error(ENOENT)));
        failures.add(&Error::pfs("opening b", std::io::Error::from_raw_os_error(ENOENT)));
        let words = failures.words();
        let first = "tidepool: while evicting a file: not yours (3 times)";
        assert_eq!(words, [first, "tidepool: 2 files went away meanwhile"]);
        for number in 0..40 {
            failures.add(&Error::new(ErrorKind::Pfs, format!("reading {number}"), "x"));
        }
        assert_eq!(failures.words().len(), LINES_MAX + 2);
        assert_eq!(failures.words()[LINES_MAX], "tidepool: 21 more failures");
        assert!(!failures.is_empty());
    }
}
