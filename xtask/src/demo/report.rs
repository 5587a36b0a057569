//! The report of the demo: a table for the terminal, Markdown and one HTML page with the pictures
//! inside, all from the same measurements.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::contention::{Case, Contention};
use super::measurement::{Iteration, Measurement};
use super::mountain::{self, Mountain};
use super::{memory_picture, pictures, size};

/// Pictures of the mountain that the page shows.
const MOUNTAIN_PICTURES: [(&str, &str); 2] = [
    ("mountain", "Storage mountain: read throughput over data size and skip, measured."),
    ("slice-sizes", "The mountain's slice without skips, measured and predicted."),
];

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
    let mut markdown = format!("# Tidepool demo\n\n{}\n", summary(measurement));
    for (name, caption, _) in &drawn {
        markdown.push_str(&format!("\n![{caption}]({name}.svg)\n"));
    }
    let further = further(measurement);
    let (table, footnotes) = (table(measurement), footnotes(measurement));
    markdown.push_str(&format!("\n{table}\n{footnotes}\n{further}"));
    std::fs::write(directory.join("report.md"), markdown)?;
    let page = directory.join("report.html");
    std::fs::write(&page, html(measurement, &drawn))?;
    Ok(page.canonicalize()?)
}

/// Draws the pictures, and collects those of the mountain: name, caption and picture.
fn draw(
    measurement: &Measurement,
    directory: &Path,
) -> Result<Vec<(String, &'static str, String)>> {
    let mut drawn = Vec::new();
    let mut add = |name: &str, caption: &'static str, picture: String| -> Result<()> {
        std::fs::write(directory.join(format!("{name}.svg")), &picture)?;
        drawn.push((name.to_owned(), caption, picture));
        Ok(())
    };
    add("iterations", "Seconds of each iteration.", pictures::iterations(measurement)?)?;
    let caption = "Bytes of each iteration by the level that served them.";
    add("levels", caption, pictures::levels(measurement)?)?;
    add("cumulative", "Seconds since the start of the job.", pictures::cumulative(measurement)?)?;
    if let Some(contention) = &measurement.contention {
        let caption = "Who had how much memory when, with the store's size fixed and with the \
                       memory control.";
        add("memory", caption, memory_picture::draw(contention)?)?;
    }
    if measurement.mountain.is_some() {
        for (name, caption) in MOUNTAIN_PICTURES {
            let name = format!("{}/{name}", mountain::DIRECTORY);
            // Absent where only the JSON was kept.
            if let Ok(picture) = std::fs::read_to_string(directory.join(format!("{name}.svg"))) {
                drawn.push((name, caption, picture));
            }
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
        format!("{} - {}", size(least), size(most))
    }),
    ("K-means: iterations a minute", |case| format!("{:.1}", case.iterations_per_minute())),
    ("K-means: seconds an iteration", |case| {
        let (shortest, median, longest) = case.seconds();
        format!("{median:.2} ({shortest:.2} - {longest:.2})")
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

/// Everything after the first comparison: the other parts, what was left out, and the load.
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
    let (before, after) = measurement.load;
    text + &format!("\nLoad of the machine: {before:.1} at the start, {after:.1} at the end.\n")
}

fn beside_a_job(contention: &Contention) -> String {
    let shares = &contention.shares;
    let mut text = format!(
        "\n## Beside a job that takes memory\n\nOf {} available memory, {} are in play; the rest \
         stays free. What other programs take or give back meanwhile counts as demand too. The \
         job takes {} at a time, as fast as it gets them in pages of 2 MiB.\n\n",
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

fn summary(measurement: &Measurement) -> String {
    let gain = measurement.gain_after_first().map_or(String::new(), |gain| {
        format!("From the second iteration on, the job runs **{gain:.1} times** as fast. ")
    });
    format!(
        "{}\n\n{gain}The whole job takes {:.1} s instead of {:.1} s; {:.1} % of the bytes came \
         from memory. {}",
        measurement.setting,
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

fn html(measurement: &Measurement, drawn: &[(String, &str, String)]) -> String {
    const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
        padding:0 1rem;color:#1b2733}table{border-collapse:collapse;margin:1rem 0}td,th{padding:\
        .25rem .75rem;border-bottom:1px solid #d5dde5;text-align:right}figure{margin:2rem 0}\
        svg{max-width:100%;height:auto}figcaption{color:#52616f}";
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Tidepool demo</title><style>{STYLE}</style></head><body>\n<h1>Tidepool demo</h1>\n"
    );
    for paragraph in summary(measurement).split("\n\n") {
        page.push_str(&format!("<p>{}</p>\n", marked(paragraph)));
    }
    for (_, caption, picture) in drawn {
        // The picture goes into the page, so its declaration must not.
        let start = picture.find("<svg").unwrap_or(0);
        page.push_str(&format!(
            "<figure>{}<figcaption>{caption}</figcaption></figure>\n",
            &picture[start..]
        ));
    }
    page.push_str(&html_table(&table(measurement)));
    page.push_str(&format!("<p>{}</p>\n", marked(&footnotes(measurement))));
    page.push_str(&html_text(&further(measurement)));
    page + "</body></html>\n"
}

/// Paragraphs, headings, lists and tables of the Markdown that is written here.
fn html_text(markdown: &str) -> String {
    let mut text = String::new();
    for block in markdown.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        let html = if let Some(heading) = block.strip_prefix("## ") {
            format!("<h2>{}</h2>\n", escaped(heading))
        } else if block.starts_with('|') {
            html_table(block)
        } else if block.starts_with("- ") {
            let items = block.lines().map(|line| escaped(line.trim_start_matches("- ")));
            format!("<ul><li>{}</li></ul>\n", items.collect::<Vec<_>>().join("</li><li>"))
        } else {
            format!("<p>{}</p>\n", marked(block))
        };
        text.push_str(&html);
    }
    text
}

fn html_table(markdown: &str) -> String {
    let mut rows = String::from("<table>\n");
    for (index, line) in markdown.lines().enumerate().filter(|(index, _)| *index != 1) {
        let cell = if index == 0 { "th" } else { "td" };
        rows.push_str("<tr>");
        for text in line.trim_matches('|').split('|') {
            rows.push_str(&format!("<{cell}>{}</{cell}>", escaped(text.trim())));
        }
        rows.push_str("</tr>\n");
    }
    rows + "</table>\n"
}

/// The two marks that the texts here use.
fn marked(text: &str) -> String {
    let mut result = String::new();
    for (index, part) in escaped(text).split("**").enumerate() {
        result.push_str(match index {
            0 => "",
            odd if odd % 2 == 1 => "<strong>",
            _ => "</strong>",
        });
        result.push_str(part);
    }
    result.replace('`', "").replace('\n', "<br>")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::measurement::{Iteration, Measurement, Served, Side};
    use super::{table, write};

    #[test]
    fn a_report_is_written_from_measurements_alone() {
        let side = |seconds: f64, served: Served| Side {
            iterations: vec![Iteration { seconds, served, device_bytes: Some(9) }; 3],
        };
        let measurement = Measurement {
            setting: "a < b".into(),
            data_bytes: 1 << 30,
            bare: side(2.0, Served { pfs: 1 << 30, ..Served::default() }),
            tidepool: side(0.5, Served { mapped: 1 << 30, ..Served::default() }),
            same_result: true,
            ..Measurement::default()
        };
        assert!(table(&measurement).contains("| 2 | 2.00 | 0.50 | 4.0 x |"));
        let directory = tempfile::tempdir().unwrap();
        let page = std::fs::read_to_string(write(&measurement, directory.path()).unwrap()).unwrap();
        assert!(page.contains("a &lt; b") && page.contains("<strong>4.0 times</strong>"));
        assert_eq!(page.matches("<svg").count(), 3);
        let json = std::fs::read_to_string(directory.path().join("measurement.json")).unwrap();
        assert_eq!(serde_json::from_str::<Measurement>(&json).unwrap(), measurement);
    }
}
