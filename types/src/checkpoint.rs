//! Forms of weight matrices in a checkpoint.

mod gguf;
mod integers;

use serde::{Deserialize, Serialize};

use crate::{MatrixRole, TensorNames};

pub use integers::{IntegerCheckpoint, IntegerForm, IntegerLayout, ModuleForm};

pub use gguf::{BlockType, GgufCheckpoint};

/// Form in which a checkpoint holds its weight matrices, as its `quantization_config` says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointFormat {
    /// Floats of 16 or 32 bits. Every tensor says which.
    #[default]
    Floats,
    /// 8-bit floats with scales in the projections, 16 or 32 bits elsewhere.
    Fp8(Fp8Checkpoint),
    /// MXFP4 in stacks of experts whose rows are interleaved, 16 or 32 bits elsewhere.
    Mxfp4(Mxfp4Checkpoint),
    /// Integers with scales in the projections, and maybe in the output head; 16 or 32 bits
    /// elsewhere.
    Integers(IntegerCheckpoint),
    /// Blocks of a GGUF file, floats elsewhere.
    Gguf(GgufCheckpoint),
}

/// 4-bit floats (e2m1) with an 8-bit exponent (e8m0) for every 32 inputs (OCP Microscaling
/// Formats, 2023) in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mxfp4Checkpoint {
    /// Stacks that are floats of 16 or 32 bits, by their names below
    /// [`TensorNames::layers`](crate::TensorNames::layers): "3.mlp.experts.down_proj".
    pub floats: Vec<String>,
}

impl Mxfp4Checkpoint {
    /// Number of inputs that share an exponent.
    pub const GROUP: usize = 32;
}

/// 8-bit floats (e4m3) in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fp8Checkpoint {
    /// Rows and columns of the blocks that share a scale; `None` if whole rows or whole
    /// matrices do.
    pub block: Option<[usize; 2]>,
    /// True if some matrices have scales of blocks, and others scales of whole rows or matrices.
    pub mixed: bool,
    /// Projections that are floats of 16 or 32 bits, by their names below
    /// [`TensorNames::layers`](crate::TensorNames::layers): "3.mlp.down_proj".
    pub floats: Vec<String>,
}

impl Fp8Checkpoint {
    /// Largest number of inputs that share a scale on a device.
    pub const GROUP: usize = 128;
    /// Smallest such number.
    pub const SMALLEST_GROUP: usize = 4;

    /// Returns the number of inputs that share a scale, a power of two, in a rank's part of a
    /// matrix that begins at column `first`. `None` if scales change after so few inputs that a
    /// device does not keep them.
    pub fn group(&self, first: usize) -> Option<usize> {
        let blocks = self.block.map_or([0, 0], |[_, cols]| [cols, first]);
        let zeros = blocks.into_iter().map(usize::trailing_zeros);
        let group = zeros.fold(Self::GROUP, |group, zeros| {
            match zeros < group.trailing_zeros() {
                true => 1 << zeros,
                false => group,
            }
        });
        (group >= Self::SMALLEST_GROUP).then_some(group)
    }
}

impl CheckpointFormat {
    /// Describes the form for people; `None` if matrices are plain floats.
    pub fn describe(&self) -> Option<String> {
        let (form, floats, what) = match self {
            Self::Floats => return None,
            Self::Gguf(gguf) if gguf.blocks.is_empty() => return None,
            Self::Gguf(gguf) => return Some(gguf.describe()),
            Self::Fp8(fp8) => {
                let scales = match (fp8.block, fp8.mixed) {
                    (None, _) => "every row or matrix".to_owned(),
                    (Some([rows, cols]), false) => format!("every {rows} × {cols}"),
                    (Some([rows, cols]), true) => format!("every {rows} × {cols}, row or matrix"),
                };
                (
                    format!("FP8 with a scale for {scales}"),
                    fp8.floats.len(),
                    "projections",
                )
            }
            Self::Mxfp4(mxfp4) => {
                let form = format!(
                    "MXFP4 experts with an exponent for every {}",
                    Mxfp4Checkpoint::GROUP
                );
                (form, mxfp4.floats.len(), "stacks")
            }
            Self::Integers(integers) => {
                let floats = |place: &&usize| integers.forms[**place] == ModuleForm::Floats;
                let floats = integers.others.values().filter(floats).count();
                (integers.describe(), floats, "projections")
            }
        };
        Some(match floats {
            0 => form,
            count => format!("{form}, but for {count} {what}"),
        })
    }

    /// Returns the form of the matrix `tensor` of `role`, in a model whose tensors have `names`.
    /// Stacks of experts in MXFP4 are not told from floats here: see [`Self::mxfp4`].
    pub fn form(&self, names: &TensorNames, tensor: &str, role: MatrixRole) -> ModuleForm {
        match self {
            Self::Floats | Self::Mxfp4(_) => ModuleForm::Floats,
            Self::Fp8(fp8) => match names.module(tensor) {
                Some(module)
                    if role == MatrixRole::Projection
                        && !fp8.floats.iter().any(|floats| floats == module) =>
                {
                    ModuleForm::Fp8
                }
                _ => ModuleForm::Floats,
            },
            Self::Gguf(gguf) => match gguf.block_type(tensor) {
                Some(own) => ModuleForm::Blocks(own),
                None => ModuleForm::Floats,
            },
            Self::Integers(integers) => {
                let Some(module) = tensor.strip_suffix(".weight") else {
                    return ModuleForm::Floats;
                };
                match names
                    .below(tensor)
                    .filter(|_| role == MatrixRole::Projection)
                {
                    Some(_) => integers.form(module),
                    None => integers.outer_form(module),
                }
            }
        }
    }

    /// Returns the scales of 8-bit floats; `None` if no matrices are 8-bit floats.
    pub fn fp8(&self) -> Option<&Fp8Checkpoint> {
        match self {
            Self::Fp8(fp8) => Some(fp8),
            Self::Integers(integers) => integers.fp8.as_ref(),
            Self::Floats | Self::Mxfp4(_) | Self::Gguf(_) => None,
        }
    }

    /// Returns the integers in which projections are stored, unless they are listed as
    /// exceptions; `None` if no matrices are integers.
    pub fn integers(&self) -> Option<&IntegerCheckpoint> {
        match self {
            Self::Integers(integers) => Some(integers),
            Self::Floats | Self::Fp8(_) | Self::Mxfp4(_) | Self::Gguf(_) => None,
        }
    }

    /// Returns the MXFP4 in which stacks of experts are stored, unless they are listed as
    /// exceptions; `None` if they are something else.
    pub fn mxfp4(&self) -> Option<&Mxfp4Checkpoint> {
        match self {
            Self::Mxfp4(mxfp4) => Some(mxfp4),
            Self::Floats | Self::Fp8(_) | Self::Integers(_) | Self::Gguf(_) => None,
        }
    }

    /// Returns the types of blocks, if the checkpoint is a GGUF file.
    pub fn gguf(&self) -> Option<&GgufCheckpoint> {
        match self {
            Self::Gguf(gguf) => Some(gguf),
            Self::Floats | Self::Fp8(_) | Self::Integers(_) | Self::Mxfp4(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_what_a_form_is() {
        let fp8 = |block, mixed, floats: &[&str]| {
            let floats = floats.iter().map(|name| (*name).to_owned()).collect();
            let form = CheckpointFormat::Fp8(Fp8Checkpoint {
                block,
                mixed,
                floats,
            });
            form.describe().expect("no floats")
        };
        let block = Some([128, 64]);
        for (found, expected) in [
            (
                fp8(None, false, &[]),
                "FP8 with a scale for every row or matrix",
            ),
            (
                fp8(block, false, &["a", "b"]),
                "FP8 with a scale for every 128 × 64, but for 2 projections",
            ),
            (
                fp8(block, true, &[]),
                "FP8 with a scale for every 128 × 64, row or matrix",
            ),
        ] {
            assert_eq!(found, expected);
        }
        assert_eq!(CheckpointFormat::Floats.describe(), None);
    }

    #[test]
    fn a_group_has_one_scale_wherever_a_part_begins() {
        let fp8 = |block| Fp8Checkpoint {
            block,
            mixed: false,
            floats: Vec::new(),
        };
        for (block, first, group) in [
            (None, 77, Some(128)),
            (Some([128, 128]), 0, Some(128)),
            (Some([128, 128]), 2_752, Some(64)),
            (Some([128, 128]), 96, Some(32)),
            (Some([128, 128]), 4, Some(4)),
            (Some([128, 128]), 6, None),
            (Some([64, 192]), 384, Some(64)),
            (Some([1, 1 << 20]), 1 << 22, Some(128)),
            (Some([1, 3]), 0, None),
        ] {
            assert_eq!(fp8(block).group(first), group, "{block:?} {first}");
        }
    }
}
