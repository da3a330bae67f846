//! Matrices of 8-bit floats on their way to a device.

use lockstep_backend::{MatrixRole, WeightFormat};
use lockstep_backend_cpu::{CpuBackend, CpuOptions};
use lockstep_collective::Single;
use lockstep_types::{Dtype as Computed, ModelConfig};

use super::*;
use crate::blocks::{
    Linear,
    parts::{Listed, MatrixPart},
};
use crate::checkpoint::{found::locate, loader::Loader};

const GATE: &str = "model.layers.0.mlp.gate_proj";
const UP: &str = "model.layers.0.mlp.up_proj";

/// A model whose checkpoint has a scale for each tensor, and these `floats`.
fn model(floats: &[&str]) -> ModelConfig {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = repository.join("tests/fixtures/architectures/llama_fp8");
    let floats = floats.iter().map(|name| (*name).to_owned()).collect();
    ModelConfig {
        checkpoint: CheckpointFormat::Fp8(Fp8Checkpoint {
            block: None,
            mixed: false,
            floats,
        }),
        ..lockstep_model_folder::load(&folder).unwrap()
    }
}

/// Gate and up of a layer, `[4, 6]` each, as one matrix.
fn gate_up() -> Linear<Listed> {
    let weight = MatrixPart {
        tensors: vec![whole(GATE), whole(UP)],
        width: 6,
        columns: 0..6,
        role: MatrixRole::Projection,
    };
    Linear {
        weight,
        bias: None,
        adapted: None,
    }
}

fn backend() -> CpuBackend {
    let options = CpuOptions {
        threads: 1,
        dtype: Computed::Bfloat16,
        pin: None,
        isa: None,
    };
    CpuBackend::new(options, Box::new(Single::new())).unwrap()
}

/// A code that is no number would make all answers wrong, so the model is not loaded.
#[test]
fn codes_that_are_no_numbers_are_refused_by_name() {
    let (model, one) = (model(&[]), 1f32.to_le_bytes());
    let [gate, up] = [GATE, UP].map(|name| format!("{name}.weight"));
    let [gate_scale, up_scale] = [GATE, UP].map(|name| format!("{name}.weight_scale"));
    for (code, access) in [
        (0x7e, FileAccess::Mapped),
        (0x7f, FileAccess::Mapped),
        (0xff, FileAccess::Mapped),
        (0x7f, FileAccess::Read),
    ] {
        let (codes, mut odd) = ([0x38; 24], [0x38; 24]);
        odd[23] = code;
        let file = file(&[
            (&gate, Dtype::F8_E4M3, &[4, 6], &codes),
            (&up, Dtype::F8_E4M3, &[4, 6], &odd),
            (&gate_scale, Dtype::F32, &[], &one),
            (&up_scale, Dtype::F32, &[], &one),
        ]);
        let folder = folder(&[("model.safetensors", &file)]);
        let source = Safetensors::open(folder.path(), access).unwrap();
        let source = source.in_format(&model.checkpoint);
        let found = locate(&source, &gate_up(), &model).unwrap();
        let mut progress = |_| {};
        let mut loader = Loader::checkpoint(&source, &found, &mut progress);
        let loaded = loader.load(&mut backend(), &found);
        let loaded = loaded.map(|_| ()).map_err(ModelError::from);
        match (code, loaded) {
            (0x7e, Ok(())) => {}
            (_, Err(error)) if code != 0x7e => {
                let error = error.to_string();
                let parts = ["model.safetensors", &up, "no finite number"];
                assert!(parts.iter().all(|part| error.contains(part)), "{error}");
            }
            (_, other) => panic!("{code:#x}: {other:?}"),
        }
    }
}

/// A fused matrix of which a part is no 8-bit floats has the values of both.
#[test]
fn a_fused_matrix_may_have_parts_of_both_forms() {
    let scale = 3.1f32;
    let half: Vec<u8> = half::bf16::from_f32(0.3).to_le_bytes().repeat(24);
    let [gate, up] = [GATE, UP].map(|name| format!("{name}.weight"));
    let file = file(&[
        (&gate, Dtype::BF16, &[4, 6], &half),
        (&up, Dtype::F8_E4M3, &[4, 6], &[0x3b; 24]),
        (
            &format!("{up}_scale"),
            Dtype::F32,
            &[],
            &scale.to_le_bytes(),
        ),
    ]);
    let folder = folder(&[("model.safetensors", &file)]);
    let expected = [half::bf16::from_f32(0.3).to_f32(), 1.375 * scale];
    for access in [FileAccess::Mapped, FileAccess::Read] {
        let told = model(&["0.mlp.gate_proj"]);
        let source = Safetensors::open(folder.path(), access).unwrap();
        let source = source.in_format(&told.checkpoint);
        let found = locate(&source, &gate_up(), &told).unwrap();
        // No other format holds the values of both.
        assert_eq!(found.weight.format, WeightFormat::Dequantized);
        let mut progress = |_| {};
        let mut loader = Loader::checkpoint(&source, &found, &mut progress);
        assert!(loader.load(&mut backend(), &found).is_ok());
        let mut bytes = Vec::new();
        let fetched = source.fetch(&found.weight.taken, &mut bytes).unwrap();
        let found = values(fetched.as_ref().unwrap_or(&found.weight.taken));
        for (at, value) in found.into_iter().enumerate() {
            assert_eq!(value, expected[at / 24], "{at}");
        }
        // Where the configuration did not see the floats, they were exchanged since.
        let error = locate(&source, &gate_up(), &model(&[])).err().unwrap();
        assert!(matches!(error, ModelError::NotRounded { .. }), "{error}");
    }
}
