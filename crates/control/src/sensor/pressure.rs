//! `/proc/pressure/memory`: totals of stall time, read at every tick, and a trigger that wakes a
//! sleeping loop. The trigger never steers: by then a task has waited already.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use tidepool_control_policy::Pressure;

use super::text;

/// Triggers from the best to what an unprivileged process may set (2 s windows only).
const TRIGGERS: [&[u8]; 2] = [b"some 50000 500000\0", b"some 50000 2000000\0"];

/// Reads the text of a pressure file. `None` unless both lines are there.
pub fn parse(text: &[u8]) -> Option<Pressure> {
    let (mut some_us, mut full_us) = (None, None);
    for line in text::lines(text) {
        let mut words = text::words(line);
        let kind = words.next();
        let total = words.find_map(|word| word.strip_prefix(b"total=")).and_then(text::number);
        match kind {
            Some(b"some") => some_us = total,
            Some(b"full") => full_us = total,
            _ => {}
        }
    }
    Some(Pressure { some_us: some_us?, full_us: full_us? })
}

/// A descriptor that polls as exceptional when tasks begin to wait for memory, or why there is
/// none.
pub fn trigger(path: &Path) -> Result<File, String> {
    let mut reason = String::new();
    for trigger in TRIGGERS {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        match opened.and_then(|mut file| file.write_all(trigger).map(|()| file)) {
            Ok(file) => return Ok(file),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_needed() {
        let text = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n\
            full avg10=0.00 avg60=0.00 avg300=0.00 total=3\n";
        assert_eq!(parse(text), Some(Pressure { some_us: 12, full_us: 3 }));
        assert_eq!(parse(&text[..60]), None);
        assert_eq!(parse(&text[..text.len() - 1]), None, "the last number may be cut off");
    }
}
