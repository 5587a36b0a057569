//! Handles: values of the library that Java objects hold as a `long`.

use std::marker::PhantomData;
use std::ops::Deref;

use jni::sys::jlong;

/// A value that Java was given by [`give`] and passes to a native method.
///
/// Each is passed by Java alone, for the type that it was given for, and freed once, after the last
/// native method that uses it: `NativeHandle.java` counts the threads inside them.
#[repr(transparent)]
pub(crate) struct Handle<T>(jlong, PhantomData<T>);

/// Gives a value to Java, which returns it by a native method that calls [`Handle::free`].
pub(crate) fn give<T>(value: T) -> jlong {
    Box::into_raw(Box::new(value)) as jlong
}

impl<T> Handle<T> {
    /// The number by which Java has it.
    pub(crate) fn number(&self) -> jlong {
        self.0
    }

    /// Takes the value back.
    ///
    /// # Safety
    /// This native method is the one by which Java frees the value.
    pub(crate) unsafe fn free(self) -> T {
        // SAFETY: `give` made it of a box of this type, and nothing uses it after this call.
        *unsafe { Box::from_raw(self.0 as *mut T) }
    }
}

impl<T> Deref for Handle<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `give` made it of a box of this type. Java frees it when no thread is inside a
        // native method with it any more, and the reference ends with the method.
        unsafe { &*(self.0 as *const T) }
    }
}
