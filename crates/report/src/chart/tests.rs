//! Tests of charts: what they promise to their readers.

use super::*;
use crate::axis::Axis;
use crate::legible::{faults, texts};

fn line(name: &str, colour: usize, points: &[(f64, f64)]) -> Line {
    Line { name: name.to_owned(), points: points.to_vec(), colour, stroke: Stroke::Solid }
}

fn of_lines() -> Panel {
    let x = Axis::linear("seconds", 0.0..30.0);
    let mut panel =
        Panel::new("Memory over time: all as it should be", x, Axis::from_zero("GiB", 3.2));
    panel.lines = vec![
        line("other job", 2, &[(0.0, 0.1), (10.0, 3.0), (30.0, 1.01)]),
        line("store", 1, &[(0.0, 2.9), (10.0, 0.2), (30.0, 1.0)]),
        line("allowed", 0, &[(0.0, 3.0), (10.0, 0.3), (30.0, 1.02)]),
        line("without points", 3, &[]),
    ];
    panel.marks = vec![
        Mark { at: 9.9, text: "burst starts".to_owned(), side: Side::Left },
        Mark { at: 10.0, text: "has all after 0.1 s".to_owned(), side: Side::Right },
        Mark { at: 11.0, text: "next burst starts".to_owned(), side: Side::Left },
    ];
    panel.note("Higher is better.")
}

fn of_bars() -> Panel {
    let cases = ["bare PFS", "page cache", "HDFS", "Tidepool"].map(str::to_owned).to_vec();
    let mut panel = Panel::new("Time", Axis::cases("storage", cases), Axis::from_zero("s", 40.0));
    let heights = vec![30.0, 20.0, 25.0, 10.0];
    panel.bars = stacked(&[
        ("first pass", 1, heights.clone()),
        ("later passes", 2, vec![1.0; 4]),
        ("writes", 3, vec![0.0; 4]),
    ]);
    let figure = |(case, height): (u32, &f64)| Figure {
        at: (f64::from(case), height + 1.0),
        text: format!("{} s", height + 1.0),
    };
    panel.figures = (0..).zip(&heights).map(figure).collect();
    panel
}

#[test]
fn lines_are_named_at_their_ends_and_only_those_with_points() {
    let svg = draw(&[of_lines()], Arrangement::Below, &Paper::WIDE);
    let found = texts(&svg);
    for name in ["other job", "store", "allowed", "burst starts", "Higher is better.", "GiB"] {
        assert_eq!(found.iter().filter(|text| *text == name).count(), 1, "{name}: {found:?}");
    }
    assert!(!svg.contains("without points"));
}

#[test]
fn legends_have_boxes_for_bars_with_data_alone() {
    let svg = draw(&[of_bars()], Arrangement::Below, &Paper::WIDE);
    let found = texts(&svg);
    assert!(found.contains(&"first pass".to_owned()) && !found.contains(&"writes".to_owned()));
    assert!(found.contains(&"31 s".to_owned()), "figures of the data: {found:?}");
    // Two swatches, two bars a case, and the background.
    assert_eq!(svg.matches("<rect").count(), 2 + 8 + 1);
}

#[test]
fn nothing_lies_on_anything_on_any_paper() {
    for paper in [Paper::WIDE, Paper::NARROW] {
        for arrangement in [Arrangement::Beside, Arrangement::Below] {
            for panels in [vec![of_lines()], vec![of_bars(), of_lines()], vec![of_lines(); 3]] {
                let svg = draw(&panels, arrangement, &paper);
                assert_eq!(faults(&svg), Vec::<String>::new(), "{paper:?} {arrangement:?}");
            }
        }
    }
}

#[test]
fn many_or_long_names_go_into_the_legend() {
    let mut panel = of_lines();
    panel.lines = (0..12)
        .map(|number| {
            let end = f64::from(number) / 10.0;
            line(&format!("a line of number {number}"), number as usize, &[(0.0, 0.0), (30.0, end)])
        })
        .collect();
    for paper in [Paper::WIDE, Paper::NARROW] {
        let svg = draw(std::slice::from_ref(&panel), Arrangement::Below, &paper);
        assert_eq!(faults(&svg), Vec::<String>::new());
        assert_eq!(texts(&svg).iter().filter(|text| text.starts_with("a line")).count(), 12);
    }
}

#[test]
fn figures_that_would_touch_are_left_out_together() {
    let mut panel = of_bars();
    panel.figures.push(Figure { at: (0.05, 31.0), text: "31.0 s".to_owned() });
    let svg = draw(&[panel], Arrangement::Below, &Paper::WIDE);
    assert!(!texts(&svg).iter().any(|text| text.ends_with(" s")));
}

#[test]
fn bars_beside_and_on_top_of_each_other_do_not_overlap() {
    let kinds = [("one", 1, vec![1.0, 2.0]), ("other", 2, vec![3.0, 4.0])];
    let bars = beside(&kinds);
    assert!(bars[0].boxes[1][1] <= bars[1].boxes[1][0], "{bars:?}");
    let bars = stacked(&kinds);
    assert_eq!((bars[0].boxes[1][3], bars[1].boxes[1][2], bars[1].boxes[1][3]), (2.0, 2.0, 6.0));
}

#[test]
fn names_of_lines_that_end_together_stay_beside_the_plot() {
    for height in [0.0, 10.0] {
        let x = Axis::linear("seconds", 0.0..30.0);
        let mut panel = Panel::new("Ends", x, Axis::from_zero("GiB", 10.0));
        let names = ["one", "two", "three", "four", "five", "six"];
        panel.lines = names.map(|name| line(name, 1, &[(0.0, 5.0), (30.0, height)])).to_vec();
        let marks = |text: &str| Mark { at: 30.0, text: text.to_owned(), side: Side::Left };
        panel.marks = vec![marks("a mark that stands above the plot")];
        for paper in [Paper::WIDE, Paper::NARROW] {
            let svg = draw(std::slice::from_ref(&panel), Arrangement::Below, &paper);
            assert_eq!(faults(&svg), Vec::<String>::new());
            let found = texts(&svg);
            let place = |wanted: &str| svg.find(&format!("\n{wanted}\n")).unwrap();
            let y = |wanted: &str| -> f64 {
                let before = &svg[..place(wanted)];
                let start = before.rfind(" y=\"").unwrap() + 4;
                before[start..].split('"').next().unwrap().parse().unwrap()
            };
            assert!(found.iter().all(|text| !text.is_empty()));
            for name in names {
                let inside = y("10") - 1.0..=y("0") + paper.label.line_height();
                assert!(inside.contains(&y(name)), "{name} at {} of {inside:?}", y(name));
            }
        }
    }
}

#[test]
fn labels_of_an_axis_that_would_touch_are_left_out() {
    let labels = [56.0, 64.0, 66.0, 68.0, 512.0].map(|size| (size, format!("{size} MiB")));
    let x = Axis::logarithmic_at("size", labels.to_vec());
    let mut panel = Panel::new("Sizes", x, Axis::from_zero("GB/s", 1.0));
    panel.lines = vec![line("measured", 1, &[(56.0, 1.0), (512.0, 0.1)])];
    for paper in [Paper::WIDE, Paper::NARROW] {
        let svg = draw(std::slice::from_ref(&panel), Arrangement::Below, &paper);
        assert_eq!(faults(&svg), Vec::<String>::new());
        let kept = texts(&svg).iter().filter(|text| text.ends_with("MiB")).count();
        assert!((2..5).contains(&kept), "{kept}");
    }
}
