//! Launches.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::{mem, ptr};

use super::module::{Asked, Begun, Function, Outcome, function};
use crate::abi::{Answer, Handle, In, Refusal, export};
use crate::calls::note_fetched;
use crate::order;
use crate::settings;
use crate::world::codes::{ILLEGAL_ADDRESS, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES};
use crate::world::graph::{self, Overlap, Task};
use crate::world::{Entered, enter, lock};

/// Largest numbers of blocks of a grid and of threads of a block, in x, y and z.
const MOST_BLOCKS: [c_uint; 3] = [0x7fff_ffff, 65535, 65535];
const MOST_THREADS: [c_uint; 3] = [1024, 1024, 64];

/// One launch of a kernel. A graph may run it several times.
struct Launch {
    function: Arc<Function>,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    dynamic: usize,
    /// The parameters at the time of the call, each at a multiple of 16 bytes.
    parameters: Vec<Vec<u128>>,
    /// True if the launch may begin while the kernel before it runs.
    programmatic: bool,
}

impl Launch {
    fn check(&self) -> Answer {
        let fits = |of: [c_uint; 3], most: [c_uint; 3]| {
            let mut pairs = of.into_iter().zip(most);
            pairs.all(|(of, most)| (1..=most).contains(&of))
        };
        let threads = self.block.into_iter().fold(1, c_uint::saturating_mul);
        let name = &self.function.name;
        let (grid, block) = (self.grid, self.block);
        let shape = format!("{name}: a grid of {grid:?} blocks of {block:?} threads");
        if !fits(grid, MOST_BLOCKS) || !fits(block, MOST_THREADS) || threads > MOST_THREADS[0] {
            return Err(Refusal::new(INVALID_VALUE, shape));
        }
        let most = self.function.most_threads;
        if threads > most {
            let reason = format!("{shape}, of which its launch bounds allow {most}");
            return Err(Refusal::new(LAUNCH_OUT_OF_RESOURCES, reason));
        }
        let (bytes, most) = (
            self.dynamic,
            self.function.most_dynamic.load(Ordering::Relaxed),
        );
        if bytes > most {
            let reason = format!("{name}: {bytes} bytes of dynamic shared memory of {most}");
            return Err(Refusal::new(INVALID_VALUE, reason));
        }
        Ok(())
    }

    /// Returns true for the launch that the environment makes fail.
    fn faults(&self) -> bool {
        static FAULT: LazyLock<Option<(String, u64)>> = LazyLock::new(settings::fault);
        static LAUNCHES: AtomicU64 = AtomicU64::new(0);
        let fault = FAULT
            .as_ref()
            .filter(|(name, _)| *name == self.function.name);
        fault.is_some_and(|(_, launch)| LAUNCHES.fetch_add(1, Ordering::Relaxed) + 1 == *launch)
    }

    /// Runs all blocks, and the rest of those that have begun.
    fn run(&self, begun: Begun) -> Answer {
        if self.faults() {
            let reason = format!("{}: a planted fault", self.function.name);
            return Err(Refusal::new(ILLEGAL_ADDRESS, reason));
        }
        self.call(|asked, outcome| {
            // SAFETY: every parameter has the size that the kernel's own module says; the
            // kernel's use of them is the subject of the tests. What has begun is this launch.
            unsafe { (self.function.launch)(asked, begun, outcome) }
        })
    }

    /// Begins some blocks before the launch has its turn.
    fn begin(self: &Arc<Self>) -> Answer<Box<dyn graph::Begun>> {
        let mut begun = Early {
            launch: self.clone(),
            blocks: ptr::null_mut(),
        };
        self.call(|asked, outcome| {
            // SAFETY: as for `launch`.
            begun.blocks = unsafe { (self.function.begin)(asked, outcome) };
        })?;
        Ok(Box::new(begun))
    }

    /// Calls a function of the kernel's module.
    fn call(&self, function: impl FnOnce(*const Asked, *mut Outcome)) -> Answer {
        /// For the sanitizers: the order of all launches.
        static CLOCK: AtomicU64 = AtomicU64::new(0);
        let mut outcome = Outcome {
            code: 0,
            address: 0,
            fetched: 0,
            text: [0; 1000],
        };
        let parameters = self.parameters.iter();
        let mut parameters: Vec<*mut c_void> = parameters
            .map(|words| words.as_ptr() as *mut c_void)
            .collect();
        let asked = Asked {
            grid: self.grid.as_ptr(),
            block: self.block.as_ptr(),
            dynamic: self.dynamic,
            seed: order::draw(),
            parameters: parameters.as_mut_ptr(),
            clock: CLOCK.as_ptr(),
            programmatic: self.programmatic,
        };
        let running = running();
        function(&raw const asked, &raw mut outcome);
        drop(running);
        note_fetched(&self.function.name, outcome.fetched);
        if outcome.code == 0 {
            return Ok(());
        }
        // SAFETY: the text is cut to leave room for its zero.
        let text = unsafe { CStr::from_ptr(outcome.text.as_ptr()) };
        let mut reason = text.to_string_lossy().into_owned();
        if outcome.code == ILLEGAL_ADDRESS {
            let place = lock().memory.describe(outcome.address as usize);
            reason = format!("{reason}: {place}");
        }
        Err(Refusal::new(outcome.code, reason))
    }
}

/// Held by whoever uses a module: kernels share their modules' memory, so one runs at a time.
fn running() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A launch of which some blocks have begun.
struct Early {
    launch: Arc<Launch>,
    /// Null once the launch has its turn.
    blocks: Begun,
}

// SAFETY: the blocks wait on stacks of their own, which any thread may go on with.
unsafe impl Send for Early {}

impl graph::Begun for Early {
    fn finish(mut self: Box<Self>) -> Answer {
        let blocks = mem::replace(&mut self.blocks, ptr::null_mut());
        self.launch.run(blocks)
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if !self.blocks.is_null() {
            let _running = running();
            // SAFETY: the blocks are of this launch, and nobody goes on with them.
            unsafe { (self.launch.function.abandon)(self.blocks) }
        }
    }
}

/// Copies the parameters, since the caller may change them at once.
fn take(sizes: &[usize], parameters: In<*const u8>) -> Answer<Vec<Vec<u128>>> {
    let take = |(index, size): (usize, &usize)| {
        let from = parameters.get(index).filter(|from| !from.is_null())?;
        let mut words = vec![0u128; size.div_ceil(16).max(1)];
        // SAFETY: the caller shows a parameter of the kernel's size, and there
        // are at least that many bytes in `words`.
        unsafe { std::ptr::copy_nonoverlapping(from, words.as_mut_ptr().cast(), *size) }
        Some(words)
    };
    let taken: Option<Vec<Vec<u128>>> = sizes.iter().enumerate().map(take).collect();
    taken.ok_or_else(|| Refusal::new(INVALID_VALUE, "a parameter is missing"))
}

/// Queues a launch.
fn start(world: &mut Entered, stream: Handle, launch: Launch) -> Answer {
    launch.check()?;
    let launch = Arc::new(launch);
    let overlap = if launch.programmatic {
        let launch = launch.clone();
        Overlap::Programmatic(Arc::new(move || launch.begin()))
    } else {
        Overlap::Kernel
    };
    let task = Task {
        name: "kernel",
        work: Arc::new(move || launch.run(ptr::null_mut())),
        waits: false,
        overlap,
    };
    world.push_task(stream, task)
}

/// Shape of a launch and its attributes (`CUlaunchConfig`).
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    dynamic: c_uint,
    stream: Handle,
    attributes: In<Attribute>,
    count: c_uint,
}

/// `CUlaunchAttribute`
#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    id: c_int,
    pad: c_int,
    value: [u64; 8],
}
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`
const PROGRAMMATIC: c_int = 6;
/// Compute capability with `griddepcontrol`.
const LEAST_CAPABILITY: u64 = 90;

/// Returns true if the launch may begin while the kernel before it runs.
fn is_programmatic(attributes: &[Attribute]) -> Answer<bool> {
    let mut programmatic = false;
    for attribute in attributes {
        let Attribute { id, value, .. } = attribute;
        if *id != PROGRAMMATIC {
            let reason = format!("the fake driver does not know the attribute {id}");
            return Err(Refusal::new(INVALID_VALUE, reason));
        }
        programmatic = value[0] as u32 != 0;
    }
    if programmatic && settings::capability() < LEAST_CAPABILITY {
        let reason = "programmatic launches need compute capability 9.0";
        return Err(Refusal::new(INVALID_VALUE, reason));
    }
    Ok(programmatic)
}

fn refuse_extra(extra: In<*const u8>) -> Answer {
    let reason = "the fake driver takes parameters one by one alone";
    let refused = || Refusal::new(INVALID_VALUE, reason);
    extra.is_null().then_some(()).ok_or_else(refused)
}

export! {
    fn cuLaunchKernel(
        handle: Handle,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        dynamic: c_uint,
        stream: Handle,
        parameters: In<*const u8>,
        extra: In<*const u8>,
    ) {
        let mut world = enter()?;
        refuse_extra(extra)?;
        let function = function(handle)?;
        let launch = Launch {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic: dynamic as usize,
            parameters: take(&function.sizes, parameters)?,
            function,
            programmatic: false,
        };
        start(&mut world, stream, launch)
    }

    fn cuLaunchKernelEx(
        config: In<Config>,
        handle: Handle,
        parameters: In<*const u8>,
        extra: In<*const u8>,
    ) {
        let mut world = enter()?;
        refuse_extra(extra)?;
        let config = config.get(0).ok_or_else(|| Refusal::new(INVALID_VALUE, "no shape"))?;
        let function = function(handle)?;
        let launch = Launch {
            grid: config.grid,
            block: config.block,
            dynamic: config.dynamic as usize,
            parameters: take(&function.sizes, parameters)?,
            function,
            programmatic: is_programmatic(&config.attributes.all(config.count as usize))?,
        };
        start(&mut world, config.stream, launch)
    }
}
