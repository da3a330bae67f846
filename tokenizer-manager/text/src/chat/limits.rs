//! What rendering one prompt may cost.

use std::time::Duration;

/// Bounds on one rendering, of a template that may be anything; it comes from the model's folder all
/// the same, and never from a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Template instructions (minijinja's fuel). A message costs some hundred; a chat of a thousand
    /// messages stays below a million.
    pub fuel: u64,
    /// Bytes of rendered prompt.
    pub output_bytes: usize,
    /// Bytes of all values that a template makes on the way, the prompt included; a list's element
    /// counts as 32.
    pub value_bytes: u64,
    /// The same for each byte of the request: a template copies a message a few times.
    pub value_bytes_per_byte: u64,
    /// The longest time. Instructions and values bound it too; this is for what they do not see.
    pub time: Duration,
    /// Nesting of lists and objects in messages, tools, documents and keyword arguments, and in
    /// what `tojson` prints.
    pub json_depth: usize,
    /// Nesting of macro calls and recursive loops, chosen to fit a thread with a stack of 2 MiB.
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
