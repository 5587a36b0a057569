//! The wire protocol between a node and its clients: frames over a Unix stream socket.
//!
//! A frame is a fixed header, a body (one message in postcard) and an optional payload of raw
//! bytes. Descriptors travel with the first byte of their frame. Each side speaks a hello of fixed
//! layout first, so that releases of any age can tell each other apart. Every length is checked
//! against a limit before anything is allocated for it.
//!
//! This module encodes and decodes; [`socket`] moves frames. Neither decides which client may do
//! what. The protocol is described in `docs/design/wire.md`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub mod message;
pub mod socket;

pub use message::{
    Failure, Open, Opened, Reply, Request, SegmentLayout, Want, WriteSource, decode_reply,
    decode_request, decode_timed_reply,
};

/// Magic number of both hellos: `TIDEWIRE`.
pub const PROTOCOL_MAGIC: u64 = u64::from_le_bytes(*b"TIDEWIRE");
/// Version of the protocol; both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 19;
/// Version of the shared-memory layouts (residency table and reference bits), part of the hello.
pub const TABLE_LAYOUT_VERSION: u32 = 1;
/// Length of a frame header in bytes.
pub const HEADER_BYTES: usize = 24;
/// Length of the client's hello in bytes.
pub const HELLO_BYTES: usize = 32;
/// Length of the node's answer to a hello in bytes.
pub const WELCOME_BYTES: usize = 48;
/// Longest name of a directory that goes with a welcome, in bytes.
pub const ROOT_BYTES_MAX: usize = 4096;
/// Longest body of a request in bytes.
pub const REQUEST_BODY_BYTES_MAX: u32 = 4 << 10;
/// Longest payload of a request in bytes; longer writes go through the transfer buffer.
pub const REQUEST_PAYLOAD_BYTES_MAX: u32 = 64 << 10;
/// Longest body of a reply in bytes.
pub const REPLY_BODY_BYTES_MAX: u32 = 4 << 20;
/// Longest payload of a reply in bytes, so also the longest inline read.
pub const REPLY_PAYLOAD_BYTES_MAX: u32 = 1 << 20;
/// Longest write out of the transfer buffer in bytes.
pub const TRANSFER_WRITE_BYTES_MAX: u32 = 1 << 20;
/// Largest transfer buffer that a client may register in bytes.
pub const TRANSFER_BUFFER_BYTES_MAX: u64 = 64 << 20;
/// Most descriptors that one frame carries.
pub const DESCRIPTORS_MAX: usize = 3;

/// Why bytes are no message. The text is for the log, the connection ends either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// What one direction of a connection accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Longest body in bytes.
    pub body_bytes_max: u32,
    /// Longest payload in bytes.
    pub payload_bytes_max: u32,
}

impl FrameLimits {
    /// What a node accepts.
    pub const REQUEST: FrameLimits = FrameLimits {
        body_bytes_max: REQUEST_BODY_BYTES_MAX,
        payload_bytes_max: REQUEST_PAYLOAD_BYTES_MAX,
    };
    /// What a client accepts.
    pub const REPLY: FrameLimits = FrameLimits {
        body_bytes_max: REPLY_BODY_BYTES_MAX,
        payload_bytes_max: REPLY_PAYLOAD_BYTES_MAX,
    };
}

/// The fixed start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the body in bytes.
    pub body_bytes: u32,
    /// Length of the payload in bytes.
    pub payload_bytes: u32,
    /// Chosen by the client, repeated in the reply; 0 only in the hello.
    pub request_id: u64,
    /// Number of descriptors that come with the frame.
    pub descriptors: u32,
}

impl FrameHeader {
    /// The header as it travels.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.request_id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.descriptors.to_le_bytes());
        bytes
    }

    /// Reads a header and refuses what is beyond `limits`.
    pub fn decode(bytes: &[u8; HEADER_BYTES], limits: FrameLimits) -> Result<Self, Malformed> {
        let header = FrameHeader {
            body_bytes: word32(bytes, 0),
            payload_bytes: word32(bytes, 4),
            request_id: word64(bytes, 8),
            descriptors: word32(bytes, 16),
        };
        if word32(bytes, 20) != 0 {
            return Err(Malformed("the reserved word of a frame header is not zero"));
        }
        if header.body_bytes == 0 {
            return Err(Malformed("a frame without a body"));
        }
        if header.body_bytes > limits.body_bytes_max {
            return Err(Malformed("a body beyond the limit"));
        }
        if header.payload_bytes > limits.payload_bytes_max {
            return Err(Malformed("a payload beyond the limit"));
        }
        if header.descriptors as usize > DESCRIPTORS_MAX {
            return Err(Malformed("more descriptors than any message carries"));
        }
        Ok(header)
    }
}

/// The first thing that a client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the protocol.
    pub protocol: u32,
    /// Version of the shared-memory layouts.
    pub table_layout: u32,
}

impl Hello {
    /// The hello of this release.
    pub const OURS: Hello =
        Hello { protocol: PROTOCOL_VERSION, table_layout: TABLE_LAYOUT_VERSION };

    /// The hello as it travels.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0..8].copy_from_slice(&PROTOCOL_MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.protocol.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.table_layout.to_le_bytes());
        bytes
    }

    /// Reads a hello of any release; whether the versions suit is for the caller.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; HELLO_BYTES] =
            bytes.try_into().map_err(|_| Malformed("a hello of wrong length"))?;
        if word64(bytes, 0) != PROTOCOL_MAGIC {
            return Err(Malformed("not a Tidepool client"));
        }
        Ok(Hello { protocol: word32(bytes, 8), table_layout: word32(bytes, 12) })
    }
}

/// Whether a node takes a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// Requests may follow.
    Accepted = 0,
    /// The versions differ; the connection ends.
    OtherVersion = 1,
    /// Too many connections; the connection ends.
    LimitReached = 2,
    /// The node is stopping; the connection ends.
    Stopping = 3,
}

/// The node's answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Version of the node's protocol.
    pub protocol: u32,
    /// Version of the node's shared-memory layouts.
    pub table_layout: u32,
    /// Whether requests may follow.
    pub verdict: Verdict,
    /// Process id of the node.
    pub process_id: u32,
}

impl Welcome {
    /// The welcome as it travels.
    pub fn encode(&self) -> [u8; WELCOME_BYTES] {
        let mut bytes = [0; WELCOME_BYTES];
        bytes[0..8].copy_from_slice(&PROTOCOL_MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.protocol.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.table_layout.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.verdict as u32).to_le_bytes());
        bytes[20..24].copy_from_slice(&self.process_id.to_le_bytes());
        bytes
    }

    /// Reads the welcome of a node of any release.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; WELCOME_BYTES] =
            bytes.try_into().map_err(|_| Malformed("a welcome of wrong length"))?;
        if word64(bytes, 0) != PROTOCOL_MAGIC {
            return Err(Malformed("not a Tidepool node"));
        }
        let verdict = match word32(bytes, 16) {
            0 => Verdict::Accepted,
            1 => Verdict::OtherVersion,
            2 => Verdict::LimitReached,
            3 => Verdict::Stopping,
            _ => return Err(Malformed("an unknown verdict in a welcome")),
        };
        Ok(Welcome {
            protocol: word32(bytes, 8),
            table_layout: word32(bytes, 12),
            verdict,
            process_id: word32(bytes, 20),
        })
    }
}

/// The directory of the parallel file system that the node serves, which comes as the payload of
/// its welcome, whatever the verdict; `None` where it says none.
pub fn root_of_welcome(payload: &[u8]) -> Option<PathBuf> {
    let path = Path::new(OsStr::from_bytes(payload));
    let is_a_name = payload.len() <= ROOT_BYTES_MAX && !payload.contains(&0) && path.is_absolute();
    is_a_name.then(|| path.to_owned())
}

fn word32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn word64<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
