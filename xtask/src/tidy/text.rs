//! Checks of any file as text: length of lines, words that stand for unfinished work, large blobs,
//! names of files.

use std::path::Path;

use anyhow::Result;

use super::{Finding, is_rust};

const LINE_CHARACTERS: usize = 100;
const BLOB_BYTES: u64 = 1 << 20;
/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["utils", "util", "common", "helpers", "misc"];

/// What is banned in any text, and what to do instead. Split so that this table does not find
/// itself.
const WORDS: [(&str, &str); 4] = [
    (concat!("TO", "DO"), "finish it, or describe it in an issue"),
    (concat!("FIX", "ME"), "repair it, or describe it in an issue"),
    (concat!("XX", "X:"), "say what is wrong, or describe it in an issue"),
    (concat!("HA", "CK"), "say why it is so"),
];

/// Checks one file.
pub fn check(root: &Path, file: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let path = root.join(file);
    let bytes = std::fs::metadata(&path)?.len();
    if bytes > BLOB_BYTES && !is_lock(file) {
        let what = format!("{bytes} bytes; keep files over {BLOB_BYTES} bytes out of the tree");
        return Ok(vec![Finding::at(file, 0, what)]);
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let parent = file.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    if is_rust(file) && EMPTY_NAMES.iter().any(|name| *name == stem || *name == parent) {
        let what = format!("`{stem}` says nothing; name the file for what it holds");
        findings.push(Finding::at(file, 0, what));
    }
    let Ok(text) = std::fs::read_to_string(&path) else {
        return Ok(findings);
    };
    if is_lock(file) {
        return Ok(findings);
    }
    for (index, line) in text.lines().enumerate() {
        findings.extend(check_line(file, index + 1, line));
    }
    if is_rust(file) && !text.starts_with("//!") {
        let what = "begin with `//!`: what the file is for and what it refuses to do";
        findings.push(Finding::at(file, 1, what));
    }
    Ok(findings)
}

fn check_line(file: &Path, number: usize, line: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let characters = line.chars().count();
    // A long literal or address cannot be broken; what has spaces can.
    let breakable = line.split_whitespace().all(|word| word.chars().count() < 80);
    let limited = is_rust(file) || file.ends_with("x");
    if limited && characters > LINE_CHARACTERS && breakable {
        let what = format!("{characters} characters; break the line at {LINE_CHARACTERS}");
        findings.push(Finding::at(file, number, what));
    }
    for (word, remedy) in WORDS {
        if has_word(line, word) {
            findings.push(Finding::at(file, number, format!("`{word}`: {remedy}")));
        }
    }
    findings
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !joins(before) && !joins(after)
    })
}

fn is_lock(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "lock")
}

#[cfg(test)]
mod tests {
    use super::{WORDS, check_line, has_word};
    use std::path::Path;

    #[test]
    fn words_are_found_as_words_only() {
        let word = WORDS[0].0;
        assert!(has_word(&format!("// {word}: later"), word));
        assert!(!has_word(&format!("MY{word}LIST"), word));
    }

    #[test]
    fn long_lines_are_found_unless_they_cannot_be_broken() {
        let long = "word ".repeat(21);
        assert_eq!(check_line(Path::new("a.rs"), 1, &long).len(), 1);
        assert_eq!(check_line(Path::new("a.md"), 1, &long).len(), 0);
        assert_eq!(check_line(Path::new("a.rs"), 1, &"w".repeat(120)).len(), 0);
    }
}
