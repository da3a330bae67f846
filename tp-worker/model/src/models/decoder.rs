//! A dense decoder-only transformer (Llama, Mistral, Qwen2, Qwen3) in Hugging Face's names.

use std::ops::Range;

use lockstep_types::ModelConfig;

use crate::{
    Shard,
    blocks::{
        Layer, LayerPlace, Norm,
        parts::{Convert, Form, Listed, MatrixPart, Tensors},
    },
};

/// One rank's part of a model.
pub(crate) struct Decoder<F: Form> {
    /// Rows of the embedding, see [`Shard::embedding`].
    pub embedding: F::Matrix,
    /// Rows of the output head, see [`Shard::vocab`]; `None` where the embedding is the
    /// output head.
    pub head: Option<F::Matrix>,
    /// The norm before each layer's attention.
    pub input_norms: Vec<Norm<F>>,
    pub layers: Vec<Layer<F>>,
    /// Norm before the output head.
    pub norm: Norm<F>,
}

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Lists the rows `taken` of the embedding `[vocab, hidden]`.
pub(crate) fn embedding(model: &ModelConfig, taken: Range<usize>) -> MatrixPart {
    MatrixPart::table_rows(EMBEDDING, model.vocab_size, model.hidden_size, taken)
}

/// Lists the rows `taken` of the output head `[vocab, hidden]`. A tied head is the embedding.
pub(crate) fn head(model: &ModelConfig, taken: Range<usize>) -> MatrixPart {
    let name = match model.tie_word_embeddings {
        true => EMBEDDING,
        false => HEAD,
    };
    MatrixPart::table_rows(name, model.vocab_size, model.hidden_size, taken)
}

impl Decoder<Listed> {
    /// Lists the tensors of a rank's part of `model`.
    pub fn listed(model: &ModelConfig, shard: &Shard) -> Self {
        let (hidden, variants) = (model.hidden_size, Layer::variants(model, shard));
        let prefix = |number: usize| format!("model.layers.{number}");
        let layer = |number| {
            Layer::listed(&LayerPlace {
                model,
                shard,
                variants: &variants,
                number,
                prefix: &prefix(number),
                inputs: hidden,
            })
        };
        let input_norm = |number| {
            let name = format!("{}.input_layernorm.weight", prefix(number));
            Norm::listed(name, hidden, model.layers[number].rms_norm_eps)
        };
        Self {
            embedding: embedding(model, shard.embedding.clone()),
            head: shard
                .has_head(model)
                .then(|| head(model, shard.vocab.clone())),
            input_norms: (0..model.layers.len()).map(input_norm).collect(),
            layers: (0..model.layers.len()).map(layer).collect(),
            norm: Norm::listed("model.norm.weight".to_owned(), hidden, model.rms_norm_eps),
        }
    }
}

impl<F: Form> Decoder<F> {
    /// Returns this rank's rows of the output head.
    pub fn head(&self) -> &F::Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Returns the norm before layer `number`. Behind the last layer, returns the norm before
    /// the output head.
    pub fn norm_before(&self, number: usize) -> &Norm<F> {
        self.input_norms.get(number).unwrap_or(&self.norm)
    }
}

impl<F: Form> Tensors<F> for Decoder<F> {
    type In<T: Form> = Decoder<T>;

    /// Converts tables of tokens first. A matrix is in memory twice while it is packed, which
    /// costs nothing extra before the layers are there.
    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Decoder<C::To>, C::Error> {
        Ok(Decoder {
            embedding: to.matrix(&self.embedding)?,
            head: to.optional_matrix(self.head.as_ref())?,
            input_norms: self.input_norms.convert(to)?,
            layers: self.layers.convert(to)?,
            norm: self.norm.convert(to)?,
        })
    }
}

#[cfg(test)]
mod tests;
