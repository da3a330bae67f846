//! Models whose layers are not alike.

use std::{fs, path::Path};

use lockstep_types::{Activation, GatedMlpNames, GatedMlpSpec, Mlp, ModelConfig};
use safetensors::{Dtype, SafeTensors, serialize, tensor::TensorView};
use tempfile::TempDir;

use super::Loaded;
use crate::pass::fixture;

/// Columns that are left of layer 1's MLP.
const LEFT: usize = 40;

fn model() -> ModelConfig {
    lockstep_model_folder::load(&fixture("llama_f32")).unwrap()
}

/// Returns the fixture in a folder of its own. Layer 1's MLP has lost all columns behind
/// [`LEFT`]: they are removed if `gone`, otherwise they are zero.
fn narrowed(gone: bool) -> (TempDir, ModelConfig) {
    let mut model = model();
    let (hidden, width) = (model.hidden_size, model.layers[1].mlp.width());
    let folder = tempfile::tempdir().unwrap();
    let file = fs::read(model.path.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let left = if gone { LEFT } else { width };
    let changed = |name: &str, values: &[u8]| -> Option<(Vec<usize>, Vec<u8>)> {
        let (rows, columns) = match name.strip_prefix("model.layers.1.mlp.")? {
            "down_proj.weight" => (hidden, width),
            _ => (width, hidden),
        };
        let sides = if rows == hidden {
            [hidden, left]
        } else {
            [left, hidden]
        };
        let mut kept = Vec::new();
        for row in 0..sides[0] {
            for column in 0..sides[1] {
                let inner = if rows == hidden { column } else { row };
                let at = 4 * (row * columns + column);
                match inner < LEFT {
                    true => kept.extend(&values[at..at + 4]),
                    false => kept.extend([0; 4]),
                }
            }
        }
        Some((sides.to_vec(), kept))
    };
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| {
            let whole = || (tensor.shape().to_vec(), tensor.data().to_vec());
            (name, changed(name, tensor.data()).unwrap_or_else(whole))
        })
        .collect();
    let views = tensors.iter().map(|(name, (shape, values))| {
        let view = TensorView::new(Dtype::F32, shape.clone(), values).unwrap();
        (*name, view)
    });
    let file = serialize(views, None).unwrap();
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    model.path = Path::to_owned(folder.path());
    model.layers[1].mlp = Mlp::Gated(GatedMlpSpec {
        activation: Activation::Silu,
        width: left,
        bias: false,
        names: GatedMlpNames::default(),
    });
    (folder, model)
}

#[test]
fn a_narrow_layer_is_a_wide_one_with_zeros() {
    let run = |gone| {
        let (_folder, model) = narrowed(gone);
        // Some logits narrow the last layer, all of them don't.
        [vec![3, 9], (0..10).collect()].map(|wanted: Vec<u32>| {
            let mut loaded = Loaded::of(&model, 4).unwrap();
            loaded.run(10, &wanted).unwrap()
        })
    };
    assert_eq!(run(true), run(false));
}
