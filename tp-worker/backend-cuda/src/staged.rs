//! Pinned memory from which copies run beside the program.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;

use crate::context::Context;
use crate::error::CudaError;
use crate::memory::{Buffer, Pinned};
use crate::stream::{Event, Stream};

/// A source of copies. It is written and given back only when the last copy from
/// it is done: the driver itself waits for neither.
pub(crate) struct Staged<T: Pod> {
    memory: Pinned<T>,
    /// The last copy from here is done.
    copied: Event,
    /// A copy was queued that nobody has waited for.
    on_its_way: bool,
}

impl<T: Pod> Staged<T> {
    /// Takes room for `len` elements of `what`.
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

    /// The elements, to change, once the last copy from here is done.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn elements(&mut self) -> Result<&mut [T], CudaError> {
        self.wait()?;
        Ok(self.memory.as_mut_slice())
    }

    /// Queues a copy of the elements `part` to `to`, from place `at` on.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If either is shorter.
    pub(crate) fn send(
        &mut self,
        stream: &Stream,
        part: Range<usize>,
        to: &mut Buffer<T>,
        at: usize,
    ) -> Result<(), CudaError> {
        // SAFETY: nobody gets to the elements but after `wait`.
        unsafe { stream.queue_upload(&self.memory, part, to, at) }?;
        if let Err(error) = stream.record(&self.copied) {
            // The event does not tell when the copy is done, so it has to be now.
            let _ = stream.synchronize();
            return Err(error);
        }
        self.on_its_way = true;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), CudaError> {
        if self.on_its_way {
            // Who has waited for what came behind the copy need not wait again.
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
        // Where waiting fails, the device does nothing any more.
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;

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

    /// Where the end of a copy cannot be told, it has ended.
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
