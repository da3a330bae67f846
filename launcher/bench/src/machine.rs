//! What the figures were measured on.

use serde_json::{Value, json};

/// Processor, cores, memory, kernel.
pub fn describe() -> Value {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    json!({
        "processor": field("model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_kib": meminfo("MemTotal"),
        "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// Most memory this process ever held, bytes.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    kib(&status, "VmHWM").map(|kib| kib * 1024)
}

fn meminfo(name: &str) -> Option<u64> {
    kib(&std::fs::read_to_string("/proc/meminfo").ok()?, name)
}

fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_has_used_memory() {
        assert!(super::peak_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
