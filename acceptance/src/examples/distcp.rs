//! DistCp from a real HDFS to the storage and back: with `-update` and checksums, so that what is
//! the same is left alone and what differs in one byte is not.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::place::Place;
use super::report::Report;
use crate::jvm::java::Ran;
use crate::random_file::write_file;

const FILES: u64 = 6;
const MAIN: &str = "org.apache.hadoop.tools.DistCp";

/// There and back; every file is compared byte by byte.
pub fn run(place: &mut Place, bytes: u64) -> Result<Report> {
    place.start_hdfs()?;
    let source = place.data().join("source");
    std::fs::create_dir_all(&source)?;
    for index in 0..FILES {
        // Sizes that are no multiples of anything.
        write_file(&source.join(format!("file-{index}")), bytes / FILES + index * 1_001)?;
    }
    let mut report = place.report("distcp", bytes);
    let local = format!("file://{}", source.display());
    let (there, here, back) = (place.hdfs_uri("there"), place.uri("here"), place.hdfs_uri("back"));
    place.shell(&["-put", &local, &there])?;
    place.disturb();
    let steps = [
        ("from HDFS", &there, &here, FILES),
        ("again, nothing to do", &there, &here, 0),
        ("back to HDFS", &here, &back, FILES),
        ("back again", &here, &back, 0),
    ];
    for (name, from, to, expected) in steps {
        let (stage, ran) =
            place.stage(name, (expected > 0).then_some(bytes), || copy(place, from, to))?;
        expect(&ran, expected).with_context(|| name.to_owned())?;
        report.stages.push(stage);
    }
    let uri = place.uri("here");
    if uri.starts_with("tide") {
        flip_a_byte(&place.plain("here")?.join("file-3"))?;
        let (stage, ran) = place.stage("one byte differs", None, || copy(place, &there, &here))?;
        expect(&ran, 1).context("one byte differs")?;
        report.stages.push(stage);
        report.checked.push("a file of the same length with one other byte is copied anew".into());
    } else {
        // The local file system has no checksums, and HDFS's files are not changed from outside.
        report.checked.push(format!("a changed byte is not looked for in {uri}"));
    }
    place.calm(&mut report)?;
    let fetched = place.data().join("fetched");
    place.shell(&["-get", &back, &fetched.display().to_string()])?;
    for index in 0..FILES {
        let name = format!("file-{index}");
        let truth = std::fs::read(source.join(&name))?;
        ensure!(std::fs::read(fetched.join(&name))? == truth, "{name} came back changed");
        if uri.starts_with("tide") {
            ensure!(std::fs::read(place.plain("here")?.join(&name))? == truth, "{name} differs");
        }
    }
    report.checked.push(format!("{FILES} files equal byte by byte on both sides"));
    Ok(report)
}

fn copy(place: &Place, from: &str, to: &str) -> Result<Ran> {
    let arguments = ["-Dmapreduce.framework.name=local", "-update", from, to].map(String::from);
    place.hadoop.run(MAIN, &arguments)
}

/// Whether so many files were copied and all others left alone.
fn expect(ran: &Ran, copied: u64) -> Result<()> {
    let found = ran.counter("Files Copied").unwrap_or(0);
    let skipped = ran.counter("Files Skipped").unwrap_or(0);
    ensure!(
        found == copied && skipped == FILES - copied,
        "{found} files were copied and {skipped} left alone; {copied} differ"
    );
    Ok(())
}

fn flip_a_byte(path: &Path) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, 12_345)?;
    byte[0] ^= 1;
    file.write_all_at(&byte, 12_345)?;
    file.sync_all()?;
    Ok(())
}
