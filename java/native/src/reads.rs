//! Native methods of `NativeFile.java` that read: one call a read, whatever its kind.
//!
//! A read first copies what this process holds itself. It does not wait, so an array of Java's may
//! be held in place meanwhile; where nothing is held, it answers [`MUST_WAIT`]. A second call that
//! `waits` asks the node or the parallel file system, and answers the same when its thread is
//! interrupted or the file is closed meanwhile.

use jni::objects::{JByteArray, JByteBuffer, JClass, JIntArray, JLongArray, JObject, JObjectArray};
use jni::sys::{JNIEnv, jboolean, jint, jlong};
use jni::{Env, EnvUnowned};
use parking_lot::Mutex;
use tidepool_client::Quiet;
use tidepool_proto::{Error, ReadOutcome};

use crate::arguments::{MUST_WAIT, at_offset, direct, is_interrupted};
use crate::bridge::{self, AtPath, Failure};
use crate::file::{FileHandle, FileRef};

/// Bytes copied into an array of Java's at a time while the garbage collector stands by.
const HOLD_BYTES: usize = 256 << 10;
/// Bytes that come at a time into an array whose read waits.
const STAGE_BYTES: usize = 1 << 20;
/// Memory for such reads that is kept for the next one, whatever the number of threads.
const STAGES_KEPT: usize = 4;

static STAGES: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// What a read into Java's memory came to: bytes, 0 at the end of the file.
fn count(bytes: usize) -> jint {
    jint::try_from(bytes).unwrap_or(jint::MAX)
}

/// As `count`, with note taken of where the bytes were from.
fn counted(file: &FileHandle, outcome: Option<ReadOutcome>) -> jint {
    outcome.map_or(MUST_WAIT, |outcome| {
        file.count(&outcome.levels);
        count(outcome.bytes)
    })
}

/// Reads what this process holds. What came of it goes to [`told`] when nothing is held in place.
fn read_held(
    file: &FileHandle,
    offset: jlong,
    bytes: &mut [u8],
) -> Result<Option<ReadOutcome>, Error> {
    file.file.read_held_at(at_offset(offset)?, bytes)
}

/// As `counted`, and the node may read ahead.
fn told(file: &FileHandle, offset: jlong, outcome: Option<ReadOutcome>) -> jint {
    if let Some(outcome) = &outcome {
        file.file.read_on(offset.cast_unsigned(), outcome);
    }
    counted(file, outcome)
}

/// Reads, waiting until the bytes are there, the thread is interrupted, or the file is closed.
fn read_waiting(
    env: &mut Env<'_>,
    class: &JClass<'_>,
    file: &FileHandle,
    offset: jlong,
    bytes: &mut [u8],
) -> Result<jint, Error> {
    let mut go_on = || !file.waits_ended() && !is_interrupted(env, class);
    let outcome = file.file.read_at_while(at_offset(offset)?, bytes, &mut go_on)?;
    Ok(counted(file, outcome))
}

/// Reads into a direct buffer.
#[expect(clippy::too_many_arguments, reason = "those of the Java method")]
pub(crate) fn read_direct(
    mut env: EnvUnowned<'_>,
    class: JClass<'_>,
    file: FileRef,
    offset: jlong,
    buffer: JByteBuffer<'_>,
    position: jint,
    length: jint,
    waits: jboolean,
) -> jint {
    let raw = env.as_raw();
    // SAFETY: `NativeFile` takes position and length from the buffer itself.
    let bytes = || unsafe { direct(raw, buffer.as_raw(), position, length) };
    if waits {
        return bridge::run(&mut env, |env| {
            let read = bytes().and_then(|bytes| read_waiting(env, &class, &file, offset, bytes));
            read.at(&file.path)
        });
    }
    bridge::run_swiftly(&mut env, || {
        let read = bytes().and_then(|bytes| read_held(&file, offset, bytes)).at(&file.path)?;
        Ok(told(&file, offset, read))
    })
}

/// Reads into an array.
#[expect(clippy::too_many_arguments, reason = "those of the Java method")]
pub(crate) fn read_array(
    mut env: EnvUnowned<'_>,
    class: JClass<'_>,
    file: FileRef,
    offset: jlong,
    array: JByteArray<'_>,
    position: jint,
    length: jint,
    waits: jboolean,
) -> jint {
    let raw = env.as_raw();
    if waits {
        return bridge::run(&mut env, |env| {
            staged(length as usize, |stage| {
                let read = read_waiting(env, &class, &file, offset, stage).at(&file.path)?;
                let bytes = usize::try_from(read).unwrap_or(0);
                array.set_region(env, position, as_signed(&stage[..bytes]))?;
                Ok(read)
            })
        });
    }
    bridge::run_swiftly(&mut env, || {
        // SAFETY: the environment is this thread's; `NativeFile` checked the bounds.
        unsafe { read_held_array(raw, &file, offset, &array, position, length) }
    })
}

/// # Safety
/// `env` is that of this thread with no exception pending; position and length lie in the array.
unsafe fn read_held_array(
    env: *mut JNIEnv,
    file: &FileHandle,
    offset: jlong,
    array: &JByteArray<'_>,
    position: jint,
    length: jint,
) -> Result<jint, Failure> {
    let wanted = length as usize;
    let mut done = 0;
    loop {
        let step = (wanted - done).min(HOLD_BYTES);
        let at = offset + done as jlong;
        let read = {
            // SAFETY: the caller answers for both.
            let mut hold = unsafe { Hold::new(env, array) }?;
            // SAFETY: as above.
            let bytes = unsafe { hold.bytes(position as usize + done, step) };
            read_held(file, at, bytes)
        };
        let bytes = match told(file, at, read.at(&file.path)?) {
            MUST_WAIT if done == 0 => return Ok(MUST_WAIT),
            MUST_WAIT => return Ok(count(done)),
            bytes => bytes as usize,
        };
        done += bytes;
        if done == wanted || bytes < step {
            return Ok(count(done));
        }
    }
}

/// An array of Java's held in place. While it lives the garbage collector stands by, so nothing may
/// wait, and no call of the JVM may be made.
struct Hold<'a, 'local> {
    env: *mut JNIEnv,
    array: &'a JByteArray<'local>,
    address: *mut u8,
    _quiet: Quiet,
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
        Ok(Hold { env, array, address: address.cast(), _quiet: Quiet::begin() })
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

/// Runs `body` with memory outside of Java's heap, `length` bytes of it at most.
fn staged<T>(length: usize, body: impl FnOnce(&mut [u8]) -> T) -> T {
    let length = length.min(STAGE_BYTES);
    let mut stage = STAGES.lock().pop().unwrap_or_default();
    if stage.len() < length {
        stage = vec![0; length.next_power_of_two().max(64 << 10)];
    }
    let result = body(&mut stage[..length]);
    let mut stages = STAGES.lock();
    if stages.len() < STAGES_KEPT {
        stages.push(stage);
    }
    result
}

/// Bytes as Java counts them.
fn as_signed(bytes: &[u8]) -> &[i8] {
    // SAFETY: the two types have the same size and every pattern of bits is a value of both.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
}

/// Reads many ranges of what is held in one call, and has the node bring in the rest. Each target
/// is a direct buffer or an array; `places` has a position and a length for each. What came of a
/// range replaces its length: bytes, or that it must wait.
pub(crate) fn read_ranges_held(
    env: &mut Env<'_>,
    _class: JClass<'_>,
    file: FileRef,
    offsets: JLongArray<'_>,
    targets: JObjectArray<'_, JObject<'_>>,
    places: JIntArray<'_>,
) -> Result<(), Failure> {
    let raw = env.get_raw();
    let ranges = offsets.len(env)?;
    let mut starts = vec![0; ranges];
    offsets.get_region(env, 0, &mut starts)?;
    let mut numbers = vec![0; 2 * ranges];
    places.get_region(env, 0, &mut numbers)?;
    for (offset, place) in starts.iter().zip(numbers.chunks_exact(2)) {
        file.file.prefetch_missing(at_offset(*offset).at(&file.path)?, place[1] as u64);
    }
    for index in 0..ranges {
        let (position, length) = (numbers[2 * index], numbers[2 * index + 1]);
        let target = targets.get_element(env, index)?;
        // SAFETY: a local reference of this frame, used under its true type below.
        let array = unsafe { JByteArray::from_raw(env, target.as_raw()) };
        // SAFETY: as above.
        let buffer = unsafe { JByteBuffer::from_raw(env, target.as_raw()) };
        // SAFETY: the environment is this thread's, the object a live local reference.
        let address = unsafe { ((**raw).v1_4.GetDirectBufferAddress)(raw, buffer.as_raw()) };
        numbers[2 * index + 1] = if address.is_null() {
            // SAFETY: `VectoredRead.java` passes arrays where buffers are not direct, and
            // places within them.
            unsafe { read_held_array(raw, &file, starts[index], &array, position, length) }?
        } else {
            // SAFETY: `VectoredRead.java` passes places within the buffers.
            let bytes = unsafe { direct(raw, buffer.as_raw(), position, length) }.at(&file.path)?;
            let read = read_held(&file, starts[index], bytes).at(&file.path)?;
            told(&file, starts[index], read)
        };
        env.delete_local_ref(target);
    }
    places.set_region(env, 0, &numbers)?;
    Ok(())
}
