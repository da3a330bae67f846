//! Cores and instructions.

use lockstep_backend_cpu::Isa;
use lockstep_config::Hardware;

use super::Finding;

/// Cores that may be used.
pub(super) fn cores(hardware: &Hardware) -> Finding {
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

/// The instructions that kernels use.
pub(super) fn instructions() -> Finding {
    let isa = Isa::detect();
    let all: Vec<_> = Isa::available().map(Isa::name).collect();
    let found = format!("{} (of {})", isa.name(), all.join(", "));
    Finding::new("Instructions", found).problem_if(
        isa == Isa::Scalar,
        "kernels run without wide vectors; a processor, or a virtual machine's CPU type, with \
         AVX2 is many times faster",
    )
}
