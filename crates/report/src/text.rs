//! Measures the width of texts, by the metrics of DejaVu Sans. It is wider than the fonts that
//! browsers take for `sans-serif`: what fits here fits there.

use std::sync::LazyLock;

use ttf_parser::Face;

static REGULAR: LazyLock<Option<Face<'static>>> =
    LazyLock::new(|| Face::parse(dejavu::sans::regular(), 0).ok());
static BOLD: LazyLock<Option<Face<'static>>> =
    LazyLock::new(|| Face::parse(dejavu::sans::bold(), 0).ok());

/// Size and weight of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Font {
    /// Height of the line of letters in pixels.
    pub size: f64,
    /// Whether it is bold.
    pub bold: bool,
}

impl Font {
    /// A regular font.
    pub const fn regular(size: f64) -> Self {
        Font { size, bold: false }
    }

    /// A bold font.
    pub const fn bold(size: f64) -> Self {
        Font { size, bold: true }
    }

    /// Distance of two lines.
    pub fn line_height(self) -> f64 {
        self.size * 1.3
    }

    /// Width of a text in pixels.
    pub fn width(self, text: &str) -> f64 {
        let face = if self.bold { &*BOLD } else { &*REGULAR };
        // A letter without a glyph is taken to be as wide as a wide one.
        let em = |letter: char| -> f64 {
            let found = face.as_ref().and_then(|face| {
                let advance = face.glyph_hor_advance(face.glyph_index(letter)?)?;
                Some(f64::from(advance) / f64::from(face.units_per_em()))
            });
            found.unwrap_or(1.0)
        };
        text.chars().map(em).sum::<f64>() * self.size
    }

    /// Lines no wider than `width` pixels, broken between words; a longer word stays whole, and so
    /// does a number with its unit.
    pub fn wrapped(self, text: &str, width: f64) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in whole_words(text) {
            match lines.last_mut() {
                Some(line) if self.width(&format!("{line} {word}")) <= width => {
                    line.push(' ');
                    line.push_str(&word);
                }
                _ => lines.push(word),
            }
        }
        lines
    }
}

/// Words, a number together with its unit.
fn whole_words(text: &str) -> Vec<String> {
    const UNITS: [&str; 15] = [
        "%", "s", "ms", "h", "x", "B", "KiB", "MiB", "GiB", "TiB", "MB", "GB", "TB", "MB/s", "GB/s",
    ];
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let bare = word.trim_end_matches(|letter: char| ",.;:)".contains(letter));
        match words.last_mut() {
            Some(last)
                if UNITS.contains(&bare) && last.ends_with(|end: char| end.is_ascii_digit()) =>
            {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// A number without digits that say nothing.
pub fn number(value: f64) -> String {
    let places = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 0.1 || middle == 0.0 => 2,
        small => (1.0 - small.log10().floor()).clamp(2.0, 12.0) as usize,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_no_wider_than_allowed() {
        let font = Font::regular(13.0);
        let text = "iterations a minute: small fixed store 8, store that follows 18";
        let lines = font.wrapped(text, 150.0);
        assert!(lines.len() > 2 && lines.iter().all(|line| font.width(line) <= 150.0), "{lines:?}");
        assert_eq!(lines.join(" "), text);
        assert_eq!(font.wrapped("", 10.0), Vec::<String>::new());
        let units = font.wrapped("of 50 GB/s), 20 % in", 1.0);
        assert_eq!(units, ["of", "50 GB/s),", "20 %", "in"], "numbers keep their units");
        assert!(Font::bold(13.0).width("bold") > font.width("bold"));
    }

    #[test]
    fn numbers_carry_no_idle_digits() {
        let numbers = [0.0, 0.25, 1.5, 20.0, 1250.4, 0.02, 0.005, 0.0123, -2.5, 100.0];
        let texts = ["0", "0.25", "1.5", "20", "1250", "0.02", "0.005", "0.012", "-2.5", "100"];
        assert_eq!(numbers.map(number), texts);
    }
}
