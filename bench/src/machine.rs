//! Description of the machine that was measured.

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

/// Most memory that this process ever held, in bytes.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    kib(&status, "VmHWM").map(|kib| kib * 1024)
}

/// Makes [`peak_memory`] count anew from the memory held now, where the system can (Linux).
pub fn forget_peak_memory() {
    // Elsewhere the peak stays that of the whole process.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Bytes of the last-level cache, if the system tells.
pub fn last_level_cache() -> Option<usize> {
    let caches = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let size = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(entry.ok()?.path().join("size")).ok()?;
        cache_size(text.trim())
    };
    caches.filter_map(size).max()
}

/// Bytes of a size in Linux's notation: `48K`, `32M`.
fn cache_size(text: &str) -> Option<usize> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

/// Bytes that new work can have without pushing other data out of memory.
pub fn available_memory() -> Option<u64> {
    meminfo("MemAvailable").map(|kib| kib * 1024)
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
    fn cache_sizes_are_read() {
        let sizes = [
            ("48K", Some(49_152)),
            ("32M", Some(33_554_432)),
            ("", None),
            ("12", None),
            ("xK", None),
        ];
        for (text, bytes) in sizes {
            assert_eq!(super::cache_size(text), bytes, "{text}");
        }
    }

    #[test]
    fn this_process_has_used_memory() {
        assert!(super::peak_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
