//! Hadoop's way into Tidepool: the client library behind the Java native interface.
//!
//! Every native method converts its arguments, makes one call of the client library and converts
//! the answer; what files mean is decided there. The Java side is `java/hadoop`. An object of
//! Java's holds a handle, and its reference count (`NativeHandle.java`) keeps the handle valid
//! while any thread is inside a native method.

mod bridge;
mod client;
mod exceptions;
mod file;
mod loans;
mod names;
mod node_file;
mod panics;
mod reads;
mod remedy;
mod settings;

use jni::EnvUnowned;
use jni::objects::{JClass, JString};
use jni::sys::jint;
use tidepool_proto::hadoop::JAVA_ABI;

/// The version of these native methods. It alone must keep its form forever.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeLibrary_abi<'local>(
    _env: EnvUnowned<'local>,
    _class: JClass<'local>,
) -> jint {
    JAVA_ABI
}

/// Gets ready for calls that fail; to be called once, before any of them.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeLibrary_prepare<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
) {
    bridge::run(&mut env, |env| exceptions::prepare(env))
}

/// Panics, for the test that nothing but an exception comes of it.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeLibrary_panic<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    message: JString<'local>,
) {
    bridge::run(&mut env, |env| {
        let text = bridge::text(env, &message)?;
        panic!("{text}");
    })
}
