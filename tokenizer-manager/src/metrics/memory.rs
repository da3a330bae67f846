//! Memory that requests hold of `--max-request-memory`, in Prometheus' text format.

/// Renders the bytes of tokenizer-manager `front`, or the scheduler's bytes, which
/// carry no index.
pub fn render_memory(front: Option<usize>, bytes: u64) -> String {
    let name = "lockstep_request_memory_bytes";
    let labels = front.map_or_else(String::new, |index| {
        format!("{{tokenizer_manager=\"{index}\"}}")
    });
    format!(
        "# HELP {name} Bytes of --max-request-memory that requests hold; without a \
         tokenizer-manager's number those of SGLang's port.\n# TYPE {name} gauge\n\
         {name}{labels} {bytes}\n"
    )
}
