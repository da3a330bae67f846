//! Embeddings that each layer of small models has for itself.

use lockstep_types::{Activation, ModelConfigError, PerLayerEmbeddings};

use super::gemma::root;
use crate::raw::Raw;

/// Key of the width of each layer's embeddings; 0 if there are none.
pub(super) const WIDTH: &str = "hidden_size_per_layer_input";
/// Key of the rows of their table.
pub(super) const ROWS: &str = "vocab_size_per_layer_input";

/// Reads the embeddings, if there are some.
///
/// # Errors
/// [`ModelConfigError`]: a key is damaged, or tokens have no row.
pub(super) fn read(config: &Raw) -> Result<Option<PerLayerEmbeddings>, ModelConfigError> {
    let width = config.count(WIDTH)?.unwrap_or(0);
    if width == 0 {
        return Ok(None);
    }
    let (rows, tokens) = (config.required(ROWS)?, config.required("vocab_size")?);
    if rows < tokens {
        let message = format!("is {rows}, and the vocabulary has {tokens} tokens");
        return Err(config.wrong(ROWS, message));
    }
    Ok(Some(PerLayerEmbeddings {
        width,
        rows,
        factor: root(config, width)?,
        activation: Activation::GeluTanh,
    }))
}
