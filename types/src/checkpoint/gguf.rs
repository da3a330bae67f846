//! Matrices in GGUF files, which are floats or blocks that share scales.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::weight::{CodeTable, Codes, FactorType, GroupFormat, Minimum};

/// Form of a model's matrices in a GGUF file. Types differ between matrices of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GgufCheckpoint {
    /// Types of the matrices that are blocks, by their names without `.weight` and without the
    /// numbers of experts: "model.layers.3.mlp.experts.up_proj".
    pub blocks: BTreeMap<String, BlockType>,
}

/// Types of blocks that are served, as ggml has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[expect(non_camel_case_types, reason = "the types have these names in files")]
pub enum BlockType {
    /// 4 bits and a scale for 32.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32.
    Q4_1,
    /// 5 bits and a scale for 32.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32.
    Q5_1,
    /// 8 bits and a scale for 32.
    Q8_0,
    /// 4 bits, multiples of scale and minimum for 32, and the two for 256.
    Q4_K,
    /// 5 bits, multiples of scale and minimum for 32, and the two for 256.
    Q5_K,
    /// 6 bits, a multiple of the scale for 16, and the scale for 256.
    Q6_K,
    /// Entries of a table and a scale for 32.
    IQ4_NL,
    /// Entries of a table, a multiple of the scale for 32, and the scale for 256.
    IQ4_XS,
    /// 4-bit floats and an exponent for 32.
    MXFP4,
}

impl BlockType {
    /// All types.
    pub const ALL: [Self; 11] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
    ];

    /// Returns the type that ggml calls `name`; `None` if it is not served.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|own| own.name() == name)
    }

    /// Returns the type's name: "Q4_K".
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::IQ4_NL => "IQ4_NL",
            Self::IQ4_XS => "IQ4_XS",
            Self::MXFP4 => "MXFP4",
        }
    }

    /// Returns the elements of a block.
    pub fn elements(self) -> usize {
        match self {
            Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => GroupFormat::FACTOR_GROUP,
            _ => 32,
        }
    }

    /// Returns the bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            Self::MXFP4 => 17,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::IQ4_XS => 136,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Returns the layout of such blocks on a device.
    pub fn group_format(self) -> GroupFormat {
        GroupFormat {
            bits: match self {
                Self::Q5_0 | Self::Q5_1 | Self::Q5_K | Self::Q6_K | Self::Q8_0 => 8,
                _ => 4,
            },
            codes: match self {
                Self::IQ4_NL | Self::IQ4_XS => Codes::Table(CodeTable::Iq4),
                Self::MXFP4 => Codes::Table(CodeTable::E2m1),
                _ => Codes::Integers,
            },
            group: if self == Self::Q6_K { 16 } else { 32 },
            factor_group: self.elements(),
            minimum: match self {
                Self::Q4_1 | Self::Q5_1 | Self::Q4_K | Self::Q5_K => Minimum::Own,
                _ => Minimum::None,
            },
            factors: match self {
                // Powers of two.
                Self::MXFP4 => FactorType::Bf16,
                _ => FactorType::F16,
            },
        }
    }
}

impl GgufCheckpoint {
    /// Returns the name in [`Self::blocks`] of the matrix `tensor`.
    pub fn key(tensor: &str) -> String {
        let name = tensor.strip_suffix(".weight").unwrap_or(tensor);
        const EXPERTS: &str = ".experts.";
        let Some(at) = name.find(EXPERTS) else {
            return name.to_owned();
        };
        let (stack, expert) = name.split_at(at + EXPERTS.len());
        let behind = expert.split_once('.').map_or(expert, |(_, behind)| behind);
        format!("{stack}{behind}")
    }

    /// Returns the type of the matrix `tensor`; `None` if it is floats.
    pub fn block_type(&self, tensor: &str) -> Option<BlockType> {
        self.blocks.get(&Self::key(tensor)).copied()
    }

    /// Describes the types for people, those of most matrices first: "Q4_K (120 matrices), Q6_K
    /// (13)".
    pub fn describe(&self) -> String {
        let counts = self.counts();
        let listed = counts.iter().enumerate().map(|(at, (own, count))| {
            let what = match at {
                0 => {
                    if *count == 1 {
                        " matrix"
                    } else {
                        " matrices"
                    }
                }
                _ => "",
            };
            format!("{} ({count}{what})", own.name())
        });
        listed.collect::<Vec<_>>().join(", ")
    }

    /// Returns the type of most matrices that are blocks.
    pub fn usual(&self) -> Option<BlockType> {
        self.counts().first().map(|(kind, _)| *kind)
    }

    /// Returns the number of matrices of each type, the most frequent one first.
    fn counts(&self) -> Vec<(BlockType, usize)> {
        let mut counts: BTreeMap<BlockType, usize> = BTreeMap::new();
        for own in self.blocks.values() {
            *counts.entry(*own).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(own, count)| (std::cmp::Reverse(*count), *own));
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_the_names_of_their_matrices() {
        let mut gguf = GgufCheckpoint::default();
        let experts = "model.layers.3.mlp.experts.up_proj";
        gguf.blocks.insert(experts.to_owned(), BlockType::Q4_K);
        gguf.blocks
            .insert("model.embed_tokens".to_owned(), BlockType::Q6_K);
        gguf.blocks.insert(
            "model.layers.3.mlp.experts.down_proj".to_owned(),
            BlockType::Q4_K,
        );
        let of = |name: &str| gguf.block_type(name);
        assert_eq!(
            of("model.layers.3.mlp.experts.17.up_proj.weight"),
            Some(BlockType::Q4_K)
        );
        assert_eq!(of("model.embed_tokens.weight"), Some(BlockType::Q6_K));
        assert_eq!(of("model.layers.3.mlp.experts.17.gate_proj.weight"), None);
        assert_eq!(of("model.layers.4.mlp.up_proj.weight"), None);
        assert_eq!(gguf.describe(), "Q4_K (2 matrices), Q6_K (1)");
    }

    #[test]
    fn every_type_has_a_layout_that_devices_keep() {
        for own in BlockType::ALL {
            assert!(own.group_format().is_kept(), "{own:?}");
            assert_eq!(BlockType::named(own.name()), Some(own));
        }
        assert_eq!(BlockType::named("IQ2_XXS"), None);
    }
}
