//! Times by the device's own clock, and the speed of its memory.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::runtime::{Buffer, CLOCK, Compiler, Context, Defines, Event, Kernel, Module, Stream};

const THREADS: u32 = 256;
/// Blocks of the kernel that reads: a few for each multiprocessor of any GPU.
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

/// Two large arrays, and events before and behind the measured work.
pub(crate) struct Meter {
    read: Kernel<Parameters>,
    from: Buffer<u8>,
    to: Buffer<u8>,
    begun: Event,
    ended: Event,
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
        let (source, defines) = source();
        let module = Module::load(context, &compiler.compile(source, &defines)?)?;
        let bytes = bytes.next_multiple_of(UNIT).max(UNIT);
        let what = "memory to measure";
        let mut meter = Self {
            read: module.kernel("read_all", THREADS, 0)?,
            from: Buffer::new(context, bytes, what)?,
            to: Buffer::new(context, bytes, what)?,
            begun: Event::timed(context)?,
            ended: Event::timed(context)?,
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

    /// Queues the reading of one array.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn read(&self, stream: &Stream) -> Result<(), CudaError> {
        let parameters = Parameters {
            from: self.from.address(),
            out: self.to.address(),
            units: (self.from.len() / UNIT) as u64,
            pad: 0,
        };
        // SAFETY: there are as many units, and a word to write to.
        unsafe { self.read.launch(stream, [BLOCKS, 1, 1], &parameters) }
    }

    /// Starts the measurement at this place in the stream.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn begin(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.record(&self.begun)
    }

    /// Waits for all queued work; returns the seconds since [`Self::begin`] by the device's
    /// clock.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn end(&self, stream: &Stream) -> Result<f64, CudaError> {
        stream.record(&self.ended)?;
        self.ended.synchronize()?;
        self.ended.since(&self.begun)
    }
}

/// Source to compile, with its macros.
pub(crate) fn source() -> (&'static Source, Defines) {
    (&kernels::READ, Defines::new())
}
