//! How native methods fail: [`Throw`], the policy of all of them, throws errors and panics as the
//! exceptions that callers of Hadoop expect. Nothing unwinds into the JVM.
//!
//! `NativeFailure.java` decides which exception an error becomes.

use std::any::Any;
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use jni::errors::ErrorPolicy;
use jni::objects::{JObjectArray, JString, JThrowable, JValue};
use jni::{Env, EnvUnowned, jni_sig, jni_str};
use tidepool_proto::{Error, ErrorKind};

use crate::{panics, remedy};

/// Why a native method ends without a value.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The product refused; the path is that of Hadoop, where there is one.
    Product {
        /// What went wrong.
        error: Error,
        /// The path that the caller knows, or empty.
        path: String,
    },
    /// The JVM refused; an exception may be pending.
    Machine(jni::errors::Error),
}

impl Failure {
    /// The same with the path that the caller knows, and what can be done about it.
    pub(crate) fn at(self, path: &str) -> Failure {
        match self {
            Failure::Product { error, path: known } if known.is_empty() => {
                Failure::Product { error: remedy::with_remedy(error), path: path.to_owned() }
            }
            other => other,
        }
    }
}

impl From<jni::errors::Error> for Failure {
    fn from(error: jni::errors::Error) -> Self {
        Failure::Machine(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Product { error, path: String::new() }
    }
}

/// Adds the path that the caller knows to an error of the product.
pub(crate) trait AtPath<T> {
    /// The same with `path`.
    fn at(self, path: &str) -> Result<T, Failure>;
}

impl<T> AtPath<T> for Result<T, Error> {
    fn at(self, path: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure::from(error).at(path))
    }
}

/// Runs the body of a `raw` native method as `native_method!` does it for others: what it fails
/// with, and what it panics with, is thrown; the value returned then is never seen by Java.
pub(crate) fn run<'local, T: Default>(
    env: &mut EnvUnowned<'local>,
    body: impl FnOnce(&mut Env<'local>) -> Result<T, Failure>,
) -> T {
    env.with_env(body).resolve::<Throw>()
}

/// As [`run`], for bodies that make no call of the JVM's that could fail: nothing is set up for
/// them unless they do not come to a value.
pub(crate) fn run_swiftly<T: Default>(
    env: &mut EnvUnowned<'_>,
    body: impl FnOnce() -> Result<T, Failure>,
) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => run(env, |_| Err(failure)),
        Err(payload) => run(env, |_| resume_unwind(payload)),
    }
}

/// How a native method ends that has no value: by an exception.
pub(crate) struct Throw;

impl<T: Default> ErrorPolicy<T, Failure> for Throw {
    type Captures<'outer: 'method, 'method> = ();

    fn on_error<'outer: 'method, 'method>(
        env: &mut Env<'outer>,
        _captures: &mut (),
        failure: Failure,
    ) -> jni::errors::Result<T> {
        if env.exception_check() {
            return Ok(T::default());
        }
        match failure {
            Failure::Product { error, path } => throw_surely(env, &error, &path),
            // What the JVM threw was caught; there may be heap again by now.
            Failure::Machine(jni::errors::Error::JniCall(jni::errors::JniError::NoMemory)) => {
                let text = "no heap for what the native library answers";
                throw_plainly(env, c"java/lang/OutOfMemoryError", text);
            }
            Failure::Machine(error) => {
                let error = Error::new(ErrorKind::Internal, "calling Java", error.to_string());
                throw_surely(env, &error, "");
            }
        }
        Ok(T::default())
    }

    fn on_panic<'outer: 'method, 'method>(
        env: &mut Env<'outer>,
        _captures: &mut (),
        payload: Box<dyn Any + Send + 'static>,
    ) -> jni::errors::Result<T> {
        if env.exception_check() {
            return Ok(T::default());
        }
        let text = match payload.downcast::<String>() {
            Ok(text) => *text,
            Err(payload) => payload
                .downcast::<&'static str>()
                .map_or_else(|_| "no message".to_owned(), |text| (*text).to_owned()),
        };
        let text = match panics::place() {
            Some(place) => format!("{text}, at {place}"),
            None => text,
        };
        let error = Error::new(ErrorKind::Internal, "in the native library", text)
            .remedy("this is a bug of Tidepool; please report it");
        throw_surely(env, &error, "");
        Ok(T::default())
    }

    fn on_internal_jni_error<'outer: 'method, 'method>(
        _captures: &mut (),
        _error: jni::errors::Error,
    ) -> T {
        give_up()
    }

    fn on_internal_panic<'outer: 'method, 'method>(
        _captures: &mut (),
        _payload: Box<dyn Any + Send + 'static>,
    ) -> T {
        give_up()
    }
}

/// The JVM takes no exception. To return would tell Java that what failed was done.
fn give_up() -> ! {
    std::process::abort()
}

/// Throws `error` as what Hadoop's callers expect; where the JVM cannot make that, for want of heap
/// or of a class, as a plain `IOException`, or else the JVM's own `OutOfMemoryError`.
fn throw_surely(env: &mut Env<'_>, error: &Error, path: &str) {
    let thrown = catch_unwind(AssertUnwindSafe(|| throw(env, error, path)));
    if matches!(thrown, Ok(Ok(()))) || env.exception_check() {
        return;
    }
    let text = if path.is_empty() { error.to_string() } else { format!("{path}: {error}") };
    throw_plainly(env, c"java/io/IOException", &text);
}

/// Throws an exception of a class of the JVM's, or another one where that fails.
fn throw_plainly(env: &mut Env<'_>, class: &CStr, text: &str) {
    // Modified UTF-8, which plain ASCII is too.
    let text: String =
        text.chars().map(|it| if it.is_ascii() && it != '\0' { it } else { '?' }).collect();
    let text = CString::new(text).unwrap_or_default();
    let raw = env.get_raw();
    // SAFETY: the environment is this thread's with no exception pending; both texts end with NUL.
    // Either call leaves an exception pending where it fails.
    unsafe {
        let class = ((**raw).v1_2.FindClass)(raw, class.as_ptr());
        if !class.is_null() {
            ((**raw).v1_2.ThrowNew)(raw, class, text.as_ptr());
        }
    }
    if !env.exception_check() {
        let text = c"Tidepool cannot tell Java of an error";
        // SAFETY: the environment is this thread's; the text ends with NUL. It does not return.
        unsafe { ((**raw).v1_1.FatalError)(raw, text.as_ptr()) };
    }
}

fn throw(env: &mut Env<'_>, error: &Error, path: &str) -> jni::errors::Result<()> {
    let kind = env.new_string(format!("{:?}", error.kind()))?;
    let message = env.new_string(error.to_string())?;
    let path = env.new_string(path)?;
    // Looked up each time: the library may serve several class loaders, each with its own class.
    let class = env.find_class(jni_str!("io/tidepool/hadoop/NativeFailure"))?;
    let made = env.call_static_method(
        class,
        jni_str!("exception"),
        jni_sig!("(Ljava/lang/String;ILjava/lang/String;Ljava/lang/String;)Ljava/lang/Throwable;"),
        &[
            JValue::Object(kind.as_ref()),
            JValue::Int(error.errno()),
            JValue::Object(message.as_ref()),
            JValue::Object(path.as_ref()),
        ],
    )?;
    let throwable = env.cast_local::<JThrowable>(made.l()?)?;
    match env.throw(throwable) {
        // This is how it says that it worked.
        Err(jni::errors::Error::JavaException) | Ok(()) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The text of a Java string; empty for `null`.
pub(crate) fn text(env: &Env<'_>, string: &JString<'_>) -> Result<String, Failure> {
    if string.is_null() {
        return Ok(String::new());
    }
    Ok(string.try_to_string(env)?)
}

/// Texts of a Java array of keys and values in turn; none for `null`.
pub(crate) fn pairs(
    env: &mut Env<'_>,
    array: &JObjectArray<'_, JString<'_>>,
) -> Result<Vec<(String, String)>, Failure> {
    if array.is_null() {
        return Ok(Vec::new());
    }
    let count = array.len(env)?;
    let mut texts = Vec::with_capacity(count);
    for index in 0..count {
        // Freed at once: a configuration may have more keys than a frame has room for.
        let element = array.get_element(env, index)?;
        texts.push(text(env, &element)?);
        env.delete_local_ref(element);
    }
    Ok(texts.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
}
