//! What a rank takes of a layer's files, described without copying.

use std::ops::Range;

use lockstep_backend::HostMatrix;
use lockstep_types::ModelConfig;

use crate::{ModelError, Place, Shard, Weights, weights::Taken};

/// One layer's tensors, without the norm before its attention.
pub(crate) struct HostLayer<'a> {
    /// Its place in the cache.
    pub number: usize,
    pub qkv: Taken<'a>,
    pub qkv_bias: Option<Vec<f32>>,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub output: Taken<'a>,
    pub output_bias: Option<Vec<f32>>,
    pub post_norm: Vec<f32>,
    pub gate_up: Taken<'a>,
    pub gate_up_bias: Option<Vec<f32>>,
    pub down: Taken<'a>,
    pub down_bias: Option<Vec<f32>>,
}

impl<'a> HostLayer<'a> {
    /// Every matrix, in the order they are loaded.
    pub fn matrices(&self) -> [&Taken<'a>; 4] {
        [&self.qkv, &self.output, &self.gate_up, &self.down]
    }
}

/// A tensor fused from several, each with the rows a rank takes.
type Part = (&'static str, usize, Vec<Range<usize>>);

/// Where a layer is found.
pub(crate) struct LayerSource<'a, 'm> {
    pub weights: &'a Weights,
    pub model: &'m ModelConfig,
    pub shard: &'m Shard,
    /// Its place in the cache.
    pub number: usize,
    /// What its tensors' names begin with: "model.layers.3".
    pub prefix: &'m str,
    /// Columns of its query, key and value projections.
    pub inputs: usize,
}

impl<'a> LayerSource<'a, '_> {
    /// Finds this rank's part of the layer.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::UnsupportedDType`], [`ModelError::MixedDTypes`].
    pub fn describe(&self) -> Result<HostLayer<'a>, ModelError> {
        let model = self.model;
        let name = |suffix: &str| self.name(suffix);
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
            number: self.number,
            qkv: self.fused(&qkv, self.inputs)?,
            qkv_bias: self.fused_bias(&qkv, model.qkv_bias)?,
            q_norm: head_norm("self_attn.q_norm.weight")?,
            k_norm: head_norm("self_attn.k_norm.weight")?,
            output: self.columns(&name("self_attn.o_proj.weight"), width, &query)?,
            output_bias: self.row_parallel_bias(
                &name("self_attn.o_proj.bias"),
                model.output_bias,
                self.shard.topology.attention,
            )?,
            post_norm: norm("post_attention_layernorm.weight", hidden)?,
            gate_up: self.fused(&gate_up, hidden)?,
            gate_up_bias: self.fused_bias(&gate_up, model.mlp_bias)?,
            down: self.columns(
                &name("mlp.down_proj.weight"),
                model.intermediate_size,
                &self.shard.mlp,
            )?,
            down_bias: self.row_parallel_bias(
                &name("mlp.down_proj.bias"),
                model.mlp_bias,
                self.shard.topology.world,
            )?,
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
    fn fused(&self, parts: &[Part], inputs: usize) -> Result<Taken<'a>, ModelError> {
        let mut fused: Option<(Taken<'a>, String)> = None;
        for (part, total, rows) in parts {
            let name = self.name(&format!("{part}.weight"));
            let taken = self.weights.table(&name, *total, inputs)?.take_rows(rows);
            match &mut fused {
                None => fused = Some((taken, name)),
                Some((all, sibling)) => {
                    if !all.append(taken) {
                        return Err(ModelError::MixedDTypes {
                            file: self.weights.file_of(&name),
                            tensor: name,
                            sibling: sibling.clone(),
                        });
                    }
                }
            }
        }
        let none = HostMatrix {
            cols: inputs,
            dtype: lockstep_backend::CheckpointDtype::F32,
            blocks: Vec::new(),
        };
        Ok(fused.map_or(Taken::File(none), |(taken, _)| taken))
    }

    /// The biases of [`Self::fused`], when the model has them.
    fn fused_bias(&self, parts: &[Part], present: bool) -> Result<Option<Vec<f32>>, ModelError> {
        if !present {
            return Ok(None);
        }
        let mut bias = Vec::new();
        for (part, total, rows) in parts {
            let name = self.name(&format!("{part}.bias"));
            let whole = self.weights.floats(&name, *total)?;
            for range in rows {
                bias.extend_from_slice(&whole[range.clone()]);
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
    ) -> Result<Taken<'a>, ModelError> {
        let table = self.weights.table(name, self.model.hidden_size, total)?;
        Ok(table.take_columns(columns))
    }

    /// The bias of a row-parallel matrix: on the rank alone that leads those it is
    /// split over.
    fn row_parallel_bias(
        &self,
        name: &str,
        present: bool,
        place: Place,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        if !present {
            return Ok(None);
        }
        let bias = self.norm(name, self.model.hidden_size)?;
        Ok(place.leads().then_some(bias))
    }

    fn name(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.prefix)
    }

    /// A whole vector.
    fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.weights.floats(name, len)
    }
}

fn scale(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}
