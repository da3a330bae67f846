//! GGUF: one file, or the files that a model is split over. Tensors have the names that they have
//! in safetensors.

mod names;

use std::collections::{BTreeMap, BTreeSet};

use super::{WeightFile, WeightsError};
use crate::gguf::{GgufError, Parts, Place};
use names::renamed;

/// See [`super::tensor_names`].
pub(super) fn names(place: &Place) -> Result<BTreeSet<String>, WeightsError> {
    let tensors = renamed(&Parts::open(place)?)?;
    Ok(tensors.into_iter().map(|tensor| tensor.name).collect())
}

/// See [`super::weight_files`].
pub(super) fn files(place: &Place) -> Result<Vec<WeightFile>, WeightsError> {
    let parts = Parts::open(place)?;
    let tensors = renamed(&parts)?;
    let open = parts.files.into_iter().map(|(file, header)| WeightFile {
        path: place.folder.join(&header.name),
        name: header.name,
        file,
        tensors: BTreeMap::new(),
    });
    let mut files: Vec<_> = open.collect();
    for tensor in tensors {
        files[tensor.file].tensors.insert(tensor.name, tensor.place);
    }
    Ok(files)
}

impl From<GgufError> for WeightsError {
    fn from(error: GgufError) -> Self {
        match error {
            GgufError::Read { name, source } => Self::Read { name, source },
            GgufError::Damaged { name, reason } => Self::Damaged { name, reason },
            GgufError::Unserved { name, reason } => Self::Unserved { name, reason },
        }
    }
}
