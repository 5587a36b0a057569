//! Native methods of `NativeLibrary.java`: the version, and a panic for a test.

use jni::objects::{JClass, JString};
use jni::sys::jint;
use jni::{Env, EnvUnowned};
use tidepool_proto::hadoop::JAVA_ABI;

use crate::bridge::{self, Failure};

/// The version of the native methods.
pub(crate) fn abi(_env: EnvUnowned<'_>, _class: JClass<'_>) -> jint {
    JAVA_ABI
}

/// Panics, for the test that nothing but an exception comes of it.
pub(crate) fn panic(
    env: &mut Env<'_>,
    _class: JClass<'_>,
    message: JString<'_>,
) -> Result<(), Failure> {
    let text = bridge::text(env, &message)?;
    panic!("{text}");
}
