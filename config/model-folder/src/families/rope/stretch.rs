//! Lengths of a model that was trained on short texts first, and on long ones after that.

use lockstep_types::ModelConfigError;

use crate::raw::Raw;

/// Key of the context length that a model was first trained on.
pub(super) const ORIGINAL: &str = "original_max_position_embeddings";

/// Context lengths of YaRN and LongRoPE.
pub(super) struct Stretch {
    /// The length that positions allow.
    pub longest: usize,
    /// The length that the model was first trained on.
    pub original: usize,
    /// Growth from the one to the other.
    pub factor: f64,
}

impl Stretch {
    /// Reads the lengths of `config` and its parameters `rope`, as transformers does. A length that
    /// is not given is the longest one, and a factor the ratio of both.
    ///
    /// # Errors
    /// [`ModelConfigError`]: a key is missing or damaged.
    pub fn read(config: &Raw, rope: &Raw) -> Result<Self, ModelConfigError> {
        let longest = config.required("max_position_embeddings")?;
        let original = match (rope.size(ORIGINAL)?, config.size(ORIGINAL)?) {
            (Some(own), _) => own,
            (None, Some(outer)) => outer,
            (None, None) => longest,
        };
        let factor = match rope.number("factor")? {
            Some(factor) => factor,
            None => longest as f64 / original as f64,
        };
        Ok(Self {
            longest,
            original,
            factor,
        })
    }
}
