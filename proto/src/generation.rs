//! Generation parameters on the wire. Each message has their fields among its own.

use lockstep_types::generation::GenerationParams;

use crate::{WireError, constraint, pb::lockstep as pb};

/// Makes both conversions for each message that has the fields of [`GenerationParams`], but for
/// the adapter: a frontend knows its name alone, and workers its place.
macro_rules! with_generation {
    ($($message:ident),*) => {$(
        impl pb::$message {
            /// Takes the generation parameters out of the message.
            pub(crate) fn take_generation(&mut self) -> Result<GenerationParams, WireError> {
                let sampling = self.sampling.take();
                Ok(GenerationParams {
                    sampling: sampling.ok_or(WireError::Missing("sampling"))?.try_into()?,
                    logprobs: self.logprobs.take().unwrap_or_default().into(),
                    max_draft_steps: self.max_draft_steps,
                    constraint: self.constraint.take().map(constraint::read).transpose()?,
                    adapter: None,
                })
            }

            /// Returns the message with these generation parameters.
            pub(crate) fn with_generation(self, generation: GenerationParams) -> Self {
                let GenerationParams {
                    sampling, logprobs, max_draft_steps, constraint, adapter: _
                } = generation;
                Self {
                    sampling: Some(sampling.into()),
                    logprobs: Some(logprobs.into()),
                    max_draft_steps,
                    constraint: constraint.as_deref().map(constraint::write),
                    ..self
                }
            }
        }
    )*};
}

with_generation!(Submit, SlotOpen);
