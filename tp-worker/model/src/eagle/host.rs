//! A head's checkpoint, described without copying.

use lockstep_types::{DraftKind, DraftModel, ModelConfig};

use crate::{
    ModelError, Shard, Weights,
    layer::{HostLayer, LayerSource},
    weights::Taken,
};

/// The head's tensors. Building it finds every missing or misshapen tensor
/// before any packing starts.
pub(super) struct HostHead<'a> {
    pub wiring: HostWiring,
    pub fc: Taken<'a>,
    pub fc_bias: Option<Vec<f32>>,
    pub layer: HostLayer<'a>,
    pub embedding: Option<Taken<'a>>,
    pub head: Option<Taken<'a>>,
    /// Rows of the output head, its own or the target's.
    pub vocab: usize,
    pub targets: Vec<u32>,
}

/// The norms of [`super::Wiring`].
pub(super) enum HostWiring {
    Eagle {
        input_norm: Option<Vec<f32>>,
    },
    Eagle3 {
        embedding_norm: Vec<f32>,
        hidden_norm: Vec<f32>,
        norm: Vec<f32>,
    },
}

impl<'a> HostHead<'a> {
    /// Finds the tensors of `draft`, a head for `target`.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`] and the like;
    /// [`ModelError::HeadWidth`] where the head needs tables or hidden states
    /// of another width; [`ModelError::NotAHead`].
    pub fn describe(
        weights: &'a Weights,
        draft: &DraftModel,
        target: &ModelConfig,
        shard: &Shard,
    ) -> Result<Self, ModelError> {
        let source = Source {
            weights,
            model: &draft.model,
            target,
            shard,
        };
        match &draft.kind {
            DraftKind::Eagle => source.eagle(),
            DraftKind::Eagle3 {
                draft_vocab_size,
                capture_layers,
            } => source.eagle3(*draft_vocab_size, capture_layers.len()),
            DraftKind::Model => Err(ModelError::NotAHead {
                folder: draft.model.path.clone(),
            }),
        }
    }

    /// Every matrix, in the order they are loaded.
    pub fn matrices(&self) -> impl Iterator<Item = &Taken<'a>> {
        let tables = self.embedding.iter().chain(&self.head);
        tables
            .chain(std::iter::once(&self.fc))
            .chain(self.layer.matrices())
    }
}

struct Source<'a, 'm> {
    weights: &'a Weights,
    model: &'m ModelConfig,
    target: &'m ModelConfig,
    shard: &'m Shard,
}

impl<'a> Source<'a, '_> {
    /// EAGLE-1/2: `fc`, `layers.0`; the output head is the target's.
    fn eagle(&self) -> Result<HostHead<'a>, ModelError> {
        let hidden = self.model.hidden_size;
        self.same_width()?;
        Ok(HostHead {
            wiring: HostWiring::Eagle {
                input_norm: self.optional("layers.0.input_layernorm.weight", hidden)?,
            },
            fc: self.fc(2 * hidden)?,
            fc_bias: self.optional("fc.bias", hidden)?,
            layer: self.layer("layers.0", hidden)?,
            embedding: self.embedding()?,
            head: None,
            vocab: self.target.vocab_size,
            targets: Vec::new(),
        })
    }

    /// EAGLE-3: `fc`, `midlayer`, `norm`, `lm_head`, `d2t`.
    fn eagle3(&self, vocab: usize, captured: usize) -> Result<HostHead<'a>, ModelError> {
        let (weights, hidden) = (self.weights, self.model.hidden_size);
        let embedding = self.embedding()?;
        if embedding.is_none() {
            self.same_width()?;
        }
        // A head over the target's whole vocabulary may leave its output head
        // out; then it is the target's.
        let shares = vocab == self.target.vocab_size && !weights.contains("lm_head.weight");
        let head = match shares {
            true => self.same_width().map(|()| None)?,
            false => Some(weights.table("lm_head.weight", vocab, hidden)?.whole()),
        };
        let norm = |name| weights.floats(name, hidden);
        Ok(HostHead {
            wiring: HostWiring::Eagle3 {
                embedding_norm: norm("midlayer.input_layernorm.weight")?,
                hidden_norm: norm("midlayer.hidden_norm.weight")?,
                norm: norm("norm.weight")?,
            },
            fc: self.fc(captured * self.target.hidden_size)?,
            fc_bias: self.optional("fc.bias", hidden)?,
            layer: self.layer("midlayer", 2 * hidden)?,
            embedding,
            head,
            vocab,
            targets: self.targets(vocab)?,
        })
    }

    fn same_width(&self) -> Result<(), ModelError> {
        let (found, expected) = (self.model.hidden_size, self.target.hidden_size);
        if found != expected {
            return Err(ModelError::HeadWidth {
                folder: self.model.path.clone(),
                found,
                expected,
            });
        }
        Ok(())
    }

    fn fc(&self, inputs: usize) -> Result<Taken<'a>, ModelError> {
        let fc = self
            .weights
            .table("fc.weight", self.model.hidden_size, inputs)?;
        Ok(fc.whole())
    }

    fn layer(&self, prefix: &str, inputs: usize) -> Result<HostLayer<'a>, ModelError> {
        let source = LayerSource {
            weights: self.weights,
            model: self.model,
            shard: self.shard,
            number: 0,
            prefix,
            inputs,
        };
        source.describe()
    }

    fn embedding(&self) -> Result<Option<Taken<'a>>, ModelError> {
        const NAME: &str = "embed_tokens.weight";
        if !self.weights.contains(NAME) {
            return Ok(None);
        }
        let (rows, cols) = (self.target.vocab_size, self.model.hidden_size);
        Ok(Some(self.weights.table(NAME, rows, cols)?.whole()))
    }

    fn optional(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, ModelError> {
        self.weights
            .contains(name)
            .then(|| self.weights.floats(name, len))
            .transpose()
    }

    /// `d2t` holds, for each of the head's tokens, how far the target's lies
    /// behind it.
    fn targets(&self, vocab: usize) -> Result<Vec<u32>, ModelError> {
        if vocab == self.target.vocab_size && !self.weights.contains("d2t") {
            return Ok(Vec::new());
        }
        let offsets = self.weights.integers("d2t", vocab)?;
        let all = self.target.vocab_size as i64;
        let target = |(draft, offset): (i64, &i64)| {
            let target = draft.checked_add(*offset).filter(|t| (0..all).contains(t));
            target
                .and_then(|target| u32::try_from(target).ok())
                .ok_or_else(|| ModelError::Damaged {
                    file: self.weights.file_of("d2t"),
                    reason: format!(
                        "d2t moves draft token {draft} by {offset}, out of the target's {all}"
                    ),
                })
        };
        (0..).zip(&offsets).map(target).collect()
    }
}
