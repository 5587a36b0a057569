//! The transport between nodes: small requests, and blocks straight from a segment's descriptor.
//!
//! Peers prove to each other that they hold the cluster's key; every frame carries a sequence
//! number and a code that only a key holder can make. A block goes from the holder's file to the
//! socket by `sendfile`, which queues pages and not bytes: the holder can change them until the
//! receiver has them. So the receiver asks again after it has all bytes, and only a holder that
//! confirms makes a fetch succeed. Threads block; there is no runtime. The protocol, and what it
//! does and does not protect from: `docs/design/peer-transport.md`.

mod client;
pub mod datagram;
mod error;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod key;
mod request;
mod server;
mod service;
mod socket;
mod tls;
mod wire;

pub use client::{Resolve, TcpTransport};
pub use error::{PeerError, Refusal};
pub use key::{Identity, KeyError, Seal, SharedKey};
pub use request::{BlockRequest, Integrity, Transport};
pub use server::{Counters, Fault, Limits, Server};
pub use service::{Block, Bytes, Service};
pub use tls::{Tls, TlsError, TlsFiles};
