//! Looks up, at the start, the classes by which the `jni` crate tells exceptions apart.
//!
//! The crate looks a class up when it first needs it, which allocates on Java's heap. Where the
//! heap is full, that throws an exception for which the crate needs the same class, and so on until
//! the stack is used up and the JVM ends without a message. A class that it has costs nothing more.

use jni::Env;
use jni::exceptions::{
    JArrayIndexOutOfBoundsException, JArrayStoreException, JClassCircularityError,
    JClassFormatError, JClassNotFoundException, JExceptionInInitializerError,
    JIllegalArgumentException, JIllegalMonitorStateException, JInstantiationException,
    JLinkageError, JNoClassDefFoundError, JNoSuchFieldError, JNoSuchMethodError,
    JNumberFormatException, JOutOfMemoryError, JSecurityException,
    JStringIndexOutOfBoundsException,
};
use jni::objects::{JClass, JClassLoader, JString, JThread, JThrowable};
use jni::refs::{LoaderContext, Reference};

use crate::bridge::Failure;

/// Heap that has to be free to begin with, many times what the look-ups take.
const ROOM_BYTES: i32 = 1 << 20;

/// Looks all of them up; fails with the JVM's `OutOfMemoryError` where there is no room for it.
pub(crate) fn prepare(env: &mut Env<'_>) -> Result<(), Failure> {
    let raw = env.get_raw();
    // SAFETY: the environment is this thread's with no exception pending; a reference that was
    // made is given up at once. By the crate, the failure would be the one to be prevented.
    unsafe {
        let room = ((**raw).v1_2.NewByteArray)(raw, ROOM_BYTES);
        if room.is_null() {
            return Err(jni::errors::Error::JavaException.into());
        }
        ((**raw).v1_2.DeleteLocalRef)(raw, room);
    }
    look_up::<JSecurityException<'_>>(env)?;
    look_up::<JOutOfMemoryError<'_>>(env)?;
    look_up::<JClass<'_>>(env)?;
    look_up::<JClassLoader<'_>>(env)?;
    look_up::<JString<'_>>(env)?;
    look_up::<JThread<'_>>(env)?;
    look_up::<JThrowable<'_>>(env)?;
    look_up::<JArrayIndexOutOfBoundsException<'_>>(env)?;
    look_up::<JArrayStoreException<'_>>(env)?;
    look_up::<JClassCircularityError<'_>>(env)?;
    look_up::<JClassFormatError<'_>>(env)?;
    look_up::<JClassNotFoundException<'_>>(env)?;
    look_up::<JExceptionInInitializerError<'_>>(env)?;
    look_up::<JIllegalArgumentException<'_>>(env)?;
    look_up::<JIllegalMonitorStateException<'_>>(env)?;
    look_up::<JInstantiationException<'_>>(env)?;
    look_up::<JLinkageError<'_>>(env)?;
    look_up::<JNoClassDefFoundError<'_>>(env)?;
    look_up::<JNoSuchFieldError<'_>>(env)?;
    look_up::<JNoSuchMethodError<'_>>(env)?;
    look_up::<JNumberFormatException<'_>>(env)?;
    look_up::<JStringIndexOutOfBoundsException<'_>>(env)?;
    Ok(())
}

fn look_up<T: Reference>(env: &Env<'_>) -> jni::errors::Result<()> {
    T::lookup_class(env, &LoaderContext::None).map(drop)
}
