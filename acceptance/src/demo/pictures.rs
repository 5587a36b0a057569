//! The charts of the demo. Each title states the result, with figures of the data.

use tidepool_report::axis::Axis;
use tidepool_report::chart::{
    self, Arrangement, Band, Figure, Line, Mark, Panel, Picture, Side as MarkSide, Stroke,
};
use tidepool_report::text::number;

use super::contention::{Case, Contention, Sample};
use super::measurement::{Iteration, Measurement, Side};
use super::stage::size;

/// Colours by their numbers.
const TIDE: usize = 1;
const BARE: usize = 2;
const DAEMON: usize = 5;
/// What leaves room for figures above bars.
const ROOM: f64 = 1.08;

/// Seconds of each iteration, both sides beside each other.
pub fn iterations(measurement: &Measurement) -> Picture {
    let seconds = |side: &Side| -> Vec<f64> {
        side.iterations.iter().map(|iteration| iteration.seconds).collect()
    };
    let (bare, tide) = (seconds(&measurement.bare), seconds(&measurement.tidepool));
    let title = match (measurement.gain_after_first(), mean_later(&bare), mean_later(&tide)) {
        (Some(gain), Some(bare), Some(tide)) => format!(
            "Time of each iteration: from the second on bare PFS {bare:.2} s, Tidepool \
             {tide:.2} s, {gain:.1} times as fast"
        ),
        _ => format!(
            "Time of the iteration: {:.2} s on the bare PFS, {:.2} s with Tidepool",
            measurement.bare.total_seconds(),
            measurement.tidepool.total_seconds()
        ),
    };
    let most = bare.iter().chain(&tide).copied().fold(0.0, f64::max);
    let mut panel =
        Panel::new(title, numbers(measurement), Axis::from_zero("seconds", most * ROOM));
    panel.bars = chart::beside(&[("bare PFS", BARE, bare), ("Tidepool", TIDE, tide)]);
    let tops = panel.bars.iter().flat_map(|bars| &bars.boxes);
    panel.figures = tops
        .map(|[left, right, _, high]| Figure {
            at: (f64::midpoint(*left, *right), *high),
            text: format!("{high:.2}"),
        })
        .collect();
    Picture::of(&[panel.note("Lower is better.")], Arrangement::Below)
}

/// Mean of all but the first.
fn mean_later(seconds: &[f64]) -> Option<f64> {
    let later = seconds.get(1..).filter(|later| !later.is_empty())?;
    Some(later.iter().sum::<f64>() / later.len() as f64)
}

fn numbers(measurement: &Measurement) -> Axis {
    let numbers = 1..=measurement.tidepool.iterations.len();
    Axis::cases("iteration", numbers.map(|number| number.to_string()).collect())
}

/// Bytes of each iteration on Tidepool, stacked by level.
pub fn levels(measurement: &Measurement) -> Picture {
    let iterations = &measurement.tidepool.iterations;
    let of = |bytes: fn(&Iteration) -> u64| -> Vec<f64> {
        iterations.iter().map(|iteration| gib(bytes(iteration))).collect()
    };
    let percent = |iterations: &[Iteration]| {
        let side = Side { iterations: iterations.to_vec() };
        format!("{:.0} %", side.hit_ratio() * 100.0)
    };
    let (first, later) = iterations.split_at(1.min(iterations.len()));
    let mut title = format!(
        "Where Tidepool's bytes came from: {} of the first iteration from memory",
        percent(first)
    );
    if !later.is_empty() {
        title += &format!(", {} of the later ones", percent(later));
    }
    let most = gib(measurement.data_bytes);
    let mut panel = Panel::new(title, numbers(measurement), Axis::from_zero("GiB", most));
    panel.bars = chart::stacked(&[
        ("from the PFS", BARE, of(|iteration| iteration.served.pfs)),
        ("from memory, through the daemon", DAEMON, of(|iteration| iteration.served.store)),
        ("from memory, without the daemon", TIDE, of(|iteration| iteration.served.mapped)),
    ]);
    Picture::of(&[panel.note("More from memory is better.")], Arrangement::Below)
}

/// Seconds since the start of the job, both sides.
pub fn cumulative(measurement: &Measurement) -> Picture {
    let line = |name: &str, colour: usize, side: &Side| {
        let mut sum = 0.0;
        let rest = (1..).zip(&side.iterations).map(|(number, iteration)| {
            sum += iteration.seconds;
            (f64::from(number), sum)
        });
        let points = std::iter::once((0.0, 0.0)).chain(rest).collect();
        Line { name: name.to_owned(), points, colour, stroke: Stroke::Marked }
    };
    let (bare, tide) = (measurement.bare.total_seconds(), measurement.tidepool.total_seconds());
    let title = format!("The whole job: {bare:.1} s on the bare PFS, {tide:.1} s with Tidepool");
    let count = measurement.bare.iterations.len().max(1) as f64;
    let x = Axis::linear("iterations done", 0.0..count).whole();
    let mut panel =
        Panel::new(title, x, Axis::from_zero("seconds since the start", bare.max(tide)));
    panel.lines = vec![
        line("bare PFS", BARE, &measurement.bare),
        line("Tidepool", TIDE, &measurement.tidepool),
    ];
    Picture::of(&[panel.note("Lower is better.")], Arrangement::Below)
}

/// Iterations a minute of every sizing in one sentence.
pub fn sizings(contention: &Contention) -> String {
    let each = contention.cases.iter().map(|case| {
        let refused = match case.job.refused_bytes {
            0 => String::new(),
            bytes => format!(" (the other job was refused {})", size(bytes)),
        };
        format!("{} {}{refused}", case.name, per_minute(case))
    });
    let each: Vec<String> = each.collect();
    format!("Iterations a minute beside a job in bursts: {}; higher is better", each.join(", "))
}

fn per_minute(case: &Case) -> String {
    let rate = case.iterations_per_minute();
    number(if rate < 10.0 { (rate * 10.0).round() / 10.0 } else { rate.round() })
}

/// Memory of the store and of the job over time, one panel a sizing on the same axes.
pub fn memory(contention: &Contention) -> Picture {
    let samples = || contention.cases.iter().flat_map(|case| &case.samples);
    let last_s = samples().map(|sample| sample.at_s).fold(1.0, f64::max);
    let values =
        samples().flat_map(|sample| [sample.job_bytes, sample.store_bytes, sample.target_bytes]);
    // A store without control is allowed more than what is in play.
    let most = gib(values.max().unwrap_or(0).clamp(1, contention.shares.pool_bytes.max(1)));
    let asked = contention.shares.burst_bytes;
    let mut panels: Vec<Panel> =
        contention.cases.iter().map(|case| of_case(case, asked, (last_s, most))).collect();
    if let Some(first) = panels.first_mut() {
        let good = "Good: many iterations a minute, and the job has all it asked soon after its \
                    burst starts.";
        first.notes.push(good.to_owned());
    }
    Picture::of(&panels, Arrangement::Below)
}

fn of_case(case: &Case, asked_bytes: u64, (last_s, most): (f64, f64)) -> Panel {
    let mut name = case.name.clone();
    if let Some(first) = name.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let job = &case.job;
    let got = match job.refused_bytes {
        0 => "the other job got all it asked".to_owned(),
        refused => format!(
            "the other job got {} of {}",
            part(job.asked_bytes - refused),
            size(job.asked_bytes)
        ),
    };
    let title = format!("{name}: {} iterations a minute; {got}", per_minute(case));
    let x = Axis::linear("seconds", 0.0..last_s);
    let mut panel = Panel::new(title, x, Axis::from_zero("memory in GiB", most));
    let line = |name: &str, colour: usize, stroke: Stroke, value: fn(&Sample) -> u64| Line {
        name: name.to_owned(),
        points: (case.samples.iter())
            .map(|sample| (sample.at_s, gib(value(sample)).min(most)))
            .collect(),
        colour,
        stroke,
    };
    panel.lines = vec![
        line("other job", 2, Stroke::Solid, |sample| sample.job_bytes),
        line("store", 1, Stroke::Solid, |sample| sample.store_bytes),
        line("allowed", 0, Stroke::Dashed, |sample| sample.target_bytes),
    ];
    for burst in &job.bursts {
        let end_s = burst.started_s + burst.seconds;
        let ends = match burst.got_bytes >= asked_bytes {
            true => format!(
                "has all it asked after {} s",
                number((burst.seconds * 100.0).round() / 100.0)
            ),
            false => format!("gives up with {} of {}", part(burst.got_bytes), size(asked_bytes)),
        };
        panel.bands.push(Band { from: burst.started_s, to: end_s });
        panel.marks.push(Mark {
            at: burst.started_s,
            text: "burst starts".to_owned(),
            side: MarkSide::Left,
        });
        panel.marks.push(Mark { at: end_s, text: ends, side: MarkSide::Right });
    }
    panel
}

/// A part of something, for people.
fn part(bytes: u64) -> String {
    if bytes == 0 { "nothing".to_owned() } else { size(bytes) }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    use tidepool_report::legible::{faults, texts};

    use super::super::contention::tests::example as contended;
    use super::super::measurement::tests::example;
    use super::*;

    #[test]
    fn titles_have_the_figures_and_nothing_covers_anything() {
        let measurement = example();
        let contention = contended();
        for (picture, said) in [
            (iterations(&measurement), &["4.0 times as fast", "bare PFS", "Lower is better."][..]),
            (levels(&measurement), &["0 % of the first", "100 % of the later", "from the PFS"]),
            (cumulative(&measurement), &["6.0 s on the bare PFS", "3.0 s with Tidepool"]),
            (
                memory(&contention),
                &[
                    "Small fixed store: 6 iterations a minute",
                    "Store that follows: 18 iterations a minute",
                    "got 1.50 GiB of 2.00 GiB",
                    "burst starts",
                    "has all it asked after 0.03 s",
                    "gives up with 512 MiB of 1.00 GiB",
                    "other job",
                    "allowed",
                ],
            ),
        ] {
            for svg in [&picture.wide, &picture.narrow] {
                assert_eq!(faults(svg), Vec::<String>::new());
                let all = texts(svg).join(" ");
                for text in said {
                    assert!(all.contains(text), "{text}: {all}");
                }
            }
        }
    }

    #[test]
    fn the_other_job_is_what_it_holds_itself() {
        let contention = contended();
        let panel = of_case(&contention.cases[0], 1 << 30, (20.0, 2.0));
        let job = panel.lines.iter().find(|line| line.name == "other job").unwrap();
        let most = job.points.iter().map(|(_, gib)| *gib).fold(0.0, f64::max);
        assert_eq!((job.points[0].1, most), (0.0, 1.0), "not what everybody takes");
    }

    #[test]
    fn levels_without_bytes_are_in_no_legend() {
        let picture = levels(&example());
        assert!(!texts(&picture.wide).iter().any(|text| text.contains("through the daemon")));
    }

    #[test]
    fn the_sizings_are_one_sentence() {
        let sentence = sizings(&contended());
        let said = "small fixed store 6 (the other job was refused 512 MiB), store that follows 18";
        assert!(sentence.contains(said), "{sentence}");
    }
}
