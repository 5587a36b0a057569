//! How a memory-only file looks on the parallel file system: a stub whose mark is an extended
//! attribute, or its content where attributes are not to be had. Reads no file.

/// Extended attribute of a stub without content.
pub const STUB_ATTRIBUTE: &str = "user.tidepool.memory";
/// Length in bytes of a stub that carries its mark as content.
pub const STUB_BYTES: u64 = 256;
/// Start of every mark.
pub const STUB_MAGIC: &str = "TIDEPOOL MEMORY-ONLY STUB";

/// The length in bytes that a mark tells: that of the file which is in memory alone.
pub fn marked_length(mark: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(mark).ok()?.strip_prefix(STUB_MAGIC)?;
    text.split_ascii_whitespace().find_map(|word| word.strip_prefix("length="))?.parse().ok()
}
