//! Every test that `docs/SEMANTICS.md` names for a promise has to be there.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Finding;

const PAGE: &str = "docs/SEMANTICS.md";
/// How the head of a table of promises ends.
const HEAD: &str = "| test |";
const JAVA_TESTS: &str = "java/hadoop/src/test/java/io/tidepool/hadoop";

/// Tests of the page that nobody finds among `files` of the checkout.
pub fn missing(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let text = std::fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let contains = |place: &Path, name: &str| {
        let mut below = files.iter().filter(|file| file.starts_with(place));
        below.any(|file| {
            let source = std::fs::read_to_string(root.join(file)).unwrap_or_default();
            ["fn", "void"].iter().any(|word| source.contains(&format!("{word} {name}(")))
        })
    };
    let exists = |place: &Path| files.iter().any(|file| file.starts_with(place));
    let findings = named(&text).into_iter().filter_map(|(line, test)| {
        let place = test.place();
        let what = match test.name {
            _ if !exists(&place) => format!("`{}` is not there", place.display()),
            Some(name) if !contains(&place, &name) => {
                format!("`{}` has no test `{name}`", place.display())
            }
            _ => return None,
        };
        Some(Finding::at(Path::new(PAGE), line, format!("{what}; name the test that holds it")))
    });
    Ok(findings.collect())
}

/// A test, or a file or directory of tests.
#[derive(Clone, Debug, PartialEq)]
struct Test {
    /// As on the page: a path below `crates`, or a class of Java.
    within: String,
    /// Its function; `None` where all of them are meant.
    name: Option<String>,
}

impl Test {
    fn place(&self) -> PathBuf {
        match self.within.strip_prefix("Test") {
            Some(_) => Path::new(JAVA_TESTS).join(format!("{}.java", self.within)),
            None => Path::new("crates").join(&self.within),
        }
    }
}

/// The tests in the last columns of the tables of promises, with their lines.
fn named(page: &str) -> Vec<(usize, Test)> {
    let mut tests = Vec::new();
    let mut is_table = false;
    for (at, line) in page.lines().enumerate() {
        is_table = line.starts_with('|') && (is_table || line.ends_with(HEAD));
        let Some(cell) = line.trim_end_matches('|').rsplit('|').next().filter(|_| is_table) else {
            continue;
        };
        let mut within: Option<String> = None;
        for token in cell.split('`').skip(1).step_by(2) {
            if let Some(test) = read(token, within.as_deref()) {
                within = Some(test.within.clone());
                tests.push((at + 1, test));
            }
        }
    }
    tests
}

/// The test that a token names, if it names one: a name alone is one of the place before it.
fn read(token: &str, within: Option<&str>) -> Option<Test> {
    let is_place = |token: &str| token.contains("/tests") || token.starts_with("Test");
    if let Some((place, name)) = token.split_once(": ") {
        return Some(Test { within: place.to_owned(), name: Some(name.to_owned()) });
    }
    if is_place(token) {
        return Some(Test { within: token.to_owned(), name: None });
    }
    let is_name = token.matches('_').count() > 2
        || token.starts_with(char::is_lowercase) && token.contains(char::is_uppercase);
    let within = within.filter(|_| is_name && token.chars().all(is_of_a_name))?;
    Some(Test { within: within.to_owned(), name: Some(token.to_owned()) })
}

fn is_of_a_name(character: char) -> bool {
    character == '_' || character.is_ascii_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "| mode | is |\n|---|---|\n| `a_b_c_d: e` | no |\n\n\
        | promise | test |\n|---|---|\n\
        | one | `node/tests/a.rs: first_of_all_tests`, `another_of_the_same`; `close` |\n\
        | two | `TestNames: oneName`, `otherName`, model check of `store` |\n\
        | three | `client/tests/suite` |\n";

    #[test]
    fn names_are_found_with_their_places() {
        let tests = named(PAGE);
        let all: Vec<_> =
            tests.iter().map(|(line, it)| (*line, &*it.within, it.name.as_deref())).collect();
        assert_eq!(
            all,
            [
                (7, "node/tests/a.rs", Some("first_of_all_tests")),
                (7, "node/tests/a.rs", Some("another_of_the_same")),
                (8, "TestNames", Some("oneName")),
                (8, "TestNames", Some("otherName")),
                (9, "client/tests/suite", None),
            ]
        );
    }

    #[test]
    fn what_is_not_there_is_found() {
        let root = tempfile::tempdir().unwrap();
        let file = PathBuf::from("crates/node/tests/a.rs");
        std::fs::create_dir_all(root.path().join("docs")).unwrap();
        std::fs::create_dir_all(root.path().join("crates/node/tests")).unwrap();
        std::fs::write(root.path().join("docs/SEMANTICS.md"), PAGE).unwrap();
        std::fs::write(root.path().join(&file), "fn first_of_all_tests() {}").unwrap();
        let found = missing(root.path(), &[file]).unwrap();
        let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [7, 8, 8, 9], "{found:?}");
    }
}
