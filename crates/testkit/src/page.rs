//! Pages that describe themselves, for tests in which many write and read at once: whatever a
//! reader gets, each page says which file, place and generation it is of, and whether it is whole.

/// Length of a page in bytes.
pub const PAGE_BYTES: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"tidepage");
const HEADER_BYTES: usize = 40;

/// What a page says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Number of the file.
    pub file: u64,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// Number of the write that made it.
    pub generation: u64,
}

/// Why bytes are no page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Nothing but zeros.
    Zeros,
    /// No header.
    NoHeader,
    /// A whole page was never written in this form: parts of two, or changed bytes.
    Torn(Page),
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn checksum(page: &Page, body: &[u8]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let words = body.chunks_exact(8).map(|chunk| word(chunk, 0));
    for value in [page.file, page.offset, page.generation].into_iter().chain(words) {
        sum = (sum ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
    sum
}

impl Page {
    /// Writes the page into `bytes`, which has the length of one.
    pub fn encode(&self, bytes: &mut [u8]) {
        let mut state = self.file ^ self.offset.rotate_left(17) ^ self.generation.rotate_left(41);
        for chunk in bytes[HEADER_BYTES..].chunks_mut(8) {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
        let sum = checksum(self, &bytes[HEADER_BYTES..PAGE_BYTES]);
        let header = [MAGIC, self.file, self.offset, self.generation, sum];
        for (chunk, value) in bytes.chunks_mut(8).zip(header) {
            chunk.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Reads a page, and checks that it is whole.
    pub fn decode(bytes: &[u8]) -> Result<Page, Damage> {
        if word(bytes, 0) != MAGIC {
            let zeros = bytes.iter().all(|byte| *byte == 0);
            return Err(if zeros { Damage::Zeros } else { Damage::NoHeader });
        }
        let page =
            Page { file: word(bytes, 8), offset: word(bytes, 16), generation: word(bytes, 24) };
        if checksum(&page, &bytes[HEADER_BYTES..PAGE_BYTES]) != word(bytes, 32) {
            return Err(Damage::Torn(page));
        }
        Ok(page)
    }
}

/// A file of one generation.
pub fn file_of_pages(file: u64, generation: u64, pages: u64) -> Vec<u8> {
    let mut bytes = vec![0; pages as usize * PAGE_BYTES];
    for (number, chunk) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
        Page { file, offset: (number * PAGE_BYTES) as u64, generation }.encode(chunk);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_apart() {
        let old = file_of_pages(1, 1, 1);
        let mut bytes = file_of_pages(1, 2, 1);
        let page = Page { file: 1, offset: 0, generation: 2 };
        assert_eq!(Page::decode(&bytes), Ok(page));
        bytes[2048..].copy_from_slice(&old[2048..]);
        assert_eq!(Page::decode(&bytes), Err(Damage::Torn(page)));
        bytes.fill(0);
        assert_eq!(Page::decode(&bytes), Err(Damage::Zeros));
        bytes[9] = 1;
        assert_eq!(Page::decode(&bytes), Err(Damage::NoHeader));
    }
}
