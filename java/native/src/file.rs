//! Native methods of `NativeFile.java`: an open file, its bytes and its end.
//!
//! A read is one call. The calls named `held` read what this process holds itself and never wait,
//! which is why they may hold on to an array of Java's; what they cannot serve they say so of, and
//! the calls named `waiting` ask the node or the parallel file system.

use std::cell::RefCell;

use jni::objects::{JByteArray, JByteBuffer, JClass, JObjectArray, JString};
use jni::sys::{JNIEnv, jint, jlong};
use jni::{Env, EnvUnowned};
use tidepool_client::{File, OpenOptions};
use tidepool_proto::{Access, Error, ErrorKind};

use crate::bridge::{self, AtPath, Failure};
use crate::client;

/// What an open asks for, as `NativeFile.java` has it too.
const WRITES: jint = 1;
const READS: jint = 2;
const CREATE: jint = 4;
const CREATE_NEW: jint = 8;
const TRUNCATE: jint = 16;
const APPEND: jint = 32;

/// A `held` call has nothing: a `waiting` one must follow. Never a number of bytes.
const MUST_WAIT: jint = -2;
/// Bytes copied into an array of Java's at a time while the garbage collector stands by.
const HOLD_BYTES: usize = 256 << 10;
/// Bytes that a thread keeps for reads into arrays that wait, and for writes out of arrays.
const STAGE_BYTES: usize = 1 << 20;

thread_local! {
    static STAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a handle of `NativeFile` stands for.
#[derive(Debug)]
pub(crate) struct FileHandle {
    file: File,
}

/// # Safety
/// See [`bridge::borrow`].
unsafe fn of<'a>(handle: jlong) -> &'a File {
    // SAFETY: handles of `NativeFile` are made by `open` alone.
    &unsafe { bridge::borrow::<FileHandle>(handle) }.file
}

/// Opens `path`, Hadoop's name of a file.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeFile_open<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    client: jlong,
    path: JString<'local>,
    flags: jint,
    mode_bits: jint,
    options: JObjectArray<'local, JString<'local>>,
) -> jlong {
    bridge::run(&mut env, |env| {
        // SAFETY: `NativeHandle` keeps the handle while this runs.
        let client = unsafe { client::of(client) };
        let path = bridge::text(env, &path)?;
        let open = client.open_settings(env, &options)?;
        client.check_node().at(&path)?;
        let has = |flag| flags & flag != 0;
        let options = OpenOptions {
            access: match (has(READS), has(WRITES)) {
                (true, true) => Access::ReadWrite,
                (false, true) => Access::Write,
                (_, false) => Access::Read,
            },
            create: has(CREATE),
            create_new: has(CREATE_NEW),
            truncate: has(TRUNCATE),
            append: has(APPEND),
            mode_bits: mode_bits.cast_unsigned(),
            read_mode: open.read_mode,
            write_mode: open.write_mode,
        };
        let lower = client.lower_path(&path).at(&path)?;
        let file = client.client.open(lower, options).at(&path)?;
        Ok(bridge::handle(FileHandle { file }))
    })
}

/// Keeps the promise of the write mode and closes; the handle stays until it is freed.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeFile_finish<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
) {
    bridge::run(&mut env, |_| {
        // SAFETY: `NativeHandle` keeps the handle while this runs.
        Ok(unsafe { of(handle) }.finish()?)
    })
}

/// Frees the file, closing it if that did not happen yet.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeFile_release<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
) {
    bridge::run(&mut env, |_| {
        // SAFETY: `NativeHandle` frees each handle once, after its last use.
        drop(unsafe { bridge::free::<FileHandle>(handle) });
        Ok(())
    })
}

/// Length of the file in bytes.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeFile_size<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
) -> jlong {
    bridge::run(&mut env, |_| {
        // SAFETY: `NativeHandle` keeps the handle while this runs.
        Ok(unsafe { of(handle) }.size()?.cast_signed())
    })
}

/// What a read into Java's memory came to: bytes, 0 at the end of the file.
fn count(bytes: usize) -> jint {
    jint::try_from(bytes).unwrap_or(jint::MAX)
}

fn at_offset(offset: jlong) -> Result<u64, Error> {
    u64::try_from(offset).map_err(|_| {
        Error::new(ErrorKind::InvalidInput, "reading", format!("the offset {offset} is negative"))
    })
}

/// The bytes of a direct buffer from `position` on.
///
/// # Safety
/// The caller of the native method keeps the buffer, and its own bounds, as Java checked them.
unsafe fn direct<'a>(
    env: &Env<'_>,
    buffer: &'a JByteBuffer<'_>,
    position: jint,
    length: jint,
) -> Result<&'a mut [u8], Failure> {
    let address = env.get_direct_buffer_address(buffer)?;
    // SAFETY: position and length lie within the buffer, which Java checked.
    unsafe { Ok(std::slice::from_raw_parts_mut(address.add(position as usize), length as usize)) }
}

/// Reads what is held into a direct buffer.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeFile_readHeld<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
    offset: jlong,
    buffer: JByteBuffer<'local>,
    position: jint,
    length: jint,
) -> jint {
    bridge::run(&mut env, |env| {
        // SAFETY: `NativeHandle` keeps the handle while this runs.
        let file = unsafe { of(handle) };
        // SAFETY: `NativeFile` takes position and length from the buffer itself.
        let bytes = unsafe { direct(env, &buffer, position, length) }?;
        let outcome = file.read_held_at(at_offset(offset)?, bytes)?;
        Ok(outcome.map_or(MUST_WAIT, |outcome| count(outcome.bytes)))
    })
}

/// Reads into a direct buffer, waiting for the node or the parallel file system.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeFile_readWaiting<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
    offset: jlong,
    buffer: JByteBuffer<'local>,
    position: jint,
    length: jint,
) -> jint {
    bridge::run(&mut env, |env| {
        // SAFETY: `NativeHandle` keeps the handle while this runs.
        let file = unsafe { of(handle) };
        // SAFETY: `NativeFile` takes position and length from the buffer itself.
        let bytes = unsafe { direct(env, &buffer, position, length) }?;
        Ok(count(file.read_at(at_offset(offset)?, bytes)?.bytes))
    })
}

/// Reads what is held into an array.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeFile_readHeldArray<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
    offset: jlong,
    array: JByteArray<'local>,
    position: jint,
    length: jint,
) -> jint {
    let raw = env.as_raw();
    bridge::run(&mut env, |_| {
        // SAFETY: `NativeHandle` keeps the handle while this runs.
        let file = unsafe { of(handle) };
        let start = at_offset(offset)?;
        let mut done = 0;
        let wanted = length as usize;
        while done < wanted || wanted == 0 {
            let step = (wanted - done).min(HOLD_BYTES);
            let held = {
                // SAFETY: the environment is this call's; `NativeFile` checked the bounds.
                let mut hold = unsafe { Hold::new(raw, &array) }?;
                // SAFETY: as above.
                let bytes = unsafe { hold.bytes(position as usize + done, step) };
                file.read_held_at(start + done as u64, bytes)?
            };
            match held {
                None if done == 0 => return Ok(MUST_WAIT),
                None => break,
                Some(outcome) => done += outcome.bytes,
            }
            if held.is_some_and(|outcome| outcome.bytes < step) || wanted == 0 {
                break;
            }
        }
        Ok(count(done))
    })
}

/// An array of Java's held in place. While it lives the garbage collector stands by, so nothing may
/// wait, and no call of the JVM may be made.
struct Hold<'a, 'local> {
    env: *mut JNIEnv,
    array: &'a JByteArray<'local>,
    address: *mut u8,
}

impl<'a, 'local> Hold<'a, 'local> {
    /// # Safety
    /// `env` is that of this thread, with no exception pending.
    unsafe fn new(env: *mut JNIEnv, array: &'a JByteArray<'local>) -> Result<Self, Failure> {
        // SAFETY: the caller answers for the environment; the array is a live local reference.
        let address = unsafe {
            ((**env).v1_2.GetPrimitiveArrayCritical)(env, array.as_raw(), std::ptr::null_mut())
        };
        if address.is_null() {
            return Err(jni::errors::Error::NullPtr("GetPrimitiveArrayCritical").into());
        }
        Ok(Hold { env, array, address: address.cast() })
    }

    /// # Safety
    /// The range lies within the array.
    unsafe fn bytes(&mut self, position: usize, length: usize) -> &mut [u8] {
        // SAFETY: the array is held, and the caller answers for the range.
        unsafe { std::slice::from_raw_parts_mut(self.address.add(position), length) }
    }
}

impl Drop for Hold<'_, '_> {
    fn drop(&mut self) {
        // SAFETY: taken by `new` in the same thread and native method.
        unsafe {
            ((**self.env).v1_2.ReleasePrimitiveArrayCritical)(
                self.env,
                self.array.as_raw(),
                self.address.cast(),
                0,
            );
        }
    }
}

/// Runs `body` with the memory that this thread keeps, `length` bytes of it at most.
fn staged<T>(length: usize, body: impl FnOnce(&mut [u8]) -> T) -> T {
    STAGE.with_borrow_mut(|stage| {
        let length = length.min(STAGE_BYTES);
        if stage.len() < length {
            stage.resize(length.next_power_of_two().max(64 << 10), 0);
        }
        body(&mut stage[..length])
    })
}

/// Reads into an array, waiting for the node or the parallel file system.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeFile_readWaitingArray<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
    offset: jlong,
    array: JByteArray<'local>,
    position: jint,
    length: jint,
) -> jint {
    bridge::run(&mut env, |env| {
        // SAFETY: `NativeHandle` keeps the handle while this runs.
        let file = unsafe { of(handle) };
        let offset = at_offset(offset)?;
        staged(length as usize, |stage| {
            let outcome = file.read_at(offset, stage)?;
            let signed = as_signed(&stage[..outcome.bytes]);
            array.set_region(env, position, signed)?;
            Ok(count(outcome.bytes))
        })
    })
}

/// Bytes as Java counts them.
fn as_signed(bytes: &[u8]) -> &[i8] {
    // SAFETY: the two types have the same size and every pattern of bits is a value of both.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
}

/// Writes from a direct buffer at `offset`; where the file is open to append, at its end.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeFile_write<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
    offset: jlong,
    buffer: JByteBuffer<'local>,
    position: jint,
    length: jint,
) {
    bridge::run(&mut env, |env| {
        // SAFETY: `NativeHandle` keeps the handle while this runs.
        let file = unsafe { of(handle) };
        // SAFETY: `NativeFile` takes position and length from the buffer itself.
        let bytes = unsafe { direct(env, &buffer, position, length) }?;
        Ok(file.write_at(at_offset(offset)?, bytes)?)
    })
}

/// Makes what was written durable.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeFile_sync<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
) {
    bridge::run(&mut env, |_| {
        // SAFETY: `NativeHandle` keeps the handle while this runs.
        Ok(unsafe { of(handle) }.sync()?)
    })
}
