//! Native methods of `NativeFile.java` other than reads (`reads.rs`): open, close, length, writes
//! and hints.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jni::objects::{JByteBuffer, JClass, JLongArray, JObjectArray, JString};
use jni::sys::{jboolean, jint, jlong};
use jni::{Env, EnvUnowned};
use tidepool_client::{File, OpenOptions, ReadPattern, ReadPlan};
use tidepool_proto::{Access, BytesByLevel, Error, Level};

use crate::arguments::{MUST_WAIT, at_offset, direct, is_interrupted};
use crate::bridge::{self, AtPath, Failure};
use crate::client::ClientRef;
use crate::handle::{self, Handle};
use crate::names::Place;

/// What an open asks for, as `NativeFile.java` has it too.
const WRITES: jint = 1;
const READS: jint = 2;
const CREATE: jint = 4;
const CREATE_NEW: jint = 8;
const TRUNCATE: jint = 16;
const APPEND: jint = 32;

/// In which order a file will be read, as `NativeFile.java` has it too.
const PATTERNS: [ReadPattern; 4] =
    [ReadPattern::Unknown, ReadPattern::Sequential, ReadPattern::Whole, ReadPattern::Random];

/// What a handle of `NativeFile` stands for.
#[derive(Debug)]
pub(crate) struct FileHandle {
    pub(crate) file: File,
    /// Hadoop's path, for messages.
    pub(crate) path: String,
    /// Bytes that came from elsewhere than a segment held here, by level.
    levels: [AtomicU64; Level::ALL.len()],
    /// Java closed it: what waits for its bytes waits no more.
    waits_ended: AtomicBool,
}

impl FileHandle {
    /// Whether no thread is to wait for bytes any more.
    pub(crate) fn waits_ended(&self) -> bool {
        self.waits_ended.load(Ordering::Acquire)
    }

    /// Takes note of a read. Bytes of segments are the rest of all, so that a hit counts nothing.
    pub(crate) fn count(&self, levels: &BytesByLevel) {
        for (counter, level) in self.levels.iter().zip(Level::ALL) {
            let bytes = levels.get(level);
            if bytes > 0 && level != Level::Mapped {
                counter.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }
}

pub(crate) type FileRef = Handle<FileHandle>;

/// Runs `body` with an open file; errors carry its path.
pub(crate) fn with_file<T>(
    file: &FileHandle,
    body: impl FnOnce(&FileHandle) -> Result<T, Error>,
) -> Result<T, Failure> {
    body(file).at(&file.path)
}

/// What is known of the reads to come: a pattern, a first offset, and an end, negative for none.
fn plan(env: &Env<'_>, numbers: &JLongArray<'_>) -> Result<ReadPlan, Failure> {
    if numbers.is_null() {
        return Ok(ReadPlan::default());
    }
    let mut plan = [0; 3];
    numbers.get_region(env, 0, &mut plan)?;
    let [pattern, start, end] = plan.map(|number| u64::try_from(number).ok());
    let pattern = pattern.and_then(|number| PATTERNS.get(number as usize));
    Ok(ReadPlan { pattern: pattern.copied().unwrap_or_default(), start: start.unwrap_or(0), end })
}

/// Opens `path`, Hadoop's name of a file; `reads` is what is known of the reads to come. 0 where
/// the thread was interrupted while it waited for a node that alone has the bytes.
#[expect(clippy::too_many_arguments, reason = "those of the Java method")]
pub(crate) fn open(
    env: &mut Env<'_>,
    class: JClass<'_>,
    client: ClientRef,
    path: JString<'_>,
    flags: jint,
    mode_bits: jint,
    options: JObjectArray<'_, JString<'_>>,
    reads: JLongArray<'_>,
) -> Result<jlong, Failure> {
    let place = Place::of(env, &client.client, &path)?;
    let (path, lower) = (place.name, place.lower);
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
        mode_is_exact: true,
        read_mode: open.read_mode,
        write_mode: open.write_mode,
        plan: plan(env, &reads)?,
    };
    let mut go_on = || !is_interrupted(env, &class);
    let opened = client.client.open_while(&lower, options, &mut go_on).at(&path)?;
    let Some(file) = opened else { return Ok(0) };
    // It may have gone on without a node that did not answer.
    client.check_node().at(&path)?;
    if has(CREATE) || has(CREATE_NEW) {
        client.stripe(file.descriptor(), &open.stripe).at(&path)?;
    }
    let (levels, waits_ended) = Default::default();
    Ok(handle::give(FileHandle { file, path, levels, waits_ended }))
}

/// Keeps the promise of the write mode and closes; the handle stays until it is freed.
pub(crate) fn finish(file: &FileHandle) -> Result<(), Error> {
    file.file.finish()
}

/// Ends the waits of threads that read, and of those to come.
pub(crate) fn end_waits(mut env: EnvUnowned<'_>, _class: JClass<'_>, file: FileRef) {
    bridge::run_swiftly(&mut env, || {
        file.waits_ended.store(true, Ordering::Release);
        Ok(())
    });
}

/// Frees the file, closing it if that did not happen yet.
pub(crate) fn release(
    _env: &mut Env<'_>,
    _class: JClass<'_>,
    file: FileRef,
) -> Result<(), Failure> {
    // SAFETY: this is the end of the handle.
    drop(unsafe { file.free() });
    Ok(())
}

/// Length of the file in bytes; [`MUST_WAIT`] where the thread was interrupted, or the file closed,
/// while it waited for the node.
pub(crate) fn size(env: &mut Env<'_>, class: JClass<'_>, file: FileRef) -> Result<jlong, Failure> {
    let mut go_on = || !file.waits_ended() && !is_interrupted(env, &class);
    let size = file.file.size_while(&mut go_on).at(&file.path)?;
    Ok(size.map_or(jlong::from(MUST_WAIT), u64::cast_signed))
}

/// Length of the file in bytes when it was opened.
pub(crate) fn size_at_open(file: &FileHandle) -> Result<jlong, Error> {
    Ok(file.file.size_at_open().cast_signed())
}

/// Bytes by level that were not read from a segment held here, in the order of `Level::ALL`.
pub(crate) fn levels<'local>(
    env: &mut Env<'local>,
    _class: JClass<'_>,
    file: FileRef,
) -> Result<JLongArray<'local>, Failure> {
    let levels = &file.levels;
    let array = env.new_long_array(levels.len())?;
    let counts: Vec<jlong> =
        levels.iter().map(|level| level.load(Ordering::Relaxed).cast_signed()).collect();
    array.set_region(env, 0, &counts)?;
    Ok(array)
}

/// Has the node bring a range in, without waiting.
pub(crate) fn prefetch(file: &FileHandle, offset: jlong, length: jlong) -> Result<(), Error> {
    file.file.prefetch(at_offset(offset)?, length.max(0).cast_unsigned());
    Ok(())
}

/// Reads ahead this many bytes at most; negative for as many as the open said.
pub(crate) fn set_read_ahead(file: &FileHandle, bytes_max: jlong) -> Result<(), Error> {
    file.file.set_read_ahead(u64::try_from(bytes_max).ok());
    Ok(())
}

/// Says whether what is read and written is worth keeping.
pub(crate) fn set_keep(file: &FileHandle, keep: jboolean) -> Result<(), Error> {
    file.file.set_keep(keep);
    Ok(())
}

/// Whether what is written may end with the node.
pub(crate) fn may_be_lost(file: &FileHandle) -> Result<jboolean, Error> {
    Ok(file.file.may_be_lost())
}

/// Writes from a direct buffer at `offset`; where the file is open to append, at its end.
pub(crate) fn write(
    env: &mut Env<'_>,
    _class: JClass<'_>,
    file: FileRef,
    offset: jlong,
    buffer: JByteBuffer<'_>,
    position: jint,
    length: jint,
) -> Result<(), Failure> {
    let raw = env.get_raw();
    with_file(&file, |file| {
        // SAFETY: `NativeFile` takes position and length from the buffer itself.
        let bytes = unsafe { direct(raw, buffer.as_raw(), position, length) }?;
        file.file.write_at(at_offset(offset)?, bytes)
    })
}

/// Makes what was written durable.
pub(crate) fn sync(file: &FileHandle) -> Result<(), Error> {
    file.file.sync()
}
