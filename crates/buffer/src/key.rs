//! Names of blocks and keys of packets.
//!
//! A block of a file is cut into packets of up to 1 MiB. The key of a packet is the name of its
//! block and its number (section III-B of the paper). The name has the number of the file's time in
//! memory, which no other file ever has, so bytes of a file that is gone are never taken for those
//! of the next one at its path.

use std::fmt;

/// Most bytes of a packet. Stock memcached takes so much with `-I 2m`; by default what it keeps
/// beside a value goes off 1 MiB.
pub const PACKET_BYTES_MAX: usize = 1 << 20;
/// Most packets of a block.
pub const PACKETS_MAX: u32 = 1 << 16;
/// Most bytes of a key, of memcached.
pub const KEY_BYTES_MAX: usize = 250;
/// Start of the names of blocks.
const PREFIX: &str = "tidepool:";

/// Client flags of a packet, which memcached keeps beside the value.
pub mod flag {
    /// The PFS does not have it yet.
    pub const OWED: u32 = 1;
    /// It, and all that was sent of its block before, is to be durable when it is answered.
    pub const SYNC: u32 = 2;
    /// The other bits are those of a checksum of the flags, the key and the bytes, which goes with
    /// them from the memory of the writer to that of the reader.
    pub const CHECKED: u32 = 4;
    const CHECKSUM: u32 = !(OWED | SYNC | CHECKED);

    fn checksum(flags: u32, key: &[u8], bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&[(flags & (OWED | SYNC)) as u8]);
        hasher.update(key);
        hasher.update(bytes);
        hasher.finalize() & CHECKSUM
    }

    /// Flags with the checksum of these, of the key and the bytes.
    pub fn checked(flags: u32, key: &[u8], bytes: &[u8]) -> u32 {
        let flags = flags & (OWED | SYNC);
        flags | CHECKED | checksum(flags, key, bytes)
    }

    /// Whether key and bytes are those of which flags tell the checksum, if they do.
    pub fn agrees(flags: u32, key: &[u8], bytes: &[u8]) -> bool {
        flags & CHECKED == 0 || flags & CHECKSUM == checksum(flags, key, bytes)
    }
}

/// Name of a block: which file in which time in memory, and which of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockName {
    /// Names a file's time in memory: random, 64 bits.
    pub epoch: u64,
    /// Number of the block in the file.
    pub block: u64,
}

/// Number of the block in which is told what the others of its epoch are. It is forgotten last, and
/// by itself.
pub const LAST_BLOCK: u64 = u64::MAX;

/// Reads an epoch as names of blocks have it; `None` where it is none.
pub fn parse_epoch(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let epoch = u64::from_str_radix(text, 16).ok()?;
    (format!("{epoch:016x}") == text).then_some(epoch)
}

/// Key of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketKey {
    /// The block that it is of.
    pub block: BlockName,
    /// Its number in the block.
    pub packet: u32,
}

impl fmt::Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:016x}:{}", self.epoch, self.block)
    }
}

impl fmt::Display for PacketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.block, self.packet)
    }
}

impl BlockName {
    /// Reads a name; `None` where it is none.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (epoch, block) = text.strip_prefix(PREFIX)?.split_once(':')?;
        let is_epoch = epoch.len() == 16 && epoch.bytes().all(|it| it.is_ascii_hexdigit());
        let name = BlockName { epoch: u64::from_str_radix(epoch, 16).ok()?, block: number(block)? };
        // One name for one block: what is not written so is another key.
        (is_epoch && name.to_string() == text).then_some(name)
    }
}

impl PacketKey {
    /// Reads a key; `None` where it is another one.
    pub fn parse(key: &[u8]) -> Option<Self> {
        let colon = memchr::memrchr(b':', key)?;
        let packet = number(std::str::from_utf8(&key[colon + 1..]).ok()?)?;
        let packet = u32::try_from(packet).ok().filter(|packet| *packet < PACKETS_MAX)?;
        Some(PacketKey { block: BlockName::parse(&key[..colon])?, packet })
    }
}

/// Whether a key begins as those of packets do.
pub fn is_of_blocks(key: &[u8]) -> bool {
    key.starts_with(PREFIX.as_bytes())
}

/// A decimal number without sign or leading zeros.
fn number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|it| it.is_ascii_digit());
    let is_one = text == "0" || !text.starts_with('0');
    (is_plain && is_one).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_key_is_read_as_it_was_written(epoch: u64, block: u64, packet in 0..PACKETS_MAX) {
            let key = PacketKey { block: BlockName { epoch, block }, packet };
            let text = key.to_string();
            prop_assert!(text.len() <= KEY_BYTES_MAX);
            prop_assert_eq!(PacketKey::parse(text.as_bytes()), Some(key));
        }

        #[test]
        fn whatever_is_read_is_written_so(
            key in "tidepool:[0-9a-fA-F]{15,17}:[0-9+]{1,3}:[0-9]{1,3}",
        ) {
            if let Some(read) = PacketKey::parse(key.as_bytes()) {
                prop_assert_eq!(read.to_string(), key);
            }
        }
    }

    #[test]
    fn other_keys_are_no_packets() {
        let of_another = ["", ":", "tidepool:", "tidepool:1:0:0", "foo:1", "tidepool:0:0:0:0"];
        for key in of_another {
            assert_eq!(PacketKey::parse(key.as_bytes()), None, "{key}");
        }
        let good = "tidepool:00000000000000ff:7:3";
        assert!(PacketKey::parse(good.as_bytes()).is_some());
        for key in ["tidepool:00000000000000FF:7:3", "tidepool:00000000000000ff:07:3"] {
            assert_eq!(PacketKey::parse(key.as_bytes()), None, "{key}: one name for one block");
        }
        for packet in ["65536", "4294967296"] {
            let key = format!("tidepool:00000000000000ff:7:{packet}");
            assert_eq!(PacketKey::parse(key.as_bytes()), None, "it could not be settled");
        }
    }
}
