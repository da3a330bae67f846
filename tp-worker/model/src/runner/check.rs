//! The check of a model's and a draft's files before a server is started.

use lockstep_types::{DraftKind, DraftModel, ModelConfig};

use super::eagle;
use crate::{
    FileAccess, ModelError, Shard, Topology,
    checkpoint::{faults::WeightCheck, source},
    models::{decoder::Decoder, dflash::Dflash},
};

/// Checks that the files of `model` have all tensors that it reads, and those of its draft too.
/// Made-up weights have no faults.
///
/// # Errors
/// [`ModelError`] for files that can't be opened as a checkpoint, or that hold no draft of this
/// kind.
pub fn check_weights(
    model: &ModelConfig,
    draft: Option<&DraftModel>,
) -> Result<WeightCheck, ModelError> {
    let mut found = whole(model)?;
    if let Some(draft) = draft {
        found.add(match &draft.kind {
            DraftKind::Model => whole(&draft.model)?,
            DraftKind::Eagle | DraftKind::Eagle3 { .. } | DraftKind::Nextn { .. } => {
                eagle::check(draft, model)?
            }
            DraftKind::Dflash(_) => {
                let source = source::open(&draft.model, FileAccess::Mapped)?;
                let listed = Dflash::listed(draft, model);
                WeightCheck::of(source.as_ref(), &listed, &draft.model)
            }
        });
    }
    Ok(found)
}

/// Checks a whole model's files.
fn whole(model: &ModelConfig) -> Result<WeightCheck, ModelError> {
    let shard = Shard::new(model, Topology::alone())?;
    let source = source::open(model, FileAccess::Mapped)?;
    let listed = Decoder::listed(model, &shard);
    Ok(WeightCheck::of(source.as_ref(), &listed, model))
}
