//! Machine code on the device, and launches of its kernels.

use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result;
use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUmodule,
};

use crate::error::{CudaError, driver};
use crate::kernels;
use crate::runtime::{Context, Stream};

/// Shared memory that every block may have without asking for more.
const COMMON_BLOCK_MEMORY: usize = 48 << 10;

/// Attribute of a launch that may begin before the kernel before it has ended.
const BEGINS_EARLY: CUlaunchAttribute = CUlaunchAttribute {
    id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
    pad: [0; 4],
    value: CUlaunchAttributeValue {
        programmaticStreamSerializationAllowed: 1,
    },
};

/// Loaded machine code.
pub struct Module {
    context: Arc<Context>,
    raw: CUmodule,
}

// SAFETY: a module may be used by any thread, by several at once.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads machine code that [`crate::Compiler::compile`] made.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn load(context: &Arc<Context>, code: &[u8]) -> Result<Arc<Self>, CudaError> {
        context.bind()?;
        // SAFETY: a cubin says its own length, and comes from the compiler.
        let raw = unsafe { result::module::load_data(code.as_ptr().cast()) };
        Ok(Arc::new(Self {
            context: context.clone(),
            raw: raw.map_err(driver("cuModuleLoadData"))?,
        }))
    }

    /// The kernel `name`, whose parameter is a `P`. Its launches have blocks of `threads`
    /// threads and `shared` bytes of dynamic shared memory.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if there is no such kernel; [`CudaError::Unsupported`] if a block
    /// cannot have as much memory.
    pub fn kernel<P: Pod>(
        self: &Arc<Self>,
        name: &'static str,
        threads: u32,
        shared: usize,
    ) -> Result<Kernel<P>, CudaError> {
        self.context.bind()?;
        let missing = |_| CudaError::Unsupported(format!("`{name}` is no name of a kernel"));
        let name_text = CString::new(name).map_err(missing)?;
        // SAFETY: the module lives.
        let raw = unsafe { result::module::get_function(self.raw, name_text) };
        let raw = raw.map_err(driver("cuModuleGetFunction"))?;
        let most = self.context.gpu().block_memory();
        if shared > most {
            let device = self.context.gpu().describe();
            return Err(CudaError::Unsupported(format!(
                "`{name}` needs {shared} bytes of shared memory, and blocks on this GPU ({device}) have {most}: use another one, or a smaller type for keys and values"
            )));
        }
        if shared > COMMON_BLOCK_MEMORY {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function lives as long as its module.
            let set =
                unsafe { result::function::set_function_attribute(raw, attribute, shared as i32) };
            set.map_err(driver("cuFuncSetAttribute"))?;
        }
        Ok(Kernel {
            module: self.clone(),
            raw,
            name,
            threads,
            shared: shared as u32,
            waits: self.context.switches().overlaps && kernels::wait(name),
            takes: PhantomData,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: it was loaded once; nobody is left to be told of a failure.
            let _ = unsafe { result::module::unload(self.raw) };
        }
    }
}

/// A kernel whose parameter is one structure of type `P`, by value.
pub struct Kernel<P> {
    module: Arc<Module>,
    raw: CUfunction,
    name: &'static str,
    threads: u32,
    shared: u32,
    /// True if the kernel waits for earlier work by itself, on a GPU where that lets it begin
    /// before that work has ended.
    waits: bool,
    takes: PhantomData<fn(P)>,
}

// SAFETY: a kernel may be started by any thread, by several at once.
unsafe impl<P> Send for Kernel<P> {}
// SAFETY: as above.
unsafe impl<P> Sync for Kernel<P> {}

impl<P: Pod> Kernel<P> {
    /// Queues a launch of `grid` blocks. An empty grid does nothing.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// `parameters` are laid out as the kernel's structure. Their addresses name memory of the
    /// device that is large enough for the kernel's use until the kernel is done.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        parameters: &P,
    ) -> Result<(), CudaError> {
        if grid.contains(&0) || !stream.selection().runs(self.name) {
            return Ok(());
        }
        let [x, y, z] = grid;
        let launched = [self.raw as u64, x.into(), y.into(), z.into()];
        if !stream
            .tape()
            .note(&launched, bytemuck::bytes_of(parameters))
        {
            return Ok(());
        }
        self.module.context.bind()?;
        let at = std::ptr::from_ref(parameters).cast_mut();
        let mut arguments = [at.cast::<c_void>()];
        let (raw_stream, early) = stream.raw_for_launch(self.waits);
        let mut attributes = [BEGINS_EARLY];
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: raw_stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: u32::from(early),
        };
        // SAFETY: the kernel's module lives, and the driver takes configuration and parameters
        // away before it returns; the caller answers for their contents.
        let started = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                self.raw,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        started.result().map_err(driver("cuLaunchKernelEx"))
    }
}
