//! A thin, checked interface to the driver, for the tests.

use std::ffi::{CString, c_void};
use std::fmt::Debug;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use cudarc::nvrtc::sys as nvrtc;
use lockstep_fake_cuda::Order;

/// Result of a driver's call; errors are the driver's codes.
pub(crate) type Answer<T = ()> = Result<T, i32>;

/// The driver's code, if the call failed.
pub(crate) fn code<T>(answer: Result<T, DriverError>) -> Answer<T> {
    answer.map_err(|error| error.0 as i32)
}

/// Gives the calling thread the context of the first device.
pub(crate) fn begin() {
    begin_on(0);
}

/// Gives the calling thread the context of device `ordinal`.
pub(crate) fn begin_on(ordinal: i32) {
    result::init().expect("the driver works");
    let device = result::device::get(ordinal).expect("the device exists");
    // SAFETY: the device was returned by the driver, and so was the context.
    unsafe {
        let context = result::primary_ctx::retain(device).expect("a context");
        result::ctx::set_current(context).expect("the context is new");
    }
}

/// Does the same as [`begin`], and draws the order of work that CUDA leaves open from `seed`.
/// Something has to be drawn of it before the result is dropped.
pub(crate) fn begin_with(seed: u64) -> Order {
    begin();
    let order = lockstep_fake_cuda::order(seed);
    assert!(order.drawn().is_some(), "the libraries are real");
    order
}

/// Values with the same bytes on host and device.
pub(crate) trait Plain: Copy + Debug + Default + PartialEq {}
impl Plain for f32 {}
impl Plain for u32 {}
impl Plain for u16 {}
impl Plain for u8 {}

/// Memory of the device.
pub(crate) struct Buffer {
    pub(crate) address: u64,
}

impl Buffer {
    pub(crate) fn try_new(bytes: usize) -> Answer<Self> {
        // SAFETY: nobody takes the memory for something that it isn't yet.
        let address = code(unsafe { result::malloc_sync(bytes) })?;
        Ok(Self { address })
    }

    pub(crate) fn new(bytes: usize) -> Self {
        Self::try_new(bytes).expect("there is memory")
    }

    /// Device memory that holds `values`.
    pub(crate) fn of<T: Plain>(values: &[T]) -> Self {
        let made = Self::new(size_of_val(values));
        // SAFETY: the memory is as large as the values.
        unsafe { result::memcpy_htod_sync(made.address, values) }.expect("copied");
        made
    }

    /// The first `count` values, after all queued work of `stream`.
    pub(crate) fn try_read<T: Plain>(&self, count: usize, stream: &Stream) -> Answer<Vec<T>> {
        let mut values = vec![T::default(); count];
        // SAFETY: the fake refuses if the memory is smaller; pageable memory has the values
        // when the call returns.
        code(unsafe { result::memcpy_dtoh_async(&mut values[..], self.address, stream.0) })?;
        stream.synchronize()?;
        Ok(values)
    }

    pub(crate) fn read<T: Plain>(&self, count: usize, stream: &Stream) -> Vec<T> {
        self.try_read(count, stream).expect("the stream works")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated once. A broken context refuses; the failure was reported
        // where it happened.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Host memory that the device reads when a copy runs.
pub(crate) struct Pinned<'a, T>(pub(crate) &'a mut [T]);

impl<T: Plain> Pinned<'_, T> {
    pub(crate) fn of(values: &[T]) -> Self {
        // SAFETY: the memory is as large as the values, and nobody else has it.
        let memory = unsafe {
            let start = result::malloc_host(size_of_val(values), 0).expect("there is memory");
            std::slice::from_raw_parts_mut(start.cast::<T>(), values.len())
        };
        memory.copy_from_slice(values);
        Self(memory)
    }
}

impl<T> Drop for Pinned<'_, T> {
    fn drop(&mut self) {
        // SAFETY: it came from the same call, and the slice ends here.
        let _ = unsafe { result::free_host(self.0.as_mut_ptr().cast::<c_void>()) };
    }
}

/// A stream.
pub(crate) struct Stream(pub(crate) sys::CUstream);

impl Stream {
    /// A stream that does not wait for the null stream.
    pub(crate) fn new() -> Self {
        let kind = result::stream::StreamKind::NonBlocking;
        Self(result::stream::create(kind).expect("a stream"))
    }

    /// A stream that waits for the null stream, and vice versa.
    pub(crate) fn blocking() -> Self {
        let kind = result::stream::StreamKind::Default;
        Self(result::stream::create(kind).expect("a stream"))
    }

    pub(crate) fn synchronize(&self) -> Answer {
        // SAFETY: the stream exists.
        code(unsafe { result::stream::synchronize(self.0) })
    }

    pub(crate) fn wait(&self, event: &Event) -> Answer {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: stream and event exist.
        code(unsafe { result::stream::wait_event(self.0, event.0, flags) })
    }

    /// An event behind all queued work of the stream.
    pub(crate) fn event(&self) -> Event {
        let event = Event::new();
        event.record(self).expect("recorded");
        event
    }

    pub(crate) fn fill(&self, to: &Buffer, byte: u8, bytes: usize) -> Answer {
        // SAFETY: the fake refuses where the memory is smaller.
        code(unsafe { result::memset_d8_async(to.address, byte, bytes, self.0) })
    }

    pub(crate) fn copy(&self, to: &Buffer, from: &Buffer, bytes: usize) -> Answer {
        // SAFETY: as above.
        code(unsafe { result::memcpy_dtod_async(to.address, from.address, bytes, self.0) })
    }

    pub(crate) fn upload<T: Plain>(&self, to: &Buffer, from: &[T]) -> Answer {
        // SAFETY: as above; tests keep pinned memory until the copy is over.
        code(unsafe { result::memcpy_htod_async(to.address, from, self.0) })
    }

    pub(crate) fn download<T: Plain>(&self, to: &mut Pinned<'_, T>, from: &Buffer) -> Answer {
        // SAFETY: as above.
        code(unsafe { result::memcpy_dtoh_async(to.0, from.address, self.0) })
    }

    pub(crate) fn begin_capture(&self) -> Answer {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream exists.
        code(unsafe { result::stream::begin_capture(self.0, mode) })
    }

    pub(crate) fn end_capture(&self) -> Answer<Graph> {
        // SAFETY: stream and graph exist; the graph is not needed behind this.
        unsafe {
            let graph = code(result::stream::end_capture(self.0))?;
            let mut executable = std::ptr::null_mut();
            let made = sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0);
            code(made.result())?;
            code(sys::cuGraphDestroy(graph).result())?;
            Ok(Graph(executable))
        }
    }

    pub(crate) fn replay(&self, graph: &Graph) -> Answer {
        // SAFETY: stream and graph exist.
        code(unsafe { sys::cuGraphLaunch(graph.0, self.0) }.result())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

/// An event.
pub(crate) struct Event(sys::CUevent);

impl Event {
    pub(crate) fn new() -> Self {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        Self(result::event::create(flags).expect("an event"))
    }

    pub(crate) fn record(&self, stream: &Stream) -> Answer {
        // SAFETY: event and stream exist.
        code(unsafe { result::event::record(self.0, stream.0) })
    }

    pub(crate) fn synchronize(&self) -> Answer {
        // SAFETY: the event exists.
        code(unsafe { result::event::synchronize(self.0) })
    }

    pub(crate) fn query(&self) -> Answer {
        // SAFETY: the event exists.
        code(unsafe { result::event::query(self.0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// A graph that can be launched.
pub(crate) struct Graph(sys::CUgraphExec);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it was instantiated once.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

/// Compiles a program named "kernels.cu"; the compiler's log, if it fails.
pub(crate) fn compile(source: &str, options: &[&str]) -> Result<Vec<u8>, String> {
    let text = |text: &str| CString::new(text).expect("no zeros");
    let (source, name) = (text(source), text("kernels.cu"));
    let options: Vec<CString> = options.iter().map(|option| text(option)).collect();
    let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    let (none, mut program) = (std::ptr::null(), std::ptr::null_mut());
    // SAFETY: all texts end with a zero and live until the calls are over; places for results
    // are as large as the library said.
    unsafe {
        let (source, name) = (source.as_ptr(), name.as_ptr());
        let made = nvrtc::nvrtcCreateProgram(&raw mut program, source, name, 0, none, none);
        made.result().expect("a program");
        let compiled = nvrtc::nvrtcCompileProgram(program, options.len() as i32, options.as_ptr());
        if let Err(error) = compiled.result() {
            let log = cudarc::nvrtc::result::get_program_log(program).expect("a log");
            let log: Vec<u8> = log.iter().map(|byte| *byte as u8).collect();
            return Err(format!("{error:?}: {}", String::from_utf8_lossy(&log)));
        }
        let mut bytes = 0;
        let size = nvrtc::nvrtcGetCUBINSize(program, &raw mut bytes);
        size.result().expect("a size");
        // Empty if the architecture is a virtual one.
        let mut image = vec![0u8; bytes];
        if image.is_empty() {
            return Ok(image);
        }
        let copied = nvrtc::nvrtcGetCUBIN(program, image.as_mut_ptr().cast());
        copied.result().expect("an image");
        nvrtc::nvrtcDestroyProgram(&raw mut program)
            .result()
            .expect("gone");
        Ok(image)
    }
}

/// Loaded kernels, which stay loaded.
pub(crate) struct Module(sys::CUmodule);

impl Module {
    pub(crate) fn try_load(image: &[u8]) -> Answer<Self> {
        // SAFETY: NVRTC's images end with a zero.
        code(unsafe { result::module::load_data(image.as_ptr().cast()) }).map(Self)
    }

    /// Kernels compiled for the fake device, with macros as in "THREADS=64".
    pub(crate) fn new(source: &str, macros: &[&str]) -> Self {
        let macros: Vec<String> = macros.iter().map(|of| format!("-D{of}")).collect();
        let mut options = vec!["--gpu-architecture=sm_90", "--std=c++17"];
        options.extend(macros.iter().map(String::as_str));
        let image = compile(source, &options).unwrap_or_else(|log| panic!("{log}"));
        Self::try_load(&image).expect("loaded")
    }

    pub(crate) fn try_kernel(&self, name: &str) -> Answer<Kernel> {
        let name = CString::new(name).expect("no zeros");
        // SAFETY: the module is loaded.
        code(unsafe { result::module::get_function(self.0, name) }).map(Kernel)
    }

    pub(crate) fn kernel(&self, name: &str) -> Kernel {
        self.try_kernel(name).expect("the kernel exists")
    }
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    Pointer(u64),
    Unsigned(u32),
    Float(f32),
}

impl Value {
    /// The value's bytes, and zeros behind them.
    fn bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        match self {
            Self::Pointer(address) => bytes = address.to_ne_bytes(),
            Self::Unsigned(value) => bytes[..4].copy_from_slice(&value.to_ne_bytes()),
            Self::Float(value) => bytes[..4].copy_from_slice(&value.to_ne_bytes()),
        }
        bytes
    }
}

impl From<&Buffer> for Value {
    fn from(buffer: &Buffer) -> Self {
        Self::Pointer(buffer.address)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Unsigned(value)
    }
}

impl From<f32> for Value {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

/// A kernel.
pub(crate) struct Kernel(sys::CUfunction);

/// Blocks, threads of a block, and bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic: u32,
}

impl Shape {
    /// A shape in one dimension.
    pub(crate) fn line(blocks: u32, threads: u32) -> Self {
        Self {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            dynamic: 0,
        }
    }
}

impl Kernel {
    pub(crate) fn try_launch(&self, stream: &Stream, shape: Shape, values: &[Value]) -> Answer {
        let bytes: Vec<[u8; 8]> = values.iter().map(|value| value.bytes()).collect();
        let bytes: Vec<&[u8]> = bytes.iter().map(|bytes| &bytes[..]).collect();
        self.launch_with(stream, shape, &bytes)
    }

    /// Launches the kernel with parameters given as bytes.
    pub(crate) fn launch_with(&self, stream: &Stream, shape: Shape, values: &[&[u8]]) -> Answer {
        let mut parameters: Vec<*mut c_void> = values
            .iter()
            .map(|bytes| bytes.as_ptr() as *mut c_void)
            .collect();
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        let (grid, block) = ((gx, gy, gz), (bx, by, bz));
        let (dynamic, parameters) = (shape.dynamic, &mut parameters);
        // SAFETY: the tests pass what their kernels take.
        code(unsafe { result::launch_kernel(self.0, grid, block, dynamic, stream.0, parameters) })
    }

    /// Launches the kernel with attributes, given by their number and the first word of their
    /// value.
    pub(crate) fn launch_ex(
        &self,
        stream: &Stream,
        shape: Shape,
        values: &[Value],
        attributes: &[(i32, i32)],
    ) -> Answer {
        let bytes: Vec<[u8; 8]> = values.iter().map(|value| value.bytes()).collect();
        let mut parameters: Vec<*mut c_void> = bytes
            .iter()
            .map(|bytes| bytes.as_ptr() as *mut c_void)
            .collect();
        let mut attributes: Vec<[i32; 18]> = attributes
            .iter()
            .map(|(id, value)| {
                // The number, padding, and 64 bytes of value.
                let mut words = [0; 18];
                words[0] = *id;
                words[2] = *value;
                words
            })
            .collect();
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        let config = sys::CUlaunchConfig_st {
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: shape.dynamic,
            hStream: stream.0,
            attrs: attributes.as_mut_ptr().cast(),
            numAttrs: attributes.len() as u32,
        };
        assert_eq!(size_of::<sys::CUlaunchAttribute>(), size_of::<[i32; 18]>());
        let (parameters, none) = (parameters.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the tests pass what their kernels take; attributes are laid out as the
        // driver reads them.
        code(unsafe { sys::cuLaunchKernelEx(&raw const config, self.0, parameters, none) }.result())
    }

    pub(crate) fn launch(&self, stream: &Stream, shape: Shape, values: &[Value]) {
        self.try_launch(stream, shape, values).expect("launched");
    }

    /// Allows launches to ask for that many bytes of dynamic shared memory.
    pub(crate) fn allow(&self, bytes: i32) -> Answer {
        let attribute =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function exists.
        code(unsafe { result::function::set_function_attribute(self.0, attribute, bytes) })
    }
}
