//! Matrices of integers: the tensors of a module, whose order in files each tool has its own way
//! of. Each layout is a file of this module.

mod awq;
mod compressed_tensors;
mod gptq;

use std::{ops::Range, sync::Arc};

use lockstep_backend::{
    Direction, GroupScales, HostBlock, HostIntegers, HostMatrix, InputGroups, PackedIntegers,
    Packing,
};
use lockstep_files::weights::Dtype;
use lockstep_types::{IntegerCheckpoint, IntegerLayout, ModuleForm};

use super::{Safetensors, Source as _};
use crate::{ModelError, blocks::parts::TensorRows};

/// A module of which the weight is integers.
struct Module<'s> {
    /// Name of the module.
    name: &'s str,
    /// Number of outputs.
    rows: usize,
    /// Number of inputs.
    width: usize,
    /// Facts of the configuration about integers.
    known: &'s IntegerCheckpoint,
}

impl Module<'_> {
    /// Returns the name of a tensor of the module.
    fn tensor(&self, last: &str) -> String {
        format!("{}.{last}", self.name)
    }

    /// Returns the width of integers, in bits, with which a row of all inputs takes `words` words
    /// of 32 bits. `None` if no width that the configuration names fits.
    fn bits(&self, words: usize) -> Option<u8> {
        let fits = |bits: &&u8| (self.width * usize::from(**bits)).div_ceil(32) == words;
        self.known.bits.iter().find(fits).copied()
    }

    /// Returns true if the configuration allows that the inputs of a group lie apart.
    fn may_be_scattered(&self) -> bool {
        matches!(self.known.form(self.name), ModuleForm::Integers(form) if form.scattered)
    }
}

/// Integers of a tensor.
#[derive(Clone, Copy)]
struct Words {
    packing: Packing,
    bits: u8,
    added: u32,
}

impl Safetensors {
    /// Returns true if the weight `tensor` is stored as integers.
    pub(super) fn has_integers(&self, tensor: &str) -> bool {
        let (Some(known), Some(module)) = (&self.integers, tensor.strip_suffix(".weight")) else {
            return false;
        };
        let has = |last: &str| self.contains(&format!("{module}.{last}"));
        match known.layout {
            IntegerLayout::CompressedTensors => {
                let bytes = self.tensors.get(tensor).map(|entry| entry.dtype);
                has("weight_packed") || bytes == Some(Dtype::I8)
            }
            IntegerLayout::Gptq { .. } | IntegerLayout::Awq => has("qweight"),
        }
    }

    /// Finds a part of a matrix of integers.
    ///
    /// # Errors
    /// The errors of [`super::Source::matrix`], for integers, scales and zero points;
    /// [`ModelError::Integers`], [`ModelError::Beside`], [`ModelError::Read`].
    pub(super) fn integer_matrix(
        &self,
        tensor: &TensorRows,
        width: usize,
        columns: &Range<usize>,
    ) -> Result<HostMatrix<'_>, ModelError> {
        if let Some(outputs) = tensor.turned {
            return self.turned_integers(tensor, outputs, width, columns);
        }
        let whole = self.whole_integers(&tensor.name, tensor.rows, width)?;
        let mut parts = tensor.taken.iter();
        let part =
            |rows: &Range<usize>| HostMatrix::Integers(whole.part(rows, tensor.step, columns));
        let mut all = part(parts.next().unwrap_or(&Range { start: 0, end: 0 }));
        parts.for_each(|rows| all.append(part(rows)));
        Ok(all)
    }

    /// Finds a part of a matrix that lies turned around: of the rows `inputs` of a matrix
    /// `[width, outputs]`, those elements that `tensor` takes.
    fn turned_integers(
        &self,
        tensor: &TensorRows,
        outputs: usize,
        width: usize,
        inputs: &Range<usize>,
    ) -> Result<HostMatrix<'_>, ModelError> {
        let taken = match tensor.taken.as_slice() {
            // Neither stacks nor parts of outputs lie so in any checkpoint.
            [taken] if tensor.step == 1 && tensor.rows == outputs => taken.clone(),
            _ => return Err(self.misfit(&tensor.name, "is a stack, which is not served".into())),
        };
        let whole = self.whole_integers(&tensor.name, width, outputs)?;
        Ok(HostMatrix::Integers(HostIntegers {
            turned: true,
            ..whole.part(inputs, 1, &taken)
        }))
    }

    /// Finds all integers of the weight `tensor`.
    fn whole_integers(
        &self,
        tensor: &str,
        rows: usize,
        width: usize,
    ) -> Result<HostIntegers<'_>, ModelError> {
        let (known, name) = match (&self.integers, tensor.strip_suffix(".weight")) {
            (Some(known), Some(name)) => (known, name),
            _ => return Err(self.misfit(tensor, "is no weight of a module".into())),
        };
        let module = Module {
            name,
            rows,
            width,
            known,
        };
        match known.layout {
            IntegerLayout::CompressedTensors => self.compressed_tensors(&module),
            IntegerLayout::Gptq { less_one } => self.gptq(&module, less_one),
            IntegerLayout::Awq => self.awq(&module),
        }
    }

    /// Finds the words of a tensor, which must have the shape `shape`.
    fn packed(
        &self,
        name: &str,
        shape: [usize; 2],
        words: Words,
    ) -> Result<PackedIntegers<'_>, ModelError> {
        let (entry, bytes) = self.find(name, &shape)?;
        let size = words.packing.order.bytes();
        let expected = if size == 1 { Dtype::I8 } else { Dtype::I32 };
        if entry.dtype != expected {
            let reason = format!("is {:?}, not {expected:?}", entry.dtype);
            return Err(self.misfit(name, reason));
        }
        let width = shape[1] * size;
        Ok(PackedIntegers {
            memory: HostBlock {
                bytes,
                offset: 0,
                stride: width,
                rows: shape[0],
            },
            width,
            packing: words.packing,
            bits: words.bits,
            added: words.added,
            first: [0, 0],
        })
    }

    /// Finds the scales of a tensor of the shape `shape`, `groups` for each output.
    fn group_scales(
        &self,
        name: &str,
        shape: &[usize],
        groups: usize,
        rows: Direction,
    ) -> Result<GroupScales<'_>, ModelError> {
        let stored = self.tensor(name, shape)?;
        let count = shape.iter().product::<usize>();
        let size = stored.dtype.bytes();
        let single = count == 1;
        let width = match rows {
            Direction::Outputs => groups * size,
            Direction::Inputs => count / groups.max(1) * size,
        };
        Ok(GroupScales {
            tensor: Arc::from(name),
            dtype: stored.dtype,
            memory: HostBlock {
                bytes: stored.bytes,
                offset: 0,
                stride: width,
                rows: count * size / width.max(1),
            },
            width,
            rows,
            single,
        })
    }

    /// Returns the groups of the inputs of a module whose rows have `scales` scales in the tensor
    /// `name`. The groups of inputs may stand in the tensor `places`.
    fn input_groups(
        &self,
        module: &Module<'_>,
        name: &str,
        scales: usize,
        places: &str,
    ) -> Result<InputGroups, ModelError> {
        let Some(size) = module.known.group(scales, module.width) else {
            let reason = format!(
                "has scales for {scales} groups of the {} inputs, which fits no group size in the \
                 quantization's configuration, or several",
                module.width
            );
            return Err(self.misfit(name, reason));
        };
        let places = module.tensor(places);
        let Some(size) = size else {
            return Ok(InputGroups::Whole);
        };
        let runs = InputGroups::Runs { size, skipped: 0 };
        if !self.contains(&places) {
            return Ok(runs);
        }
        let stored = self.integers(&places, module.width)?;
        let number = |place: &i64| {
            u32::try_from(*place)
                .ok()
                .filter(|at| (*at as usize) < scales)
        };
        let Some(numbers) = stored.iter().map(number).collect::<Option<Arc<[u32]>>>() else {
            let reason = format!("names a group that is none of the {scales}");
            return Err(self.misfit(&places, reason));
        };
        let mut inputs = numbers.iter().enumerate();
        if inputs.all(|(input, group)| *group as usize == input / size) {
            return Ok(runs);
        }
        match module.may_be_scattered() {
            true => Ok(InputGroups::Scattered(numbers)),
            false => {
                let reason = "has groups whose inputs lie apart, though the quantization's \
                              configuration does not say so; set `desc_act` (GPTQ) or `actorder` \
                              (compressed-tensors) there";
                Err(self.misfit(&places, reason.to_owned()))
            }
        }
    }

    /// The error for a tensor of integers that does not fit.
    fn misfit(&self, tensor: &str, reason: String) -> ModelError {
        ModelError::Integers {
            file: self.file_of(tensor),
            tensor: tensor.to_owned(),
            reason,
        }
    }
}
