//! What a rank takes from the files, described without copying.

use std::ops::Range;

use lockstep_types::ModelConfig;

use crate::{
    ModelError, Shard, Weights,
    layer::{HostLayer, LayerSource},
    weights::Taken,
};

/// One rank's tensors. Building it finds every missing or misshapen tensor
/// before any packing starts.
pub(super) struct HostModel<'a> {
    pub embedding: Taken<'a>,
    /// The norm before each layer's attention.
    pub input_norms: Vec<Vec<f32>>,
    pub layers: Vec<HostLayer<'a>>,
    pub norm: Vec<f32>,
    pub head: Option<Taken<'a>>,
}

impl<'a> HostModel<'a> {
    /// Finds a rank's part of `model` in `weights`.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::UnsupportedDType`], [`ModelError::MixedDTypes`].
    pub fn describe(
        weights: &'a Weights,
        model: &ModelConfig,
        shard: &Shard,
    ) -> Result<Self, ModelError> {
        let vocabulary = |name: &str, rows: &Range<usize>| {
            let table = weights.table(name, model.vocab_size, model.hidden_size)?;
            Ok::<_, ModelError>(table.take_rows(std::slice::from_ref(rows)))
        };
        let embedding = "model.embed_tokens.weight";
        let head = match model.tie_word_embeddings {
            true => embedding,
            false => "lm_head.weight",
        };
        let prefix = |number: usize| format!("model.layers.{number}");
        Ok(Self {
            embedding: vocabulary(embedding, &shard.embedding)?,
            input_norms: (0..model.num_layers)
                .map(|number| {
                    let name = format!("{}.input_layernorm.weight", prefix(number));
                    weights.floats(&name, model.hidden_size)
                })
                .collect::<Result<_, _>>()?,
            layers: (0..model.num_layers)
                .map(|number| {
                    let source = LayerSource {
                        weights,
                        model,
                        shard,
                        number,
                        prefix: &prefix(number),
                        inputs: model.hidden_size,
                    };
                    source.describe()
                })
                .collect::<Result<_, _>>()?,
            norm: weights.floats("model.norm.weight", model.hidden_size)?,
            head: shard
                .has_head(model)
                .then(|| vocabulary(head, &shard.vocab))
                .transpose()?,
        })
    }

    /// Every matrix.
    pub fn matrices(&self) -> impl Iterator<Item = &Taken<'a>> {
        let layers = self.layers.iter().flat_map(HostLayer::matrices);
        std::iter::once(&self.embedding)
            .chain(layers)
            .chain(&self.head)
    }
}
