//! Tables of tokens, whole: what a drafter reads of the target.

use lockstep_backend::Backend;
use lockstep_types::ModelConfig;

use crate::{
    FileAccess, LoadProgress, ModelError, Weights,
    blocks::{
        Linear,
        parts::{Convert, Form, Listed, Tensors},
    },
    checkpoint::loader::Loader,
    models::decoder,
};

/// A model's tables of tokens, whole.
pub struct Tables<'a, B: Backend> {
    /// The embedding, `[vocab, hidden]`.
    pub embedding: &'a B::Matrix,
    /// The output head, `[vocab, hidden]`; the embedding where they are tied.
    pub head: &'a B::Matrix,
}

// Derived, these would ask the same of the backend.
impl<B: Backend> Clone for Tables<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B: Backend> Copy for Tables<'_, B> {}

/// The tables of a model whose shards hold parts of them, for the rank that
/// drafts.
pub struct WholeTables<B: Backend>(Whole<B>);

/// Tables of tokens that are not split.
pub(crate) struct Whole<F: Form> {
    pub embedding: F::Matrix,
    /// `None` where it is the embedding, or nobody asks for it.
    pub head: Option<F::Matrix>,
}

impl Whole<Listed> {
    /// Those of `model`; the head where `head` asks for it and it is not the embedding.
    pub fn listed(model: &ModelConfig, head: bool) -> Self {
        let all = 0..model.vocab_size;
        Self {
            embedding: decoder::embedding(model, all.clone()),
            head: (head && !model.tie_word_embeddings).then(|| decoder::head(model, all)),
        }
    }
}

impl<F: Form> Tensors<F> for Whole<F> {
    type In<T: Form> = Whole<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Whole<C::To>, C::Error> {
        Ok(Whole {
            embedding: to.matrix(&self.embedding)?,
            head: to.optional_matrix(self.head.as_ref())?,
        })
    }
}

impl<B: Backend> WholeTables<B> {
    /// Loads the embedding, and the output head where `head` asks for it and it
    /// is not the embedding.
    ///
    /// # Errors
    /// [`ModelError`]: what is wrong with the files or the memory.
    pub fn load(
        backend: &mut B,
        model: &ModelConfig,
        head: bool,
        files: FileAccess,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        let weights = Weights::of(model, files)?;
        let found = weights.locate(&Whole::listed(model, head))?;
        let mut loader = Loader::checkpoint(&weights, &found, progress);
        Ok(Self(loader.load(backend, &found)?))
    }

    /// The tables. Where the head was not asked for, the embedding stands in
    /// its place.
    pub fn tables(&self) -> Tables<'_, B> {
        Tables {
            embedding: &self.0.embedding,
            head: self.0.head.as_ref().unwrap_or(&self.0.embedding),
        }
    }

    /// Bytes on the device.
    pub fn weight_bytes(&self, backend: &B) -> usize {
        let mut bytes = 0;
        self.0
            .each(|table| bytes += backend.matrix_bytes(table), |_| {});
        bytes
    }
}

/// Loads the output head, whole, of a `model` whose head is a table of its own: all
/// that a rank lacks that holds the embedding whole.
///
/// # Errors
/// [`ModelError`]: what is wrong with the files or the memory.
pub fn whole_head<B: Backend>(
    backend: &mut B,
    model: &ModelConfig,
    files: FileAccess,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<B::Matrix, ModelError> {
    let weights = Weights::of(model, files)?;
    let head = Linear {
        weight: decoder::head(model, 0..model.vocab_size),
        bias: None,
    };
    let found = weights.locate(&head)?;
    let mut loader = Loader::checkpoint(&weights, &found, progress);
    Ok(loader.load(backend, &found)?.weight)
}
