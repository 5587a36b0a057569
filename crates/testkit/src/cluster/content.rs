//! Content of files: pages that say which file, place and write they are of, and what a read may
//! give. A page is one cell again and again, so that each of its parts tells where it is from.

use std::sync::Arc;

/// Length of a page in bytes.
pub const PAGE_BYTES: usize = 4096;
const CELL_BYTES: usize = 32;
const MAGIC: u64 = u64::from_le_bytes(*b"tidecell");

/// A page that was never written: zeros.
pub const ZEROS: u64 = 0;

/// The writes that the pages of a file are of, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content(Arc<Vec<u64>>);

/// What is wrong with bytes that were read.
pub type Wrong = String;

fn cell(file: usize, page: usize, generation: u64) -> [u8; CELL_BYTES] {
    let mut cell = [0; CELL_BYTES];
    if generation != ZEROS {
        let words = [MAGIC, file as u64, page as u64, generation];
        for (part, word) in cell.chunks_exact_mut(8).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
    }
    cell
}

/// What a cell says of itself.
fn describe(cell: &[u8]) -> String {
    let word = |index: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&cell[index * 8..index * 8 + 8]);
        u64::from_le_bytes(word)
    };
    match (word(0), cell.iter().all(|byte| *byte == 0)) {
        (_, true) => "zeros".to_owned(),
        (MAGIC, _) => format!("file {} page {} of write {}", word(1), word(2), word(3)),
        _ => format!("bytes that nobody wrote, {cell:02x?}"),
    }
}

/// Pages `first..first + count` as the write `generation` makes them.
pub fn encode(file: usize, first: usize, count: usize, generation: u64) -> Vec<u8> {
    let mut bytes = vec![0; count * PAGE_BYTES];
    for (number, page) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
        let cell = cell(file, first + number, generation);
        page.chunks_exact_mut(CELL_BYTES).for_each(|place| place.copy_from_slice(&cell));
    }
    bytes
}

fn is_whole(page: &[u8], cell: &[u8; CELL_BYTES]) -> bool {
    page.starts_with(cell) && page[CELL_BYTES..] == page[..page.len() - CELL_BYTES]
}

impl Content {
    /// Pages of one write.
    pub fn of(pages: usize, generation: u64) -> Self {
        Content(Arc::new(vec![generation; pages]))
    }

    /// Length in pages.
    pub fn pages(&self) -> usize {
        self.0.len()
    }

    /// The write that a page is of; `None` beyond the end.
    pub fn page(&self, page: usize) -> Option<u64> {
        self.0.get(page).copied()
    }

    /// The same after a write of pages, which may reach beyond the end.
    pub fn overwritten(&self, first: usize, count: usize, generation: u64) -> Self {
        let mut pages = self.0.to_vec();
        pages.resize(pages.len().max(first + count), ZEROS);
        pages[first..first + count].fill(generation);
        Content(Arc::new(pages))
    }

    /// The same with another length.
    pub fn resized(&self, count: usize) -> Self {
        let mut pages = self.0.to_vec();
        pages.resize(count, ZEROS);
        Content(Arc::new(pages))
    }

    /// Looks at a read of `wanted` pages at page `first`: every page whole and of this content, to
    /// one of the ends, in pages.
    pub fn check(
        &self,
        file: usize,
        first: usize,
        wanted: usize,
        ends: &[usize],
        bytes: &[u8],
    ) -> Result<(), Wrong> {
        let due = |end: usize| end.saturating_sub(first).min(wanted) * PAGE_BYTES;
        if !ends.iter().any(|end| due(*end) == bytes.len()) {
            return Err(format!(
                "{} bytes from page {first}, {wanted} pages wanted, the file ends at {ends:?}",
                bytes.len()
            ));
        }
        for (number, page) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
            let number = first + number;
            let Some(generation) = self.page(number) else {
                return Err(format!("page {number} is beyond the end at {}", self.pages()));
            };
            let due = cell(file, number, generation);
            if !is_whole(page, &due) {
                let mut cells = page.chunks_exact(CELL_BYTES).enumerate();
                let (at, found) = cells.find(|(_, cell)| *cell != due).unwrap_or((0, &due));
                let found = describe(found);
                let due = describe(&due);
                return Err(format!("page {number}, cell {at}: {found}; due is {due}"));
            }
        }
        Ok(())
    }
}

/// A change in place beside which a read may see part of it.
#[derive(Clone, Debug)]
pub struct Blend<'a> {
    /// Before the change.
    pub before: &'a Content,
    /// After it.
    pub after: &'a Content,
    /// The change empties the file first, so any length is right.
    pub empties: bool,
}

impl Blend<'_> {
    /// Looks at a read beside the change: each part of a page is as before or as after it, or zeros
    /// where a page comes or goes. Pages that are not changed are whole.
    pub fn check(
        &self,
        file: usize,
        first: usize,
        wanted: usize,
        bytes: &[u8],
    ) -> Result<(), Wrong> {
        let (before, after) = (self.before.pages(), self.after.pages());
        let due = |end: usize| end.saturating_sub(first).min(wanted) * PAGE_BYTES;
        let least = if self.empties { 0 } else { due(before.min(after)) };
        let most = due(before.max(after));
        if bytes.len() < least || bytes.len() > most {
            let length = bytes.len();
            return Err(format!("{length} bytes from page {first}, not {least} to {most}"));
        }
        for (number, page) in bytes.chunks(PAGE_BYTES).enumerate() {
            let number = first + number;
            let (old, new) = (self.before.page(number), self.after.page(number));
            let due = [old, new].map(|it| cell(file, number, it.unwrap_or(ZEROS)));
            if old == new && page.len() == PAGE_BYTES && !self.empties {
                if !is_whole(page, &due[0]) {
                    let found = page.chunks_exact(CELL_BYTES).find(|cell| **cell != due[0]);
                    let found = describe(found.unwrap_or(&due[0]));
                    return Err(format!("page {number}, not changed: {found}, not {old:?}"));
                }
                continue;
            }
            for (at, cell) in page.chunks_exact(CELL_BYTES).enumerate() {
                let is_zeros = cell.iter().all(|byte| *byte == 0);
                if !is_zeros && !due.iter().any(|due| due == cell) {
                    let found = describe(cell);
                    return Err(format!(
                        "page {number}, cell {at}: {found}; due is write {old:?} or {new:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(content: &Content, file: usize) -> Vec<u8> {
        let pages = 0..content.pages();
        pages.flat_map(|page| encode(file, page, 1, content.page(page).unwrap())).collect()
    }

    #[test]
    fn what_is_right_passes_and_each_damage_is_found() {
        let content = Content::of(4, 7).overwritten(1, 1, 9).resized(6);
        let good = bytes_of(&content, 3);
        let check = |file, bytes: &[u8]| content.check(file, 0, 10, &[6], bytes);
        assert_eq!(check(3, &good), Ok(()));
        assert!(check(2, &good).is_err(), "another file");
        assert!(check(3, &good[PAGE_BYTES..]).is_err(), "short, and pages of elsewhere");
        assert!(content.check(3, 1, 5, &[6], &good[..5 * PAGE_BYTES]).is_err(), "shifted");
        assert_eq!(content.check(3, 1, 5, &[6], &good[PAGE_BYTES..]), Ok(()));
        for place in [0, PAGE_BYTES - 1, PAGE_BYTES + 77, 6 * PAGE_BYTES - 1] {
            let mut bad = good.clone();
            bad[place] ^= 1;
            assert!(check(3, &bad).is_err(), "a changed byte at {place}");
        }
        let older = bytes_of(&Content::of(6, 7), 3);
        assert!(check(3, &older).is_err(), "an older version");
    }

    #[test]
    fn beside_a_change_only_what_changes_may_be_in_parts() {
        let before = Content::of(4, 7);
        let after = before.overwritten(1, 2, 9);
        let blend = Blend { before: &before, after: &after, empties: false };
        let mut bytes = bytes_of(&before, 3);
        let newer = bytes_of(&after, 3);
        let half = PAGE_BYTES + PAGE_BYTES / 2;
        bytes[half..2 * PAGE_BYTES].copy_from_slice(&newer[half..2 * PAGE_BYTES]);
        assert_eq!(blend.check(3, 0, 4, &bytes), Ok(()), "a page in two parts");
        assert!(blend.check(3, 0, 4, &bytes[..3 * PAGE_BYTES]).is_err(), "short");
        let mut bad = bytes.clone();
        bad[..PAGE_BYTES].fill(0);
        assert!(blend.check(3, 0, 4, &bad).is_err(), "zeros where nothing changes");
        bad.copy_from_slice(&bytes);
        bad[PAGE_BYTES..2 * PAGE_BYTES].copy_from_slice(&encode(3, 1, 1, 8));
        assert!(blend.check(3, 0, 4, &bad).is_err(), "a third version");
    }
}
