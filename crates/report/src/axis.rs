//! Axes of charts: where a value lies, and labels at round values over the whole range.

use std::ops::Range;

use crate::text::number;

/// How values are laid out along an axis.
#[derive(Clone, Debug, PartialEq)]
enum Scale {
    Linear,
    Logarithmic,
    /// The whole numbers from 0, each with a text.
    Cases(Vec<String>),
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it shows, with the unit.
    pub title: String,
    /// From and to.
    range: Range<f64>,
    scale: Scale,
    /// Labels only at whole numbers.
    whole: bool,
    /// The ends move outwards to the next labels.
    round_ends: bool,
    /// Labels that take the place of round values.
    given: Vec<(f64, String)>,
}

/// A label of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Where it is.
    pub value: f64,
    /// What it says.
    pub text: String,
}

impl Axis {
    fn new(title: &str, range: Range<f64>, scale: Scale) -> Self {
        let (title, given) = (title.to_owned(), Vec::new());
        Axis { title, range, scale, whole: false, round_ends: false, given }
    }

    /// An axis over exactly this range.
    pub fn linear(title: &str, range: Range<f64>) -> Self {
        let end = range.end.max(range.start + f64::MIN_POSITIVE.max(range.start.abs() * 1e-9));
        Axis::new(title, range.start..end, Scale::Linear)
    }

    /// An axis from 0 to a round value that is not below `most`.
    pub fn from_zero(title: &str, most: f64) -> Self {
        let most = if most > 0.0 && most.is_finite() { most } else { 1.0 };
        Axis { round_ends: true, ..Axis::linear(title, 0.0..most) }
    }

    /// A logarithmic axis between round values around `low` and `high`, which are above zero.
    pub fn logarithmic(title: &str, low: f64, high: f64) -> Self {
        let low = if low > 0.0 && low.is_finite() { low } else { 1.0 };
        let high = if high.is_finite() { high.max(low) } else { low };
        Axis { round_ends: true, ..Axis::new(title, low..high, Scale::Logarithmic) }
    }

    /// A logarithmic axis with labels at these rising values, and from the first to the last.
    pub fn logarithmic_at(title: &str, labels: Vec<(f64, String)>) -> Self {
        let end = |label: Option<&(f64, String)>| label.map_or(1.0, |(value, _)| *value);
        let (low, high) = (end(labels.first()), end(labels.last()));
        // A little room at both ends, where marks of points lie.
        let margin = (high / low).powf(0.02).max(1.001);
        let range = low / margin..high * margin;
        Axis { given: labels, ..Axis::new(title, range, Scale::Logarithmic) }
    }

    /// An axis of cases, which lie at 0, 1, 2, ...
    pub fn cases(title: &str, cases: Vec<String>) -> Self {
        let range = -0.5..cases.len().max(1) as f64 - 0.5;
        Axis::new(title, range, Scale::Cases(cases))
    }

    /// The same axis with labels at whole numbers only.
    pub fn whole(self) -> Self {
        Axis { whole: true, ..self }
    }

    /// Whether it counts cases instead of measuring.
    pub fn is_of_cases(&self) -> bool {
        matches!(self.scale, Scale::Cases(_))
    }

    /// From and to.
    pub fn range(&self) -> Range<f64> {
        self.range.clone()
    }

    /// Where a value lies: 0 at the begin, 1 at the end.
    pub fn place(&self, value: f64) -> f64 {
        let Range { start, end } = self.range;
        match self.scale {
            Scale::Logarithmic => (value.max(f64::MIN_POSITIVE) / start).ln() / (end / start).ln(),
            Scale::Linear | Scale::Cases(_) => (value - start) / (end - start),
        }
    }

    /// The axis with its ends moved to labels, and about `count` labels at most.
    pub fn labelled(mut self, count: usize) -> (Self, Vec<Tick>) {
        if !self.given.is_empty() {
            let ticks =
                self.given.iter().map(|(value, text)| Tick { value: *value, text: text.clone() });
            return (self.clone(), ticks.collect());
        }
        let values: Vec<f64> = match &self.scale {
            Scale::Cases(cases) => {
                let ticks = (0..).zip(cases);
                let ticks =
                    ticks.map(|(index, text)| Tick { value: f64::from(index), text: text.clone() });
                return (self.clone(), ticks.collect());
            }
            Scale::Linear => self.linear_values(count.max(2)),
            Scale::Logarithmic => self.logarithmic_values(count.max(2)),
        };
        if self.round_ends
            && let (Some(first), Some(last)) = (values.first(), values.last())
        {
            self.range = *first..*last;
        }
        let ticks = values.into_iter().map(|value| Tick { value, text: number(value) }).collect();
        (self, ticks)
    }

    /// Multiples of 1, 2, 2.5 or 5 of a power of ten.
    fn linear_values(&self, count: usize) -> Vec<f64> {
        let Range { start, end } = self.range;
        let rough = (end - start) / count as f64;
        let power = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
        let fits = |step: &&f64| **step >= rough * (1.0 - 1e-9);
        let whole = |step: &&f64| !self.whole || (**step).fract().abs() < 1e-9 && **step >= 1.0;
        let step = steps.iter().filter(fits).find(whole).copied().unwrap_or(1.0);
        let (first, last) = match self.round_ends {
            true => ((start / step + 1e-9).floor(), (end / step - 1e-9).ceil()),
            false => ((start / step - 1e-9).ceil(), (end / step + 1e-9).floor()),
        };
        let steps = (last - first).clamp(0.0, 1000.0) as u32;
        (0..=steps).map(|index| (first + f64::from(index)) * step).collect()
    }

    /// 1, 2 and 5 of each power of ten, or the powers alone where these are too many.
    fn logarithmic_values(&self, count: usize) -> Vec<f64> {
        let Range { start, end } = self.range;
        let powers = start.log10().floor() as i32 - 1..=end.log10().ceil() as i32 + 1;
        let mut last = Vec::new();
        for marks in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
            let all: Vec<f64> = powers
                .clone()
                .flat_map(|power| marks.iter().map(move |mark| mark * 10_f64.powi(power)))
                .collect();
            let from = all.iter().rposition(|value| *value <= start * (1.0 + 1e-9)).unwrap_or(0);
            let to = all.iter().position(|value| *value >= end * (1.0 - 1e-9));
            let to = to.unwrap_or(all.len() - 1).max(from + 1);
            last = all[from..=to].to_vec();
            if last.len() <= count + 1 {
                break;
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.text.as_str()).collect()
    }

    #[test]
    fn labels_are_round_and_reach_from_end_to_end() {
        let (axis, ticks) = Axis::from_zero("seconds", 17.3).labelled(5);
        assert_eq!(texts(&ticks), ["0", "5", "10", "15", "20"]);
        assert_eq!((axis.place(0.0), axis.place(20.0)), (0.0, 1.0));
        let (axis, ticks) = Axis::logarithmic("GB/s", 0.23, 8.1).labelled(8);
        assert_eq!(texts(&ticks), ["0.2", "0.5", "1", "2", "5", "10"]);
        assert!(axis.place(0.2).abs() < 1e-9 && (axis.place(10.0) - 1.0).abs() < 1e-9);
        let (_, ticks) = Axis::logarithmic("GB/s", 0.0004, 900.0).labelled(8);
        assert_eq!(texts(&ticks), ["0.0001", "0.001", "0.01", "0.1", "1", "10", "100", "1000"]);
    }

    #[test]
    fn a_given_range_stays_and_whole_numbers_are_not_divided() {
        let (axis, ticks) = Axis::linear("iterations", 0.0..3.0).whole().labelled(8);
        assert_eq!(texts(&ticks), ["0", "1", "2", "3"]);
        assert_eq!(axis.range(), 0.0..3.0);
        let (_, ticks) = Axis::linear("s", 0.3..9.7).labelled(5);
        assert_eq!(texts(&ticks), ["2", "4", "6", "8"]);
    }

    #[test]
    fn nothing_to_show_is_no_fault() {
        for most in [0.0, f64::NAN, -1.0] {
            assert!(Axis::from_zero("s", most).labelled(5).1.len() > 1);
            assert!(Axis::logarithmic("s", most, most).labelled(5).1.len() > 1);
        }
        assert!(Axis::linear("s", 0.0..0.0).place(0.0).is_finite());
    }
}
