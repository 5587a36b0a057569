//! TestDFSIO, and RandomWriter with Sort and SortValidator.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::place::{Place, parts};
use super::report::Report;

/// Files of TestDFSIO.
const FILES: u64 = 4;
/// TestDFSIO counts in these.
const MIB: u64 = 1 << 20;

/// Writes with TestDFSIO, reads twice: the second time from memory where there is one.
pub fn dfsio(place: &mut Place, bytes: u64) -> Result<Report> {
    place.start_yarn()?;
    let file_mib = (bytes / FILES / MIB).max(1);
    let bytes = file_mib * MIB * FILES;
    let mut report = place.report("dfsio", bytes);
    let result = place.hadoop.logs.join("dfsio-result");
    place.disturb();
    for (step, way) in [("write", "-write"), ("read", "-read"), ("read again", "-read")] {
        let arguments = vec![
            format!("-Dfs.defaultFS={}", place.uri("")),
            format!("-Dtest.build.data={}", place.uri("dfsio")),
            way.into(),
            "-nrFiles".into(),
            FILES.to_string(),
            "-size".into(),
            format!("{file_mib}MB"),
            "-resFile".into(),
            result.display().to_string(),
        ];
        // It adds to its results; only the newest count.
        let _ = std::fs::remove_file(&result);
        let main = "org.apache.hadoop.fs.TestDFSIO";
        let (mut stage, _) =
            place.stage(step, Some(bytes), || place.hadoop.run(main, &arguments))?;
        let text = std::fs::read_to_string(&result).context("TestDFSIO wrote no result")?;
        let said = |what: &str| {
            let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix(what));
            lines.next().map(|rest| rest.trim_start_matches(':').trim().to_owned())
        };
        let rate = said("Throughput mb/sec").context("TestDFSIO tells no rate")?;
        let mebibytes: f64 = rate.parse().with_context(|| format!("its rate is `{rate}`"))?;
        stage.task_megabytes_s = Some(mebibytes * MIB as f64 / 1e6);
        let moved = said("Total MBytes processed").unwrap_or_default();
        ensure!(
            moved.parse::<f64>().ok() == Some((file_mib * FILES) as f64),
            "TestDFSIO moved {moved} MiB of {}",
            file_mib * FILES
        );
        report.stages.push(stage);
    }
    place.calm(&mut report)?;
    let directory = place.plain("dfsio/io_data")?;
    for index in 0..FILES {
        let path = directory.join(format!("test_io_{index}"));
        is_dfsio_output(&path, file_mib * MIB).with_context(|| path.display().to_string())?;
    }
    report.checked.push(format!("{FILES} files hold what TestDFSIO writes, without holes"));
    Ok(report)
}

/// TestDFSIO writes zeros: its mapper fills a buffer in the constructor and replaces it by a new
/// one when it is configured. Zeros could be a hole, so the space must have been taken as well.
fn is_dfsio_output(path: &Path, bytes: u64) -> Result<()> {
    let mut file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    ensure!(metadata.len() == bytes, "{} bytes", metadata.len());
    ensure!(metadata.blocks() * 512 >= bytes, "holes: {} blocks of 512 bytes", metadata.blocks());
    let mut piece = vec![0; MIB as usize];
    let mut left = bytes;
    while left > 0 {
        let count = usize::try_from(left)?.min(piece.len());
        file.read_exact(&mut piece[..count])?;
        ensure!(piece[..count].iter().all(|byte| *byte == 0), "other bytes {left} before the end");
        left -= count as u64;
    }
    Ok(())
}

/// Sorts random records; their number, checksum and order are then counted on plain files.
pub fn sort(place: &mut Place, bytes: u64) -> Result<Report> {
    place.start_yarn()?;
    let mut report = place.report("sort", bytes);
    let [input, sorted] = ["sort/in", "sort/sorted"];
    place.disturb();
    let steps: [(&str, &str, Vec<String>); 3] = [
        (
            "RandomWriter",
            "org.apache.hadoop.examples.RandomWriter",
            vec![
                format!("-Dmapreduce.randomwriter.totalbytes={bytes}"),
                format!("-Dmapreduce.randomwriter.bytespermap={}", bytes.div_ceil(2)),
                place.uri(input),
            ],
        ),
        (
            "Sort",
            "org.apache.hadoop.examples.Sort",
            ["-r", "2", &place.uri(input), &place.uri(sorted)].map(String::from).to_vec(),
        ),
        (
            "SortValidator",
            "org.apache.hadoop.mapred.SortValidator",
            ["-sortInput", &place.uri(input), "-sortOutput", &place.uri(sorted)]
                .map(String::from)
                .to_vec(),
        ),
    ];
    for (name, main, mut arguments) in steps {
        arguments.insert(0, format!("-Dfs.defaultFS={}", place.uri("")));
        let (stage, _) = place.stage(name, Some(bytes), || place.hadoop.run(main, &arguments))?;
        report.stages.push(stage);
    }
    place.calm(&mut report)?;
    let before = records(place, &place.plain(input)?)?;
    let after = records(place, &place.plain(sorted)?)?;
    ensure!(before.0 == after.0 && before.1 == after.1, "the sorted records are others");
    ensure!(after.2 == 0, "{} records are out of order", after.2);
    ensure!(!parts(&place.plain(sorted)?)?.is_empty(), "nothing was written");
    report.checked.push(format!(
        "{} records sorted, the same before and after by SortValidator and on plain files",
        after.0
    ));
    Ok(report)
}

/// Number, checksum and records out of order of the plain files of a directory.
fn records(place: &Place, directory: &Path) -> Result<(u64, i64, u64)> {
    let address = format!("file://{}", directory.display());
    let ran = place.hadoop.run("io.tidepool.examples.SortedRecords", &[address])?;
    let line = ran.after("RECORDS ").next().context("SortedRecords said nothing")?;
    let mut words = line.split(' ');
    let mut word = || words.next().context("SortedRecords said too little");
    Ok((word()?.parse()?, word()?.parse()?, word()?.parse()?))
}

#[cfg(test)]
mod tests {
    use super::is_dfsio_output;

    #[test]
    fn a_wrong_byte_a_missing_one_and_a_hole_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test_io_0");
        let mut bytes = vec![0; 1_500_000];
        std::fs::write(&path, &bytes).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        is_dfsio_output(&path, 1_500_000).unwrap();
        assert!(is_dfsio_output(&path, 1_500_001).is_err());
        bytes[1_200_000] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(is_dfsio_output(&path, 1_500_000).is_err());
        std::fs::File::create(&path).unwrap().set_len(1_500_000).unwrap();
        assert!(is_dfsio_output(&path, 1_500_000).is_err());
    }
}
