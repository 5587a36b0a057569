//! The table of `bench compare` and its JSON. Ratios are taken round by round, so that a machine
//! that slows down meanwhile slows both sides of a ratio.

use serde::Serialize;
use tidepool_report::bustle::Bustle;

use super::arguments::Pattern;
use super::way::Way;
use super::ways::operation_bytes;
use crate::calibrate::file::median;
use crate::calibrate::machine::Machine;
use tidepool_terminal::output;

/// Median and spread of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Most.
    pub max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let end = |value: Option<&f64>| value.copied().unwrap_or_default();
        Spread { median: median(&values), min: end(values.first()), max: end(values.last()) }
    }

    fn text(&self, decimals: usize) -> String {
        let Spread { median, min, max } = self;
        format!("{median:.decimals$} ({min:.decimals$}-{max:.decimals$})")
    }
}

/// One pattern by one way, over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The pattern.
    pub pattern: Pattern,
    /// The way.
    pub way: &'static str,
    /// Bytes per second.
    pub bytes_per_s: Spread,
    /// Median reads, files or writes per second.
    pub operations_per_s: f64,
    /// Rate over that of tmpfs in the same round.
    pub ratio_to_tmpfs: Option<Spread>,
    /// Rate over that of the bare PFS in the same round.
    pub ratio_to_bare_pfs: Option<Spread>,
}

impl Row {
    /// From the rates of all rounds, and those of the references.
    pub fn new(
        pattern: Pattern,
        way: Way,
        rates: &[f64],
        tmpfs: Option<&Vec<f64>>,
        bare_pfs: Option<&Vec<f64>>,
    ) -> Row {
        let ratio = |reference: &Vec<f64>| {
            Spread::of(
                rates.iter().zip(reference).map(|(rate, reference)| rate / reference).collect(),
            )
        };
        let bytes_per_s = Spread::of(rates.to_vec());
        Row {
            pattern,
            way: way.name(),
            bytes_per_s,
            operations_per_s: bytes_per_s.median / operation_bytes(pattern) as f64,
            ratio_to_tmpfs: tmpfs.map(ratio),
            ratio_to_bare_pfs: bare_pfs.map(ratio),
        }
    }
}

/// Everything that one run found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where, with the load before.
    pub machine: Machine,
    /// Processes that wanted a processor during the last minute of the run.
    pub load_after: f64,
    /// What the machine did meanwhile.
    pub bustle: Bustle,
    /// Type of the file system of the PFS directory.
    pub pfs_file_system: String,
    /// Bytes that each pattern read or wrote.
    pub size_bytes: u64,
    /// Rounds.
    pub rounds: u32,
    /// One a pattern and way.
    pub rows: Vec<Row>,
    /// Ways that were left out, and why.
    pub skipped: Vec<String>,
}

impl Report {
    /// Prints the table.
    pub fn print(&self) {
        output::line(&format!(
            "{} in each of {} rounds; medians, and in brackets the spread of the rounds",
            output::size(self.size_bytes),
            self.rounds
        ));
        let machine = &self.machine;
        output::line(&format!(
            "{} x {}, {}, Linux {}, load {:.1} before and {:.1} after; PFS on {}",
            machine.processors,
            machine.processor,
            output::size(machine.memory_bytes),
            machine.kernel,
            machine.load,
            self.load_after,
            self.pfs_file_system
        ));
        let header = ["pattern", "way", "MB/s", "operations/s", "of tmpfs", "of bare PFS"];
        let rows: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
        output::table(&header, &[false, false, true, true, true, true], &rows);
        for skipped in &self.skipped {
            output::note(&format!("not measured: {skipped}"));
        }
        if let Some(busy) = self.bustle.note() {
            output::note(&format!("warning: {busy}"));
        }
    }
}

fn cells(row: &Row) -> Vec<String> {
    let Spread { median, min, max } = row.bytes_per_s;
    let megabytes = Spread { median: median / 1e6, min: min / 1e6, max: max / 1e6 };
    let ratio = |ratio: Option<Spread>| ratio.map_or("-".to_owned(), |ratio| ratio.text(2));
    vec![
        row.pattern.name().to_owned(),
        row.way.to_owned(),
        megabytes.text(0),
        format!("{:.0}", row.operations_per_s),
        ratio(row.ratio_to_tmpfs),
        ratio(row.ratio_to_bare_pfs),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let (rates, tmpfs) = (vec![1e6, 4e6, 3e6], vec![2e6, 4e6, 1e6]);
        let row = Row::new(Pattern::Random, Way::Mount, &rates, Some(&tmpfs), None);
        assert_eq!(row.ratio_to_tmpfs, Some(Spread { median: 1.0, min: 0.5, max: 3.0 }));
        assert_eq!(row.operations_per_s, 3e6 / 4096.0);
        assert_eq!(cells(&row)[4..], ["1.00 (0.50-3.00)", "-"]);
    }
}
