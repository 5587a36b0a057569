//! What can go wrong between two nodes.

use std::{fmt, io};

use serde::{Deserialize, Serialize};

/// Why a request to a peer gave nothing.
#[derive(Debug)]
pub enum PeerError {
    /// No connection, or it broke.
    Unreachable(io::Error),
    /// The peer said nothing for as long as the caller wants to wait.
    TimedOut,
    /// The peer answered that it does not give it.
    Refused(Refusal),
    /// The peer's memory changed while the block was on its way: the bytes are to be discarded.
    Changed,
    /// The peer does not keep to the protocol, or the caller asks for what it cannot carry.
    Protocol(String),
    /// One side cannot prove to the other who it is, or a frame is not from who sent the others.
    Authentication(String),
    /// No TLS comes about: one side has none, or a certificate is not taken.
    Certificate(String),
}

/// Why a holder does not give a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// It does not have the block in memory.
    NotHeld,
    /// It holds, or knows of, another version of the file.
    Stale,
    /// It serves as much as it can already.
    Busy,
    /// It does not know what is asked for.
    Unknown,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NotHeld => "it does not hold the block in memory",
            Self::Stale => "it has another version of the file",
            Self::Busy => "it serves as many requests as it can",
            Self::Unknown => "it does not know what is asked for",
        })
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(
                out,
                "the peer cannot be reached: {error}. Check that its node runs and that the \
                 network lets its port through."
            ),
            Self::TimedOut => {
                write!(out, "the peer did not answer in time. Check its load and the network.")
            }
            Self::Refused(refusal) => {
                write!(out, "the peer refused: {refusal}. The PFS has the bytes.")
            }
            Self::Changed => write!(
                out,
                "the block changed at the peer while it was sent. The PFS has the bytes."
            ),
            Self::Protocol(what) => {
                write!(out, "{what}. Check that all nodes run the same release of Tidepool.")
            }
            Self::Authentication(what) => write!(
                out,
                "{what}. Check that all nodes have the same key file and cluster name; if they \
                 have, somebody changes packets on the network."
            ),
            Self::Certificate(what) => write!(
                out,
                "{what}. Give all nodes `peer_tls_certificate_file`, `peer_tls_private_key_file` \
                 and `peer_tls_authority_file`, or none; each certificate is signed by that \
                 authority, in date, and names its node."
            ),
        }
    }
}

impl std::error::Error for PeerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreachable(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Refusal> for PeerError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
