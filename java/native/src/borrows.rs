//! Native methods of `NativeLoan.java`: buffers over bytes of the node's memory, without a copy.
//!
//! Java may keep a buffer whose bytes were given back. Its addresses stay mapped, to zeros, until
//! no buffer refers to them any more: a late read gets zeros and does not end the JVM.

use jni::Env;
use jni::objects::{JByteBuffer, JClass, JLongArray};
use jni::sys::{jint, jlong};
use parking_lot::Mutex;
use tidepool_client::{Borrowed, Retired};

use crate::arguments::{at_offset, is_interrupted};
use crate::bridge::{AtPath, Failure};
use crate::file::FileRef;
use crate::handle::{self, Handle};

/// What a handle of `NativeLoan` stands for.
#[derive(Debug)]
pub(crate) struct LoanHandle(Mutex<State>);

pub(crate) type LoanRef = Handle<LoanHandle>;

#[derive(Debug)]
enum State {
    Lent(Borrowed),
    Returned(#[expect(dead_code, reason = "held for what its drop does")] Option<Retired>),
}

/// Borrows up to `length` bytes at `offset`; `null` where the node cannot lend, or the wait for it
/// was ended: the read that follows says why. The handle of the loan goes into `loan`. `file_class`
/// is `NativeFile`, which knows of interrupts.
pub(crate) fn lend<'local>(
    env: &mut Env<'local>,
    _class: JClass<'_>,
    file: FileRef,
    offset: jlong,
    length: jint,
    loan: JLongArray<'_>,
    file_class: JClass<'_>,
) -> Result<JByteBuffer<'local>, Failure> {
    let offset = at_offset(offset).at(&file.path)?;
    let mut go_on = || !file.waits_ended() && !is_interrupted(env, &file_class);
    let lent = file.file.lend_while(offset, length as usize, &mut go_on).at(&file.path)?;
    let Some(borrowed) = lent else { return Ok(JByteBuffer::null()) };
    if !borrowed.is_zero_copy() || borrowed.is_empty() {
        return Ok(JByteBuffer::null());
    }
    // SAFETY: the bytes stay mapped until the handle is freed, which Java does when nothing
    // refers to the buffer any more; Java sees it read-only.
    let buffer =
        unsafe { env.new_direct_byte_buffer(borrowed.as_ptr().cast_mut(), borrowed.len()) }?;
    file.count(&borrowed.outcome().levels);
    let handle = handle::give(LoanHandle(Mutex::new(State::Lent(borrowed))));
    loan.set_region(env, 0, &[handle])?;
    Ok(buffer)
}

/// Gives the bytes back to the node; the addresses stay.
pub(crate) fn give_back(
    _env: &mut Env<'_>,
    _class: JClass<'_>,
    loan: LoanRef,
) -> Result<(), Failure> {
    let mut state = loan.0.lock();
    if let State::Lent(borrowed) = std::mem::replace(&mut *state, State::Returned(None)) {
        *state = State::Returned(borrowed.retire());
    }
    Ok(())
}

/// Unmaps the addresses; nothing may refer to them any more.
pub(crate) fn unmap(_env: &mut Env<'_>, _class: JClass<'_>, loan: LoanRef) -> Result<(), Failure> {
    // SAFETY: this is the end of the handle.
    drop(unsafe { loan.free() });
    Ok(())
}
