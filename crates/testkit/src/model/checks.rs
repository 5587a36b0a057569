//! Compares what an actor saw with what the model allows, and says in words how they differ.

use super::reference::{Candidate, ModelHandle, Reference};
use super::wire::Answer;

/// Something that must not be.
#[derive(Clone, Debug)]
pub struct Mismatch(pub String);

impl Mismatch {
    /// What kind of thing is wrong, without the figures: a shorter log has to show the same.
    pub fn kind(&self) -> String {
        self.0.chars().filter(|c| !c.is_ascii_digit()).take(KIND_CHARACTERS).collect()
    }
}

const KIND_CHARACTERS: usize = 24;

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Mismatch {
    fn from(error: std::io::Error) -> Self {
        Mismatch(error.to_string())
    }
}

/// A range of a file.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Succeeds if the answer is a success.
pub fn succeeded(answer: &Answer, what: &str) -> Result<(), Mismatch> {
    if answer.errno == 0 {
        return Ok(());
    }
    Err(Mismatch(format!(
        "{what} failed with errno {} ({}), it must succeed",
        answer.errno, answer.message
    )))
}

/// Compares the bytes of a read with all that would be right.
pub fn bytes_match(
    range: Range,
    seen: &[u8],
    candidates: &[Candidate<'_>],
) -> Result<(), Mismatch> {
    let right = |candidate: &Candidate<'_>| candidate.range(range.offset, range.length) == seen;
    if candidates.iter().any(right) {
        return Ok(());
    }
    let expected = candidates.first().map_or(&[][..], |c| c.range(range.offset, range.length));
    Err(Mismatch(difference(range.offset, expected, seen, candidates.len())))
}

fn difference(offset: u64, expected: &[u8], seen: &[u8], candidates: usize) -> String {
    let mut text = String::new();
    if candidates > 1 {
        text += &format!("none of {candidates} right outcomes; against the first: ");
    }
    if expected.len() != seen.len() {
        text += &format!("{} bytes instead of {}; ", seen.len(), expected.len());
    }
    let differs = |(a, b): (&u8, &u8)| a != b;
    let Some(first) = expected.iter().zip(seen).position(differs) else {
        text += "the bytes before are right";
        return text;
    };
    let pairs = || expected.iter().zip(seen);
    let wrong = pairs().filter(|(a, b)| a != b).count();
    let last = pairs().rposition(differs).unwrap_or(first);
    let zeros = pairs().skip(first).take(last + 1 - first).all(|(_, seen)| *seen == 0);
    let show = |bytes: &[u8]| {
        let end = bytes.len().min(first + 8);
        format!("{:02x?}", &bytes[first.min(end)..end])
    };
    text += &format!(
        "{wrong} wrong bytes in file offsets {}..={}{}: expected {}, got {}",
        offset + first as u64,
        offset + last as u64,
        if zeros { " (all zeros)" } else { "" },
        show(expected),
        show(seen),
    );
    text
}

/// Whether a failed read by this handle is right.
pub fn may_fail(model: &Reference, handle: &ModelHandle, errno: i32) -> bool {
    let changed = model.file(handle.file).epoch != handle.epoch;
    match errno {
        libc::ESTALE => changed,
        libc::ENODATA => handle.read_mode == tidepool_proto::ReadMode::Memory,
        _ => false,
    }
}
