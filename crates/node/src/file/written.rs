//! [`Written`]: a write that is to be kept.

/// A write that the PFS has taken.
pub struct Written<'a> {
    /// First byte.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Length of the file before.
    pub size_before: u64,
}

impl Written<'_> {
    /// First byte behind it.
    pub fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    /// Length of the file after it.
    pub fn size_after(&self) -> u64 {
        self.size_before.max(self.end())
    }
}

/// What a change of ours makes of the file's length.
pub struct Growth {
    /// Length before.
    pub size_before: u64,
    /// First byte that we wrote; from the old end to it there is a hole.
    pub data_from: u64,
    /// Length after.
    pub size_after: u64,
}
