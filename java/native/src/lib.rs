//! The native library of the Hadoop file system `tide://`: the client library behind the Java
//! native interface (JNI).
//!
//! A native method converts its arguments, makes one call of the client library and converts the
//! answer; what files mean is decided there. The Java side is `java/hadoop`; `natives.rs` lists
//! all native methods.

mod arguments;
mod borrows;
mod bridge;
mod client;
mod exceptions;
mod file;
mod handle;
mod library;
mod names;
mod natives;
mod node_file;
mod panics;
mod reads;
mod remedy;
mod settings;
