//! The report of the demo: a table for the terminal, Markdown and one HTML page with the pictures
//! inside, all from the same measurements.

use std::path::{Path, PathBuf};

use anyhow::Result;
use tidepool_report::chart::Picture;
use tidepool_report::page;

use super::contention::{Case, Contention};
use super::measurement::{Iteration, Measurement};
use super::mountain::{self, Mountain};
use super::pictures;
use super::stage::size;

/// Pictures of the mountain that the page shows.
const MOUNTAIN_PICTURES: [&str; 2] = ["mountain", "slice-sizes"];

/// The table of the terminal and of the Markdown.
pub fn table(measurement: &Measurement) -> String {
    let mut text = String::from(
        "| iteration | bare PFS (s) | Tidepool (s) | faster | bare MB/s | Tidepool MB/s | \
         from memory | from PFS |\n|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let rows = measurement.bare.iterations.iter().zip(&measurement.tidepool.iterations);
    for (index, (bare, tide)) in rows.enumerate() {
        let rate = |side: &Iteration| measurement.data_bytes as f64 / side.seconds / 1e6;
        text.push_str(&format!(
            "| {} | {:.2} | {:.2} | {:.1} x | {:.0} | {:.0} | {:.1} % | {} |\n",
            index + 1,
            bare.seconds,
            tide.seconds,
            bare.seconds / tide.seconds,
            rate(bare),
            rate(tide),
            tide.served.hit_ratio() * 100.0,
            size(tide.served.pfs),
        ));
    }
    let (bare, tide) = (measurement.bare.total_seconds(), measurement.tidepool.total_seconds());
    text.push_str(&format!(
        "| all | {bare:.2} | {tide:.2} | {:.1} x | | | {:.1} % | |\n",
        bare / tide,
        measurement.tidepool.hit_ratio() * 100.0
    ));
    text
}

/// Writes JSON, pictures, Markdown and HTML into `directory`; returns the page.
pub fn write(measurement: &Measurement, directory: &Path) -> Result<PathBuf> {
    let json = serde_json::to_string_pretty(measurement)?;
    std::fs::write(directory.join("measurement.json"), json)?;
    let drawn = draw(measurement, directory)?;
    let mut markdown = String::from("# Tidepool demo\n");
    if let Some(busy) = busy(measurement) {
        markdown.push_str(&format!("\n> {busy}\n"));
    }
    markdown.push_str(&format!("\n{}\n\n{}\n", summary(measurement), measurement.setting));
    for (name, _) in &drawn {
        markdown.push_str(&format!("\n![{name}]({name}.svg)\n"));
    }
    let further = further(measurement);
    let (table, footnotes) = (table(measurement), footnotes(measurement));
    let quietness = quietness(measurement);
    markdown.push_str(&format!("\n{table}\n{footnotes}\n{further}\n{quietness}\n"));
    std::fs::write(directory.join("report.md"), markdown)?;
    let page = directory.join("report.html");
    std::fs::write(&page, html(measurement, &drawn))?;
    Ok(page.canonicalize()?)
}

/// Draws the pictures, and collects those of the mountain, with their names.
fn draw(measurement: &Measurement, directory: &Path) -> Result<Vec<(String, Picture)>> {
    let mut drawn = vec![
        ("iterations".to_owned(), pictures::iterations(measurement)),
        ("levels".to_owned(), pictures::levels(measurement)),
        ("cumulative".to_owned(), pictures::cumulative(measurement)),
    ];
    if let Some(contention) = &measurement.contention {
        drawn.push(("memory".to_owned(), pictures::memory(contention)));
    }
    for (name, picture) in &drawn {
        std::fs::write(directory.join(format!("{name}.svg")), &picture.wide)?;
    }
    for name in MOUNTAIN_PICTURES.iter().filter(|_| measurement.mountain.is_some()) {
        let name = format!("{}/{name}", mountain::DIRECTORY);
        let read = |ending: &str| std::fs::read_to_string(directory.join(name.clone() + ending));
        // Absent where only the JSON was kept.
        if let Ok(wide) = read(".svg") {
            let narrow = read("-narrow.svg").unwrap_or_else(|_| wide.clone());
            drawn.push((name, Picture { wide, narrow }));
        }
    }
    Ok(drawn)
}

/// Name of a row, and what it says of a sizing.
type Row = (&'static str, fn(&Case) -> String);

/// Rows of the table of sizings.
const JOB_ROWS: [Row; 9] = [
    ("store held", |case| {
        let (least, most) = case.store_bytes();
        let (least, most) = (size(least), size(most));
        if least == most { most } else { format!("{least} to {most}") }
    }),
    ("K-means: iterations a minute", |case| format!("{:.1}", case.iterations_per_minute())),
    ("K-means: seconds an iteration", |case| {
        let (shortest, median, longest) = case.seconds();
        format!("{median:.2} ({shortest:.2} to {longest:.2})")
    }),
    ("K-means: from memory", |case| format!("{:.1} %", case.hit_ratio() * 100.0)),
    ("job: got", |case| {
        let job = &case.job;
        format!("{} of {}", size(job.asked_bytes - job.refused_bytes), size(job.asked_bytes))
    }),
    ("job: refused", |case| size(case.job.refused_bytes)),
    ("job: seconds a burst took", |case| {
        let each = case.job.burst_seconds.iter().map(|seconds| format!("{seconds:.2}"));
        each.collect::<Vec<_>>().join(", ")
    }),
    ("job: ms until it has 16 MiB more, median, p99, longest", |case| {
        let job = &case.job;
        format!("{:.1}, {:.1}, {:.1}", job.part_ms_median, job.part_ms_p99, job.part_ms_max)
    }),
    ("pages swapped out", |case| case.job.pages_swapped_out.to_string()),
];

/// Why the figures may not hold, where the machine was busy.
fn busy(measurement: &Measurement) -> Option<String> {
    measurement.bustle.and_then(|bustle| bustle.note())
}

/// The same, or the load where the machine was quiet.
pub fn quietness(measurement: &Measurement) -> String {
    let (before, after) = measurement.load;
    busy(measurement).unwrap_or_else(|| {
        format!("Load of the machine: {before:.1} at the start, {after:.1} at the end.")
    })
}

/// Everything after the first comparison: the other parts, and what was left out.
pub fn further(measurement: &Measurement) -> String {
    let mut text = String::new();
    if let Some(contention) = &measurement.contention {
        text.push_str(&beside_a_job(contention));
    }
    if let Some(mountain) = &measurement.mountain {
        text.push_str(&predictions(mountain));
    }
    for skipped in &measurement.skipped {
        text.push_str(&format!("\nNot run: {skipped}.\n"));
    }
    text
}

fn beside_a_job(contention: &Contention) -> String {
    let shares = &contention.shares;
    let mut text = format!(
        "\n## Beside a job that takes memory\n\n{}.\n\nOf {} available memory, {} are in play; the \
         rest stays free. What other programs take or give back meanwhile counts as demand too. \
         The job takes {} at a time, as fast as it gets them in pages of 2 MiB.\n\n",
        pictures::sizings(contention),
        size(shares.available_bytes),
        size(shares.pool_bytes),
        size(shares.burst_bytes)
    );
    let cases = &contention.cases;
    let line = |first: &str, cell: &dyn Fn(&Case) -> String| {
        let cells: Vec<String> = cases.iter().map(cell).collect();
        format!("| {first} | {} |\n", cells.join(" | "))
    };
    text.push_str(&line("", &|case| case.name.clone()));
    text.push_str(&format!("|---|{}\n", "--:|".repeat(cases.len())));
    for (name, cell) in JOB_ROWS {
        text.push_str(&line(name, &cell));
    }
    text.push_str("\nSeconds of each iteration, with the share from memory:\n\n");
    for case in cases {
        let each = case.iterations.iter().map(|iteration| {
            format!("{:.2} ({:.0} %)", iteration.seconds, iteration.served.hit_ratio() * 100.0)
        });
        text.push_str(&format!("- {}: {}\n", case.name, each.collect::<Vec<_>>().join(", ")));
    }
    text
}

fn predictions(mountain: &Mountain) -> String {
    let mut text = format!(
        "\n## Predictions\n\nStorage mountain: {} points, median error of the prediction {:.1} \
         %.\n\n\
         | share in memory | measured MB/s | equation (7) MB/s | error |\n|--:|--:|--:|--:|\n",
        mountain.points,
        mountain.error_median * 100.0
    );
    for share in &mountain.shares {
        text.push_str(&format!(
            "| {:.2} | {:.0} | {:.0} | {:+.1} % |\n",
            share.f,
            share.bytes_per_second / 1e6,
            share.predicted / 1e6,
            share.error * 100.0
        ));
    }
    text + &format!("\nMedian error: {:.1} %.\n", mountain.share_error_median() * 100.0)
}

/// The main thing in a few sentences.
fn summary(measurement: &Measurement) -> String {
    let gain = measurement.gain_after_first().map_or(String::new(), |gain| {
        format!("From the second iteration on, the job runs **{gain:.1} times** as fast. ")
    });
    format!(
        "{gain}The whole job takes {:.1} s instead of {:.1} s; {:.1} % of the bytes came from \
         memory. {}",
        measurement.tidepool.total_seconds(),
        measurement.bare.total_seconds(),
        measurement.tidepool.hit_ratio() * 100.0,
        match measurement.same_result {
            true => "Both sides came to the same centroids, bit by bit.",
            false => "The results were not compared.",
        }
    )
}

fn footnotes(measurement: &Measurement) -> String {
    let device = |iteration: &Iteration| iteration.device_bytes.map(size);
    let first = measurement.tidepool.iterations.first().and_then(device);
    let last = measurement.tidepool.iterations.last().and_then(device);
    let device = first.zip(last).map_or(String::new(), |(first, last)| {
        format!(
            " The block device of the lower level was read for {first} in the first and {last} in \
             the last iteration."
        )
    });
    format!(
        "Policy `{}`; the store held at most {} of {}.{device} Every record carries a checksum \
         that was verified at every reading.\n",
        measurement.policy,
        size(measurement.resident_bytes_peak),
        size(measurement.store_bytes),
    )
}

fn html(measurement: &Measurement, drawn: &[(String, Picture)]) -> String {
    let mut body = busy(measurement).map_or_else(String::new, |busy| page::warning(&busy));
    body.push_str(&page::main_sentence(&marked(&summary(measurement))));
    body.push_str(&format!("<p>{}</p>\n", marked(&measurement.setting)));
    for (_, picture) in drawn {
        body.push_str(&page::figure(picture));
    }
    body.push_str(&html_table(&table(measurement)));
    body.push_str(&format!("<p>{}</p>\n", marked(&footnotes(measurement))));
    body.push_str(&html_text(&further(measurement)));
    body.push_str(&format!("<p>{}</p>\n", page::escaped(&quietness(measurement))));
    page::page("Tidepool demo", &body)
}

/// Paragraphs, headings, lists and tables of the Markdown that is written here.
fn html_text(markdown: &str) -> String {
    let mut text = String::new();
    for block in markdown.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        let html = if let Some(heading) = block.strip_prefix("## ") {
            format!("<h2>{}</h2>\n", page::escaped(heading))
        } else if block.starts_with('|') {
            html_table(block)
        } else if block.starts_with("- ") {
            let items = block.lines().map(|line| page::escaped(line.trim_start_matches("- ")));
            format!("<ul><li>{}</li></ul>\n", items.collect::<Vec<_>>().join("</li><li>"))
        } else {
            format!("<p>{}</p>\n", marked(block))
        };
        text.push_str(&html);
    }
    text
}

fn html_table(markdown: &str) -> String {
    let cells = |line: &str| -> Vec<String> {
        let line = line.strip_prefix('|').unwrap_or(line);
        let line = line.strip_suffix('|').unwrap_or(line);
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut lines = markdown.lines();
    let header = cells(lines.next().unwrap_or_default());
    // The second line only says how columns are aligned.
    let rows: Vec<Vec<String>> = lines.skip(1).map(cells).collect();
    page::table(&header, &rows)
}

/// The two marks that the texts here use.
fn marked(text: &str) -> String {
    let mut result = String::new();
    for (index, part) in page::escaped(text).split("**").enumerate() {
        result.push_str(match index {
            0 => "",
            odd if odd % 2 == 1 => "<strong>",
            _ => "</strong>",
        });
        result.push_str(part);
    }
    result.replace('`', "").replace('\n', "<br>")
}

#[cfg(test)]
mod tests {
    use tidepool_report::bustle::Bustle;

    use super::super::contention::tests::example as contended;
    use super::super::measurement::Measurement;
    use super::super::measurement::tests::example;
    use super::{table, write};

    fn page_of(measurement: &Measurement) -> String {
        let directory = tempfile::tempdir().unwrap();
        let page = std::fs::read_to_string(write(measurement, directory.path()).unwrap()).unwrap();
        let json = std::fs::read_to_string(directory.path().join("measurement.json")).unwrap();
        assert_eq!(&serde_json::from_str::<Measurement>(&json).unwrap(), measurement);
        page
    }

    #[test]
    fn a_report_is_written_from_measurements_alone() {
        let measurement = Measurement { contention: Some(contended()), ..example() };
        assert!(table(&measurement).contains("| 2 | 2.00 | 0.50 | 4.0 x |"));
        let page = page_of(&measurement);
        assert!(page.contains("a &lt; b") && page.contains("<strong>4.0 times</strong>"));
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text}"));
        assert!(place("4.0 times</strong>") < place("a &lt; b"), "the main sentence comes first");
        // For wide and for narrow paper.
        assert_eq!(page.matches("<svg").count(), 8);
        assert!(page.contains("<td data-name=\"small fixed store\">"), "cells know their column");
    }

    #[test]
    fn a_value_that_did_not_change_is_told_once() {
        let mut contention = contended();
        for sample in &mut contention.cases[0].samples {
            sample.store_bytes = 832 << 20;
        }
        let page = page_of(&Measurement { contention: Some(contention), ..example() });
        assert!(page.contains(">832 MiB<") && page.contains(">400 MiB to 1.27 GiB<"), "{page}");
    }

    #[test]
    fn a_busy_machine_is_told_first_and_a_quiet_one_not() {
        let busy = Bustle { load_at_start: 6.6, ..Bustle::of_load(2, 6.6) };
        let page = page_of(&Measurement { bustle: Some(busy), ..example() });
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text}"));
        assert!(
            place("these figures do not hold: a load of 6.6 on 2 processors") < place("times</")
        );
        let quiet = Bustle { others: Some(0.01), ..Bustle::of_load(2, 0.1) };
        let page = page_of(&Measurement { bustle: Some(quiet), ..example() });
        assert!(!page.contains("do not hold") && page.contains("Load of the machine"));
    }
}
