//! Streams of frames through a socket, as either side receives them: no panic, no waiting for what
//! does not come, and no more memory than what came.

#![no_main]

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use tidepool_proto::wire::socket::receive_frame;
use tidepool_proto::wire::{FrameLimits, decode_reply, decode_request};

fuzz_target!(|bytes: &[u8]| {
    let Some((direction, bytes)) = bytes.split_first() else { return };
    let limits = if direction & 1 == 0 { FrameLimits::REQUEST } else { FrameLimits::REPLY };
    let (mut sender, receiver) = UnixStream::pair().expect("a pair of sockets");
    // As much as a socket holds without a reader.
    let bytes = &bytes[..bytes.len().min(64 << 10)];
    sender.write_all(bytes).expect("the socket takes it");
    drop(sender);
    let mut received = 0;
    let timeout = Duration::from_secs(5);
    while let Ok(frame) =
        receive_frame(receiver.as_fd(), limits, Some(Instant::now() + timeout), timeout)
    {
        received += frame.body.len() + frame.payload.len();
        assert!(received <= bytes.len());
        assert!(frame.body.capacity() <= 2 * bytes.len() + (64 << 10));
        let _ = decode_request(&frame.body);
        let _ = decode_reply(&frame.body);
    }
});
