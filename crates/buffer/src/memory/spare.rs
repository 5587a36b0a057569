//! [`Spare`]: buffers of values that are gone, for those that come next. Else the allocator gives
//! them back to the system, which clears each page of those that it gives out again.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::budget::VALUE_OVERHEAD_BYTES;

/// Shorter ones are not kept: the allocator has them at hand.
const BYTES_MIN: usize = 64 << 10;
/// Most bytes that are kept.
const BYTES_MAX: usize = 16 << 20;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Spare(Mutex<VecDeque<Vec<u8>>>);

impl Spare {
    /// An empty buffer with room for so many bytes, and not for many more.
    pub fn take(&self, length: usize) -> Vec<u8> {
        // What is beyond counts nowhere.
        let most = length + VALUE_OVERHEAD_BYTES as usize / 2;
        let is_fit = |buffer: &Vec<u8>| (length..=most).contains(&buffer.capacity());
        let kept = if length < BYTES_MIN {
            None
        } else {
            let mut buffers = self.0.lock();
            let at = buffers.iter().rposition(is_fit);
            at.and_then(|at| buffers.remove(at))
        };
        kept.unwrap_or_else(|| Vec::with_capacity(length))
    }

    /// Keeps a buffer, in the place of those that nobody took for longest.
    pub fn give(&self, mut buffer: Vec<u8>) {
        if !(BYTES_MIN..=BYTES_MAX).contains(&buffer.capacity()) {
            return;
        }
        buffer.clear();
        let mut buffers = self.0.lock();
        buffers.push_back(buffer);
        let mut bytes: usize = buffers.iter().map(Vec::capacity).sum();
        while bytes > BYTES_MAX
            && let Some(oldest) = buffers.pop_front()
        {
            bytes -= oldest.capacity();
        }
    }

    /// Gives all back to the allocator.
    pub fn clear(&self) {
        drop(std::mem::take(&mut *self.0.lock()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_fits_is_given_out_again_without_its_bytes() {
        let spare = Spare::default();
        let mut buffer = spare.take(BYTES_MIN);
        buffer.resize(BYTES_MIN, 7);
        let place = buffer.as_ptr();
        spare.give(buffer);
        let (longer, shorter) = (spare.take(2 * BYTES_MIN), spare.take(BYTES_MIN / 2));
        assert!(longer.as_ptr() != place && shorter.as_ptr() != place, "they do not fit");
        let again = spare.take(BYTES_MIN);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
    }

    #[test]
    fn little_is_kept() {
        let spare = Spare::default();
        let kept = || spare.0.lock().iter().map(Vec::capacity).sum::<usize>();
        (0..100).for_each(|_| spare.give(Vec::with_capacity(1 << 20)));
        assert_eq!(kept(), BYTES_MAX);
        spare.give(Vec::with_capacity(BYTES_MAX + 1));
        spare.give(Vec::with_capacity(BYTES_MIN - 1));
        assert_eq!(kept(), BYTES_MAX);
        spare.clear();
        assert_eq!(kept(), 0);
    }
}
