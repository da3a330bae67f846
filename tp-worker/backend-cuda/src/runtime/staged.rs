//! Pinned memory from which copies run beside the program.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;

use crate::error::CudaError;
use crate::runtime::{Buffer, Context, Event, Pinned, Stream};

/// A source of copies. It is written and dropped only after the last copy from it: the driver
/// itself does not wait for copies.
pub(crate) struct Staged<T: Pod> {
    memory: Pinned<T>,
    /// Event behind the last copy.
    copied: Event,
    /// True from when a copy was queued until somebody has waited for it.
    on_its_way: bool,
}

impl<T: Pod> Staged<T> {
    /// Allocates `len` elements; `what` names them in errors.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub(crate) fn new(
        context: &Arc<Context>,
        len: usize,
        what: &'static str,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            memory: Pinned::new(context, len, what)?,
            copied: Event::new(context)?,
            on_its_way: false,
        })
    }

    /// The elements, mutable, after the last copy from them.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn elements(&mut self) -> Result<&mut [T], CudaError> {
        self.wait()?;
        Ok(self.memory.as_mut_slice())
    }

    /// Queues a copy of the elements `part` to `to`, from element `at` on.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if `part` lies outside of the elements, or `to` is too short.
    pub(crate) fn send(
        &mut self,
        stream: &Stream,
        part: Range<usize>,
        to: &mut Buffer<T>,
        at: usize,
    ) -> Result<(), CudaError> {
        // SAFETY: nobody reaches the elements but after `wait`.
        unsafe { stream.queue_upload(&self.memory, part, to, at) }?;
        if let Err(error) = stream.record(&self.copied) {
            // No event tells when the copy is done, so it has to be done now.
            let _ = stream.synchronize();
            return Err(error);
        }
        self.on_its_way = true;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), CudaError> {
        if self.on_its_way {
            // A caller that has waited for later work need not wait again.
            if !self.copied.happened()? {
                self.copied.synchronize()?;
            }
            self.on_its_way = false;
        }
        Ok(())
    }
}

impl<T: Pod> Drop for Staged<T> {
    fn drop(&mut self) {
        // If the wait fails, the device does nothing any more.
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Gpu;

    const LEN: usize = 1000;

    fn device(context: &Arc<Context>) -> Buffer<u32> {
        Buffer::new(context, LEN, "a test's").unwrap()
    }

    fn read(stream: &Stream, from: &Buffer<u32>) -> Vec<u32> {
        let mut values = vec![0; LEN];
        stream.download(from, &mut values).unwrap();
        values
    }

    #[test]
    fn what_was_sent_arrives_however_soon_its_source_changes_or_goes() {
        let context = Context::open(0).unwrap();
        let stream = Stream::new(&context).unwrap();
        let mut to = device(&context);
        for seed in 1..4 {
            let _order = lockstep_fake_cuda::order(seed);
            let mut staged = Staged::new(&context, LEN, "a test's").unwrap();
            staged.elements().unwrap().fill(1);
            staged.send(&stream, 0..LEN, &mut to, 0).unwrap();
            staged.elements().unwrap().fill(2);
            assert_eq!(read(&stream, &to), [1; LEN]);
            staged.send(&stream, 0..LEN, &mut to, 0).unwrap();
            drop(staged);
            assert_eq!(read(&stream, &to), [2; LEN]);
        }
    }

    /// If no event can follow a copy, the copy has ended when `send` returns.
    #[test]
    fn a_copy_that_no_event_follows_is_waited_for() {
        if Gpu::count().unwrap() < 2 {
            return; // An event of another GPU is what cannot be recorded.
        }
        let [context, other] = [0, 1].map(|number| Context::open(number).unwrap());
        let stream = Stream::new(&context).unwrap();
        let mut to = device(&context);
        let mut staged = Staged::new(&other, LEN, "a test's").unwrap();
        staged.elements().unwrap().fill(1);
        staged.send(&stream, 0..LEN, &mut to, 0).unwrap_err();
        staged.elements().unwrap().fill(2);
        assert_eq!(read(&stream, &to), [1; LEN]);
    }
}
