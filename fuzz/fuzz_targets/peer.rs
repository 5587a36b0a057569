//! What a node gets from the network: from strangers nothing may be taken, and members may say
//! anything without harm.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidepool_peer::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 4 {
        0 => assert_eq!(fuzzing::stream(bytes), 0),
        1 => fuzzing::sealed_stream(bytes),
        2 => drop(fuzzing::hello(bytes)),
        _ => fuzzing::datagram(bytes),
    }
});
