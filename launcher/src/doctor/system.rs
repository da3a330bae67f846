//! Memory, files and limits.

use lockstep_config::Hardware;
use lockstep_devices::Finding;
use rustix::process::{Resource, getrlimit};

use crate::run_dir::RunDir;

const GIB: u64 = 1 << 30;

/// Memory for weights and cache.
pub(super) fn memory(hardware: &Hardware) -> Finding {
    let limit = match hardware.memory_limit {
        Some(_) => " (the control group's limit)",
        None => "",
    };
    let found = format!(
        "{} available of {}{limit}",
        gib(hardware.available_memory),
        gib(hardware.total_memory)
    );
    Finding::new("Memory", found).problem_if(
        hardware.available_memory < GIB,
        "less than 1 GiB holds the demo model and little else; free some",
    )
}

/// Transparent huge pages, which make large weights cheaper to read.
pub(super) fn huge_pages() -> Finding {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mode = text
        .split(['[', ']'])
        .nth(1)
        .unwrap_or("not offered")
        .to_owned();
    let off = mode == "never";
    Finding::new("Huge pages", mode).problem_if(
        off,
        format!("`echo madvise > {path}` as root makes weights faster to read"),
    )
}

/// Where shared memory between workers may live.
pub(super) fn shared_memory() -> Finding {
    const NAME: &str = "Shared memory";
    match rustix::fs::statvfs("/dev/shm") {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            Finding::new(NAME, format!("/dev/shm has {} free", gib(free))).problem_if(
                free < 64 << 20,
                "workers may fail to share memory; start the container with --shm-size=1g",
            )
        }
        Err(error) => Finding::new(NAME, format!("/dev/shm: {error}"))
            .problem_if(true, "mount a tmpfs at /dev/shm"),
    }
}

/// Open files, one for each connection.
pub(super) fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let text = |limit: Option<u64>| limit.map_or_else(|| "no limit".into(), |n| n.to_string());
    let found = format!(
        "{}, can be raised to {}",
        text(limit.current),
        text(limit.maximum)
    );
    Finding::new("Open files", found).problem_if(
        limit.maximum.is_some_and(|most| most < 8192),
        "the server raises its limit by itself, but not beyond this; 8192 serve 4096 \
         connections: see `ulimit -Hn` or LimitNOFILE",
    )
}

/// Whether sockets can be made.
pub(super) fn run_dir() -> Finding {
    const NAME: &str = "Run directory";
    match RunDir::create(None) {
        Ok(folder) => {
            let parent = folder.path().parent().unwrap_or(folder.path());
            Finding::new(NAME, parent.display().to_string())
        }
        Err(error) => Finding::new(NAME, "cannot be made").problem_if(true, error.to_string()),
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / GIB as f64)
}
