//! `tidepool explain`: everything the node knows of given files.

mod directory;
mod map;

use std::path::{Path, PathBuf};

use serde::Serialize;
use tidepool_proto::admin::{ExplainedStripe, Explanation};
use tidepool_proto::{Error, ErrorKind, Result, hadoop};

use crate::arguments::ExplainArguments;
use crate::connection::Connection;
use crate::target::{Roots, Target};
use tidepool_terminal::exit::{self, Outcome};
use tidepool_terminal::failure::Facts;
use tidepool_terminal::output::{self, Colour, coloured, count, percent, size};

/// Splits without holders whose owners are shown.
const OWNERS_SHOWN: usize = 8;
/// Stripes that are shown with their servers.
const STRIPES_SHOWN: usize = 4;

/// Runs `explain`. What is known is told also where other paths fail.
pub fn explain(arguments: &ExplainArguments) -> Result<Outcome> {
    let node = arguments.facts.socket.connect();
    let roots = Roots::of(&node.status()?);
    if arguments.recursive {
        return directory::explain(arguments, &node, &roots);
    }
    let (answers, outcome) = ask_all(&arguments.paths, |named| look_at(named, &node, &roots));
    if arguments.facts.json {
        output::json(&answers)?;
    } else {
        print_all(&answers);
    }
    Ok(outcome)
}

/// What became of one of the paths.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer<T> {
    Known(Box<T>),
    Failed { path: PathBuf, error: Facts },
}

/// Asks about each path, whatever becomes of the others. People are told of failures at once; the
/// exit code is that of the first.
fn ask_all<T>(paths: &[PathBuf], ask: impl Fn(&Path) -> Result<T>) -> (Vec<Answer<T>>, Outcome) {
    let mut outcome = Outcome::Done;
    let answer = |named: &PathBuf| match ask(named) {
        Ok(known) => Answer::Known(Box::new(known)),
        Err(error) => {
            output::note(&format!("tidepool: {error}"));
            if outcome == Outcome::Done {
                outcome = Outcome::Failed(exit::code(&error));
            }
            Answer::Failed { path: named.clone(), error: Facts::of(&error) }
        }
    };
    (paths.iter().map(answer).collect(), outcome)
}

fn look_at(named: &Path, node: &Connection, roots: &Roots) -> Result<Explanation> {
    let path = roots.locate(named)?;
    if path.is_dir() {
        let operation = format!("looking at {}", named.display());
        return Err(Error::new(ErrorKind::InvalidInput, operation, "it is a directory")
            .remedy("add -r to see how much of it is cached"));
    }
    let target = Target::open(&path)?;
    node.explain(target.descriptor())
}

/// Bytes that the next read would find in memory: what is cached of a version that is gone, or
/// beyond the end of the file, serves nobody.
pub fn usable_bytes(file: &Explanation) -> u64 {
    let is_usable = file.current || file.cached_as == "memory-only";
    if is_usable { file.resident_bytes.min(file.size_bytes) } else { 0 }
}

/// Why a file is not wholly in memory; at least one reason.
pub fn why_absent(file: &Explanation) -> Vec<String> {
    match file.why_not.as_slice() {
        [] if file.resident_bytes > 0 => vec!["the rest was not read yet, or was evicted".into()],
        [] => vec!["not read yet, or evicted".into()],
        reasons => reasons.to_vec(),
    }
}

fn print_all(answers: &[Answer<Explanation>]) {
    let mut is_first = true;
    for answer in answers {
        let Answer::Known(file) = answer else { continue };
        if !std::mem::take(&mut is_first) {
            output::line("");
        }
        print(file);
    }
}

fn print(file: &Explanation) {
    output::line(&coloured(&format!("tide:///{}", file.path), Colour::Strong));
    let version = format!(
        "inode {} of device {}, {}, modified {}, changed {}",
        file.inode,
        file.device,
        size(file.size_bytes),
        seconds(&file.modified_ns),
        seconds(&file.changed_ns)
    );
    let usable_bytes = usable_bytes(file);
    let usable = format!(
        "{} of {} ({})",
        size(usable_bytes),
        size(file.size_bytes),
        percent(usable_bytes, file.size_bytes)
    );
    let resident = match file.cached_as.as_str() {
        "none" => "not cached".to_owned(),
        "elsewhere" => "in the memory of other nodes alone".to_owned(),
        "away" => "not here: who has the bytes is away".to_owned(),
        "lost" => "lost".to_owned(),
        kind if usable_bytes == 0 && file.resident_bytes > 0 => {
            format!("{usable}; {} as {kind} of a version that is gone", size(file.resident_bytes))
        }
        kind => format!("{usable} as {kind}"),
    };
    let mut rows =
        vec![("version", version), ("resident", resident), ("next read", file.next_read.clone())];
    rows.extend(file.why_not.iter().map(|why| ("why not", coloured(why, Colour::Warning))));
    if !file.holders.is_empty() {
        rows.push(("holders", file.holders.join(", ")));
    }
    rows.extend(owners(file).map(|owners| ("owners", owners)));
    let pinned = if file.pinned { "yes" } else { "no" };
    rows.push(("pinned", format!("{pinned}, {}", count(file.open_handles, "open handle"))));
    let unwritten = match file.dirty_bytes {
        0 => "none".to_owned(),
        bytes => size(bytes),
    };
    rows.push(("dirty data", unwritten));
    let rank = file.policy_rank.map(|rank| format!(", rank {rank:.2} (0 goes first)"));
    rows.push(("policy", format!("{}{}", file.policy, rank.unwrap_or_default())));
    rows.extend(file.policy_choice.iter().map(|choice| ("", choice.words())));
    rows.push(("modes", format!("read {}, write {}", file.read_mode, file.write_mode)));
    rows.push(("layout", file.layout.clone()));
    rows.extend(stripes(file).map(|stripes| ("stripes", stripes)));
    output::pairs(&rows);
    map::lines(&file.residency_runs, file.block_bytes).iter().for_each(|line| output::line(line));
}

/// Who is to read what nobody has in memory, split by split as Hadoop has them.
fn owners(file: &Explanation) -> Option<String> {
    let owners = file.split_owners.iter().take(OWNERS_SHOWN);
    let owners: Vec<_> = owners.map(|it| format!("{} {}", it.split, it.node)).collect();
    let more = file.split_owners.len() - owners.len();
    let more = if more > 0 { format!(" and {more} more (--json)") } else { String::new() };
    let each = size(hadoop::split_bytes_default());
    (!owners.is_empty()).then(|| format!("split {}{more}, of {each} each", owners.join(", ")))
}

/// Where the first stripes are, and the block that each begins with.
fn stripes(file: &Explanation) -> Option<String> {
    let first = file.stripes.first().filter(|_| file.stripes.len() > 1)?;
    let each = |it: &ExplainedStripe| {
        let server = it.server.as_ref().map(|server| format!(" {server}")).unwrap_or_default();
        format!("{} (block {}){server}", it.stripe, it.first_block)
    };
    let shown: Vec<String> = file.stripes.iter().take(STRIPES_SHOWN).map(each).collect();
    let all = file.size_bytes.div_ceil(first.length.max(1));
    let more = all.saturating_sub(shown.len() as u64);
    let more = if more > 0 { format!(" and {more} more (--json)") } else { String::new() };
    Some(format!("{}{more}, of {} each", shown.join(", "), size(first.length)))
}

/// Nanoseconds since the epoch as a time of day in UTC, as far as seconds matter.
fn seconds(nanoseconds: &str) -> String {
    let Ok(nanoseconds) = nanoseconds.parse::<i128>() else { return nanoseconds.to_owned() };
    let seconds = nanoseconds.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let fraction = nanoseconds.rem_euclid(1_000_000_000);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:09}Z")
}

/// Year, month and day of a number of days since 1970-01-01 in the Gregorian calendar.
fn civil(days: i128) -> (i128, i128, i128) {
    // Years are counted from 1 March, so that a leap day is the last day of its year.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i128::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_proto::admin::SplitOwner;

    #[test]
    fn owners_are_shown_where_nobody_holds_a_split() {
        assert_eq!(owners(&Explanation::default()), None);
        let owner = |split| SplitOwner { split, node: format!("n{}", split % 2) };
        let mut file = Explanation { split_owners: vec![owner(0), owner(3)], ..Default::default() };
        assert_eq!(owners(&file).unwrap(), "split 0 n0, 3 n1, of 128MiB each");
        file.split_owners = (0..20).map(owner).collect();
        assert!(owners(&file).unwrap().contains("7 n1 and 12 more (--json)"));
    }

    #[test]
    fn stripes_are_shown_with_blocks_and_servers() {
        let stripe = |stripe: u64| ExplainedStripe {
            stripe,
            offset: stripe * 8,
            length: 8,
            first_block: stripe * 2,
            server: (stripe < 2).then(|| format!("ost{stripe}")),
        };
        let one = Explanation { stripes: vec![stripe(0)], size_bytes: 8, ..Default::default() };
        assert_eq!(stripes(&one), None);
        let stripes_of =
            |count| Explanation { stripes: (0..count).map(stripe).collect(), ..one.clone() };
        let three = Explanation { size_bytes: 20, ..stripes_of(3) };
        let text = "0 (block 0) ost0, 1 (block 2) ost1, 2 (block 4), of 8B each";
        assert_eq!(stripes(&three).unwrap(), text);
        let many = Explanation { size_bytes: 8 << 20, ..stripes_of(100) };
        assert!(stripes(&many).unwrap().contains("and 1048572 more (--json)"));
    }

    #[test]
    fn times_read_as_dates() {
        assert_eq!(seconds("0"), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(seconds("951782400000000001"), "2000-02-29T00:00:00.000000001Z");
        assert_eq!(seconds("1709251199999999999"), "2024-02-29T23:59:59.999999999Z");
        assert_eq!(seconds("-1"), "1969-12-31T23:59:59.999999999Z");
    }
}
