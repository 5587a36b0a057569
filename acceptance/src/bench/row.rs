//! One line of a table of results: our figures, those of the reference, and the ratio that is
//! expected.

use std::fmt;

use serde::Serialize;

/// What a row must show.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// The ratio of the speeds is at least this.
    RatioAtLeast(f64),
    /// Our figure is at most this.
    AtMost(f64),
    /// Our figure is at least this.
    AtLeast(f64),
    /// Only to be seen.
    Shown,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Larger figures are better.
    pub larger_is_better: bool,
    /// Figures of the product, one a round.
    pub ours: Vec<f64>,
    /// Figures of the reference, in the same rounds; empty if there is none.
    pub reference: Vec<f64>,
    /// What they must show.
    pub goal: Goal,
    /// What a reader must know.
    pub notes: Vec<String>,
}

impl Row {
    /// Rates against rates, in bytes or operations a second.
    pub fn rates(
        name: &str,
        unit: &'static str,
        figures: (Vec<f64>, Vec<f64>),
        goal: Goal,
    ) -> Self {
        Row {
            name: name.to_owned(),
            unit,
            larger_is_better: true,
            ours: figures.0,
            reference: figures.1,
            goal,
            notes: Vec::new(),
        }
    }

    /// Figures without a reference; smaller ones are better.
    pub fn alone(name: &str, unit: &'static str, ours: Vec<f64>, goal: Goal) -> Self {
        Row { larger_is_better: false, ..Row::rates(name, unit, (ours, Vec::new()), goal) }
    }

    /// With a note.
    #[must_use]
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    /// Smallest, median and largest ratio of ours to the reference, round by round.
    pub fn ratio(&self) -> Option<(f64, f64, f64)> {
        let ratios: Vec<f64> = self
            .ours
            .iter()
            .zip(&self.reference)
            .map(
                |(ours, reference)| {
                    if self.larger_is_better { ours / reference } else { reference / ours }
                },
            )
            .collect();
        let least = ratios.iter().copied().reduce(f64::min)?;
        let most = ratios.iter().copied().reduce(f64::max)?;
        Some((least, median(&ratios)?, most))
    }

    /// Whether the goal is reached; `None` where there is none.
    pub fn reached(&self) -> Option<bool> {
        match self.goal {
            Goal::RatioAtLeast(goal) => self.ratio().map(|(_, ratio, _)| ratio >= goal),
            Goal::AtMost(goal) => median(&self.ours).map(|ours| ours <= goal),
            Goal::AtLeast(goal) => median(&self.ours).map(|ours| ours >= goal),
            Goal::Shown => None,
        }
    }

    fn cells(&self) -> [String; 6] {
        let figure = |values: &[f64]| match median(values) {
            Some(value) => format!("{} {}", digits(value), self.unit),
            None => "-".into(),
        };
        let ratio = self.ratio().map_or("-".into(), |(least, median, most)| {
            format!("{median:.2} ({least:.2} to {most:.2})")
        });
        let goal = match self.goal {
            Goal::RatioAtLeast(goal) => format!("ratio {} or more", digits(goal)),
            Goal::AtMost(goal) => format!("{} {} or less", digits(goal), self.unit),
            Goal::AtLeast(goal) => format!("{} {} or more", digits(goal), self.unit),
            Goal::Shown => "-".into(),
        };
        let reached = match self.reached() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        };
        [
            self.name.clone(),
            figure(&self.ours),
            figure(&self.reference),
            ratio,
            goal,
            reached.into(),
        ]
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [name, ours, reference, ratio, goal, reached] = self.cells();
        write!(f, "{name}: {ours}, reference {reference}, ratio {ratio}; goal {goal}: {reached}")?;
        for note in &self.notes {
            write!(f, "\n    {note}")?;
        }
        Ok(())
    }
}

/// All rows as a Markdown table.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| what | ours | reference | ratio (spread) | goal | reached |\n\
         |---|--:|--:|--:|--:|---|\n",
    );
    for row in rows {
        text.push_str(&format!("| {} |\n", row.cells().join(" | ")));
    }
    text
}

/// The middle value.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Goal, Row, median};

    #[test]
    fn ratios_are_taken_round_by_round_and_better_is_above_one() {
        let rates = Row::rates("r", "MB/s", (vec![8.0, 9.0], vec![10.0, 10.0]), Goal::Shown);
        assert_eq!(rates.ratio(), Some((0.8, 0.8500000000000001, 0.9)));
        let times = Row { larger_is_better: false, ..rates };
        assert_eq!(times.ratio().map(|(least, ..)| least), Some(10.0 / 9.0));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn goals_are_judged_by_the_median() {
        let row = |goal| Row::alone("r", "s", vec![1.0, 2.0, 9.0], goal);
        assert_eq!(row(Goal::AtMost(2.0)).reached(), Some(true));
        assert_eq!(row(Goal::AtMost(1.9)).reached(), Some(false));
        assert_eq!(row(Goal::AtLeast(2.1)).reached(), Some(false));
        assert_eq!(row(Goal::RatioAtLeast(1.0)).reached(), None, "no reference, no ratio");
    }
}
