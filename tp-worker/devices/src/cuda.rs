//! NVIDIA's GPUs.

mod layers;

use std::path::{Path, PathBuf};

use lockstep_backend::{AttentionShape, BackendError, DeviceMemory, ExpertsShape, Groups};
use lockstep_backend_cuda::{
    Attention, CollectiveOptions, Compiler, Context, CudaBackend, CudaError, CudaMemory,
    CudaOptions, CudaTensor, Element, Gpu, Nccl, Products, Recorded, check_experts,
};
use lockstep_types::{DeviceRoom, KvCacheDtype, ModelConfig};

use crate::{
    ComparedBits, Device, DeviceError, DeviceOptions, Finding, MemoryTimes, Metered, Roofline, Work,
};

/// Folder of compiled kernels, inside the folder for all files that are kept
/// ([`DeviceOptions::folder`]).
pub const KERNELS: &str = "kernels";

/// Number of sources of kernels that this process compiled and could not keep in that folder.
pub fn kernels_not_kept() -> usize {
    lockstep_backend_cuda::programs_not_kept()
}

impl Metered for CudaBackend {
    fn prepare_meter(&mut self, bytes: usize) -> Result<(), DeviceError> {
        Self::prepare_meter(self, bytes).map_err(DeviceError::new)
    }

    fn measure_memory(&mut self) -> Result<MemoryTimes, DeviceError> {
        let (copied, read, bytes) = Self::measure_memory(self).map_err(DeviceError::new)?;
        Ok(MemoryTimes {
            bytes,
            copied,
            read,
        })
    }

    fn measure(&mut self, copies: usize, work: Work<'_, Self>) -> Result<f64, BackendError> {
        Self::measure(self, copies, work)
    }

    fn select_kernels(&mut self, names: &'static [&'static str]) -> usize {
        Self::select_kernels(self, names)
    }

    fn read_memory(&mut self, bytes: usize) {
        Self::read_memory(self, bytes);
    }

    fn launch_empty(&mut self, blocks: u32) {
        Self::launch_empty(self, blocks);
    }

    fn compare_bits(&mut self) -> Result<ComparedBits, DeviceError> {
        let found = Self::compare_bits(self).map_err(DeviceError::new)?;
        Ok(ComparedBits {
            sums: found.sums,
            different: found.different,
            largest: found.largest,
            columns: found.columns,
        })
    }

    fn recorded(&self) -> (u64, u64) {
        let Recorded { graphs, bytes } = Self::recorded(self);
        (graphs, bytes)
    }

    fn exchanged(&self) -> u64 {
        Self::exchanged(self)
    }
}

impl Device for CudaBackend {
    fn exists() -> bool {
        match Gpu::count() {
            Ok(count) => count > 0,
            // Without a driver nobody has set up a GPU for programs. Any other failure is one
            // of a driver that is there, so people should hear of it.
            Err(CudaError::Missing { .. } | CudaError::NoDevice) => false,
            Err(_) => true,
        }
    }

    fn room(number: usize) -> Result<Option<DeviceRoom>, DeviceError> {
        let room = || -> Result<DeviceRoom, CudaError> {
            let gpu = Gpu::find(number)?;
            libraries(&gpu)?;
            let (free, total) = Context::of(gpu)?.memory()?;
            Ok(DeviceRoom {
                total: total as u64,
                free: free as u64,
            })
        };
        room().map(Some).map_err(DeviceError::new)
    }

    fn free(number: usize) -> Result<Option<u64>, DeviceError> {
        let free = Context::open(number).and_then(|context| context.memory());
        Ok(Some(free.map_err(DeviceError::new)?.0 as u64))
    }

    fn serves(
        options: &DeviceOptions<'_>,
        heads: &AttentionShape,
        cached: KvCacheDtype,
    ) -> Result<(), DeviceError> {
        let served = || -> Result<(), CudaError> {
            let gpu = Gpu::find(options.device.base_gpu_id)?;
            Attention::check(&gpu, heads, Element::cached(cached)?)
        };
        served().map_err(DeviceError::new)
    }

    fn serves_layers(model: &ModelConfig) -> Result<(), DeviceError> {
        layers::served(model).map_err(DeviceError::new)
    }

    fn serves_experts(experts: &ExpertsShape) -> Result<(), DeviceError> {
        check_experts(experts).map_err(DeviceError::new)
    }

    fn open(options: &DeviceOptions<'_>, groups: impl Into<Groups>) -> Result<Self, DeviceError> {
        Self::kernels(options.kernels)?;
        let options = CudaOptions {
            ordinal: options.device.base_gpu_id,
            dtype: options.dtype,
            kernels: options
                .folder
                .map(|folder| -> PathBuf { folder.join(KERNELS) }),
            graphs: options.graphs.to_vec(),
            collectives: CollectiveOptions {
                backend: options.collectives.backend,
                nccl: options.collectives.library.map(Path::to_owned),
                joining: options.collectives.joining,
                patience: options.collectives.patience,
            },
        };
        Self::new(&options, groups).map_err(DeviceError::new)
    }

    fn memory(options: &DeviceOptions<'_>) -> Box<dyn DeviceMemory> {
        Box::new(CudaMemory::new(options.dtype, options.collectives.backend))
    }

    fn findings() -> Vec<Finding> {
        match Gpu::count() {
            Ok(count) if count > 0 => {
                let gpus: Vec<_> = (0..count).map(Gpu::find).collect();
                // The libraries are the same for all GPUs. A GPU that is too old needs none.
                let first = gpus.iter().find_map(|gpu| gpu.as_ref().ok());
                let libraries = first.map(|gpu| match libraries(gpu) {
                    Ok(()) => Finding::new(LIBRARIES, "libnvrtc, libcublasLt"),
                    Err(error) => Finding::new(LIBRARIES, "not all can be used")
                        .problem_if(true, error.to_string()),
                });
                let gpus = gpus.into_iter().enumerate();
                gpus.map(|(number, gpu)| finding(number, gpu))
                    .chain(libraries)
                    .chain([nccl()])
                    .collect()
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

    fn collectives(path: Option<&Path>) -> Result<String, DeviceError> {
        let found = Nccl::find(path).map_err(DeviceError::new)?;
        Ok(format!("NCCL {}", found.version()))
    }

    fn roofline(_: &DeviceOptions<'_>, _: usize) -> Result<Option<Roofline>, DeviceError> {
        Ok(None)
    }

    fn write(&mut self, tensor: &mut CudaTensor, values: impl FnOnce(&mut [f32])) {
        let mut rows = vec![0.0; tensor.rows() * tensor.width()];
        values(&mut rows);
        self.upload(tensor, &rows);
    }
}

const GPUS: &str = "GPUs";
const LIBRARIES: &str = "CUDA libraries";

/// Describes one GPU and its free memory, if the GPU lets other programs ask.
fn finding(number: usize, gpu: Result<Gpu, CudaError>) -> Finding {
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(error) => {
            return Finding::new(GPUS, format!("{number}: can't be used"))
                .problem_if(true, error.to_string());
        }
    };
    let (name, total) = (gpu.describe(), gib(gpu.memory()));
    match Context::of(gpu).and_then(|context| context.memory()) {
        Ok((free, _)) => {
            let free = gib(free);
            Finding::new(
                GPUS,
                format!("{number}: {name}, {free:.1} of {total:.1} GiB free"),
            )
        }
        Err(error) if error.is_taken() => Finding::new(
            GPUS,
            format!("{number}: {name}, {total:.1} GiB, taken by another program"),
        ),
        Err(error) => Finding::new(GPUS, format!("{number}: {name}, can't be used"))
            .problem_if(true, error.to_string()),
    }
}

/// Describes the library by which ranks exchange data. If it is missing that is no problem:
/// data then passes through the host's memory.
fn nccl() -> Finding {
    let found = match Nccl::find(None) {
        Ok(nccl) => format!("{}, for data of ranks on GPUs of their own", nccl.version()),
        Err(_) => {
            "none found (libnccl.so.2): data of several ranks passes through the host's memory"
                .to_owned()
        }
    };
    Finding::new("NCCL", found)
}

/// Looks for all libraries beside the driver, and takes nothing of the GPU.
fn libraries(gpu: &Gpu) -> Result<(), CudaError> {
    Compiler::new(gpu, None)?.probe()?;
    Products::find(gpu)
}

#[cfg(test)]
mod tests {
    use lockstep_backend::{Axis, Exchange as _, Holds, Memory as _, Owners, WeightFormat};
    use lockstep_collective::Single;
    use lockstep_types::{DeviceConfig, DeviceKind, Dtype, Footprint as _};

    use super::*;
    use crate::DeviceFootprint;

    fn options() -> DeviceOptions<'static> {
        DeviceOptions {
            device: DeviceConfig {
                kind: DeviceKind::Cuda,
                base_gpu_id: 0,
                gpu_id_step: 1,
            },
            threads: 1,
            dtype: Dtype::Bfloat16,
            cores: None,
            kernels: None,
            graphs: &[],
            collectives: crate::Collectives::default(),
            folder: None,
        }
    }

    #[test]
    fn a_gpu_is_opened_where_it_is_asked_for_and_keeps_its_kernels() {
        let folder = tempfile::tempdir().unwrap();
        // The fake machine has two GPUs.
        let last = Gpu::count().unwrap() - 1;
        let options = options().of_rank(last, Some(folder.path()));
        let mut gpu = CudaBackend::open(&options, Box::new(Single::new())).unwrap();
        let about = gpu.describe(WeightFormat::Float);
        assert!(about.starts_with("cuda "), "{about}");
        assert!(about.contains(" GiB taken, sm_"), "{about}");
        let kept = std::fs::read_dir(folder.path().join(KERNELS)).unwrap();
        assert!(kept.count() >= 3);
        let mut tensor = gpu.tensor(4, 2, Holds::Logits).unwrap();
        gpu.set_rows(&mut tensor, 3);
        gpu.write(&mut tensor, |values| values.fill(0.5));
        let mut space = Vec::new();
        let owners = Owners {
            widths: &[2],
            rows: &[0..3; 1],
        };
        let found = gpu.gather_to_host(Axis::Alone, &tensor, owners, &mut space);
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
    }

    #[test]
    fn gpus_and_libraries_are_found() {
        let found = CudaBackend::findings();
        let gpus = found.iter().filter(|finding| finding.name == GPUS).count();
        assert!(gpus > 0 && found.len() == gpus + 2, "{found:?}");
        assert!(found[0].found.contains("GiB free"), "{found:?}");
        assert!(found.iter().all(|finding| finding.problem.is_none()));
    }

    #[test]
    #[ignore = "a process of its own, which another test starts"]
    fn tells_findings() {
        for Finding { found, problem, .. } in CudaBackend::findings() {
            println!("{found}: {}", problem.unwrap_or_default());
        }
    }

    /// Findings of `lockstep doctor` on machines that can't serve, or can't serve now.
    #[test]
    fn what_is_wrong_is_found_without_taking_a_gpu() {
        if !lockstep_fake_cuda::seed(1) {
            return; // Only a fake machine can be made to lack something.
        }
        let told = |name: &str, value: &str| {
            let program = std::env::current_exe().unwrap();
            let mut child = std::process::Command::new(program);
            child.args([
                "cuda::tests::tells_findings",
                "--exact",
                "--ignored",
                "--nocapture",
            ]);
            let output = child.env(name, value).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        // A GPU that a server has for itself is no problem, nor is a full GPU.
        for (name, value, said) in [
            (
                "FAKE_CUDA_EXCLUSIVE",
                "1",
                "4.0 GiB, taken by another program: \n",
            ),
            ("FAKE_CUDA_MEMORY", "1000000", "libnvrtc, libcublasLt: \n"),
            (
                "FAKE_CUDA_CAPABILITY",
                "75",
                "1: can't be used: Fake CUDA device has",
            ),
            (
                "FAKE_NVRTC_BUILTINS",
                "missing",
                "not all can be used: nothing.cu does not",
            ),
            (
                "FAKE_CUDA_DRIVER",
                "12080",
                "name the folder of libnvrtc 12 first",
            ),
        ] {
            let found = told(name, value);
            assert!(found.contains(said), "{name}={value}: {found}");
        }
    }

    #[test]
    fn heads_that_no_kernel_has_are_refused() {
        let heads = |head_dim| AttentionShape::dense(2, 1, head_dim, 1.0);
        for (head_dim, cached, served) in [
            (20, KvCacheDtype::Bfloat16, false),
            (20, KvCacheDtype::Float32, true),
            (24, KvCacheDtype::Bfloat16, true),
            (520, KvCacheDtype::Bfloat16, false),
            (64, KvCacheDtype::Int8, false),
        ] {
            let found = CudaBackend::serves(&options(), &heads(head_dim), cached);
            assert_eq!(found.is_ok(), served, "{head_dim} {cached:?}: {found:?}");
        }
    }
}
