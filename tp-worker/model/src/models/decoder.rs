//! A decoder-only transformer: embedding, layers of any blocks, norm and output head. The
//! model's description says which blocks each layer has, and the names of all tensors.

use std::ops::Range;

use lockstep_types::ModelConfig;

use crate::{
    Shard,
    blocks::{
        Layer, LayerPlace, Norm, Variants,
        parts::{Convert, Form, Listed, MatrixPart, Tensors},
        per_layer,
    },
};

/// One rank's part of a model.
pub(crate) struct Decoder<F: Form> {
    /// Rows of the embedding, see [`Shard::embedding`].
    pub embedding: F::Matrix,
    /// Rows of the output head, see [`Shard::vocab`]; `None` where the embedding is the
    /// output head.
    pub head: Option<F::Matrix>,
    /// Rows of the table of per-layer embeddings, as many as of the embedding; `None` where there are none.
    pub per_layer: Option<F::Matrix>,
    /// The norm before each layer's mixer; `None` where the mixer reads the residual stream as it
    /// is.
    pub input_norms: Vec<Option<Norm<F>>>,
    pub layers: Vec<Layer<F>>,
    /// Norm before the output head.
    pub norm: Norm<F>,
}

/// Lists the rows `taken` of the embedding `[vocab, hidden]`.
pub(crate) fn embedding(model: &ModelConfig, taken: Range<usize>) -> MatrixPart {
    table(model, &model.names.embedding, taken)
}

/// Lists the rows `taken` of the output head `[vocab, hidden]`. A tied head is the embedding.
pub(crate) fn head(model: &ModelConfig, taken: Range<usize>) -> MatrixPart {
    match model.tie_word_embeddings {
        true => embedding(model, taken),
        false => table(model, &model.names.head, taken),
    }
}

fn table(model: &ModelConfig, name: &str, taken: Range<usize>) -> MatrixPart {
    let name = format!("{name}.weight");
    MatrixPart::table_rows(&name, model.vocab_size, model.hidden_size, taken)
}

impl Decoder<Listed> {
    /// Lists the tensors of a rank's part of `model`.
    pub fn listed(model: &ModelConfig, shard: &Shard) -> Self {
        let (hidden, variants) = (model.hidden_size, Variants::of(model, shard));
        let names = &model.names;
        let layer = |number| {
            let place = LayerPlace {
                model,
                shard,
                number,
                prefix: &names.layer(number),
                inputs: hidden,
            };
            Layer::listed(&place, &variants)
        };
        let input_norm = |number: usize| {
            let spec = &model.layers[number];
            let name = format!("{}.{}", names.layer(number), names.mixer_norm);
            let before = spec.norms.before();
            before.then(|| Norm::of_stream(model, number, &name, spec.rms_norm_eps))
        };
        let mut layers: Vec<_> = (0..model.layers.len()).map(layer).collect();
        let adaptable = layers.iter_mut().flat_map(Layer::adaptable);
        for (number, linear) in adaptable.enumerate() {
            linear.adapted = Some(number);
        }
        Self {
            embedding: embedding(model, shard.embedding.clone()),
            head: shard
                .has_head(model)
                .then(|| head(model, shard.vocab.clone())),
            per_layer: per_layer::table(model, shard),
            input_norms: (0..model.layers.len()).map(input_norm).collect(),
            layers,
            norm: Norm::of_stream(model, model.layers.len(), &names.norm, model.rms_norm_eps),
        }
    }
}

impl<F: Form> Decoder<F> {
    /// Returns this rank's rows of the output head.
    pub fn head(&self) -> &F::Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Returns the norm before the mixer of layer `number`, or before the output head if there is
    /// no such layer. Example: with 24 layers, 23 is the last mixer's norm and 24 the head's.
    pub fn norm_before(&self, number: usize) -> Option<&Norm<F>> {
        let layers = self.input_norms.get(number).map(Option::as_ref);
        layers.unwrap_or(Some(&self.norm))
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
            per_layer: to.optional_matrix(self.per_layer.as_ref())?,
            input_norms: self.input_norms.convert(to)?,
            layers: self.layers.convert(to)?,
            norm: self.norm.convert(to)?,
        })
    }
}

#[cfg(test)]
mod tests;
