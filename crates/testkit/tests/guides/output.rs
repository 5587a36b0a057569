//! Compares the output on a page with the output of the command. Figures and sizes may differ; a
//! line `...` stands for any lines, and `...` at the end of a line for any text.

/// Whether the output ends as the page shows.
pub fn matches(shown: &str, said: &str) -> bool {
    let shown: Vec<String> = shown.trim().lines().map(pattern).collect();
    let said: Vec<String> = said.trim().lines().map(pattern).collect();
    (0..=said.len()).any(|earlier| lines_match(&shown, &said[earlier..]))
}

fn lines_match(shown: &[String], said: &[String]) -> bool {
    match shown.split_first() {
        None => said.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=said.len()).any(|skipped| lines_match(rest, &said[skipped..]))
        }
        Some((first, rest)) => said.split_first().is_some_and(|(line, below)| {
            let same = match first.strip_suffix("...") {
                Some(beginning) => line.starts_with(beginning.trim_end()),
                None => line == first,
            };
            same && lines_match(rest, below)
        }),
    }
}

/// A line with `#` for each figure with its unit, and single spaces.
fn pattern(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let mut result = String::new();
        let mut rest = word;
        while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
            result.push_str(&rest[..start]);
            result.push('#');
            rest = rest[start..].trim_start_matches(|c: char| c.is_ascii_digit());
            let fraction = rest.strip_prefix('.').filter(|it| it.starts_with(char::is_numeric));
            rest = fraction.map_or(rest, |it| it.trim_start_matches(|c: char| c.is_ascii_digit()));
            let unit =
                ["KiB", "MiB", "GiB", "TiB", "B"].iter().find_map(|it| rest.strip_prefix(it));
            rest = unit.unwrap_or(rest);
        }
        result.push_str(rest);
        result
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Figures differ and words do not.
pub fn proof() {
    let shown = "a  64MiB of 2.50GiB\n...\nlast: 7 ms, ...\n";
    assert!(matches(shown, "a 1B of 10KiB\nx\ny\nlast: 31 ms, whatever\n"));
    assert!(matches(shown, "a 1B of 10KiB\nlast: 31 ms, whatever\n"));
    assert!(matches(shown, "earlier\na 1B of 10KiB\nlast: 31 ms, whatever\n"));
    assert!(!matches(shown, "b 1B of 10KiB\nlast: 31 ms, whatever\n"));
    assert!(!matches(shown, "a 1B of 10KiB\nlast: 31 ms, whatever\nmore\n"));
    assert!(!matches(shown, "a many of 10KiB\nlast: 31 ms, whatever\n"));
}
