//! Times by the device's own clock, and the speed of its memory.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::runtime::{Buffer, CLOCK, Compiler, Context, Defines, Event, Kernel, Module, Stream};

const THREADS: u32 = 256;
/// Threads of a block that does nothing.
const EMPTY_THREADS: u32 = 128;
/// Most blocks of the kernel that reads: a few for each multiprocessor of any GPU.
const BLOCKS: u32 = 2048;
/// Bytes that the kernel reads at a time.
const UNIT: usize = 16;

/// `Read` of `read.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Parameters {
    from: u64,
    out: u64,
    units: u64,
    pad: u64,
}

/// `Empty` of `empty.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Nothing {
    pad: u64,
}

/// Two large arrays, and events before and behind the measured work.
pub(crate) struct Meter {
    read: Kernel<Parameters>,
    empty: Kernel<Nothing>,
    from: Buffer<u8>,
    to: Buffer<u8>,
    begun: Event,
    ended: Arc<Event>,
}

impl Meter {
    /// Allocates two arrays of `bytes`.
    ///
    /// # Errors
    /// [`CudaError`]: the arrays have no room, or a kernel is not available.
    pub(crate) fn new(
        stream: &Stream,
        compiler: &Compiler,
        bytes: usize,
    ) -> Result<Self, CudaError> {
        let context: &Arc<Context> = stream.context();
        let found = context.gpu().driver();
        if found < CLOCK {
            return Err(CudaError::OldDriver {
                what: "timing work on the GPU".to_owned(),
                found,
                needed: CLOCK,
                remedy: "install a newer driver".to_owned(),
            });
        }
        let [read, empty] = sources().map(|(source, defines)| -> Result<_, CudaError> {
            Module::load(context, &compiler.compile(source, &defines)?)
        });
        let bytes = bytes.next_multiple_of(UNIT).max(UNIT);
        let what = "memory to measure";
        let mut meter = Self {
            read: read?.kernel("read_all", THREADS, 0)?,
            empty: empty?.kernel("empty", EMPTY_THREADS, 0)?,
            from: Buffer::new(context, bytes, what)?,
            to: Buffer::new(context, bytes, what)?,
            begun: Event::timed(context)?,
            ended: Arc::new(Event::timed(context)?),
        };
        stream.fill(&mut meter.from, 0x5a)?;
        stream.fill(&mut meter.to, 0)?;
        Ok(meter)
    }

    /// Bytes of each array.
    pub(crate) fn bytes(&self) -> usize {
        self.from.len()
    }

    /// Queues a copy of one array to the other.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn copy(&mut self, stream: &Stream) -> Result<(), CudaError> {
        stream.copy(&self.from, &mut self.to)
    }

    /// Queues the reading of the first `bytes` of one array; of all if it has fewer.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn read(&self, stream: &Stream, bytes: usize) -> Result<(), CudaError> {
        let units = bytes.min(self.from.len()) / UNIT;
        let parameters = Parameters {
            from: self.from.address(),
            out: self.to.address(),
            units: units as u64,
            pad: 0,
        };
        let blocks = units.div_ceil(THREADS as usize).clamp(1, BLOCKS as usize);
        // SAFETY: there are as many units, and a word to write to.
        unsafe { self.read.launch(stream, [blocks as u32, 1, 1], &parameters) }
    }

    /// Queues a launch of `blocks` blocks that do nothing.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn launch_empty(&self, stream: &Stream, blocks: u32) -> Result<(), CudaError> {
        // SAFETY: the kernel reads and writes nothing.
        unsafe { (self.empty).launch(stream, [blocks, 1, 1], &Nothing { pad: 0 }) }
    }

    /// Starts the measurement at this place in the stream.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn begin(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.record(&self.begun)?;
        stream.mark_waits(Some(self.ended.clone()));
        Ok(())
    }

    /// Waits for all queued work; returns the seconds since [`Self::begin`] by the device's
    /// clock. If the program has waited for the work already, the time ends where it began to
    /// wait the last time, so that it has no part of the program's time to wake up.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn end(&self, stream: &Stream) -> Result<f64, CudaError> {
        if !stream.mark_waits(None) {
            stream.record(&self.ended)?;
        }
        self.ended.synchronize()?;
        self.ended.since(&self.begun)
    }
}

/// Sources to compile, each with its macros.
pub(crate) fn sources() -> [(&'static Source, Defines); 2] {
    [&kernels::READ, &kernels::EMPTY].map(|source| (source, Defines::new()))
}
