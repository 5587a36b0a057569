//! Node expressions as Slurm writes them: `n[01-10,12]`, `rack[1-2]n[01-04]`.

/// Most nodes that a list may name; two less than an index of 16 bits tells apart.
pub(crate) const NODES_MAX: usize = 65_534;

/// Splits a list at its commas, but not inside brackets.
pub(crate) fn entries(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    list.split(move |character| {
        match character {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        (character == ',' && depth <= 0) || character.is_ascii_whitespace()
    })
    .filter(|entry| !entry.is_empty())
}

/// All texts that an expression stands for, in its order; without brackets the text itself.
///
/// # Errors
/// Brackets do not match, a range is no range of numbers or runs backwards, or there are more than
/// `limit` texts. The error says which.
pub(crate) fn expand(expression: &str, limit: usize) -> Result<Vec<String>, String> {
    let mut texts = vec![String::new()];
    let mut rest = expression;
    while let Some(open) = rest.find('[') {
        let (before, after) = (&rest[..open], &rest[open + 1..]);
        let close = after.find(']').ok_or_else(|| format!("{expression}: ']' is missing"))?;
        let numbers =
            numbers(&after[..close], limit).map_err(|why| format!("{expression}: {why}"))?;
        if before.contains(']') {
            return Err(format!("{expression}: '[' is missing"));
        }
        if texts.len().saturating_mul(numbers.len()) > limit {
            return Err(format!("{expression}: more than {limit} nodes"));
        }
        texts = texts
            .iter()
            .flat_map(|text| numbers.iter().map(move |number| format!("{text}{before}{number}")))
            .collect();
        rest = &after[close + 1..];
    }
    if rest.contains(']') {
        return Err(format!("{expression}: '[' is missing"));
    }
    for text in &mut texts {
        text.push_str(rest);
    }
    Ok(texts)
}

/// The numbers of `01-10,12`, with the zeros in front that the first of a range has.
fn numbers(ranges: &str, limit: usize) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| match text.parse::<u64>() {
            Ok(number) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
            _ => Err(format!("{range:?} is no range of numbers, like 1-4")),
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("{range} runs backwards"));
        }
        if to - from >= limit as u64 || all.len() as u64 + (to - from) >= limit as u64 {
            return Err(format!("more than {limit} nodes"));
        }
        let width = first.len();
        all.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}
