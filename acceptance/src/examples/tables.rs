//! Rows of the tables that Spark and Hive are asked about: row `i` is
//! (i, i % 1000, i * 7919 % 10007, "name-" + i % 97), so answers follow by arithmetic.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Rows whose number is below this take part in the join.
const JOINED: u64 = 100_000;

/// What lines about `ROW FORMAT ANSWER` have to be: so many for each format, all with the answer
/// that arithmetic gives.
pub fn check_answers(
    lines: &[&str],
    rows: u64,
    formats: &[&str],
    questions: u64,
) -> Result<String> {
    let expected = answer(rows);
    for format in formats {
        let said = lines.iter().filter(|line| line.split(' ').next() == Some(format)).count();
        ensure!(said as u64 == questions, "{said} answers about {format} instead of {questions}");
    }
    for line in lines {
        let (format, said) = line.split_once(' ').context("an answer without its format")?;
        ensure!(said == expected, "{format} says {said} instead of {expected}");
    }
    Ok(format!("{} answers over {rows} rows as by arithmetic", lines.len()))
}

/// A row as CSV.
pub fn row(id: u64) -> String {
    format!("{id},{},{},name-{}", id % 1_000, value(id), id % 97)
}

fn value(id: u64) -> u64 {
    id * 7_919 % 10_007
}

/// All rows, their values, the numbers of one name, the values of ten groups, the rows joined.
fn answer(rows: u64) -> String {
    let all: u64 = (0..rows).map(value).sum();
    let named: u64 = (0..rows).filter(|id| id % 97 == 13).sum();
    let groups: u64 = (0..rows).filter(|id| id % 1_000 < 10).map(value).sum();
    let joined = rows.min(JOINED);
    format!("{rows} {all} {named} {groups} {joined}")
}

/// Whether all files of a directory are of a format, by their first bytes; hidden ones and marks of
/// success apart.
pub fn check_files(directory: &Path, mark: &str) -> Result<()> {
    let mut count = 0;
    for entry in std::fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(['.', '_']) {
            continue;
        }
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        ensure!(bytes.starts_with(mark.as_bytes()), "{} is no {mark}", path.display());
        count += 1;
    }
    ensure!(count > 0, "no files in {}", directory.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{answer, check_answers, check_files, row};

    #[test]
    fn a_wrong_and_a_missing_answer_are_seen() {
        assert_eq!(row(1_013), "1013,13,6340,name-43");
        let right = format!("orc {}", answer(1_500));
        assert!(right.starts_with("orc 1500 "));
        check_answers(&[&right, &right], 1_500, &["orc"], 2).unwrap();
        assert!(check_answers(&[&right], 1_500, &["orc"], 2).is_err());
        assert!(check_answers(&[&right, &right], 1_500, &["orc", "parquet"], 2).is_err());
        assert!(check_answers(&[&right, "orc 1500 1 2 3 4"], 1_500, &["orc"], 2).is_err());
    }

    #[test]
    fn files_of_another_format_and_no_files_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("_SUCCESS"), "").unwrap();
        assert!(check_files(directory.path(), "ORC").is_err());
        std::fs::write(directory.path().join("000000_0"), "ORC...").unwrap();
        check_files(directory.path(), "ORC").unwrap();
        std::fs::write(directory.path().join("000001_0"), "PAR1...").unwrap();
        assert!(check_files(directory.path(), "ORC").is_err());
    }
}
