//! Backends, and heads of random weights.

use std::{collections::BTreeMap, path::Path};

use lockstep_backend_cpu::{CpuBackend, CpuOptions};
use lockstep_collective::Collective;
use lockstep_types::{
    Activation, DraftKind, DraftModel, Dtype, Eagle3Norms, GatedMlpNames, GatedMlpSpec, LayerSpec,
    Mlp, ModelConfig,
};
use safetensors::{Dtype as FileDtype, serialize, tensor::TensorView};
use tempfile::TempDir;

use crate::pass::fixture;

pub fn cpu(dtype: Dtype, collective: Box<dyn Collective>) -> CpuBackend {
    let options = CpuOptions {
        threads: 1,
        dtype,
        pin: None,
        isa: None,
    };
    CpuBackend::new(options, collective).unwrap()
}

/// A head's checkpoint to be changed and written.
pub struct Checkpoint {
    pub tensors: BTreeMap<String, Stored>,
    pub draft: DraftModel,
    pub target: ModelConfig,
    state: u64,
}

/// One tensor of a file.
pub struct Stored {
    pub dtype: FileDtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// Rows of the output head of [`Checkpoint::eagle3`].
pub const DRAFT_VOCAB: usize = 50;

impl Checkpoint {
    fn new(kind: DraftKind) -> Self {
        let target = lockstep_model_folder::load(&fixture("llama")).unwrap();
        let layer = LayerSpec {
            mlp: Mlp::Gated(GatedMlpSpec {
                activation: Activation::Silu,
                width: 80,
                bias: false,
                names: GatedMlpNames::default(),
            }),
            ..target.layers[0].clone()
        };
        let model = ModelConfig {
            layers: vec![layer],
            ..target.clone()
        };
        Self {
            tensors: BTreeMap::new(),
            draft: DraftModel {
                model,
                kind,
                own_embedding: false,
                own_head: false,
            },
            target,
            state: 7,
        }
    }

    /// A head like SafeAILab's first ones: no norm before the attention.
    pub fn eagle() -> Self {
        let mut own = Self::new(DraftKind::Eagle);
        let hidden = own.draft.model.hidden_size;
        own.random("fc.weight", &[hidden, 2 * hidden]);
        own.random("fc.bias", &[hidden]);
        own.layer("layers.0", hidden);
        own
    }

    /// A head like the public EAGLE-3 heads.
    pub fn eagle3() -> Self {
        let mut own = Self::new(DraftKind::Eagle3 {
            draft_vocab_size: DRAFT_VOCAB,
            capture_layers: vec![0, 1, 2],
            norms: Eagle3Norms::default(),
        });
        let hidden = own.draft.model.hidden_size;
        own.random("fc.weight", &[hidden, 3 * hidden]);
        own.random("norm.weight", &[hidden]);
        own.random("midlayer.hidden_norm.weight", &[hidden]);
        own.random("midlayer.input_layernorm.weight", &[hidden]);
        own.random("lm_head.weight", &[DRAFT_VOCAB, hidden]);
        own.layer("midlayer", 2 * hidden);
        // Draft token d is the target's 3 d.
        let offsets: Vec<i64> = (0..DRAFT_VOCAB as i64).map(|d| 2 * d).collect();
        own.integers("d2t", &offsets);
        own
    }

    /// An EAGLE-3 head with all norms that some have.
    pub fn eagle3_normed() -> Self {
        let mut own = Self::eagle3();
        if let DraftKind::Eagle3 { norms, .. } = &mut own.draft.kind {
            *norms = Eagle3Norms {
                before_projection: true,
                of_layers: true,
                before_residual: true,
                of_output: true,
            };
        }
        let hidden = own.draft.model.hidden_size;
        own.random("input_norm.weight", &[3 * hidden]);
        for number in 0..3 {
            own.random(&format!("fc_norm.{number}.weight"), &[hidden]);
        }
        own
    }

    fn layer(&mut self, prefix: &str, inputs: usize) {
        let model = self.draft.model.clone();
        let layer = &model.layers[0];
        let (hidden, mlp) = (model.hidden_size, layer.mlp.width());
        let attention = layer.attention().unwrap();
        let heads = attention.heads * attention.head_dim;
        let kv = attention.kv_heads * attention.head_dim;
        for (name, shape) in [
            ("self_attn.q_proj.weight", &[heads, inputs][..]),
            ("self_attn.k_proj.weight", &[kv, inputs]),
            ("self_attn.v_proj.weight", &[kv, inputs]),
            ("self_attn.o_proj.weight", &[hidden, heads]),
            ("post_attention_layernorm.weight", &[hidden]),
            ("mlp.gate_proj.weight", &[mlp, hidden]),
            ("mlp.up_proj.weight", &[mlp, hidden]),
            ("mlp.down_proj.weight", &[hidden, mlp]),
        ] {
            self.random(&format!("{prefix}.{name}"), shape);
        }
    }

    /// Adds a tensor whose rows have about unit length.
    pub fn random(&mut self, name: &str, shape: &[usize]) {
        let scale = match shape {
            [_, columns] => (3.0 / *columns as f32).sqrt(),
            _ => 1.0,
        };
        let count = shape.iter().product();
        let mut value = || {
            // splitmix64 (Steele et al., 2014).
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
        };
        let bytes = (0..count).flat_map(|_| value().to_le_bytes()).collect();
        let stored = Stored {
            dtype: FileDtype::F32,
            shape: shape.to_vec(),
            bytes,
        };
        self.tensors.insert(name.to_owned(), stored);
    }

    pub fn integers(&mut self, name: &str, values: &[i64]) {
        let stored = Stored {
            dtype: FileDtype::I64,
            shape: vec![values.len()],
            bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        self.tensors.insert(name.to_owned(), stored);
    }

    /// Writes the file. The folder lives as long as the returned guard.
    pub fn write(&self) -> (TempDir, DraftModel) {
        let folder = tempfile::tempdir().unwrap();
        let views = self.tensors.iter().map(|(name, stored)| {
            let shape = stored.shape.clone();
            let view = TensorView::new(stored.dtype, shape, &stored.bytes).unwrap();
            (name.as_str(), view)
        });
        let file = serialize(views, None).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        let mut draft = self.draft.clone();
        draft.own_embedding = self.tensors.contains_key("embed_tokens.weight");
        draft.own_head = self.tensors.contains_key("lm_head.weight");
        draft.model.path = Path::to_owned(folder.path());
        (folder, draft)
    }
}
