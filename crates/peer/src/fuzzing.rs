//! Ways into the decoders for the fuzz targets and the tests. No part of the interface.

use crate::datagram::{Opener, Sealer};
use crate::frame::{CODE_BYTES, HEADER_BYTES, Keys, Opening, Sealing};
use crate::handshake::Hello;
use crate::{BlockRequest, Identity, SharedKey};

fn identity(node: &str) -> Identity {
    let key = SharedKey::from_bytes(&[7; 32]).expect("32 bytes are enough");
    Identity { cluster: "fuzzed".to_owned(), node: node.to_owned(), key, tls: None }
}

fn keys() -> Keys {
    Keys::new([1; 32], [2; 32])
}

/// A stream of frames without the key: nothing but a right frame may be taken. Returns how many
/// were.
pub fn stream(bytes: &[u8]) -> usize {
    let mut opening = Opening::new(keys());
    let mut taken = 0;
    for header in bytes.as_chunks::<HEADER_BYTES>().0 {
        taken += usize::from(opening.header(header).is_ok());
    }
    taken
}

/// Frames whose codes are right and whose content is `bytes`: what a member that went wrong sends.
pub fn sealed_stream(bytes: &[u8]) {
    let mut opening = Opening::new(keys());
    for fields in bytes.chunks(HEADER_BYTES - CODE_BYTES) {
        let mut header = [0; HEADER_BYTES];
        header[..fields.len()].copy_from_slice(fields);
        let hash = blake3::keyed_hash(&[1; 32], &header[..HEADER_BYTES - CODE_BYTES]);
        header[HEADER_BYTES - CODE_BYTES..].copy_from_slice(&hash.as_bytes()[..CODE_BYTES]);
        if let Ok(header) = opening.header(&header) {
            assert!(opening.payload(&header, fields).is_err());
        }
    }
    let mut sealing = Sealing::new(keys());
    let frame = sealing.frame(crate::frame::Kind::Call, bytes);
    let (header, followed) = frame.split_at(HEADER_BYTES);
    let mut opening = Opening::new(keys());
    let header = opening.header(header.try_into().expect("a header")).expect("the next frame");
    assert_eq!(opening.payload(&header, followed), Ok(bytes));
    let _ = postcard::take_from_bytes::<BlockRequest>(bytes);
}

/// The first message of a handshake, as a server gets it from anybody.
pub fn hello(bytes: &[u8]) -> bool {
    Hello::decode(bytes).is_ok()
}

/// A datagram from anybody, and a datagram of a member with the message `bytes`.
pub fn datagram(bytes: &[u8]) {
    let opener = Opener::new(&identity("receiver"));
    assert!(opener.open(bytes).is_err());
    let sealed = Sealer::with_start(&identity("sender"), 1).seal(bytes);
    assert_eq!(opener.open(&sealed), Ok(("sender".to_owned(), bytes.to_owned())));
    assert!(opener.open(&sealed).is_err());
}
