//! Checks that every request must pass, whatever its frontend has checked.

use lockstep_types::ModelConfig;
use lockstep_types::{
    request::Request,
    sampling::{InvalidField, token_in_vocabulary},
};

/// Checks tokens and parameters against the model, and adds the model's end
/// tokens unless the request ignores them.
///
/// # Errors
/// [`InvalidField`] names the field at fault.
pub fn admissible(mut request: Request, model: &ModelConfig) -> Result<Request, InvalidField> {
    let vocab_size = u32::try_from(model.vocab_size).unwrap_or(u32::MAX);
    for id in &request.input_ids {
        token_in_vocabulary("input_ids", *id, vocab_size)?;
    }
    let sampling = &mut request.generation.sampling;
    if !sampling.ignore_eos {
        sampling
            .stop_token_ids
            .extend_from_slice(&model.eos_token_ids);
    }
    request.generation.sampling = request.generation.sampling.validated(vocab_size)?;
    Ok(request)
}
