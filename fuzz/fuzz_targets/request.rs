//! Bodies of requests: no panic, no large allocation, and what decodes encodes to a message that
//! decodes to the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidepool_proto::wire::{Hello, decode_request};

fuzz_target!(|bytes: &[u8]| {
    let _ = Hello::decode(bytes);
    if let Ok(request) = decode_request(bytes) {
        let again = request.encode(Vec::new()).expect("decoded messages have an encoding");
        assert_eq!(decode_request(&again).as_ref(), Ok(&request));
    }
});
