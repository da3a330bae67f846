//! Tables of tokens, whole: what a drafter reads of the target.

use lockstep_backend::{Backend, MatrixRole};
use lockstep_types::ModelConfig;

use crate::{FileAccess, LoadProgress, ModelError, Weights, loader::Loader};

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
pub struct WholeTables<B: Backend> {
    embedding: B::Matrix,
    head: Option<B::Matrix>,
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
        let table = |name| {
            let table = weights.table(name, model.vocab_size, model.hidden_size)?;
            Ok::<_, ModelError>(table.whole())
        };
        let embedding = table("model.embed_tokens.weight")?;
        let head = (head && !model.tie_word_embeddings)
            .then(|| table("lm_head.weight"))
            .transpose()?;
        let tables = std::iter::once(&embedding).chain(&head);
        let mut loader = Loader::checkpoint(&weights, tables, progress);
        let role = MatrixRole::Vocabulary;
        Ok(Self {
            embedding: loader.matrix(backend, &embedding, role)?,
            head: head
                .as_ref()
                .map(|head| loader.matrix(backend, head, role))
                .transpose()?,
        })
    }

    /// The tables. Where the head was not asked for, the embedding stands in
    /// its place.
    pub fn tables(&self) -> Tables<'_, B> {
        Tables {
            embedding: &self.embedding,
            head: self.head.as_ref().unwrap_or(&self.embedding),
        }
    }

    /// Bytes on the device.
    pub fn weight_bytes(&self, backend: &B) -> usize {
        let tables = std::iter::once(&self.embedding).chain(&self.head);
        tables.map(|table| backend.matrix_bytes(table)).sum()
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
    let head = weights.table("lm_head.weight", model.vocab_size, model.hidden_size)?;
    let head = head.whole();
    let mut loader = Loader::checkpoint(&weights, std::iter::once(&head), progress);
    Ok(loader.matrix(backend, &head, MatrixRole::Vocabulary)?)
}
