//! What native methods on open files share: offsets and direct buffers as Java passes them, and
//! waits that end when the thread is interrupted.

use jni::objects::JClass;
use jni::sys::{JNIEnv, jint, jlong, jobject};
use jni::{Env, jni_sig, jni_str};
use tidepool_proto::{Error, ErrorKind};

/// There is nothing without waiting, or no more waiting. Never a number of bytes.
pub(crate) const MUST_WAIT: jint = -2;

/// Whether the thread was interrupted; `class` is that of `NativeFile`. What cannot be asked for
/// ends no wait.
pub(crate) fn is_interrupted(env: &mut Env<'_>, class: &JClass<'_>) -> bool {
    let (name, signature) = (jni_str!("isInterrupted"), jni_sig!("()Z"));
    let asked = env.call_static_method(class, name, signature, &[]);
    asked.and_then(|interrupted| interrupted.z()).unwrap_or(false)
}

/// An offset as Java has it.
pub(crate) fn at_offset(offset: jlong) -> Result<u64, Error> {
    u64::try_from(offset).map_err(|_| {
        Error::new(ErrorKind::InvalidInput, "using a file", format!("the offset {offset} is < 0"))
    })
}

/// The bytes of a direct buffer from `position` on.
///
/// # Safety
/// `env` is that of this thread and `buffer` a live reference to a buffer; position and length lie
/// within it; the slice is gone before the native method ends, which keeps the buffer until then.
pub(crate) unsafe fn direct<'a>(
    env: *mut JNIEnv,
    buffer: jobject,
    position: jint,
    length: jint,
) -> Result<&'a mut [u8], Error> {
    // SAFETY: the environment is this thread's and the buffer a live local reference.
    let address = unsafe { ((**env).v1_4.GetDirectBufferAddress)(env, buffer) };
    if address.is_null() {
        let detail = "the buffer is not a direct one";
        return Err(Error::new(ErrorKind::InvalidInput, "using a buffer", detail));
    }
    // SAFETY: the caller answers for the range.
    unsafe {
        let start = address.cast::<u8>().add(position as usize);
        Ok(std::slice::from_raw_parts_mut(start, length as usize))
    }
}
