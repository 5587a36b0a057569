//! [`Item`]: a value under a key.

use std::fmt;
use std::time::Duration;

use super::budget::Room;

/// Bytes that were stored. They stay as they are; who changes a value stores another one.
pub struct Value {
    bytes: Vec<u8>,
    /// `None` of one that is sent and not kept.
    room: Option<Room>,
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value of {} bytes", self.bytes.len())
    }
}

impl Value {
    /// Of these bytes, for which `room` was taken.
    pub fn new(bytes: Vec<u8>, room: Room) -> Self {
        Value { bytes, room: Some(room) }
    }

    /// Of bytes that are sent and not kept.
    pub fn passing(bytes: Vec<u8>) -> Self {
        Value { bytes, room: None }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it counts for.
    pub(super) fn counted_bytes(&self) -> u64 {
        self.room.as_ref().map_or(0, Room::bytes)
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        if let Some(room) = &self.room {
            room.reuse(std::mem::take(&mut self.bytes));
        }
    }
}

/// A value under a key, and what is known of it. Times are since the start of the server.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its value.
    pub value: std::sync::Arc<Value>,
    /// The client's flags.
    pub flags: u32,
    /// When it is not there any more; `None` where it stays.
    pub expires: Option<Duration>,
    /// Number of its last change.
    pub cas: u64,
    /// When it was last asked for, or stored.
    pub accessed: Duration,
    /// It was asked for since it was stored.
    pub is_hit: bool,
    /// It was marked as stale: the next one who asks is to bring it anew.
    pub is_stale: bool,
    /// Somebody was told to bring it anew.
    pub is_won: bool,
    /// Its key came in base64.
    pub is_key_binary: bool,
    /// The PFS does not have it: it is not evicted.
    pub is_owed: bool,
}

impl Item {
    /// One that stays, which nobody asked for yet.
    pub fn plain(value: std::sync::Arc<Value>, flags: u32, cas: u64, now: Duration) -> Self {
        Item {
            value,
            flags,
            expires: None,
            cas,
            accessed: now,
            is_hit: false,
            is_stale: false,
            is_won: false,
            is_key_binary: false,
            is_owed: false,
        }
    }

    /// Whether it is there no more.
    pub fn is_expired(&self, now: Duration) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }
}
