//! Pictures of memory control: demand, store and target over time.

use std::path::Path;

use tidepool_proto::Result;
use tidepool_report::axis::Axis;
use tidepool_report::chart::{Arrangement, Line, Panel, Picture, Stroke};

/// More points than this are not seen.
const POINTS: usize = 2_000;

/// What to look for.
const GOOD: &str = "Good: the store is large while other programs need little, and all together \
                    stay below the memory of the node.";

/// Memory of a node at one moment, in bytes.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Moment {
    /// Time in seconds.
    pub time_s: f64,
    /// Demand of everything but the stores.
    pub demand_bytes: u64,
    /// Held by the stores.
    pub stored_bytes: u64,
    /// What the stores may hold.
    pub target_bytes: u64,
    /// Free memory, clean file pages included.
    pub free_bytes: u64,
}

/// What was done with the demand.
#[derive(Clone, Debug)]
pub struct Course {
    /// Name of the policy, and the result in words.
    pub title: String,
    /// Memory of the node in bytes.
    pub memory_bytes: u64,
    /// Memory over time.
    pub moments: Vec<Moment>,
}

/// At most `most` of the moments, evenly chosen, the last one always.
pub fn thinned(moments: Vec<Moment>, most: usize) -> Vec<Moment> {
    let step = moments.len().div_ceil(most.max(1)).max(1);
    let last = moments.len().saturating_sub(1);
    let kept = moments.into_iter().enumerate();
    kept.filter(|(index, _)| index % step == 0 || *index == last)
        .map(|(_, moment)| moment)
        .collect()
}

/// Writes a panel for each course into a file, by the ending of its name.
pub fn write(path: &Path, courses: Vec<Course>) -> Result<()> {
    crate::pictures::write_file(path, &draw(courses))
}

fn draw(courses: Vec<Course>) -> Picture {
    let memory = |course: &Course| course.memory_bytes as f64 / 1e9;
    // The same axis for all, or they could not be compared.
    let most = courses.iter().flat_map(|course| {
        let highest = course.moments.iter().map(highest_bytes);
        highest.map(|bytes| bytes as f64 / 1e9).chain([memory(course)])
    });
    let most = most.fold(0.0, f64::max);
    let mut panels: Vec<Panel> = courses.into_iter().map(|course| panel(course, most)).collect();
    if let Some(first) = panels.first_mut() {
        first.notes.push(GOOD.to_owned());
    }
    Picture::of(&panels, Arrangement::Below)
}

fn highest_bytes(moment: &Moment) -> u64 {
    moment.demand_bytes.max(moment.stored_bytes).max(moment.target_bytes)
}

fn panel(course: Course, most: f64) -> Panel {
    let memory = course.memory_bytes as f64 / 1e9;
    let moments = thinned(course.moments, POINTS);
    let line = |name: &str, colour: usize, stroke: Stroke, bytes: fn(&Moment) -> u64| Line {
        name: name.to_owned(),
        points: moments.iter().map(|m| (m.time_s, bytes(m) as f64 / 1e9)).collect(),
        colour,
        stroke,
    };
    let begin = moments.first().map_or(0.0, |moment| moment.time_s);
    let end = moments.last().map_or(1.0, |moment| moment.time_s).max(begin + 1e-3);
    let x = Axis::linear("time in seconds", begin..end);
    let mut panel = Panel::new(course.title, x, Axis::from_zero("memory in GB", most));
    panel.lines = vec![
        line("other programs", 2, Stroke::Solid, |moment| moment.demand_bytes),
        line("store", 1, Stroke::Solid, |moment| moment.stored_bytes),
        line("allowed", 0, Stroke::Dashed, |moment| moment.target_bytes),
        Line {
            name: "memory of the node".to_owned(),
            points: vec![(begin, memory), (end, memory)],
            colour: 7,
            stroke: Stroke::Dashed,
        },
    ];
    panel
}

#[cfg(test)]
mod tests {
    use tidepool_report::legible::{faults, texts};

    use super::*;

    fn course(policy: &str) -> Course {
        let moment = |step: u64| Moment {
            time_s: step as f64,
            demand_bytes: (step % 50) << 30,
            stored_bytes: (60 - step % 50) << 30,
            target_bytes: (61 - step % 50) << 30,
            free_bytes: 4 << 30,
        };
        Course {
            title: format!("Policy {policy}: store of 40 GB on average"),
            memory_bytes: 64 << 30,
            moments: (0..120).map(moment).collect(),
        }
    }

    #[test]
    fn every_policy_has_a_panel_with_its_result_and_named_lines() {
        let picture = draw(vec![course("tidepool"), course("dynims"), course("static")]);
        for svg in [&picture.wide, &picture.narrow] {
            assert_eq!(faults(svg), Vec::<String>::new());
            let all = texts(svg).join(" ");
            for name in ["Policy dynims", "other programs", "store", "allowed", "of 40 GB"] {
                assert!(all.contains(name), "{name}: {all}");
            }
        }
    }

    #[test]
    fn no_moments_are_no_fault() {
        let empty = Course { moments: Vec::new(), ..course("static") };
        assert!(draw(vec![empty]).wide.contains("Policy static"));
    }

    #[test]
    fn thinning_keeps_the_last_moment() {
        let moments = course("static").moments;
        let kept = thinned(moments.clone(), 50);
        assert!(kept.len() <= 51);
        assert_eq!(kept.last().unwrap().time_s, moments.last().unwrap().time_s);
    }
}
