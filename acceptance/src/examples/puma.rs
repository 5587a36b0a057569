//! Three programs of PUMA, a collection of MapReduce jobs: SequenceCount, RankedInvertedIndex and
//! HistogramRatings, on generated input, on the storage and on `file://`. Answers are compared byte
//! by byte, and counted again here by something that knows nothing of Hadoop.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::place::{Place, parts};
use super::report::{Report, Stage};

const PACKAGE: &str = "io.tidepool.examples.puma";
/// What SequenceCount writes of a byte that it reads.
const RATIO: RangeInclusive<f64> = 2.8..=3.2;
/// Files of each input, as long as they are not larger than they may be.
const FILES: u64 = 4;
const LARGEST_FILE: u64 = 64 << 20;
/// With less, phrases are not repeated often enough for the ratio.
const SMALLEST: u64 = 4 << 20;

/// A program, from where to where, and how many reducers it has; a generator comes from nowhere.
struct Step {
    program: &'static str,
    input: &'static str,
    output: &'static str,
    reduces: u32,
}

const STEPS: [Step; 5] = [
    Step { program: "TextGenerator", input: "", output: "text", reduces: 0 },
    Step { program: "RatingsGenerator", input: "", output: "ratings", reduces: 0 },
    Step { program: "SequenceCount", input: "text", output: "sequences", reduces: 2 },
    Step { program: "RankedInvertedIndex", input: "sequences", output: "index", reduces: 2 },
    Step { program: "HistogramRatings", input: "ratings", output: "histogram", reduces: 1 },
];

/// All steps on YARN, each on the storage and then on the bare file system.
pub fn run(place: &mut Place, bytes: u64) -> Result<Report> {
    ensure!(bytes >= SMALLEST, "puma needs --size {}MiB or more", SMALLEST >> 20);
    place.start_yarn()?;
    let mut report = place.report("puma", bytes);
    let bare = place.data().with_file_name("bare");
    let mut sides = vec![("", place.uri("puma"))];
    if !place.is_bare() {
        sides.push((" file://", format!("file://{}", bare.display())));
    }
    place.disturb();
    for step in &STEPS {
        for (side, root) in &sides {
            let name = format!("{}{side}", step.program);
            report.stages.push(stage(place, &name, step, &step.arguments(root, bytes))?);
        }
    }
    place.calm(&mut report)?;
    let plain = place.plain("puma")?;
    check(&plain, bytes, &mut report)?;
    if !place.is_bare() {
        for Step { output, .. } in &STEPS {
            same(&plain.join(output), &bare.join(output))?;
        }
        report.checked.push("the same bytes on file://: both inputs, all three answers".into());
    }
    Ok(report)
}

impl Step {
    fn arguments(&self, root: &str, bytes: u64) -> Vec<String> {
        let output = format!("{root}/{}", self.output);
        if self.input.is_empty() {
            let each = bytes.div_ceil(FILES).min(LARGEST_FILE);
            return vec![output, bytes.to_string(), each.to_string()];
        }
        let reduces = format!("-Dmapreduce.job.reduces={}", self.reduces);
        vec![reduces, format!("{root}/{}", self.input), output]
    }
}

/// One step, with what it says of its bytes.
fn stage(place: &Place, name: &str, step: &Step, arguments: &[String]) -> Result<Stage> {
    let main = format!("{PACKAGE}.{}", step.program);
    let (mut stage, ran) = place.stage(name, None, || place.hadoop.run(&main, arguments))?;
    let mark = if step.input.is_empty() { "GENERATED" } else { "BYTES" };
    let said = ran.after(mark).next().with_context(|| format!("{name} tells no bytes"))?;
    let (bytes, rest) = said.split_once(' ').context("a number alone")?;
    stage.bytes = Some(bytes.parse().with_context(|| format!("{name}: {said}"))?);
    if let Some((_, ratio)) = rest.split_once(", ratio ") {
        stage.notes.push(format!("writes {ratio} times what it reads"));
    }
    Ok(stage)
}

/// Counts everything again, on plain files.
fn check(plain: &Path, bytes: u64, report: &mut Report) -> Result<()> {
    let at = |name: &str| plain.join(name);
    for input in ["text", "ratings"] {
        let made = size(&files(&at(input))?)?;
        ensure!(made <= bytes && made > bytes / 100 * 99, "{made} bytes of {input}, not {bytes}");
    }
    let ratio = size(&parts(&at("sequences"))?)? as f64 / size(&files(&at("text"))?)? as f64;
    ensure!(RATIO.contains(&ratio), "SequenceCount wrote {ratio:.3} times what it read");
    report.checked.push(format!(
        "SequenceCount wrote {ratio:.3} times what it read, within {} to {}",
        RATIO.start(),
        RATIO.end()
    ));
    let truth = Counted::of_text(&at("text"))?;
    let counted = Counted::of_sequences(&at("sequences"))?;
    ensure!(counted == truth, "SequenceCount: {counted:?}, counted again: {truth:?}");
    let ranked = Counted::of_index(&at("index"))?;
    ensure!(ranked == truth, "RankedInvertedIndex: {ranked:?}, counted again: {truth:?}");
    report.checked.push(format!(
        "{} sequences of three words, {} in all, counted again on plain files; the index holds \
         each once, in order",
        truth.lines, truth.all
    ));
    let truth = ratings(&at("ratings"))?;
    let told = histogram(&at("histogram"))?;
    ensure!(told == truth, "HistogramRatings: {told:?}, counted again: {truth:?}");
    report.checked.push(format!("ratings from 1 to 5, counted again: {truth:?}"));
    Ok(())
}

/// Counted sequences of words, however they are ordered.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    /// Different ones in each file.
    lines: u64,
    /// With those that are there again.
    all: u64,
    /// A checksum of all lines.
    sum: u64,
}

impl Counted {
    fn add(&mut self, key: u64, count: u64) {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(key);
        hasher.write_u64(count);
        self.lines += 1;
        self.all += count;
        self.sum = self.sum.wrapping_add(hasher.finish());
    }

    /// From the text itself.
    fn of_text(directory: &Path) -> Result<Self> {
        let mut counted = Counted::default();
        for path in files(directory)? {
            let file = path.file_name().unwrap_or_default().as_encoded_bytes();
            let mut counts: HashMap<u64, u64> = HashMap::new();
            each_line(&path, |line| {
                let words: Vec<&[u8]> = words(line).collect();
                for three in words.windows(3) {
                    let key = [three[0], three[1], three[2], file].join(&b'|');
                    *counts.entry(hash(&key)).or_default() += 1;
                }
                Ok(())
            })?;
            for (key, count) in counts {
                counted.add(key, count);
            }
        }
        Ok(counted)
    }

    /// From what SequenceCount wrote.
    fn of_sequences(directory: &Path) -> Result<Self> {
        let mut counted = Counted::default();
        for path in parts(directory)? {
            each_line(&path, |line| {
                let (key, count) = split(line, b'\t')?;
                counted.add(hash(key), number(count)?);
                Ok(())
            })?;
        }
        Ok(counted)
    }

    /// From what RankedInvertedIndex wrote; an error where its order is wrong.
    fn of_index(directory: &Path) -> Result<Self> {
        let mut counted = Counted::default();
        for path in parts(directory)? {
            let mut before: Option<(Vec<u8>, u64, Vec<u8>)> = None;
            each_line(&path, |line| {
                let (words, found) = split(line, b'\t')?;
                let (count, file) = split(found, b'|')?;
                let count = number(count)?;
                if let Some((earlier, most, name)) = &before {
                    let rank = (earlier.as_slice(), u64::MAX - most, name.as_slice());
                    ensure!(rank < (words, u64::MAX - count, file), "out of order");
                }
                counted.add(hash(&[words, file].join(&b'|')), count);
                before = Some((words.to_vec(), count, file.to_vec()));
                Ok(())
            })?;
        }
        Ok(counted)
    }
}

/// How often each rating is in the input.
fn ratings(directory: &Path) -> Result<[u64; 5]> {
    let mut counts = [0; 5];
    for path in files(directory)? {
        each_line(&path, |line| {
            let (_, given) = split(line, b':')?;
            for rating in given.split(|byte| *byte == b',') {
                *place_of(&mut counts, split(rating, b'_')?.1)? += 1;
            }
            Ok(())
        })?;
    }
    Ok(counts)
}

/// What HistogramRatings wrote: five lines.
fn histogram(directory: &Path) -> Result<[u64; 5]> {
    let mut counts = [0; 5];
    for path in parts(directory)? {
        each_line(&path, |line| {
            let (rating, count) = split(line, b'\t')?;
            let place = place_of(&mut counts, rating)?;
            ensure!(*place == 0, "a rating twice");
            *place = number(count)?;
            Ok(())
        })?;
    }
    Ok(counts)
}

fn place_of<'a>(counts: &'a mut [u64; 5], rating: &[u8]) -> Result<&'a mut u64> {
    let index = usize::try_from(number(rating)?)?.checked_sub(1);
    index.and_then(|index| counts.get_mut(index)).context("a rating that is not from 1 to 5")
}

/// Two directories hold the same: names and bytes.
fn same(one: &Path, other: &Path) -> Result<()> {
    let [ones, others] = [files(one)?, files(other)?];
    let name = |path: &PathBuf| path.file_name().map(ToOwned::to_owned);
    ensure!(
        ones.iter().map(name).eq(others.iter().map(name)),
        "other files: {ones:?} and {others:?}"
    );
    for (left, right) in ones.iter().zip(&others) {
        let mut pieces = [left, right].map(|path| (std::fs::File::open(path), Vec::new()));
        loop {
            for (file, piece) in &mut pieces {
                piece.clear();
                let file = file.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
                file.take(1 << 20).read_to_end(piece)?;
            }
            let [(_, ours), (_, theirs)] = &pieces;
            ensure!(ours == theirs, "{} and {} differ", left.display(), right.display());
            if ours.is_empty() {
                break;
            }
        }
    }
    Ok(())
}

/// The files of a directory in order, without what Hadoop leaves beside them.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(['.', '_']) {
            paths.push(entry.path());
        }
    }
    ensure!(!paths.is_empty(), "{}: nothing was written", directory.display());
    paths.sort();
    Ok(paths)
}

fn size(paths: &[PathBuf]) -> Result<u64> {
    let sizes = paths.iter().map(|path| Ok(path.metadata()?.len()));
    sizes.sum()
}

/// Calls `take` with each line, without its end.
fn each_line(path: &Path, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut file = BufReader::with_capacity(1 << 20, std::fs::File::open(path)?);
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
        let text = line.strip_suffix(b"\n").context("a last line without its end")?;
        take(text).with_context(|| {
            format!("{}, at the line {}", path.display(), String::from_utf8_lossy(text))
        })?;
        line.clear();
    }
    Ok(())
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn split(text: &[u8], mark: u8) -> Result<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == mark);
    let at = at.with_context(|| format!("no {:?}", char::from(mark)))?;
    Ok((&text[..at], &text[at + 1..]))
}

fn number(text: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(text)?;
    text.parse().with_context(|| format!("`{text}` is no number"))
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Counted, histogram, ratings, same};

    fn directory(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let path = directory.path().to_path_buf();
        (directory, path)
    }

    #[test]
    fn sequences_are_counted_as_the_programs_are_to_count_them() {
        let (_text, text) = directory(&[("a", "x y z x y z\np q\nr\n"), ("b", "x y z\n")]);
        let truth = Counted::of_text(&text).unwrap();
        assert_eq!((truth.lines, truth.all), (4, 5));
        let counted = |lines: &str| {
            let (_kept, path) = directory(&[("part-r-0", lines)]);
            Counted::of_sequences(&path).unwrap()
        };
        assert_eq!(counted("x|y|z|a\t2\nx|y|z|b\t1\ny|z|x|a\t1\nz|x|y|a\t1\n"), truth);
        assert_ne!(counted("x|y|z|a\t1\nx|y|z|b\t2\ny|z|x|a\t1\nz|x|y|a\t1\n"), truth);
        assert_ne!(counted("x|y|z|a\t2\nx|y|z|c\t1\ny|z|x|a\t1\nz|x|y|a\t1\n"), truth);
        let index = |lines: &str| {
            let (_kept, path) = directory(&[("part-r-0", lines)]);
            Counted::of_index(&path)
        };
        let right = "x|y|z\t2|a\nx|y|z\t1|b\ny|z|x\t1|a\nz|x|y\t1|a\n";
        assert_eq!(index(right).unwrap(), truth);
        assert!(index("x|y|z\t1|b\nx|y|z\t2|a\n").is_err(), "the lower count first");
        assert!(index("x|y|z\t1|b\nx|y|z\t1|a\n").is_err(), "equal counts, not by name");
        assert!(index("x|y|z\t1|a\nx|y|z\t1|a\n").is_err(), "one file twice");
        assert!(index("y|y|z\t1|a\nx|y|z\t1|a\n").is_err(), "words out of order");
    }

    #[test]
    fn ratings_are_counted() {
        let (_given, given) = directory(&[("a", "1:2_5,2_1\n2:7_5\n")]);
        assert_eq!(ratings(&given).unwrap(), [1, 0, 0, 0, 2]);
        let told = |lines: &str| {
            let (_kept, path) = directory(&[("part-r-0", lines)]);
            histogram(&path)
        };
        assert_eq!(told("1\t1\n5\t2\n").unwrap(), [1, 0, 0, 0, 2]);
        assert!(
            told("6\t1\n").is_err() && told("0\t1\n").is_err() && told("1\t1\n1\t1\n").is_err()
        );
    }

    #[test]
    fn other_names_other_bytes_and_a_longer_file_are_no_match() {
        let (_one, one) = directory(&[("part-r-0", "ab\n"), ("_SUCCESS", ""), (".x.crc", "1")]);
        let alike = |files: &[(&str, &str)]| {
            let (_kept, path) = directory(files);
            same(&one, &path).is_ok()
        };
        assert!(alike(&[("part-r-0", "ab\n")]));
        assert!(!alike(&[("part-r-1", "ab\n")]) && !alike(&[("part-r-0", "ac\n")]));
        assert!(!alike(&[("part-r-0", "ab\nc\n")]) && !alike(&[]));
    }
}
