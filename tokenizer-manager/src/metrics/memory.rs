//! What requests hold of `--max-request-memory`, in Prometheus' text format.

/// Renders the bytes of a tokenizer-manager, or those of the scheduler, which
/// carry no number.
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
