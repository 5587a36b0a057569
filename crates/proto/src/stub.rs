//! How a memory-only file looks on the parallel file system: a stub whose mark is an extended
//! attribute, or its content where attributes are not to be had. Reads no file.

/// Extended attribute of a stub without content.
pub const STUB_ATTRIBUTE: &str = "user.tidepool.memory";
/// Length in bytes of a stub that carries its mark as content.
pub const STUB_BYTES: u64 = 256;
/// Start of every mark.
pub const STUB_MAGIC: &str = "TIDEPOOL MEMORY-ONLY STUB";
