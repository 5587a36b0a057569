//! Native methods of `NativeLoan.java`: bytes of the node's memory lent to Java without a copy.
//!
//! Java may hold on to a buffer that it gave back. The addresses stay mapped, to zeros, until Java
//! holds no buffer on them any more, so that a late read is a wrong answer and not a crash.

use jni::EnvUnowned;
use jni::objects::{JByteBuffer, JClass, JLongArray};
use jni::sys::{jint, jlong};
use parking_lot::Mutex;
use tidepool_client::{Borrowed, Retired};

use crate::bridge::{self, AtPath};
use crate::file;
use crate::reads::{at_offset, is_interrupted};

/// What a handle of `NativeLoan` stands for.
#[derive(Debug)]
struct LoanHandle(Mutex<State>);

#[derive(Debug)]
enum State {
    Lent(Borrowed),
    Returned(#[expect(dead_code, reason = "held for what its drop does")] Option<Retired>),
}

/// Borrows up to `length` bytes at `offset`; `null` where the node cannot lend, or nobody waits for
/// it any more: what reads instead says why. The handle of the loan goes into `loan`. `file_class`
/// is `NativeFile`, which knows of interrupts.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeLoan_lend<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
    offset: jlong,
    length: jint,
    loan: JLongArray<'local>,
    file_class: JClass<'local>,
) -> JByteBuffer<'local> {
    bridge::run(&mut env, |env| {
        // SAFETY: `NativeHandle` keeps the handle while this runs.
        let file = unsafe { file::of(handle) };
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
        let handle = bridge::handle(LoanHandle(Mutex::new(State::Lent(borrowed))));
        loan.set_region(env, 0, &[handle])?;
        Ok(buffer)
    })
}

/// Gives the bytes back to the node; the addresses stay.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeLoan_giveBack<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
) {
    bridge::run(&mut env, |_| {
        // SAFETY: `NativeHandle` keeps the handle while this runs.
        let LoanHandle(state) = unsafe { bridge::borrow(handle) };
        let mut state = state.lock();
        if let State::Lent(borrowed) = std::mem::replace(&mut *state, State::Returned(None)) {
            *state = State::Returned(borrowed.retire());
        }
        Ok(())
    })
}

/// Unmaps the addresses; nothing may refer to them any more.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeLoan_unmap<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    handle: jlong,
) {
    bridge::run(&mut env, |_| {
        // SAFETY: `NativeHandle` frees each handle once, after its last use.
        drop(unsafe { bridge::free::<LoanHandle>(handle) });
        Ok(())
    })
}
