//! Limits of the cost of rendering one prompt.

use std::time::Duration;

/// Limits of one rendering. A template comes from the model's folder and never from a request,
/// but it may do anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Maximum template instructions (minijinja's fuel). A message costs some hundred; a chat of
    /// a thousand messages stays below a million.
    pub fuel: u64,
    /// Maximum bytes of the rendered prompt.
    pub output_bytes: usize,
    /// Maximum bytes of all values that a template makes while it renders, the prompt included. A
    /// list's element counts as 32 bytes.
    pub value_bytes: u64,
    /// Further bytes of values for each byte of the request, since a template copies a message a
    /// few times.
    pub value_bytes_per_byte: u64,
    /// Maximum time. The limits of instructions and values also bound the time; this one is for
    /// work that neither counts.
    pub time: Duration,
    /// Maximum nesting of lists and objects in messages, tools, documents and keyword arguments,
    /// and in the output of `tojson`.
    pub json_depth: usize,
    /// Maximum nesting of macro calls and recursive loops, chosen to fit a thread with a stack of
    /// 2 MiB.
    pub call_depth: usize,
}

impl Default for TemplateLimits {
    fn default() -> Self {
        Self {
            fuel: 10_000_000,
            output_bytes: 16 << 20,
            value_bytes: 48 << 20,
            value_bytes_per_byte: 16,
            time: Duration::from_secs(10),
            json_depth: 128,
            call_depth: 64,
        }
    }
}
