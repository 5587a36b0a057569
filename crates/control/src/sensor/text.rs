//! The few text forms of the kernel's counters. Accepts whole lines only: a line that was cut off
//! could hold a number with digits missing, which is worse than none.

use memchr::memchr;

/// The whole lines of a text, without their ends.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    let next = std::iter::from_fn(move || {
        let (line, behind) = rest.split_at(memchr(b'\n', rest)?);
        rest = &behind[1..];
        Some(line)
    });
    next.filter(|line| !line.is_empty())
}

/// The words of a line.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty())
}

/// A decimal number without sign; `None` for anything else, an overflow included.
pub(crate) fn number(word: &[u8]) -> Option<u64> {
    if word.is_empty() {
        return None;
    }
    word.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// Calls `each` with name and number of every line of the form `name number`.
pub(crate) fn counters(text: &[u8], mut each: impl FnMut(&[u8], u64)) {
    for line in lines(text) {
        let mut words = words(line);
        if let (Some(name), Some(value)) = (words.next(), words.next().and_then(number)) {
            each(name, value);
        }
    }
}

/// The number that a file of one value holds. Without the line's end it may be cut off.
pub(crate) fn single(text: &[u8]) -> Option<u64> {
    number(text.strip_suffix(b"\n")?)
}

/// How many numbers a list such as `0-3,8` names, as the kernel writes sets of processors.
pub(crate) fn listed(text: &[u8]) -> Option<u32> {
    let ranges = text.strip_suffix(b"\n")?.split(|byte| *byte == b',');
    ranges.into_iter().try_fold(0_u32, |sum, range| {
        let mut ends = range.splitn(2, |byte| *byte == b'-');
        let first = number(ends.next()?)?;
        let last = ends.next().map_or(Some(first), number)?;
        let count = u32::try_from(last.checked_sub(first)?).ok()?.checked_add(1)?;
        sum.checked_add(count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!([listed(b"0\n"), listed(b"0-3,8\n")], [Some(1), Some(5)]);
        for bad in [&b"0-3"[..], b"\n", b"3-0\n", b"0-\n", b"a\n", b"0-4294967295\n"] {
            assert_eq!(listed(bad), None);
        }
    }

    #[test]
    fn numbers_are_whole_or_nothing() {
        assert_eq!(number(b"0"), Some(0));
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        for bad in [&b""[..], b"-1", b"18446744073709551616", b"1k", b"\xff"] {
            assert_eq!(number(bad), None);
        }
        assert_eq!((single(b"12\n"), single(b"12"), single(b"max\n")), (Some(12), None, None));
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_count() {
        assert_eq!(lines(b"a 1\nb 2\nc 3").collect::<Vec<_>>(), [&b"a 1"[..], b"b 2"]);
        assert_eq!(lines(b"a 1").count(), 0);
        let mut seen = Vec::new();
        counters(b"a 1\nb x\n\nc 3 4\nd 12", |name, value| seen.push((name.to_vec(), value)));
        assert_eq!(seen, [(b"a".to_vec(), 1), (b"c".to_vec(), 3)]);
    }
}
