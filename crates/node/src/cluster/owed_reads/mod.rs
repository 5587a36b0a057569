//! Reads of files whose bytes the PFS does not have yet, from the memory of the node that owes
//! them: an open elsewhere need not wait until the PFS has the whole file.
//!
//! The node that owes them gives the bytes that the last sync promised a number, the *token*. It
//! ends with the next change of a byte ([`Copied`](crate::file::copied::Copied)), so a block that
//! was sent under a token, and confirmed afterwards, is of these very bytes. Once they are on the
//! PFS the node remembers the version that the file had then; where it still has that, or has what
//! was read by its bytes, opens elsewhere go on with it as with any file.

pub mod give;
pub mod take;

use serde::{Deserialize, Serialize};
use tidepool_peer::BlockRequest;

/// In the place of the time of change in questions for blocks of a token: no file was changed then.
const OF_TOKEN: i64 = i64::MIN;

/// What the node that owes a file is asked.
#[derive(Debug, Serialize, Deserialize)]
enum Asked {
    /// For the token of a file.
    Begin {
        /// See [`Shared::words`](super::shared::Shared::words).
        file: [u64; 2],
        /// Which start of the node its mark names.
        node: String,
        /// Block size of the node that asks: blocks are asked for whole.
        block_bytes: u64,
    },
    /// What the bytes of a token became.
    End {
        /// The token.
        token: u64,
    },
}

/// The bytes that a node owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Begun {
    token: u64,
    length: u64,
}

/// What a file was right after its bytes came to the PFS: see
/// [`Shared::words`](super::shared::Shared::words).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended([i64; 3]);

impl Ended {
    /// It is not known what the file was: somebody may have changed it in that moment. No file has
    /// this length.
    const UNKNOWN: Ended = Ended([-1, 0, 0]);

    /// Whether it is known.
    pub fn is_known(&self) -> bool {
        *self != Ended::UNKNOWN
    }
}

/// Whether a block is asked for of a file that is owed.
pub fn is_of_token(request: &BlockRequest) -> bool {
    request.version[2] == OF_TOKEN
}
