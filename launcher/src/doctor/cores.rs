//! Cores that the program may use.

use lockstep_config::Hardware;
use lockstep_devices::Finding;

/// Counts them.
pub(super) fn find(hardware: &Hardware) -> Finding {
    let usable = hardware.cores.len();
    let online = std::fs::read_to_string("/proc/cpuinfo")
        .map(|text| {
            text.lines()
                .filter(|line| line.starts_with("processor"))
                .count()
        })
        .unwrap_or(usable)
        .max(usable);
    let found = if usable == online {
        usable.to_string()
    } else {
        format!("{usable} of {online} may be used")
    };
    Finding::new("Cores", found).problem_if(
        usable < 2,
        "two workers and the server share one core; give the container or the affinity mask more",
    )
}
