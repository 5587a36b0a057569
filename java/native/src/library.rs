//! Native methods of `NativeLibrary.java`: the version, and what goes before all other methods.

use jni::objects::{JClass, JString};
use jni::sys::jint;
use jni::{Env, EnvUnowned};
use tidepool_proto::hadoop::JAVA_ABI;

use crate::bridge::{self, Failure};
use crate::{exceptions, natives};

/// The version of the native methods.
pub(crate) fn abi(_env: EnvUnowned<'_>, _class: JClass<'_>) -> jint {
    JAVA_ABI
}

/// Gets ready for calls that fail, and registers all other native methods. Called once a class
/// loader, before any of them.
pub(crate) fn prepare(env: &mut Env<'_>, _class: JClass<'_>) -> Result<(), Failure> {
    exceptions::prepare(env)?;
    natives::register(env)
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
