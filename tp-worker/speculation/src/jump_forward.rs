//! JUMP_FORWARD: drafts are the text that a request's constraint forces, and nothing else.

use lockstep_backend::Backend;
use lockstep_types::{Algorithm, Capabilities, DraftShape};

use crate::{Build, Device, DraftError, DraftRow, Drafter, DrafterFactory, Drafts};

/// The algorithm, known as jump-forward decoding. The worker adds forced text to the drafts of
/// every algorithm, so this one has none of its own: no model, no look-ups. In a chain forced text
/// comes behind the drafts that are allowed, in a tree it is a branch. Rows whose drafts are
/// sampled get it only where it fills the whole depth, or ends the output.
#[derive(Debug, Default, Clone, Copy)]
pub struct JumpForward;

impl Algorithm for JumpForward {
    fn name(&self) -> &str {
        "JUMP_FORWARD"
    }

    fn summary(&self) -> &str {
        "text that a request's constraint forces; nothing for other requests"
    }

    /// Returns no abilities. In particular the depth does not adapt: forced text shows no policy
    /// what a depth is worth.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Returns deep chains: names of a schema are often long, and rows without forced text have
    /// no drafts.
    fn default_shape(&self) -> DraftShape {
        DraftShape {
            num_steps: 7,
            topk: 1,
            num_draft_tokens: 8,
        }
    }
}

impl<B: Backend> DrafterFactory<B> for JumpForward {
    fn build(&self, _: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        Ok(Box::new(NoDrafts))
    }
}

struct NoDrafts;

impl<B: Backend> Drafter<B> for NoDrafts {
    fn draft(
        &mut self,
        _: &mut Device<'_, B>,
        _: &[DraftRow],
        _: &mut Drafts,
    ) -> Result<(), DraftError> {
        Ok(())
    }
}
