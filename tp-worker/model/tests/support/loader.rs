//! Loads the demo model, or a copy of it, as one of several ranks.

use std::{fs, path::Path};

use lockstep_backend::Axis;
use lockstep_backend_cpu::{CpuBackend, CpuOptions};
use lockstep_collective::local_group;
use lockstep_model::{ForwardLimits, LoadOptions, LoadProgress, ModelError, Transformer};
use lockstep_types::{Dtype, ModelConfig};

/// Returns the demo model.
pub fn demo() -> ModelConfig {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lockstep-demo-7m");
    lockstep_model_folder::load(&folder).unwrap()
}

/// Copies the files of `model` to `folder`, and returns the model in that folder.
pub fn copy_of(model: &ModelConfig, folder: &Path) -> ModelConfig {
    for entry in fs::read_dir(&model.path).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
    lockstep_model_folder::load(folder).unwrap()
}

/// Returns options for steps of a few tokens, from mapped files.
pub fn options<'a>() -> LoadOptions<'a> {
    let limits = ForwardLimits {
        max_tokens: 8,
        requests: 1,
        positions: 8,
        groups: 1,
        page_size: 8,
        tree_nodes: 1,
        replays: 0,
        logit_block_rows: 8,
        max_commit: 0,
    };
    LoadOptions::new(Axis::World, limits)
}

/// Loads rank `rank` of `size`, which computes in `dtype`.
pub fn load(
    model: &ModelConfig,
    dtype: Dtype,
    (rank, size): (usize, usize),
    options: LoadOptions<'_>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(CpuBackend, Transformer<CpuBackend>), ModelError> {
    let collective = local_group(size).into_iter().nth(rank).unwrap();
    let cpu = CpuOptions {
        threads: 2,
        dtype,
        pin: None,
        isa: None,
    };
    let mut backend = CpuBackend::new(cpu, Box::new(collective)).unwrap();
    let transformer = Transformer::load(&mut backend, model, options, progress)?;
    Ok((backend, transformer))
}
