//! The cores of the host.

use std::path::Path;
use std::time::Instant;

use lockstep_backend::{AttentionShape, BackendError, DeviceMemory, ExpertsShape, Groups};
use lockstep_backend_cpu::roofline::{Arithmetic, Meter};
use lockstep_backend_cpu::{
    CpuBackend, CpuError, CpuKvCache, CpuMemory, CpuOptions, CpuTensor, Isa,
};
use lockstep_types::{DeviceRoom, KvCacheDtype, ModelConfig};

use crate::{
    ComparedBits, Device, DeviceError, DeviceOptions, Finding, MemoryTimes, Metered, Roofline, Work,
};

/// The host is the device: nothing runs beside the program.
impl Metered for CpuBackend {
    fn prepare_meter(&mut self, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn measure_memory(&mut self) -> Result<MemoryTimes, DeviceError> {
        let why = "`lockstep bench kernels` measures the processor's memory";
        Err(DeviceError::new(BackendError::Unsupported(why.to_owned())))
    }

    fn measure(&mut self, _: usize, work: Work<'_, Self>) -> Result<f64, BackendError> {
        let start = Instant::now();
        work(self)?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn select_kernels(&mut self, _: &'static [&'static str]) -> usize {
        0
    }

    fn read_memory(&mut self, _: usize) {}

    fn launch_empty(&mut self, _: u32) {}

    fn compare_bits(&mut self) -> Result<ComparedBits, DeviceError> {
        let why = "the processor's kernels are compared by their own tests";
        Err(DeviceError::new(BackendError::Unsupported(why.to_owned())))
    }

    fn dequantize_weights(&mut self) -> Result<(), DeviceError> {
        Self::dequantize_weights(self);
        Ok(())
    }

    fn recorded(&self) -> (u64, u64) {
        (0, 0)
    }
}

impl Device for CpuBackend {
    fn exists() -> bool {
        true
    }

    fn room(_: usize) -> Result<Option<DeviceRoom>, DeviceError> {
        Ok(None)
    }

    fn free(_: usize) -> Result<Option<u64>, DeviceError> {
        Ok(None)
    }

    fn serves(
        _: &DeviceOptions<'_>,
        heads: &AttentionShape,
        cached: KvCacheDtype,
    ) -> Result<(), DeviceError> {
        CpuKvCache::serves(heads.latent, heads.head_dim, cached).map_err(DeviceError::new)
    }

    fn serves_layers(_: &ModelConfig) -> Result<(), DeviceError> {
        Ok(())
    }

    fn serves_experts(_: &ExpertsShape) -> Result<(), DeviceError> {
        Ok(())
    }

    fn open(options: &DeviceOptions<'_>, groups: impl Into<Groups>) -> Result<Self, DeviceError> {
        let options = cpu_options(options, isa(options.kernels)?);
        Self::new(options, groups).map_err(DeviceError::new)
    }

    fn memory(options: &DeviceOptions<'_>) -> Box<dyn DeviceMemory> {
        // Unknown names are refused when the device is opened.
        let isa = options.kernels.and_then(|name| name.parse().ok());
        Box::new(CpuMemory::new(&cpu_options(options, isa)))
    }

    fn findings() -> Vec<Finding> {
        let isa = Isa::detect();
        let all: Vec<_> = Isa::available().map(Isa::name).collect();
        let found = format!("{} (of {})", isa.name(), all.join(", "));
        let instructions = Finding::new("Instructions", found).problem_if(
            isa == Isa::Scalar,
            "kernels run without wide vectors; a processor, or a virtual machine's CPU type, \
             with AVX2 is many times faster",
        );
        vec![instructions]
    }

    fn kernels(name: Option<&str>) -> Result<&'static str, DeviceError> {
        let isa = isa(name)?.unwrap_or_else(Isa::detect);
        match isa.is_available() {
            true => Ok(isa.name()),
            false => Err(DeviceError::new(CpuError::Isa(isa))),
        }
    }

    fn collectives(_: Option<&Path>) -> Result<String, DeviceError> {
        Err(DeviceError::new(BackendError::Unsupported(
            "processors exchange through the host's memory alone".to_owned(),
        )))
    }

    fn roofline(
        options: &DeviceOptions<'_>,
        bytes: usize,
    ) -> Result<Option<Roofline>, DeviceError> {
        let isa = isa(options.kernels)?.unwrap_or_else(Isa::widest);
        let mut meter = Meter::new(options.threads, None).map_err(DeviceError::new)?;
        let peak = |arithmetic| Some((arithmetic, meter.compute_peak(arithmetic, isa)?));
        Ok(Some(Roofline {
            peaks: Arithmetic::ALL.into_iter().filter_map(peak).collect(),
            barrier: meter.barrier(),
            read: meter.read_bandwidth(bytes).map_err(DeviceError::new)?,
            update: meter.update_bandwidth(bytes).map_err(DeviceError::new)?,
        }))
    }

    fn write(&mut self, tensor: &mut CpuTensor, values: impl FnOnce(&mut [f32])) {
        values(tensor.values_mut());
    }
}

/// Returns the instruction set with that name; `None` without a name.
fn isa(name: Option<&str>) -> Result<Option<Isa>, DeviceError> {
    name.map(str::parse).transpose().map_err(DeviceError::new)
}

fn cpu_options(options: &DeviceOptions<'_>, isa: Option<Isa>) -> CpuOptions {
    CpuOptions {
        threads: options.threads,
        dtype: options.dtype,
        pin: options
            .cores
            .filter(|cores| !cores.is_empty())
            .map(<[usize]>::to_vec),
        isa,
    }
}

#[cfg(test)]
mod tests {
    use lockstep_backend::{Memory as _, WeightFormat};
    use lockstep_collective::Single;
    use lockstep_types::{DeviceConfig, Dtype};

    use super::*;

    fn describe(options: &DeviceOptions<'_>) -> Result<String, DeviceError> {
        CpuBackend::open(options, Box::new(Single::new()))
            .map(|backend| backend.describe(WeightFormat::Float))
    }

    #[test]
    fn a_device_is_opened_as_its_options_want_it() {
        let options = DeviceOptions {
            device: DeviceConfig::default(),
            threads: 2,
            dtype: Dtype::Float32,
            cores: Some(&[]),
            kernels: Some("scalar"),
            graphs: &[],
            collectives: crate::Collectives::default(),
            folder: None,
        };
        let found = describe(&options).unwrap();
        assert!(
            found.contains("scalar") && found.contains("2 threads"),
            "{found}"
        );
    }

    #[test]
    fn what_can_not_be_had_is_refused_with_the_devices_reason() {
        let options = DeviceOptions {
            device: DeviceConfig::default(),
            threads: 0,
            dtype: Dtype::Float32,
            cores: None,
            kernels: None,
            graphs: &[],
            collectives: crate::Collectives::default(),
            folder: None,
        };
        let error = describe(&options).unwrap_err().to_string();
        assert!(error.contains("at least one thread"), "{error}");
        let one = DeviceOptions {
            threads: 1,
            ..options
        };
        let error = describe(&one.pinned(Some(&[0, 1])))
            .unwrap_err()
            .to_string();
        assert!(error.contains("2 cores are named for 1 threads"), "{error}");
        let none_such = DeviceOptions {
            kernels: Some("mmx"),
            ..one
        };
        let error = describe(&none_such).unwrap_err().to_string();
        assert!(error.contains("mmx"), "{error}");
        for isa in Isa::ALL {
            let found = CpuBackend::kernels(Some(isa.name()));
            assert_eq!(found.is_ok(), isa.is_available(), "{isa}: {found:?}");
        }
    }
}
