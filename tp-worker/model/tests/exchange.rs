//! Weights that are read while others serve, from files that somebody writes to.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

use lockstep_backend::Axis;
use lockstep_backend_cpu::{CpuBackend, CpuOptions};
use lockstep_collective::local_group;
use lockstep_model::{
    FileAccess, ForwardLimits, LoadOptions, LoadProgress, ModelError, Transformer,
};
use lockstep_types::{Dtype, ModelConfig, Quantization};

const FILE: &str = "model.safetensors";

fn demo() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lockstep-demo-7m")
}

/// Loads rank `rank` of `size` and leaves what it packed in `cache`; the file there.
fn load(
    model: &ModelConfig,
    (rank, size): (usize, usize),
    cache: Option<&Path>,
    files: FileAccess,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Option<Vec<u8>>, ModelError> {
    let collective = local_group(size).into_iter().nth(rank).unwrap();
    let options = CpuOptions {
        threads: 2,
        dtype: Dtype::Float32,
        quantization: Quantization::None,
        pin: None,
        isa: None,
    };
    let mut backend = CpuBackend::new(options, Box::new(collective)).unwrap();
    let limits = ForwardLimits {
        max_tokens: 8,
        positions: 8,
        logit_block_rows: 8,
    };
    let load = LoadOptions {
        cache,
        files,
        ..LoadOptions::new(Axis::Tensor, limits)
    };
    let transformer = Transformer::load(&mut backend, model, load, progress)?;
    let file = transformer.weight_origin().file.clone();
    Ok(file.map(|file| fs::read(file).unwrap()))
}

#[test]
fn what_is_read_is_what_is_mapped() {
    let model = lockstep_model_folder::load(&demo()).unwrap();
    // A rank alone has whole rows, one of two has parts of rows too.
    for of in [(0, 1), (0, 2), (1, 2)] {
        let [mapped, read] = [FileAccess::Mapped, FileAccess::Read].map(|files| {
            let cache = tempfile::tempdir().unwrap();
            load(&model, of, Some(cache.path()), files, &mut |_| {}).unwrap()
        });
        assert!(mapped.is_some() && mapped == read, "{of:?}");
    }
}

#[test]
fn a_file_that_is_truncated_meanwhile_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(demo()).unwrap().flatten() {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let model = lockstep_model_folder::load(folder.path()).unwrap();
    let path = folder.path().join(FILE);
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let mut truncate = |_| file.set_len(4096).unwrap();
    let error = load(&model, (0, 1), None, FileAccess::Read, &mut truncate).unwrap_err();
    assert!(
        matches!(&error, ModelError::Read { file, .. } if file.ends_with(FILE)),
        "{error}"
    );
}
