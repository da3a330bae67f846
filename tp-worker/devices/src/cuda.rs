//! NVIDIA's GPUs.

use std::path::PathBuf;

use lockstep_backend::DeviceMemory;
use lockstep_backend_cuda::{
    Compiler, Context, CudaBackend, CudaError, CudaMemory, CudaOptions, CudaTensor, Products,
};
use lockstep_collective::Collective;
use lockstep_types::DeviceRoom;

use crate::{Device, DeviceError, DeviceOptions, Finding, Roofline};

/// Folder of compiled kernels, beside what else is kept.
const KERNELS: &str = "kernels";

impl Device for CudaBackend {
    fn room(number: usize) -> Result<Option<DeviceRoom>, DeviceError> {
        let room = || -> Result<DeviceRoom, CudaError> {
            let context = Context::open(number)?;
            let (free, total) = context.memory()?;
            libraries(&context)?;
            Ok(DeviceRoom {
                total: total as u64,
                free: free as u64,
            })
        };
        room().map(Some).map_err(DeviceError::new)
    }

    fn open(
        options: &DeviceOptions<'_>,
        collective: Box<dyn Collective>,
    ) -> Result<Self, DeviceError> {
        Self::kernels(options.kernels)?;
        let options = CudaOptions {
            ordinal: options.device.base_gpu_id,
            dtype: options.dtype,
            quantization: options.quantization,
            kernels: options
                .folder
                .map(|folder| -> PathBuf { folder.join(KERNELS) }),
        };
        Self::new(&options, collective).map_err(DeviceError::new)
    }

    fn memory(options: &DeviceOptions<'_>) -> Box<dyn DeviceMemory> {
        Box::new(CudaMemory::new(options.dtype))
    }

    fn findings() -> Vec<Finding> {
        match Context::count() {
            Ok(count) if count > 0 => {
                let mut found: Vec<_> = (0..count).map(gpu).collect();
                found.extend(Context::open(0).ok().map(|context| {
                    let libraries = libraries(&context);
                    let found = match &libraries {
                        Ok(()) => "libnvrtc, libcublasLt",
                        Err(_) => "not all found",
                    };
                    let finding = Finding::new("CUDA libraries", found);
                    finding.problem_if(libraries.is_err(), error_text(libraries))
                }));
                found
            }
            Ok(_) | Err(CudaError::NoDevice) => vec![Finding::new(GPUS, "none found")],
            Err(CudaError::Missing { .. }) => {
                vec![Finding::new(GPUS, "none found (no NVIDIA driver)")]
            }
            Err(error) => {
                let found = "the NVIDIA driver can't be used";
                vec![Finding::new(GPUS, found).problem_if(true, error.to_string())]
            }
        }
    }

    fn kernels(name: Option<&str>) -> Result<&'static str, DeviceError> {
        match name {
            None => Ok("cuda"),
            Some(name) => Err(DeviceError::new(CudaError::Unsupported(format!(
                "a GPU has one set of kernels, and none called {name}: name none"
            )))),
        }
    }

    fn roofline(_: &DeviceOptions<'_>, _: usize) -> Result<Roofline, DeviceError> {
        Err(DeviceError::new(CudaError::Unsupported(
            "what a GPU can do at most is not measured: give --device cpu".to_owned(),
        )))
    }

    fn write(&mut self, tensor: &mut CudaTensor, values: impl FnOnce(&mut [f32])) {
        let mut rows = vec![0.0; tensor.rows() * tensor.width()];
        values(&mut rows);
        self.upload(tensor, &rows);
    }
}

const GPUS: &str = "GPUs";

/// One GPU, and how much of its memory is free.
fn gpu(number: usize) -> Finding {
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    let looked = Context::open(number).and_then(|context| {
        let (free, total) = context.memory()?;
        let (free, total, name) = (gib(free), gib(total), context.describe());
        Ok(format!(
            "{number}: {name}, {free:.1} of {total:.1} GiB free"
        ))
    });
    match looked {
        Ok(found) => Finding::new(GPUS, found),
        Err(error) => Finding::new(GPUS, format!("{number}: can't be used"))
            .problem_if(true, error.to_string()),
    }
}

/// Looks for everything beside the driver.
fn libraries(context: &std::sync::Arc<Context>) -> Result<(), CudaError> {
    Compiler::new(context, None)?;
    Products::new(context)?;
    Ok(())
}

fn error_text(result: Result<(), CudaError>) -> String {
    result
        .err()
        .map_or_else(String::new, |error| error.to_string())
}

#[cfg(test)]
mod tests {
    use lockstep_backend::{Axis, Backend as _, Holds};
    use lockstep_collective::Single;
    use lockstep_types::{DeviceConfig, DeviceKind, Dtype, Footprint as _, Quantization};

    use super::*;
    use crate::DeviceFootprint;

    fn options() -> DeviceOptions<'static> {
        DeviceOptions {
            device: DeviceConfig {
                kind: DeviceKind::Cuda,
                base_gpu_id: 0,
            },
            threads: 1,
            dtype: Dtype::Bfloat16,
            quantization: Quantization::None,
            cores: None,
            kernels: None,
            folder: None,
        }
    }

    #[test]
    fn a_gpu_is_opened_where_it_is_asked_for_and_keeps_its_kernels() {
        let folder = tempfile::tempdir().unwrap();
        // The fake machine has two.
        let last = Context::count().unwrap() - 1;
        let options = options().of_rank(last, Some(folder.path()));
        let mut gpu = CudaBackend::open(&options, Box::new(Single::new())).unwrap();
        assert!(gpu.describe().starts_with("cuda "), "{}", gpu.describe());
        let kept = std::fs::read_dir(folder.path().join(KERNELS)).unwrap();
        assert!(kept.count() >= 3);
        let mut tensor = gpu.tensor(4, 2, Holds::Logits).unwrap();
        gpu.set_rows(&mut tensor, 3);
        gpu.write(&mut tensor, |values| values.fill(0.5));
        let mut space = Vec::new();
        let found = gpu.gather_to_host(Axis::Alone, &tensor, &[2], &mut space);
        assert_eq!(found.unwrap(), [0.5; 6]);
    }

    #[test]
    fn what_is_not_there_is_refused_with_the_devices_reason() {
        let room = DeviceFootprint.room(DeviceKind::Cuda, 0).unwrap().unwrap();
        assert!(0 < room.free && room.free <= room.total);
        let error = DeviceFootprint.room(DeviceKind::Cuda, 77).unwrap_err();
        assert!(error.contains("there is no GPU 77"), "{error}");
        let far = options().of_rank(77, None);
        let error = CudaBackend::open(&far, Box::new(Single::new())).err();
        assert!(error.unwrap().to_string().contains("there is no GPU 77"));
        let named = DeviceOptions {
            kernels: Some("scalar"),
            ..options()
        };
        let error = CudaBackend::open(&named, Box::new(Single::new())).err();
        assert!(error.unwrap().to_string().contains("scalar"));
        let error = CudaBackend::roofline(&options(), 1)
            .unwrap_err()
            .to_string();
        assert!(error.contains("--device cpu"), "{error}");
    }

    #[test]
    fn gpus_and_libraries_are_found() {
        let found = CudaBackend::findings();
        let gpus = found.iter().filter(|finding| finding.name == GPUS).count();
        assert!(gpus > 0 && found.len() == gpus + 1, "{found:?}");
        assert!(found[0].found.contains("GiB free"), "{found:?}");
        assert!(found.iter().all(|finding| finding.problem.is_none()));
    }
}
