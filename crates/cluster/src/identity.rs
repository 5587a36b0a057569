//! What all nodes call the same: files, their versions, and nodes.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Most bytes of a node's name.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// The same file on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileKey {
    /// Inode number that the PFS gives on every node.
    pub inode: u64,
    /// Birth time in nanoseconds, against reused inode numbers; 0 where the PFS has none.
    pub generation: u64,
}

/// A version of a file as every node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SharedVersion {
    /// Bytes of the file.
    pub size: u64,
    /// Time of the last change of the bytes, nanoseconds of the PFS's clock.
    pub mtime_ns: i64,
    /// Time of the last change of bytes or metadata, nanoseconds of the PFS's clock.
    pub ctime_ns: i64,
}

/// Name of a node: 1 to 64 of `A-Z a-z 0-9 . _ -`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(Arc<str>);

/// Why a text is no name of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidName {
    /// The text, cut to 80 characters.
    pub text: String,
}

impl NodeName {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// The text is empty, longer than 64 bytes or has a character that names do not have.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(allowed) {
            return Err(InvalidName { text: text.chars().take(80).collect() });
        }
        Ok(Self(text.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Serialize for NodeName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for NodeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = NodeName;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the name of a node")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<NodeName, E> {
                NodeName::new(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl fmt::Display for InvalidName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:?} is no name of a node; take 1 to {NAME_BYTES_MAX} letters, digits, '.', '_', '-'",
            self.text
        )
    }
}

impl std::error::Error for InvalidName {}
