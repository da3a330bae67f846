//! Streams and events: the order of work on the device.

mod chain;
mod repeated;
mod waits;

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUevent_wait_flags, CUresult, CUstream};

use crate::error::{CudaError, driver};
use crate::runtime::{Buffer, Context, Pinned, Selection, Tape};
use chain::Chain;
use waits::Waits;

/// The watch over peers whose data comes on a stream.
pub(crate) trait Arrivals: Send + Sync {
    /// Confirms that all data on its way has arrived.
    ///
    /// # Errors
    /// [`CudaError::Peers`] if the data has not arrived. The contents of its memory are then
    /// undefined.
    fn arrived(&self) -> Result<(), CudaError>;
}

/// A queue of work. The device does the work in order, beside the program. A stream waits for
/// another stream only by [`Stream::wait`].
///
/// A failure of queued work is returned by a later call, at the latest by
/// [`Stream::synchronize`], and by all calls after that.
pub struct Stream {
    context: Arc<Context>,
    raw: CUstream,
    chain: Chain,
    tape: Tape,
    /// Kernels that run, for measurements.
    selection: Selection,
    /// The event that measurements record before the program waits.
    waits: Waits,
    /// The watch over peers whose data comes on this stream.
    watched: Option<Arc<dyn Arrivals>>,
}

// SAFETY: a stream may be used by any thread, by several at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Makes a new stream.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        context.bind()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Self {
            context: context.clone(),
            raw: raw.map_err(driver("cuStreamCreate"))?,
            chain: Chain::default(),
            tape: Tape::default(),
            selection: Selection::default(),
            waits: Waits::default(),
            watched: None,
        })
    }

    /// Says that peers' data comes on this stream from now on. It may be no data after a wait,
    /// so waits ask `watched` then.
    pub(crate) fn watched_by(&mut self, watched: Arc<dyn Arrivals>) {
        self.watched = Some(watched);
    }

    /// Says that no peers' data comes on this stream after all.
    pub(crate) fn watched_by_nobody(&mut self) {
        self.watched = None;
    }

    /// The opened GPU of this stream.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The tape that notes work asked of this stream.
    pub(crate) fn tape(&self) -> &Tape {
        &self.tape
    }

    /// The kernels that run of those asked of this stream.
    pub(crate) fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Refuses copies from or to the host while a pass is recorded: a repetition would use
    /// memory that may have another owner by then.
    fn refuse_while_recorded(&self) -> Result<(), CudaError> {
        match self.tape.listens() {
            false => Ok(()),
            true => Err(CudaError::Unsupported(
                "a pass that is repeated brings nothing from the host, whose memory is another's by then: this is a bug, and --disable-cuda-graph goes around it".to_owned(),
            )),
        }
    }

    /// Waits until all queued work is done.
    ///
    /// # Errors
    /// [`CudaError::Driver`], also of queued work; [`CudaError::Peers`] if peers' data did not
    /// come: the contents of the stream's results are then no data.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.begin_wait()?;
        self.context.bind()?;
        // SAFETY: the stream lives.
        let done = unsafe { result::stream::synchronize(self.raw()) };
        // An aborted wait ends without an error.
        let arrived = self.watched.as_ref().map_or(Ok(()), |way| way.arrived());
        done.map_err(driver("cuStreamSynchronize"))?;
        arrived
    }

    /// Makes `event` happen when all work queued so far is done.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both live.
        unsafe { result::event::record(event.raw, self.raw()) }.map_err(driver("cuEventRecord"))
    }

    /// Waits until `event` has happened. The event must have been recorded on this stream
    /// behind all queued work, so that no peers' data is on its way afterwards.
    ///
    /// # Errors
    /// [`CudaError::Driver`], also of work queued before the event; [`CudaError::Peers`] if
    /// peers' data before the event may not have come.
    pub(crate) fn reach(&self, event: &Event) -> Result<(), CudaError> {
        self.begin_wait()?;
        event.synchronize()?;
        self.watched.as_ref().map_or(Ok(()), |way| way.arrived())
    }

    /// Makes work queued from now on wait until the last recording of `event` has happened. The
    /// program does not wait.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live.
        let waits = unsafe { result::stream::wait_event(self.raw(), event.raw, flags) };
        waits.map_err(driver("cuStreamWaitEvent"))
    }

    /// Sets all bytes of `buffer` to `byte`.
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
        let set = unsafe { result::memset_d8_async(buffer.address(), byte, bytes, self.raw()) };
        set.map_err(driver("cuMemsetD8Async"))
    }

    /// Queues a copy of all of `from` to the beginning of `to`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if `to` is shorter than `from`.
    pub fn copy<T: Pod>(&self, from: &Buffer<T>, to: &mut Buffer<T>) -> Result<(), CudaError> {
        assert!(from.len() <= to.len(), "a copy has room");
        let words = [from.address(), to.address(), from.len() as u64];
        if !self.tape.note(&words, &[]) {
            return Ok(());
        }
        self.context.bind()?;
        let bytes = from.len() * size_of::<T>();
        // SAFETY: there is room, and dropping either buffer waits for the copy.
        let copies =
            unsafe { result::memcpy_dtod_async(to.address(), from.address(), bytes, self.raw()) };
        copies.map_err(driver("cuMemcpyDtoDAsync"))
    }

    /// Copies `from` to the beginning of `to`, and waits.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if `to` is shorter than `from`.
    pub fn upload<T: Pod>(&self, from: &[T], to: &mut Buffer<T>) -> Result<(), CudaError> {
        assert!(from.len() <= to.len(), "a copy has room");
        self.refuse_while_recorded()?;
        self.context.bind()?;
        // SAFETY: there is room, and `from` lives until the copy is done.
        let copies = unsafe { result::memcpy_htod_async(to.address(), from, self.raw()) };
        copies.map_err(driver("cuMemcpyHtoDAsync"))?;
        self.synchronize()
    }

    /// Copies the beginning of `from` to `to`, and waits.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if `from` is shorter than `to`.
    pub fn download<T: Pod>(&self, from: &Buffer<T>, to: &mut [T]) -> Result<(), CudaError> {
        self.download_from(from, 0, to)
    }

    /// Copies elements of `from`, from element `at` on, to `to`, and waits.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if there are fewer elements than in `to`.
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
        let copies = unsafe { result::memcpy_dtoh_async(to, address, self.raw()) };
        copies.map_err(driver("cuMemcpyDtoHAsync"))?;
        self.synchronize()
    }

    /// Queues a copy of elements `part` of `from` to `to`, from element `at` on.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if `part` lies outside of `from`, or `to` is too short.
    ///
    /// # Safety
    /// `from` is neither changed nor dropped before the copy is done. The copy is done when an
    /// event that was recorded behind it has happened.
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
        let copies = unsafe { result::memcpy_htod_async(address, from, self.raw()) };
        copies.map_err(driver("cuMemcpyHtoDAsync"))
    }

    /// Queues a copy of the first `len` elements of `from` to the beginning of `to`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Panics if `from` or `to` is shorter than `len`.
    ///
    /// # Safety
    /// `to` is neither read nor dropped before the copy is done. The copy is done when an event
    /// that was recorded behind it has happened.
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
        let copies = unsafe { result::memcpy_dtoh_async(to, from.address(), self.raw()) };
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

/// A place in a stream, and the moment when the device reaches it.
pub struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: an event may be used by any thread, by several at once.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Makes an event without a recording; it counts as past.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with(context, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Makes an event whose time the device notes.
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

    /// Seconds by the device's clock from `earlier` to this event. Both must be
    /// [timed](Self::timed), recorded, and past.
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

    /// Returns true if the last recording of the event has happened.
    ///
    /// # Errors
    /// [`CudaError::Driver`], also of work queued before the event.
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

    /// Waits until the last recording of the event has happened.
    ///
    /// # Errors
    /// [`CudaError::Driver`], also of work queued before the event.
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
