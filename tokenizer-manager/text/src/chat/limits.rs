//! What rendering one prompt may cost.

/// Bounds on one rendering. They stop runaway templates; they do not make a hostile template safe,
/// which is why templates come from the model directory or the operator and never from a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Template instructions (minijinja's fuel). A message costs some hundred; a chat of a thousand
    /// messages stays below a million.
    pub fuel: u64,
    /// Bytes of rendered prompt.
    pub output_bytes: usize,
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
            json_depth: 128,
            call_depth: 64,
        }
    }
}
