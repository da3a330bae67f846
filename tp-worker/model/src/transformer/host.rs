//! What a rank takes from the files, described without copying.

use std::ops::Range;

use lockstep_backend::HostMatrix;
use lockstep_config::ModelConfig;

use crate::{HostTensor, ModelError, Shard, Weights};

/// One rank's tensors. Building it finds every missing or misshapen tensor
/// before any packing starts.
pub(super) struct HostModel<'a> {
    pub embedding: HostMatrix<'a>,
    pub layers: Vec<HostLayer<'a>>,
    pub norm: Vec<f32>,
    pub head: Option<HostMatrix<'a>>,
}

/// One layer's tensors.
pub(super) struct HostLayer<'a> {
    pub input_norm: Vec<f32>,
    pub qkv: HostMatrix<'a>,
    pub qkv_bias: Option<Vec<f32>>,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub output: HostMatrix<'a>,
    pub output_bias: Option<Vec<f32>>,
    pub post_norm: Vec<f32>,
    pub gate_up: HostMatrix<'a>,
    pub gate_up_bias: Option<Vec<f32>>,
    pub down: HostMatrix<'a>,
    pub down_bias: Option<Vec<f32>>,
}

impl<'a> HostModel<'a> {
    /// Finds rank `shard.rank`'s part of `model` in `weights`.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::UnsupportedDType`], [`ModelError::MixedDTypes`].
    pub fn describe(
        weights: &'a Weights,
        model: &ModelConfig,
        shard: &Shard,
    ) -> Result<Self, ModelError> {
        let source = Source {
            weights,
            model,
            shard,
        };
        let vocabulary = |name: &str| {
            let table = weights.matrix(name, model.vocab_size, model.hidden_size)?;
            Ok::<_, ModelError>(rows_of(&table, std::slice::from_ref(&shard.vocab)))
        };
        Ok(Self {
            embedding: vocabulary("model.embed_tokens.weight")?,
            layers: (0..model.num_layers)
                .map(|number| source.layer(number))
                .collect::<Result<_, _>>()?,
            norm: source.norm("model.norm.weight", model.hidden_size)?,
            head: (!model.tie_word_embeddings)
                .then(|| vocabulary("lm_head.weight"))
                .transpose()?,
        })
    }

    /// Every matrix.
    pub fn matrices(&self) -> impl Iterator<Item = &HostMatrix<'a>> {
        let layers = self
            .layers
            .iter()
            .flat_map(|layer| [&layer.qkv, &layer.output, &layer.gate_up, &layer.down]);
        std::iter::once(&self.embedding)
            .chain(layers)
            .chain(&self.head)
    }
}

/// A tensor fused from several, each with the rows a rank takes.
type Part = (&'static str, usize, Vec<Range<usize>>);

struct Source<'a, 'm> {
    weights: &'a Weights,
    model: &'m ModelConfig,
    shard: &'m Shard,
}

impl<'a> Source<'a, '_> {
    fn layer(&self, number: usize) -> Result<HostLayer<'a>, ModelError> {
        let model = self.model;
        let name = |suffix: &str| format!("model.layers.{number}.{suffix}");
        let norm = |suffix: &str, len| self.norm(&name(suffix), len);
        let head_norm = |suffix: &str| {
            model
                .qk_norm
                .then(|| norm(suffix, model.head_dim))
                .transpose()
        };
        let (qkv, gate_up) = (self.qkv_parts(), self.gate_up_parts());
        let query = scale(&self.shard.heads, model.head_dim);
        let (width, hidden) = (model.num_heads * model.head_dim, model.hidden_size);
        Ok(HostLayer {
            input_norm: norm("input_layernorm.weight", hidden)?,
            qkv: self.fused(number, &qkv)?,
            qkv_bias: self.fused_bias(number, &qkv, model.qkv_bias)?,
            q_norm: head_norm("self_attn.q_norm.weight")?,
            k_norm: head_norm("self_attn.k_norm.weight")?,
            output: self.columns(&name("self_attn.o_proj.weight"), width, &query)?,
            output_bias: self
                .row_parallel_bias(&name("self_attn.o_proj.bias"), model.output_bias)?,
            post_norm: norm("post_attention_layernorm.weight", hidden)?,
            gate_up: self.fused(number, &gate_up)?,
            gate_up_bias: self.fused_bias(number, &gate_up, model.mlp_bias)?,
            down: self.columns(
                &name("mlp.down_proj.weight"),
                model.intermediate_size,
                &self.shard.mlp,
            )?,
            down_bias: self.row_parallel_bias(&name("mlp.down_proj.bias"), model.mlp_bias)?,
        })
    }

    /// Query rows, then key rows, then value rows.
    fn qkv_parts(&self) -> Vec<Part> {
        let dim = self.model.head_dim;
        let keys: Vec<_> = self
            .shard
            .kv_heads
            .iter()
            .map(|head| scale(&(*head..*head + 1), dim))
            .collect();
        let (queries, kv) = (self.model.num_heads * dim, self.model.num_kv_heads * dim);
        vec![
            (
                "self_attn.q_proj",
                queries,
                vec![scale(&self.shard.heads, dim)],
            ),
            ("self_attn.k_proj", kv, keys.clone()),
            ("self_attn.v_proj", kv, keys),
        ]
    }

    /// Gate rows, then up rows.
    fn gate_up_parts(&self) -> Vec<Part> {
        let part = |name| {
            (
                name,
                self.model.intermediate_size,
                vec![self.shard.mlp.clone()],
            )
        };
        vec![part("mlp.gate_proj"), part("mlp.up_proj")]
    }

    /// One matrix of the rows of several.
    fn fused(&self, layer: usize, parts: &[Part]) -> Result<HostMatrix<'a>, ModelError> {
        let mut fused: Option<(HostMatrix<'a>, String)> = None;
        for (part, total, rows) in parts {
            let name = format!("model.layers.{layer}.{part}.weight");
            let tensor = self.weights.matrix(&name, *total, self.model.hidden_size)?;
            let matrix = rows_of(&tensor, rows);
            match &mut fused {
                None => fused = Some((matrix, name)),
                Some((all, _)) if all.dtype == matrix.dtype => all.blocks.extend(matrix.blocks),
                Some((_, sibling)) => {
                    return Err(ModelError::MixedDTypes {
                        file: self.weights.file_of(&name),
                        tensor: name,
                        sibling: sibling.clone(),
                    });
                }
            }
        }
        Ok(fused.map_or_else(
            || HostMatrix {
                cols: self.model.hidden_size,
                dtype: lockstep_backend::DType::F32,
                blocks: Vec::new(),
            },
            |(matrix, _)| matrix,
        ))
    }

    /// The biases of [`Self::fused`], when the model has them.
    fn fused_bias(
        &self,
        layer: usize,
        parts: &[Part],
        present: bool,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        if !present {
            return Ok(None);
        }
        let mut bias = Vec::new();
        for (part, total, rows) in parts {
            let name = format!("model.layers.{layer}.{part}.bias");
            let tensor = self.weights.vector(&name, *total)?;
            for range in rows {
                bias.extend(tensor.to_f32(range.clone()));
            }
        }
        Ok(Some(bias))
    }

    /// A row-parallel matrix `[hidden, total]`: all rows, some columns.
    fn columns(
        &self,
        name: &str,
        total: usize,
        columns: &Range<usize>,
    ) -> Result<HostMatrix<'a>, ModelError> {
        let tensor = self.weights.matrix(name, self.model.hidden_size, total)?;
        Ok(HostMatrix {
            cols: columns.len(),
            dtype: tensor.dtype,
            blocks: vec![tensor.column_block(columns.start)],
        })
    }

    /// The bias of a row-parallel matrix: on rank 0 alone.
    fn row_parallel_bias(&self, name: &str, present: bool) -> Result<Option<Vec<f32>>, ModelError> {
        if !present {
            return Ok(None);
        }
        let bias = self.norm(name, self.model.hidden_size)?;
        Ok((self.shard.rank == 0).then_some(bias))
    }

    /// A whole vector.
    fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        Ok(self.weights.vector(name, len)?.to_f32(0..len))
    }
}

fn scale(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

fn rows_of<'a>(tensor: &HostTensor<'a>, ranges: &[Range<usize>]) -> HostMatrix<'a> {
    HostMatrix {
        cols: tensor.cols,
        dtype: tensor.dtype,
        blocks: ranges
            .iter()
            .map(|range| tensor.row_block(range.start, range.len()))
            .collect(),
    }
}
