//! What was available and what the store held under each law, on the same axes.

use tidepool_report::axis::Axis;
use tidepool_report::chart::{Arrangement, Line, Panel, Picture, Stroke};

use super::Run;
use crate::bench::control::recording::Sample;

const GIB: f64 = (1_u64 << 30) as f64;
/// Distance of points.
const POINT_NS: u64 = 50_000_000;

/// Lines of one law: seconds, and gibibytes.
struct Course {
    available: Vec<(f64, f64)>,
    stored: Vec<(f64, f64)>,
    demand: Vec<(f64, f64)>,
}

/// A panel for each law.
pub fn draw(runs: &[(&str, &Run)]) -> Picture {
    let courses: Vec<(String, Course)> =
        runs.iter().map(|(name, run)| (title(name, run), course(run))).collect();
    panels(&courses)
}

fn title(name: &str, run: &Run) -> String {
    let figures = &run.figures;
    let first = figures
        .first_ms(0.99)
        .map_or("no first byte".to_owned(), |ms| format!("first byte within {ms:.0} ms"));
    format!(
        "{name}: {:.1} s below the headroom, lowest {:+.2} GiB; {:.2} GiB unused; \
         {:.1} GiB evicted; {first}",
        figures.below_s, figures.lowest_gib, figures.excess_gib, figures.evicted_gib
    )
}

fn panels(courses: &[(String, Course)]) -> Picture {
    let all = || {
        let lines = |course: &Course| [course.available.clone(), course.stored.clone()];
        courses.iter().flat_map(move |(_, course)| lines(course)).flatten()
    };
    let most = |of: fn((f64, f64)) -> f64| all().map(of).fold(0.0, f64::max);
    let least = all().map(|point| point.1).fold(0.0, f64::min);
    let (length_s, highest) = (most(|point| point.0), most(|point| point.1));
    let panel = |(title, course): &(String, Course)| {
        let x = Axis::linear("seconds", 0.0..length_s);
        let y = Axis::linear("GiB", (least * 4.0).floor() / 4.0..(highest * 4.0).ceil() / 4.0);
        let mut panel = Panel::new(title.clone(), x, y);
        let line = |name: &str, points: &[(f64, f64)], colour, stroke| Line {
            name: name.to_owned(),
            points: points.to_vec(),
            colour,
            stroke,
        };
        panel.lines = vec![
            line("headroom", &[(0.0, 0.0), (length_s, 0.0)], 7, Stroke::Solid),
            line("demand", &course.demand, 6, Stroke::Dashed),
            line("store", &course.stored, 1, Stroke::Solid),
            line("available beyond the headroom", &course.available, 2, Stroke::Solid),
        ];
        panel
    };
    let panels: Vec<Panel> = courses.iter().map(panel).collect();
    Picture::of(&panels, Arrangement::Below)
}

fn course(run: &Run) -> Course {
    let samples = &run.seen.0;
    let began_ns = samples.first().map_or(0, |sample| sample.at_ns);
    let since = |at_ns: u64| at_ns.saturating_sub(began_ns) as f64 / 1e9;
    let mut course = Course { available: Vec::new(), stored: Vec::new(), demand: Vec::new() };
    for part in samples.chunk_by(|one, two| one.at_ns / POINT_NS == two.at_ns / POINT_NS) {
        let (first, least) = (part[0], |value: fn(&Sample) -> u64| part.iter().map(value).min());
        let at_s = since(first.at_ns);
        // The least of each time: short troughs are what matters.
        let available = least(|sample| sample.available).unwrap_or(0) as f64;
        course.available.push((at_s, (available - run.headroom as f64) / GIB));
        course.stored.push((at_s, first.stored as f64 / GIB));
        let behind = run.held.partition_point(|(at_ns, _)| *at_ns <= first.at_ns);
        let held = run.held.get(behind.wrapping_sub(1)).map_or(0, |held| held.1);
        course.demand.push((at_s, held as f64 / GIB));
    }
    course
}

#[cfg(test)]
mod tests {
    use tidepool_report::legible;

    use super::{Course, panels};

    #[test]
    fn the_picture_can_be_read_and_its_panels_have_the_same_axes() {
        let line = |values: [f64; 3]| (0..).map(f64::from).zip(values).collect::<Vec<_>>();
        let course = |lowest: f64| Course {
            available: line([0.2, lowest, 0.3]),
            stored: line([2.0, 1.0, 0.7]),
            demand: line([0.0, 1.2, 1.5]),
        };
        let title = |name: &str| format!("{name}: 0.4 s below the headroom; 0.12 GiB unused");
        let courses = [(title("one"), course(-0.4)), (title("two"), course(-0.1))];
        let picture = panels(&courses);
        assert_eq!(legible::faults(&picture.wide), Vec::<String>::new());
        // The lowest value of the first panel is on the axis of the second one too.
        assert_eq!(picture.wide.matches("\n-0.5\n").count(), 2);
    }
}
