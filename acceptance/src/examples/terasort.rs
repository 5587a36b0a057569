//! TeraGen, TeraSort and TeraValidate, and a check of their files that knows nothing of Hadoop.

use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::place::{Place, parts};
use super::report::Report;

/// Bytes of a row: a key of ten bytes and what belongs to it.
const ROW_BYTES: usize = 100;
const KEY_BYTES: usize = 10;
const PACKAGE: &str = "org.apache.hadoop.examples.terasort";

/// All three on YARN.
pub fn on_yarn(place: &mut Place, bytes: u64) -> Result<Report> {
    place.start_yarn()?;
    run(place, bytes)
}

/// All three, wherever jobs run now.
pub fn run(place: &mut Place, bytes: u64) -> Result<Report> {
    let rows = bytes / ROW_BYTES as u64;
    let bytes = rows * ROW_BYTES as u64;
    let mut report = place.report("terasort", bytes);
    let [input, sorted, verdict] = ["tera/in", "tera/sorted", "tera/verdict"];
    // Its own partitioner reads a file of its working directory, which Hadoop sets to the client's
    // where the default file system is the local one.
    let simple = format!("-Dmapreduce.terasort.simplepartitioner={}", place.is_bare());
    place.disturb();
    let steps: [(&str, Vec<String>); 3] = [
        ("TeraGen", vec!["-Dmapreduce.job.maps=4".into(), rows.to_string(), place.uri(input)]),
        (
            "TeraSort",
            vec!["-Dmapreduce.job.reduces=2".into(), simple, place.uri(input), place.uri(sorted)],
        ),
        ("TeraValidate", vec![place.uri(sorted), place.uri(verdict)]),
    ];
    for (name, arguments) in steps {
        let main = format!("{PACKAGE}.{name}");
        let (stage, _) = place.stage(name, Some(bytes), || place.hadoop.run(&main, &arguments))?;
        report.stages.push(stage);
    }
    place.calm(&mut report)?;
    let generated = Rows::of(&place.plain(input)?)?;
    let ordered = Rows::of(&place.plain(sorted)?)?;
    ensure!(generated.count == rows, "TeraGen made {} rows of {rows}", generated.count);
    ensure!(ordered.count == rows, "{} rows were sorted of {rows}", ordered.count);
    ensure!(ordered.unordered == 0, "{} rows are out of order", ordered.unordered);
    ensure!(ordered.sum == generated.sum, "the sorted rows are not those that were generated");
    let said = validated(&place.plain(verdict)?)?;
    ensure!(said == ordered.sum, "TeraValidate found other rows: {said:x}");
    report.checked.push(format!("{rows} rows sorted, checksum {:x} as TeraValidate's", said));
    Ok(report)
}

/// Facts about rows, independent of how they lie in files.
struct Rows {
    count: u64,
    sum: u64,
    /// Rows with a smaller key than the one before, over all files in the order of their names.
    unordered: u64,
}

impl Rows {
    fn of(directory: &Path) -> Result<Self> {
        let mut rows = Rows { count: 0, sum: 0, unordered: 0 };
        let mut before = [0; KEY_BYTES];
        let mut row = [0; ROW_BYTES];
        for path in parts(directory)? {
            let file = std::fs::File::open(&path)?;
            ensure!(
                file.metadata()?.len().is_multiple_of(ROW_BYTES as u64),
                "{} ends in the middle of a row",
                path.display()
            );
            let mut file = BufReader::with_capacity(1 << 20, file);
            for _ in 0..path.metadata()?.len() / ROW_BYTES as u64 {
                file.read_exact(&mut row)?;
                rows.count += 1;
                rows.sum = rows.sum.wrapping_add(u64::from(crc32fast::hash(&row)));
                rows.unordered += u64::from(row[..KEY_BYTES] < before[..]);
                before.copy_from_slice(&row[..KEY_BYTES]);
            }
        }
        Ok(rows)
    }
}

/// The checksum in TeraValidate's answer; any other line of it tells an error.
fn validated(directory: &Path) -> Result<u64> {
    let mut sum = None;
    for path in parts(directory)? {
        for line in std::fs::read_to_string(path)?.lines() {
            match line.split_once('\t') {
                Some(("checksum", hex)) => sum = Some(u64::from_str_radix(hex.trim(), 16)?),
                _ => anyhow::bail!("TeraValidate: {line}"),
            }
        }
    }
    sum.context("TeraValidate gave no checksum")
}

#[cfg(test)]
mod tests {
    use super::{ROW_BYTES, Rows};

    #[test]
    fn order_and_content_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let row = |key: u8| [vec![key; 10], vec![7; ROW_BYTES - 10]].concat();
        let write = |name: &str, keys: &[u8]| {
            let rows: Vec<u8> = keys.iter().flat_map(|key| row(*key)).collect();
            std::fs::write(directory.path().join(name), rows).unwrap();
        };
        write("part-0", &[1, 2]);
        write("part-1", &[2, 3]);
        let sorted = Rows::of(directory.path()).unwrap();
        assert_eq!((sorted.count, sorted.unordered), (4, 0));
        write("part-0", &[2, 3]);
        write("part-1", &[2, 1]);
        let shuffled = Rows::of(directory.path()).unwrap();
        assert_eq!(shuffled.unordered, 2);
        assert_eq!(shuffled.sum, sorted.sum, "the same rows");
        write("part-1", &[2, 2]);
        assert_ne!(Rows::of(directory.path()).unwrap().sum, sorted.sum);
        std::fs::write(directory.path().join("part-2"), "short").unwrap();
        assert!(Rows::of(directory.path()).is_err());
    }
}
