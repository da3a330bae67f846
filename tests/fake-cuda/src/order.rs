//! The order of work that CUDA leaves open, drawn from a seed.

use std::cell::RefCell;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{Code, Out, Refusal, export};
use crate::settings;

/// A thread's generator (xorshift64).
struct Generator {
    state: u64,
    drawn: Arc<AtomicU64>,
}

impl Generator {
    fn new(seed: u64, drawn: Arc<AtomicU64>) -> Self {
        Self {
            // Never zero: xorshift would stay there.
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            drawn,
        }
    }

    /// Generator of a thread that has no seed of its own.
    fn of_threads() -> Self {
        let told = OF_THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        let (seed, drawn) = told.clone().unwrap_or_else(|| {
            let seed = settings::number("FAKE_CUDA_SEED", 1);
            (seed, Arc::default())
        });
        Self::new(seed, drawn)
    }

    fn draw(&mut self) -> u64 {
        self.drawn.fetch_add(1, Ordering::Relaxed);
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }
}

thread_local! {
    /// Generator of the calling thread. Each thread has its own, so that a test sees the same
    /// order whatever other threads do.
    static GENERATOR: RefCell<Option<Generator>> = const { RefCell::new(None) };
}

/// Number of draws of each order that was begun.
static DRAWN: Mutex<Vec<Arc<AtomicU64>>> = Mutex::new(Vec::new());

/// Seed and count for threads that draw for the first time.
static OF_THREADS: Mutex<Option<(u64, Arc<AtomicU64>)>> = Mutex::new(None);

/// The next number of the calling thread.
pub(crate) fn draw() -> u64 {
    GENERATOR.with_borrow_mut(|generator| {
        let generator = generator.get_or_insert_with(Generator::of_threads);
        generator.draw()
    })
}

/// A new order's count, and the order's number.
fn count() -> (Arc<AtomicU64>, u64) {
    let mut all = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let drawn = Arc::<AtomicU64>::default();
    all.push(drawn.clone());
    (drawn, all.len() as u64 - 1)
}

/// A number below `count`, which must not be zero.
pub(crate) fn below(count: usize) -> usize {
    ((draw() >> 16) % count as u64) as usize
}

/// Draws if a kernel that may begin early does: mostly, and always under the thread sanitizer,
/// which then sees what the kernel does too early.
pub(crate) fn begins_early() -> bool {
    let draw = below(4);
    draw != 0 || settings::sanitizers().is_some_and(|names| names.contains("thread"))
}

export! {
    /// Begins the calling thread's order anew, and tells the order's number.
    fn fakeCudaSeed(seed: u64, number: Out<u64>) {
        let (drawn, its) = count();
        number.set(its);
        GENERATOR.set(Some(Generator::new(seed, drawn)));
        Ok(())
    }

    /// Begins the order of all threads that have drawn nothing yet, and tells its number.
    fn fakeCudaSeedThreads(seed: u64, number: Out<u64>) {
        let (drawn, its) = count();
        number.set(its);
        let mut told = OF_THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        *told = Some((seed, drawn));
        Ok(())
    }

    /// Tells the number of draws of the order `number`.
    fn fakeCudaDrawn(number: u64, count: Out<u64>) {
        let all = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
        let drawn = usize::try_from(number).ok().and_then(|number| all.get(number));
        let drawn = drawn.ok_or_else(|| Refusal::new(1, "no such order"))?;
        count.set(drawn.load(Ordering::Relaxed));
        Ok(())
    }
}

/// Begins the order of the work that the calling thread waits for anew, drawn from `seed`.
/// Returns true if the loaded libraries are the fake ones: a real device takes no orders.
#[must_use]
pub fn seed(seed: u64) -> bool {
    begin(c"fakeCudaSeed", seed).is_some()
}

/// Begins an order like [`seed`], for a test that claims to run in that order. When the result
/// is dropped, the test fails if nothing was drawn of the order, say because another thread did
/// the work.
///
/// On a real device nothing is drawn, and nothing fails.
#[must_use = "when it goes, the order has to have been drawn"]
pub fn order(seed: u64) -> Order {
    Order {
        seed,
        number: begin(c"fakeCudaSeed", seed),
    }
}

/// Begins an order like [`order`], for threads that have drawn nothing yet, such as threads
/// that a test is about to start.
#[must_use = "when it goes, the order has to have been drawn"]
pub fn order_of_threads(seed: u64) -> Order {
    Order {
        seed,
        number: begin(c"fakeCudaSeedThreads", seed),
    }
}

/// Guard of an order that has to be drawn from.
#[derive(Debug)]
pub struct Order {
    seed: u64,
    /// `None` on a real device.
    number: Option<u64>,
}

impl Order {
    /// Number of draws of the order, by all threads that have begun it. `None` for the real
    /// libraries.
    #[must_use]
    pub fn drawn(&self) -> Option<u64> {
        let (symbol, mut count) = (symbol(c"fakeCudaDrawn")?, 0);
        // SAFETY: only the function above has this name.
        let ask = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(u64, &mut u64) -> Code>(symbol)
        };
        (ask(self.number?, &mut count) == 0).then_some(count)
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        let undrawn = self.number.is_some() && self.drawn() == Some(0);
        assert!(
            !undrawn || std::thread::panicking(),
            "nothing was drawn of the order of seed {}: another thread did the work, or nobody",
            self.seed
        );
    }
}

/// Begins an order and returns its number; `None` for the real libraries.
fn begin(name: &CStr, seed: u64) -> Option<u64> {
    let (symbol, mut number) = (symbol(name)?, 0);
    // SAFETY: only the functions above have these names.
    let set =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u64, &mut u64) -> Code>(symbol) };
    (set(seed, &mut number) == 0).then_some(number)
}

/// Number of the calling thread's calls of cuBLASLt's heuristic. `None` for the real libraries,
/// which don't count.
#[must_use]
pub fn heuristics() -> Option<u64> {
    let symbol = symbol(c"fakeCudaHeuristics")?;
    let mut count = 0;
    // SAFETY: only the function that writes one number has this name.
    let ask =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(&mut u64) -> Code>(symbol) };
    (ask(&mut count) == 0).then_some(count)
}

/// Address of a function that only the fake libraries have.
pub(crate) fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both texts end with a zero; the library is not closed again.
    let symbol = unsafe {
        let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            return None;
        }
        libc::dlsym(library, name.as_ptr())
    };
    (!symbol.is_null()).then_some(symbol)
}
