//! Who holds which blocks of one file, sorted: 8 bytes for a member and a chunk.
//!
//! An entry is a word: chunk (32 bits), member (16), and a bit for each of the chunk's 16 blocks.

/// Entries of a page; a file with more has several, so that an insertion moves little.
const PAGE: usize = 512;
/// Bytes that an allocation costs beside its content, about.
const ALLOCATION_BYTES: usize = 16;

/// Entries of one file.
pub(crate) enum Entries {
    /// At most a page.
    Few(Vec<u64>),
    /// Pages in order, none empty.
    Many(Vec<Vec<u64>>),
}

const fn word(chunk: u32, member: u16, bits: u16) -> u64 {
    (chunk as u64) << 32 | (member as u64) << 16 | bits as u64
}

/// Chunk, member and blocks of an entry.
pub(crate) const fn parts(word: u64) -> (u32, u16, u16) {
    ((word >> 32) as u32, (word >> 16) as u16, word as u16)
}

impl Entries {
    pub(crate) const fn new() -> Self {
        Self::Few(Vec::new())
    }

    /// Sets the blocks of the chunk that the member holds; tells what it held.
    pub(crate) fn set(&mut self, chunk: u32, member: u16, bits: u16) -> u16 {
        let key = word(chunk, member, 0);
        let (index, page) = match self {
            Self::Few(page) => (0, page),
            Self::Many(pages) => {
                let after = pages.partition_point(|page| page[0] >> 16 <= key >> 16);
                let index = after.saturating_sub(1);
                (index, &mut pages[index])
            }
        };
        let at = page.partition_point(|&entry| entry < key);
        let found = page.get(at).copied().filter(|entry| entry >> 16 == key >> 16);
        match (found, bits) {
            (None, 0) => return 0,
            (None, _) => {
                if page.len() == page.capacity() {
                    // Doubling would cost more memory than the entries of most files.
                    page.reserve_exact(page.len() / 4 + 2);
                }
                page.insert(at, key | u64::from(bits));
            }
            (Some(_), 0) => drop(page.remove(at)),
            (Some(_), _) => page[at] = key | u64::from(bits),
        }
        self.reshape(index);
        found.map_or(0, |entry| parts(entry).2)
    }

    /// Splits the page if it is full, drops it if it is empty.
    fn reshape(&mut self, index: usize) {
        match self {
            Self::Few(page) if page.len() > PAGE => {
                let (head, tail) = halves(page);
                *self = Self::Many(vec![head, tail]);
            }
            Self::Few(page) if page.capacity() > 8 && page.len() * 2 < page.capacity() => {
                page.shrink_to_fit();
            }
            Self::Few(_) => {}
            Self::Many(pages) => {
                if pages[index].len() > PAGE {
                    let (head, tail) = halves(&pages[index]);
                    pages[index] = head;
                    pages.insert(index + 1, tail);
                } else if pages[index].is_empty() {
                    pages.remove(index);
                }
                self.collapse();
            }
        }
    }

    fn collapse(&mut self) {
        if let Self::Many(pages) = self
            && pages.len() <= 1
        {
            *self = Self::Few(pages.pop().unwrap_or_default());
        }
    }

    /// Entries of the chunk.
    pub(crate) fn chunk(&self, chunk: u32) -> impl Iterator<Item = (u16, u16)> {
        let first = word(chunk, 0, 0);
        let pages = match self {
            Self::Few(page) => std::slice::from_ref(page),
            Self::Many(pages) => {
                let at = pages.partition_point(|page| page[0] < first);
                &pages[at.saturating_sub(1)..]
            }
        };
        let from = pages.first().map_or(0, |page| page.partition_point(|&entry| entry < first));
        (pages.iter().flatten().skip(from))
            .map(|&entry| parts(entry))
            .skip_while(move |&(other, ..)| other < chunk)
            .take_while(move |&(other, ..)| other == chunk)
            .map(|(_, member, bits)| (member, bits))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u16, u16)> {
        self.pages().iter().flatten().map(|&entry| parts(entry))
    }

    /// Keeps the entries of members that `keep` names.
    pub(crate) fn retain_members(&mut self, keep: impl Fn(u16) -> bool) {
        let keeps = |entry: &u64| keep(parts(*entry).1);
        match self {
            Self::Few(page) => page.retain(keeps),
            Self::Many(pages) => {
                pages.iter_mut().for_each(|page| page.retain(keeps));
                pages.retain(|page| !page.is_empty());
            }
        }
        self.collapse();
    }

    fn pages(&self) -> &[Vec<u64>] {
        match self {
            Self::Few(page) => std::slice::from_ref(page),
            Self::Many(pages) => pages,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages().iter().all(Vec::is_empty)
    }

    /// Entries in the page, or 0 where there are several pages.
    pub(crate) fn few(&self) -> &[u64] {
        match self {
            Self::Few(page) => page,
            Self::Many(_) => &[],
        }
    }

    /// Memory beside the value itself, bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Few(page) => page.capacity() * 8 + ALLOCATION_BYTES,
            Self::Many(pages) => {
                let page_bytes = (PAGE + 1) * 8 + ALLOCATION_BYTES;
                pages.len() * page_bytes + pages.capacity() * size_of::<Vec<u64>>()
            }
        }
    }
}

/// A full page as two, each with room for a page.
fn halves(page: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let half = |part: &[u64]| {
        let mut half = Vec::with_capacity(PAGE + 1);
        half.extend_from_slice(part);
        half
    };
    let (head, tail) = page.split_at(page.len() / 2);
    (half(head), half(tail))
}
