//! The client library: reads and writes files of a parallel file system through the memory level of
//! this node, and without it where no node answers.
//!
//! A file is opened on the parallel file system with the caller's own credentials; the descriptor
//! is what a node serves by. Resident bytes are read without a message, a lock or an allocation.
//! The library is blocking, and its types may be used from many threads. After `fork` a child
//! makes a connection of its own.

mod alive;
mod binding;
mod borrowed;
mod client;
mod connection;
mod file;
mod lease;
mod link;
mod locate;
mod lower;
mod options;
mod path;
mod place;
mod quiet;
mod read_ahead;
mod root;
mod segment;
mod trace;
mod trace_state;
mod transfer;

pub use borrowed::{Borrowed, Retired};
pub use client::Client;
pub use file::File;
pub use options::{ClientOptions, Notice, OpenOptions, ReadPattern, ReadPlan};
pub use place::{MACHINE_SOCKET, default_socket, socket_to_ask};
pub use quiet::Quiet;
