//! Bodies of replies: as for requests. Messages with floating-point numbers are compared by their
//! encoding, because not-a-number is unequal to itself.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidepool_proto::Error;
use tidepool_proto::wire::{Reply, Welcome, decode_reply, root_of_welcome};

fuzz_target!(|bytes: &[u8]| {
    let _ = Welcome::decode(bytes);
    let _ = root_of_welcome(bytes);
    if let Ok(reply) = decode_reply(bytes) {
        let once = reply.encode(Vec::new()).expect("decoded messages have an encoding");
        let decoded = decode_reply(&once).expect("own encodings decode");
        assert_eq!(decoded.encode(Vec::new()).as_ref(), Ok(&once));
        if let Reply::Failed(failure) = reply {
            let _ = Error::from(failure).to_string();
        }
    }
});
