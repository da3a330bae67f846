//! Whole tables of tokens, which a drafter reads of the target.

use lockstep_backend::Backend;
use lockstep_types::ModelConfig;

use crate::{
    FileAccess, LoadProgress, ModelError,
    blocks::{
        Linear,
        parts::{Convert, Form, Listed, Tensors},
    },
    checkpoint::{found::locate, loader::Loader, source},
    models::decoder,
};

/// A model's tables of tokens, whole.
pub struct Tables<'a, B: Backend> {
    /// The embedding, `[vocab, hidden]`.
    pub embedding: &'a B::Matrix,
    /// The output head, `[vocab, hidden]`; equal to the embedding where the two are tied.
    pub head: &'a B::Matrix,
}

// Derived, these would require `B: Clone` and `B: Copy`.
impl<B: Backend> Clone for Tables<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B: Backend> Copy for Tables<'_, B> {}

/// The whole tables of a model whose shards hold parts of them, for the rank that drafts.
pub struct WholeTables<B: Backend>(Whole<B>);

/// Tables of tokens that are not split.
pub(crate) struct Whole<F: Form> {
    pub embedding: F::Matrix,
    /// `None` where the head is the embedding, or is not needed.
    pub head: Option<F::Matrix>,
}

impl Whole<Listed> {
    /// Lists the tables of `model`. The output head is listed if `head` is true and the model
    /// has a table of its own for it.
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
    /// Loads the embedding. Also loads the output head if `head` is true and the model has a
    /// table of its own for it.
    ///
    /// # Errors
    /// [`ModelError`] names the problem with the files or the memory.
    pub fn load(
        backend: &mut B,
        model: &ModelConfig,
        head: bool,
        files: FileAccess,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, ModelError> {
        let source = source::open(model, files)?;
        let listed = Whole::listed(model, head);
        let found = locate(source.as_ref(), &listed, model)?;
        let mut loader = Loader::checkpoint(source.as_ref(), &found, progress);
        Ok(Self(loader.load(backend, &found)?))
    }

    /// Returns the tables. If the head was not loaded, the embedding stands in its place.
    pub fn tables(&self) -> Tables<'_, B> {
        Tables {
            embedding: &self.0.embedding,
            head: self.0.head.as_ref().unwrap_or(&self.0.embedding),
        }
    }

    /// Bytes of the tables on the device.
    pub fn weight_bytes(&self, backend: &B) -> usize {
        let mut bytes = 0;
        self.0
            .each(|table| bytes += backend.matrix_bytes(table), |_| {});
        bytes
    }
}

/// Loads the whole output head of a `model` whose head is a table of its own. A rank that
/// holds the whole embedding lacks nothing else.
///
/// # Errors
/// [`ModelError`] names the problem with the files or the memory.
pub fn whole_head<B: Backend>(
    backend: &mut B,
    model: &ModelConfig,
    files: FileAccess,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<B::Matrix, ModelError> {
    let source = source::open(model, files)?;
    let head = Linear {
        weight: decoder::head(model, 0..model.vocab_size),
        bias: None,
        adapted: None,
    };
    let found = locate(source.as_ref(), &head, model)?;
    let mut loader = Loader::checkpoint(source.as_ref(), &found, progress);
    Ok(loader.load(backend, &found)?.weight)
}
