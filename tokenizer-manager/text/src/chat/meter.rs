//! Limits of a rendering besides instructions: bytes of new values, steps of work outside
//! instructions, nesting, and time.
//!
//! minijinja counts only instructions. One instruction may double a text, pad it to gigabytes, or
//! print a list that holds another list a million times. So all code that makes a value charges
//! it first. The values alive at a time stay within the allowance. This works because operators,
//! filters and methods are this project's own, and texts grow by charged pieces.

use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind};

/// Approximate bytes of an element of a list.
pub(super) const ELEMENT: usize = 32;

/// Maximum nesting of filters that apply filters. Each takes room on the stack, and templates
/// nest at most two.
const DEEPEST_CALLS: usize = 16;

/// Bytes charged between two looks at the clock.
const BETWEEN_LOOKS: u64 = 1 << 20;

/// The rest of a rendering's allowance.
#[derive(Clone, Copy)]
struct Meter {
    allowance: u64,
    left: u64,
    look_at: u64,
    begun: Instant,
    longest: Duration,
    /// Number of filters that are applying filters.
    calls: usize,
}

thread_local! {
    /// Meter of the rendering on this thread. It is thread-local because a filter has no other
    /// way to it: macros see no variables of their callers.
    static METER: Cell<Option<Meter>> = const { Cell::new(None) };
    /// Objects of the rendering on this thread that may hold themselves.
    static KEPT: RefCell<Vec<Arc<dyn Kept>>> = const { RefCell::new(Vec::new()) };
}

/// An object that may come to hold itself. It is emptied when its rendering ends. Otherwise it
/// would never be freed, and freeing a long chain of such objects would overflow the stack.
pub(super) trait Kept {
    /// Drops all values that the object holds.
    fn empty(&self);
}

/// Keeps an object of this rendering until its end.
pub(super) fn keep(object: Arc<dyn Kept>) {
    KEPT.with_borrow_mut(|kept| kept.push(object));
}

/// Restores the previous meter and list of kept objects, also after a panic.
struct Restore(Option<Meter>, usize);

impl Drop for Restore {
    fn drop(&mut self) {
        METER.set(self.0);
        let mine = KEPT.with_borrow_mut(|kept| kept.split_off(self.1));
        mine.iter().for_each(|object| object.empty());
    }
}

/// Runs a rendering that may make values of `allowance` bytes altogether and take the time
/// `longest`.
pub(super) fn within<T>(allowance: u64, longest: Duration, render: impl FnOnce() -> T) -> T {
    let meter = Meter {
        allowance,
        left: allowance,
        look_at: allowance,
        begun: Instant::now(),
        longest,
        calls: 0,
    };
    let kept = KEPT.with_borrow(Vec::len);
    let _before = Restore(METER.replace(Some(meter)), kept);
    render()
}

/// The error that marks a rendering over a limit, in the engine's error chain.
#[derive(Debug, thiserror::Error)]
#[error("more than {0}")]
pub(super) struct Exceeded(pub String);

pub(super) fn exceeded(limit: String) -> Error {
    let error = Error::new(ErrorKind::OutOfFuel, "the rendering takes too much");
    error.with_source(Exceeded(limit))
}

/// Charges bytes before they exist, or work of the same cost.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    // There is no meter while a template is compiled. Constants are folded then, by expressions
    // no longer than the template.
    let Some(mut meter) = METER.get() else {
        return Ok(());
    };
    let left = meter.left.checked_sub(bytes as u64);
    meter.left = left.unwrap_or(0);
    let look = meter.left < meter.look_at;
    if look {
        meter.look_at = meter.left.saturating_sub(BETWEEN_LOOKS);
    }
    METER.set(Some(meter));
    if left.is_none() {
        return Err(exceeded(format!(
            "{} bytes of values on the way",
            meter.allowance
        )));
    }
    if look && meter.begun.elapsed() > meter.longest {
        return Err(exceeded(format!("{} s", meter.longest.as_secs())));
    }
    Ok(())
}

/// Runs a call inside a filter. The call may be a filter that applies others.
pub(super) fn inside<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let Some(meter) = METER.get() else {
        return call();
    };
    let calls = meter.calls + 1;
    if calls > DEEPEST_CALLS {
        return Err(exceeded(format!(
            "{DEEPEST_CALLS} filters that apply filters inside each other"
        )));
    }
    METER.set(Some(Meter { calls, ..meter }));
    let result = call();
    let calls = meter.calls;
    METER.set(METER.get().map(|meter| Meter { calls, ..meter }));
    result
}

/// Charges bytes that are read. Reading costs a sixteenth of making them.
pub(super) fn charge_reading(bytes: usize) -> Result<(), Error> {
    charge(bytes / 16)
}

/// A text that is charged as it grows.
#[derive(Debug, Default)]
pub(super) struct Text(String);

impl Text {
    pub(super) fn push_str(&mut self, text: &str) -> Result<(), Error> {
        charge(text.len())?;
        self.0.push_str(text);
        Ok(())
    }

    pub(super) fn push(&mut self, c: char) -> Result<(), Error> {
        charge(c.len_utf8())?;
        self.0.push(c);
        Ok(())
    }

    pub(super) fn repeat(&mut self, text: &str, times: usize) -> Result<(), Error> {
        // Empty pieces are charged nothing, so the allowance would never end the loop.
        if text.is_empty() {
            return Ok(());
        }
        charge(text.len().saturating_mul(times))?;
        (0..times).for_each(|_| self.0.push_str(text));
        Ok(())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

/// Writes to the output, charged.
pub(super) fn write(out: &mut dyn Write, text: &str) -> Result<(), Error> {
    charge(text.len())?;
    out.write_str(text).map_err(Error::from)
}
