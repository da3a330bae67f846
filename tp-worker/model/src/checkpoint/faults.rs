//! Faults of a checkpoint, all of them, found in the files' headers before anything is loaded.

use std::convert::Infallible;

use lockstep_types::ModelConfig;

use super::{found::Locate, source::Source};
use crate::{
    ModelError,
    blocks::parts::{Convert, Form, Listed, MatrixPart, Tensors, VectorPart},
};

/// The tensors of a checkpoint that a model reads, and those of them that it can't.
#[derive(Debug, Default)]
pub struct WeightCheck {
    /// Number of tensors that the model reads, whole or a part of each.
    pub tensors: usize,
    /// Number of files that hold them.
    pub files: usize,
    /// An error for each matrix or vector that is missing, misshapen, or of a type that is not
    /// served.
    pub faults: Vec<ModelError>,
}

impl WeightCheck {
    /// Checks all of `tensors`, which are tensors of `model`. Vectors are read, matrices are not.
    pub(crate) fn of(
        source: &dyn Source,
        tensors: &impl Tensors<Listed>,
        model: &ModelConfig,
    ) -> Self {
        let mut check = Check {
            locate: Locate { source, model },
            found: Self {
                files: source.files().len(),
                ..Self::default()
            },
        };
        let Ok(_) = tensors.convert(&mut check);
        check.found
    }

    /// Adds the tensors of a draft.
    pub(crate) fn add(&mut self, draft: Self) {
        self.tensors += draft.tensors;
        self.files += draft.files;
        self.faults.extend(draft.faults);
    }
}

/// Tensors that were looked at and are not kept.
enum Checked {}

impl Form for Checked {
    type Matrix = ();
    type Vector = ();
}

struct Check<'a, 'm> {
    locate: Locate<'a, 'm>,
    found: WeightCheck,
}

impl Convert<Listed> for Check<'_, '_> {
    type To = Checked;
    type Error = Infallible;

    fn matrix(&mut self, part: &MatrixPart) -> Result<(), Infallible> {
        self.found.tensors += part.tensors.len();
        self.found.faults.extend(self.locate.matrix(part).err());
        Ok(())
    }

    fn vector(&mut self, part: &VectorPart) -> Result<(), Infallible> {
        self.found.tensors += part.tensors.len();
        self.found.faults.extend(self.locate.vector(part).err());
        Ok(())
    }
}
