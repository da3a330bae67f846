//! Launches.

use std::ffi::{CStr, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::module::{Function, Outcome, function};
use crate::abi::{Answer, Handle, In, Refusal, export};
use crate::calls::note_fetched;
use crate::order;
use crate::settings;
use crate::world::codes::{ILLEGAL_ADDRESS, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES};
use crate::world::{enter, lock};

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

    /// Runs all blocks.
    fn run(&self) -> Answer {
        /// Kernels share their modules' memory, so one runs at a time.
        static RUNNING: Mutex<()> = Mutex::new(());
        if self.faults() {
            let reason = format!("{}: a planted fault", self.function.name);
            return Err(Refusal::new(ILLEGAL_ADDRESS, reason));
        }
        let seed = order::draw();
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
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
        // SAFETY: every parameter has the size that the kernel's own module says; the kernel's
        // use of them is the subject of the tests.
        unsafe {
            (self.function.launch)(
                self.grid.as_ptr(),
                self.block.as_ptr(),
                self.dynamic,
                seed,
                parameters.as_mut_ptr(),
                &raw mut outcome,
            );
        }
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
        if !extra.is_null() {
            let reason = "the fake driver takes parameters one by one alone";
            return Err(Refusal::new(INVALID_VALUE, reason));
        }
        let function = function(handle)?;
        let launch = Launch {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic: dynamic as usize,
            parameters: take(&function.sizes, parameters)?,
            function,
        };
        launch.check()?;
        world.push(stream, "kernel", Arc::new(move || launch.run()))
    }
}
