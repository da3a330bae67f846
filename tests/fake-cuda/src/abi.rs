//! Types of C functions: result codes, and addresses of arguments and results.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::Write;

/// Result of a call; zero is success in all libraries.
pub(crate) type Code = c_int;

/// Streams, events and other objects that callers hold: numbers without meaning.
pub(crate) type Handle = usize;

/// Result of a library's function, before it becomes a [`Code`].
pub(crate) type Answer<T = ()> = Result<T, Refusal>;

/// The error of a failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    /// Empty where callers expect the code in ordinary work.
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn new(code: Code, reason: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
        }
    }

    /// Adds the name of the failed operation to the reason.
    pub(crate) fn during(self, name: &str) -> Self {
        Self::new(self.code, format!("{name}: {}", self.reason))
    }

    /// A refusal without a reason, or whose reason was told before.
    pub(crate) fn quiet(code: Code) -> Self {
        Self::new(code, "")
    }
}

thread_local! {
    /// The calling thread's last reason for each code.
    static REASONS: RefCell<HashMap<Code, CString>> = RefCell::default();
    /// The calling thread's number of calls of each function: a test counts only its own calls.
    static CALLS: RefCell<HashMap<&'static str, u64>> = RefCell::default();
}

/// Number of the calling thread's calls of `function`.
pub(crate) fn called(function: &str) -> u64 {
    CALLS.with_borrow(|calls| calls.get(function).copied().unwrap_or(0))
}

/// Runs the body of the function `call`. CUDA returns only numbers, so [`reason`] tells why a
/// call failed, until the same code comes again.
pub(crate) fn finish(call: &'static str, body: impl FnOnce() -> Answer) -> Code {
    CALLS.with_borrow_mut(|calls| *calls.entry(call).or_default() += 1);
    match body() {
        Ok(()) => 0,
        Err(Refusal { code, reason }) => {
            if !reason.is_empty() {
                let told = format!("{call}: {reason}");
                if std::env::var_os("FAKE_CUDA_TELL").is_some() {
                    // Nobody has to read the line.
                    let _ = writeln!(std::io::stderr(), "fake cuda: error {code}: {told}");
                }
                let told = CString::new(told).unwrap_or_default();
                REASONS.with_borrow_mut(|reasons| reasons.insert(code, told));
            }
            code
        }
    }
}

/// The reason why the calling thread got `code` last; `name` if there was no reason.
pub(crate) fn reason(code: Code, name: &'static CStr) -> *const c_char {
    REASONS.with_borrow(|reasons| {
        reasons
            .get(&code)
            .map_or(name.as_ptr(), |told| told.as_ptr())
    })
}

/// Defines functions of a library, whose bodies return an [`Answer`].
macro_rules! export {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> $crate::abi::Code {
            $crate::abi::finish(stringify!($name), move || $body)
        }
    )*};
}
pub(crate) use export;

/// Address for a result. If null, the result is dropped.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: CUDA's callers pass room for a `T`.
            unsafe { self.0.write(value) }
        }
    }

    /// Writes `values` from the address on. The caller has room for all of them.
    pub(crate) fn set_all(self, values: &[T])
    where
        T: Copy,
    {
        if !self.0.is_null() {
            // SAFETY: CUDA's callers pass room for as many as they were told of.
            unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) }
        }
    }
}

/// Address of one or several arguments; null for none.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn new(at: *const T) -> Self {
        Self(at)
    }

    pub(crate) fn get(self, index: usize) -> Option<T> {
        // SAFETY: CUDA's callers show as many as the call's other arguments say.
        (!self.0.is_null()).then(|| unsafe { self.0.add(index).read_unaligned() })
    }

    pub(crate) fn all(self, count: usize) -> Vec<T> {
        (0..count).filter_map(|index| self.get(index)).collect()
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A text that ends with a zero.
pub(crate) type Text = In<c_char>;

impl Text {
    /// The text; empty if null.
    pub(crate) fn text(self) -> String {
        if self.0.is_null() {
            return String::new();
        }
        // SAFETY: CUDA's callers end their texts with a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_string_lossy().into_owned()
    }
}
