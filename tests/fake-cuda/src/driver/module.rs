//! Modules: shared objects that the shim made of kernels.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::{Answer, Handle, Out, Refusal, Text, export};
use crate::arch::Image;
use crate::settings;
use crate::world::codes::{
    INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NO_BINARY_FOR_GPU, NOT_FOUND,
};
use crate::world::{enter, lock};

/// Bytes of dynamic shared memory that a kernel may have without asking.
const DYNAMIC: usize = 48 << 10;
/// Attributes of functions (`CUfunction_attribute`).
const MAX_THREADS: c_int = 0;
const MAX_DYNAMIC: c_int = 8;
const CARVEOUT: c_int = 9;

/// Description of a kernel that a module exports: `Kernel` in `launch.h` of the shim.
#[repr(C)]
#[derive(Clone, Copy)]
struct Kernel {
    begin: Begin,
    abandon: Abandon,
    launch: Launch,
    parameters: c_uint,
    most_threads: c_uint,
    sizes: *const c_uint,
}

/// Launch as it is asked of a module: `Asked` in `run_block.h` of the shim.
#[repr(C)]
pub(super) struct Asked {
    pub(super) grid: *const c_uint,
    pub(super) block: *const c_uint,
    pub(super) dynamic: usize,
    pub(super) seed: u64,
    pub(super) parameters: *mut *mut c_void,
    /// For the sanitizers: stands for the order of all launches.
    pub(super) clock: *mut u64,
    pub(super) programmatic: bool,
}

/// Blocks of a launch that have begun before its turn; the module's own.
pub(super) type Begun = *mut c_void;
/// Begins some blocks of a launch.
pub(super) type Begin = unsafe extern "C" fn(*const Asked, *mut Outcome) -> Begun;
/// Forgets blocks that have begun.
pub(super) type Abandon = unsafe extern "C" fn(Begun);
/// Runs a grid to its end, and with it the blocks that have begun, if any.
pub(super) type Launch = unsafe extern "C" fn(*const Asked, Begun, *mut Outcome);

/// Outcome of a launch: `Outcome` in `block.h` of the shim.
#[repr(C)]
pub(super) struct Outcome {
    pub(super) code: c_int,
    /// Illegal address that the kernel touched, if any.
    pub(super) address: u64,
    /// Bytes whose copies to shared memory, or to a cache, were asynchronous.
    pub(super) fetched: u64,
    pub(super) text: [c_char; 1000],
}

/// A kernel that can be launched.
pub(super) struct Function {
    pub(super) name: String,
    pub(super) begin: Begin,
    pub(super) abandon: Abandon,
    pub(super) launch: Launch,
    /// Sizes of the parameters, in bytes.
    pub(super) sizes: Vec<usize>,
    pub(super) most_threads: c_uint,
    /// Bytes of dynamic shared memory that a launch may ask for.
    pub(super) most_dynamic: AtomicUsize,
}

/// Loaded shared objects. They stay loaded, since queued work may need them.
#[derive(Default)]
struct Modules {
    /// Result of `dlopen`, by the module's handle.
    objects: HashMap<Handle, usize>,
    functions: HashMap<Handle, Arc<Function>>,
}

static MODULES: LazyLock<Mutex<Modules>> = LazyLock::new(Mutex::default);

fn modules() -> MutexGuard<'static, Modules> {
    MODULES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kernel with the handle `handle`.
pub(super) fn function(handle: Handle) -> Answer<Arc<Function>> {
    let known = modules().functions.get(&handle).cloned();
    known.ok_or_else(|| Refusal::new(INVALID_HANDLE, "no such function"))
}

fn load(object: &Path) -> Answer<usize> {
    let path = CString::new(object.as_os_str().as_bytes());
    let path = path.map_err(|_| Refusal::new(INVALID_IMAGE, "a zero in a path"))?;
    // SAFETY: the path ends with a zero; the object runs no code of its own.
    let loaded = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if loaded.is_null() {
        // SAFETY: after a failure there is a text, which ends with a zero.
        let why = unsafe { CStr::from_ptr(libc::dlerror()) };
        return Err(Refusal::new(INVALID_IMAGE, why.to_string_lossy()));
    }
    Ok(loaded as usize)
}

fn find(object: usize, name: String) -> Answer<Function> {
    let missing = || Refusal::new(NOT_FOUND, format!("the module has no kernel `{name}`"));
    let symbol = CString::new(format!("cuda_on_host_{name}")).map_err(|_| missing())?;
    // SAFETY: `object` is loaded, and the name ends with a zero.
    let symbol = unsafe { libc::dlsym(object as *mut c_void, symbol.as_ptr()) };
    if symbol.is_null() {
        return Err(missing());
    }
    // SAFETY: the shim exports a `Kernel` under every name of this form, with as
    // many sizes as parameters, for as long as the object is loaded.
    let (kernel, sizes) = unsafe {
        let kernel = *symbol.cast::<Kernel>();
        let sizes = std::slice::from_raw_parts(kernel.sizes, kernel.parameters as usize);
        (kernel, sizes)
    };
    Ok(Function {
        name,
        begin: kernel.begin,
        abandon: kernel.abandon,
        launch: kernel.launch,
        sizes: sizes.iter().map(|size| *size as usize).collect(),
        most_threads: kernel.most_threads,
        most_dynamic: AtomicUsize::new(DYNAMIC),
    })
}

export! {
    fn cuModuleLoadData(module: Out<Handle>, image: Text) {
        enter()?.refuse_unsafe()?;
        let missing = || Refusal::new(INVALID_IMAGE, "not what the fake NVRTC has compiled");
        let image = Image::decode(&image.text()).ok_or_else(missing)?;
        if !image.arch.runs() {
            let reason = format!("compiled for {:?}, which the device is not", image.arch);
            return Err(Refusal::new(NO_BINARY_FOR_GPU, reason));
        }
        let object = load(&image.object)?;
        let mut world = enter()?;
        let device = world.device(world.context);
        world.memory.load_code(device);
        let made = world.handle();
        drop(world);
        modules().objects.insert(made, object);
        module.set(made);
        Ok(())
    }

    fn cuModuleUnload(module: Handle) {
        let known = modules().objects.remove(&module);
        let missing = || Refusal::new(INVALID_HANDLE, "no such module");
        known.map(|_| ()).ok_or_else(missing)
    }

    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) {
        let object = modules().objects.get(&module).copied();
        let object = object.ok_or_else(|| Refusal::new(INVALID_HANDLE, "no such module"))?;
        let found = find(object, name.text())?;
        let made = lock().handle();
        modules().functions.insert(made, Arc::new(found));
        function.set(made);
        Ok(())
    }

    fn cuFuncSetAttribute(handle: Handle, attribute: c_int, value: c_int) {
        let function = function(handle)?;
        let refused = |reason| Refusal::new(INVALID_VALUE, reason);
        match (attribute, usize::try_from(value)) {
            (MAX_DYNAMIC, Ok(bytes)) if bytes <= settings::block_memory() => {
                function.most_dynamic.store(bytes, Ordering::Relaxed);
                Ok(())
            }
            (MAX_DYNAMIC, _) => Err(refused(format!("{value} bytes of shared memory"))),
            (CARVEOUT, _) => Ok(()),
            _ => Err(refused(format!("the fake driver does not know the attribute {attribute}"))),
        }
    }

    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, handle: Handle) {
        let function = function(handle)?;
        let known = match attribute {
            MAX_THREADS => function.most_threads as c_int,
            MAX_DYNAMIC => function.most_dynamic.load(Ordering::Relaxed) as c_int,
            _ => {
                let reason = format!("the fake driver does not know the attribute {attribute}");
                return Err(Refusal::new(INVALID_VALUE, reason));
            }
        };
        value.set(known);
        Ok(())
    }
}
