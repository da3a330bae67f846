//! Work that is recorded once and then repeated by one launch.
//!
//! CUDA Driver API, "Stream Management" (captures) and "Graph Management".

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphExec, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{DriverError, result};

use crate::error::{CudaError, driver};
use crate::runtime::{Context, Stream};

/// Recorded work. A launch repeats the work with its recorded arguments, over the current
/// contents of memory.
pub struct Graph {
    context: Arc<Context>,
    raw: CUgraphExec,
}

// SAFETY: any thread may launch a graph, one at a time: a graph has one owner.
unsafe impl Send for Graph {}

impl Graph {
    /// Makes `stream` record the work that is queued from now on, until [`Self::end`]. None of
    /// that work runs.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn begin(stream: &Stream) -> Result<(), CudaError> {
        stream.context().bind()?;
        // Calls of other threads are not part of the recording.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        let begun = unsafe { result::stream::begin_capture(stream.raw(), mode) };
        begun.map_err(driver("cuStreamBeginCapture"))
    }

    /// Ends the recording and returns the work since [`Self::begin`], ready to be launched. The
    /// stream runs queued work again, even after an error.
    ///
    /// # Errors
    /// [`CudaError::Driver`], also where something happened that no recording may do: a wait
    /// for the device, an allocation, the loading of a kernel.
    pub fn end(stream: &Stream) -> Result<Self, CudaError> {
        let context = stream.context();
        context.bind()?;
        // SAFETY: the stream lives.
        let graph = unsafe { result::stream::end_capture(stream.raw()) };
        let graph = graph.map_err(driver("cuStreamEndCapture"))?;
        let flags = CUgraphInstantiate_flags(0);
        // SAFETY: the graph was made just now and is not needed after the instantiation; nobody
        // is left to be told that it could not be destroyed.
        let raw = unsafe {
            let raw = result::graph::instantiate(graph, flags);
            let _ = result::graph::destroy(graph);
            raw.map_err(no_room("cuGraphInstantiate"))?
        };
        let ready = Self {
            context: context.clone(),
            raw,
        };
        // SAFETY: both live. Without the upload the first launch would bring the graph over.
        let brought = unsafe { result::graph::upload(ready.raw, stream.raw()) };
        brought.map_err(no_room("cuGraphUpload"))?;
        Ok(ready)
    }

    /// Queues one repetition of all recorded work.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both live.
        unsafe { result::graph::launch(self.raw, stream.raw()) }.map_err(driver("cuGraphLaunch"))
    }
}

/// For `map_err`: the error of a call that takes memory outside of the footprint.
fn no_room(call: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |error| {
        match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaError::Unsupported(
            "the GPU has no memory left for its graphs: give a smaller --mem-fraction-static or --cuda-graph-max-bs, or --disable-cuda-graph".to_owned(),
        ),
        _ => driver(call)(error),
    }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: it was made once; launches that are under way go on.
            let _ = unsafe { result::graph::exec_destroy(self.raw) };
        }
    }
}
