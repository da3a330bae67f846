//! From files to packed matrices on a device.

use lockstep_backend::{AttentionShape, Backend, HostMatrix, MatrixRole};
use lockstep_config::ModelConfig;

use super::{
    Buffers, ForwardLimits, Layer, LoadProgress, Transformer,
    host::{HostLayer, HostModel},
};
use crate::{ModelError, Shard, Weights, rope_table};

impl<B: Backend> Transformer<B> {
    /// Opens `model.path`, checks every tensor this rank needs, packs its part
    /// and allocates the buffers. `progress` is called after each matrix.
    ///
    /// # Errors
    /// [`ModelError`]: what is wrong with the files, the split or the memory.
    pub fn load(
        backend: &mut B,
        model: &ModelConfig,
        limits: ForwardLimits,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        let (rank, size) = backend.group();
        let shard = Shard::new(model, rank, size)?;
        let weights = Weights::open(&model.path)?;
        let host = HostModel::describe(&weights, model, &shard)?;
        let mut packer = Packer {
            done: 0,
            total: host.matrices().map(bytes).sum(),
            progress,
        };
        packer.report();
        let limits = ForwardLimits {
            max_tokens: limits.max_tokens.max(1),
            logit_block_rows: limits.logit_block_rows.clamp(1, limits.max_tokens.max(1)),
            ..limits
        };
        Ok(Self {
            embedding: packer.matrix(backend, &host.embedding, MatrixRole::Vocabulary)?,
            layers: host
                .layers
                .iter()
                .map(|layer| packer.layer(backend, layer))
                .collect::<Result<_, _>>()?,
            norm: backend.load_vector(&host.norm)?,
            head: host
                .head
                .as_ref()
                .map(|head| packer.matrix(backend, head, MatrixRole::Vocabulary))
                .transpose()?,
            vocab_widths: shard.vocab_widths(model),
            attention: AttentionShape {
                heads: shard.heads.len(),
                kv_heads: shard.kv_heads.len(),
                head_dim: model.head_dim,
                scale: (model.head_dim as f32).sqrt().recip(),
            },
            rope: rope_table(&model.rope, model.head_dim, limits.positions),
            buffers: Buffers::new(backend, model, &shard, limits)?,
            model: model.clone(),
            shard,
            limits,
        })
    }
}

/// Packs matrices and counts their bytes.
struct Packer<'p> {
    done: u64,
    total: u64,
    progress: &'p mut dyn FnMut(LoadProgress),
}

impl Packer<'_> {
    fn report(&mut self) {
        (self.progress)(LoadProgress {
            done: self.done,
            total: self.total,
        });
    }

    fn matrix<B: Backend>(
        &mut self,
        backend: &mut B,
        matrix: &HostMatrix<'_>,
        role: MatrixRole,
    ) -> Result<B::Matrix, ModelError> {
        let packed = backend.load_matrix(matrix, role)?;
        self.done += bytes(matrix);
        self.report();
        Ok(packed)
    }

    fn layer<B: Backend>(
        &mut self,
        backend: &mut B,
        host: &HostLayer<'_>,
    ) -> Result<Layer<B>, ModelError> {
        fn vector<B: Backend>(
            backend: &mut B,
            values: Option<&Vec<f32>>,
        ) -> Result<Option<B::Vector>, ModelError> {
            Ok(values.map(|v| backend.load_vector(v)).transpose()?)
        }
        Ok(Layer {
            input_norm: backend.load_vector(&host.input_norm)?,
            qkv: self.matrix(backend, &host.qkv, MatrixRole::Projection)?,
            qkv_bias: vector(backend, host.qkv_bias.as_ref())?,
            q_norm: vector(backend, host.q_norm.as_ref())?,
            k_norm: vector(backend, host.k_norm.as_ref())?,
            output: self.matrix(backend, &host.output, MatrixRole::Projection)?,
            output_bias: vector(backend, host.output_bias.as_ref())?,
            post_norm: backend.load_vector(&host.post_norm)?,
            gate_up: self.matrix(backend, &host.gate_up, MatrixRole::Projection)?,
            gate_up_bias: vector(backend, host.gate_up_bias.as_ref())?,
            down: self.matrix(backend, &host.down, MatrixRole::Projection)?,
            down_bias: vector(backend, host.down_bias.as_ref())?,
        })
    }
}

/// Size on the host of the part a rank takes.
fn bytes(matrix: &HostMatrix<'_>) -> u64 {
    (matrix.rows() * matrix.cols * matrix.dtype.bytes()) as u64
}
