//! GPUs, found by loading the driver's library where there is one.

use lockstep_devices::Finding;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

const NAME: &str = "GPUs";

/// One line per GPU; this build computes on the CPU whatever it finds.
pub(super) fn find() -> Vec<Finding> {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound) => {
            return vec![Finding::new(NAME, "none found (no NVIDIA driver)")];
        }
        Err(error) => {
            let remedy = "the driver is there and does not answer; see nvidia-smi";
            return vec![Finding::new(NAME, error.to_string()).problem_if(true, remedy)];
        }
    };
    let mut found: Vec<_> = (0..nvml.device_count().unwrap_or(0))
        .map(|index| {
            Finding::new(
                NAME,
                describe(&nvml, index).unwrap_or_else(|e| e.to_string()),
            )
        })
        .collect();
    if found.is_empty() {
        found.push(Finding::new(NAME, "none found"));
    } else {
        found.push(Finding::new(
            "",
            "not used: this version computes on the CPU",
        ));
    }
    found
}

fn describe(nvml: &Nvml, index: u32) -> Result<String, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let gib = device.memory_info()?.total as f64 / f64::from(1 << 30);
    Ok(format!("{index}: {}, {gib:.0} GiB", device.name()?))
}
