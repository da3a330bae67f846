//! Process metrics, under the names that Prometheus' client libraries use.

use std::{fmt::Write as _, fs};

use rustix::time::{ClockId, clock_gettime};

/// Renders this process's use of the machine. `index` is the tokenizer-manager's index,
/// and `started` is the start time, seconds since 1970. Figures that the system does
/// not give are left out.
pub fn render_process(index: usize, started: u64) -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |key| number(&status, key).map(|kib| kib as f64 * 1024.0);
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let mut out = String::with_capacity(1024);
    for (name, kind, help, value) in [
        (
            "cpu_seconds_total",
            "counter",
            "Time on processors.",
            Some(cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9),
        ),
        (
            "resident_memory_bytes",
            "gauge",
            "Memory in use.",
            bytes("VmRSS:"),
        ),
        (
            "virtual_memory_bytes",
            "gauge",
            "Address space in use.",
            bytes("VmSize:"),
        ),
        (
            "threads",
            "gauge",
            "Threads.",
            number(&status, "Threads:").map(|threads| threads as f64),
        ),
        (
            "open_fds",
            "gauge",
            "Open file descriptors.",
            // The listing itself holds one descriptor.
            fs::read_dir("/proc/self/fd")
                .ok()
                .map(|all| all.count().saturating_sub(1) as f64),
        ),
        (
            "max_fds",
            "gauge",
            "File descriptors that may be open.",
            number(&limits, "Max open files").map(|most| most as f64),
        ),
        (
            "start_time_seconds",
            "gauge",
            "When the process started, seconds since 1970.",
            Some(started as f64),
        ),
    ] {
        let Some(value) = value else { continue };
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "# HELP process_{name} {help}\n# TYPE process_{name} {kind}\n\
             process_{name}{{tokenizer_manager=\"{index}\"}} {value}\n"
        );
    }
    out
}

/// Returns the first number behind a key at the start of a line.
fn number(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_told_by_prometheus_names() {
        let text = render_process(3, 1_700_000_000);
        for name in [
            "cpu_seconds_total",
            "resident_memory_bytes",
            "virtual_memory_bytes",
            "threads",
            "open_fds",
            "max_fds",
        ] {
            let start = format!("process_{name}{{tokenizer_manager=\"3\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&start));
            let value: f64 = value.expect(name).parse().expect("a number");
            assert!(value > 0.0, "{name} {value}");
        }
        assert!(text.contains("process_start_time_seconds{tokenizer_manager=\"3\"} 1700000000\n"));
        assert_eq!(number("a 1\nbc: 7 kB", "bc:"), Some(7));
    }
}
