//! What runs on the device in which order.

mod repeated;

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUevent_wait_flags, CUresult, CUstream};

use crate::context::Context;
use crate::error::{CudaError, driver};
use crate::memory::{Buffer, Pinned};
use crate::tape::Tape;
use crate::watched::Watched;

/// A queue of work, which the device does in its order and beside the program.
/// It waits for no other stream but by [`Stream::wait`].
///
/// Work that failed is told by a later call, [`Stream::synchronize`] at the
/// latest, and by all calls after that.
pub struct Stream {
    context: Arc<Context>,
    raw: CUstream,
    tape: Tape,
    /// Who knows of peers whose data this one waits for.
    watched: Option<Arc<Watched>>,
}

// SAFETY: a stream may be used by any thread, by several at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new queue.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        context.bind()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Self {
            context: context.clone(),
            raw: raw.map_err(driver("cuStreamCreate"))?,
            tape: Tape::default(),
            watched: None,
        })
    }

    /// From now on peers' data comes on it, and may be nobody's when it does.
    pub(crate) fn watched_by(&mut self, watched: Arc<Watched>) {
        self.watched = Some(watched);
    }

    /// No peers' data comes on it after all.
    pub(crate) fn watched_by_nobody(&mut self) {
        self.watched = None;
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// What is asked of it.
    pub(crate) fn tape(&self) -> &Tape {
        &self.tape
    }

    /// Refuses what a repetition would do with what the host had when it was recorded.
    fn refuse_while_recorded(&self) -> Result<(), CudaError> {
        match self.tape.listens() {
            false => Ok(()),
            true => Err(CudaError::Unsupported(
                "a pass that is repeated brings nothing from the host, whose memory is another's by then: this is a bug, and --disable-cuda-graph goes around it".to_owned(),
            )),
        }
    }

    /// Waits until all is done that was queued.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; also of work that was queued. [`CudaError::Peers`] where
    /// peers' data did not come: what the stream has brought is nobody's then.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: the stream lives.
        let done = unsafe { result::stream::synchronize(self.raw) };
        // A wait that was ended ends without an error.
        let arrived = self.watched.as_ref().map_or(Ok(()), |way| way.arrived());
        done.map_err(driver("cuStreamSynchronize"))?;
        arrived
    }

    /// Lets `event` happen when all is done that was queued.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both live.
        unsafe { result::event::record(event.raw, self.raw) }.map_err(driver("cuEventRecord"))
    }

    /// Waits until `event` happened, which was recorded on this one behind all that
    /// was queued: so peers' data before it is on its way no longer.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; also of work that was queued before it.
    /// [`CudaError::Peers`] where peers' data before it may not have come.
    pub(crate) fn reach(&self, event: &Event) -> Result<(), CudaError> {
        event.synchronize()?;
        self.watched.as_ref().map_or(Ok(()), |way| way.arrived())
    }

    /// Has what is queued from now on wait until `event` happened, as it was
    /// recorded last; the program does not wait.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live.
        let waits = unsafe { result::stream::wait_event(self.raw, event.raw, flags) };
        waits.map_err(driver("cuStreamWaitEvent"))
    }

    /// Sets all bytes.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn fill<T: Pod>(&self, buffer: &mut Buffer<T>, byte: u8) -> Result<(), CudaError> {
        let words = [buffer.address(), buffer.len() as u64, u64::from(byte)];
        if !self.tape.note(&words, &[]) {
            return Ok(());
        }
        self.context.bind()?;
        let bytes = buffer.len() * size_of::<T>();
        // SAFETY: any bits are a `T`, and there are as many bytes.
        let set = unsafe { result::memset_d8_async(buffer.address(), byte, bytes, self.raw) };
        set.map_err(driver("cuMemsetD8Async"))
    }

    /// Queues a copy of all of `from` to the beginning of `to`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If there is no room.
    pub fn copy<T: Pod>(&self, from: &Buffer<T>, to: &mut Buffer<T>) -> Result<(), CudaError> {
        assert!(from.len() <= to.len(), "a copy has room");
        let words = [from.address(), to.address(), from.len() as u64];
        if !self.tape.note(&words, &[]) {
            return Ok(());
        }
        self.context.bind()?;
        let bytes = from.len() * size_of::<T>();
        // SAFETY: there is room, and giving either back waits for the copy.
        let copies =
            unsafe { result::memcpy_dtod_async(to.address(), from.address(), bytes, self.raw) };
        copies.map_err(driver("cuMemcpyDtoDAsync"))
    }

    /// Copies `from` to the beginning of `to`, and waits.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If there is no room.
    pub fn upload<T: Pod>(&self, from: &[T], to: &mut Buffer<T>) -> Result<(), CudaError> {
        assert!(from.len() <= to.len(), "a copy has room");
        self.refuse_while_recorded()?;
        self.context.bind()?;
        // SAFETY: there is room, and `from` lives until the copy is done.
        let copies = unsafe { result::memcpy_htod_async(to.address(), from, self.raw) };
        copies.map_err(driver("cuMemcpyHtoDAsync"))?;
        self.synchronize()
    }

    /// Copies the beginning of `from`, and waits.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If `from` is shorter than `to`.
    pub fn download<T: Pod>(&self, from: &Buffer<T>, to: &mut [T]) -> Result<(), CudaError> {
        self.download_from(from, 0, to)
    }

    /// Copies `from`'s elements from place `at` on, and waits.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If there are fewer than in `to`.
    pub fn download_from<T: Pod>(
        &self,
        from: &Buffer<T>,
        at: usize,
        to: &mut [T],
    ) -> Result<(), CudaError> {
        let rest = from.len().checked_sub(at);
        let enough = rest.is_some_and(|rest| to.len() <= rest);
        assert!(enough, "there is as much to copy");
        self.refuse_while_recorded()?;
        self.context.bind()?;
        let address = from.address() + (at * size_of::<T>()) as u64;
        // SAFETY: there is as much, and `to` lives until the copy is done.
        let copies = unsafe { result::memcpy_dtoh_async(to, address, self.raw) };
        copies.map_err(driver("cuMemcpyDtoHAsync"))?;
        self.synchronize()
    }

    /// Queues a copy of `from`'s elements `part` to `to`, from place `at` on.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If either is shorter.
    ///
    /// # Safety
    /// `from` is neither changed nor dropped before the copy is done: an event
    /// that was recorded behind it happened.
    pub unsafe fn queue_upload<T: Pod>(
        &self,
        from: &Pinned<T>,
        part: Range<usize>,
        to: &mut Buffer<T>,
        at: usize,
    ) -> Result<(), CudaError> {
        let room = to.len().checked_sub(at);
        assert!(
            room.is_some_and(|room| part.len() <= room),
            "a copy has room"
        );
        self.refuse_while_recorded()?;
        self.context.bind()?;
        let from = &from.as_slice()[part];
        let address = to.address() + (at * size_of::<T>()) as u64;
        // SAFETY: there is room; the caller leaves `from` alone.
        let copies = unsafe { result::memcpy_htod_async(address, from, self.raw) };
        copies.map_err(driver("cuMemcpyHtoDAsync"))
    }

    /// Queues a copy of `from`'s first `len` elements to the beginning of `to`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// If either is shorter.
    ///
    /// # Safety
    /// `to` is neither looked at nor dropped before the copy is done: an event
    /// that was recorded behind it happened.
    pub unsafe fn queue_download<T: Pod>(
        &self,
        from: &Buffer<T>,
        to: &mut Pinned<T>,
        len: usize,
    ) -> Result<(), CudaError> {
        let to = &mut to.as_mut_slice()[..len];
        assert!(len <= from.len(), "there is as much to copy");
        self.refuse_while_recorded()?;
        self.context.bind()?;
        // SAFETY: there is as much; the caller leaves `to` alone.
        let copies = unsafe { result::memcpy_dtoh_async(to, from.address(), self.raw) };
        copies.map_err(driver("cuMemcpyDtoHAsync"))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: it was made once; the driver ends it when its work is done.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// A moment in a stream.
pub struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: an event may be used by any thread, by several at once.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A moment that was not recorded yet, and counts as past.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with(context, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// The same of a moment whose time the device notes.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn timed(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with(context, CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(context: &Arc<Context>, flags: CUevent_flags) -> Result<Self, CudaError> {
        context.bind()?;
        let raw = result::event::create(flags);
        Ok(Self {
            context: context.clone(),
            raw: raw.map_err(driver("cuEventCreate"))?,
        })
    }

    /// Seconds by the device's clock from another moment to this one. Both are
    /// [timed](Self::timed), were recorded, and happened.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn since(&self, earlier: &Self) -> Result<f64, CudaError> {
        self.context.bind()?;
        // SAFETY: both events live.
        let milliseconds = unsafe { result::event::elapsed(earlier.raw, self.raw) };
        let milliseconds = milliseconds.map_err(driver("cuEventElapsedTime"))?;
        Ok(f64::from(milliseconds) * 1e-3)
    }

    /// Whether it happened, as it was recorded last.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; also of work that was queued before it.
    pub fn happened(&self) -> Result<bool, CudaError> {
        self.context.bind()?;
        // SAFETY: the event lives.
        let state = unsafe { result::event::query(self.raw) };
        match state {
            Ok(()) => Ok(true),
            Err(error) if error.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(driver("cuEventQuery")(error)),
        }
    }

    /// Waits until it happened, as it was recorded last.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; also of work that was queued before it.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.raw) }.map_err(driver("cuEventSynchronize"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: it was made once, and waits for it go on.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}
