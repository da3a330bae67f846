//! Formats of weights and of the cache.

use serde::{Deserialize, Serialize};

/// Types that weights are computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 16-bit brain float with f32 accumulation.
    Bfloat16,
    /// 32-bit float.
    Float32,
}

/// Source of a model's weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadFormat {
    /// The safetensors of its folder.
    #[default]
    Auto,
    /// Random numbers, which follow from the names of tensors alone; no file is read.
    Dummy,
}

/// Rounding of weight matrices when they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// No rounding below [`Dtype`].
    None,
    /// 8-bit integers, with a 16-bit scale for every 128 values of a row.
    Int8,
    /// 4-bit integers, with a 5-bit multiplier for every 32 values of a row and a 12-bit scale
    /// for every 128; tables of tokens have the format of [`Self::Int8`].
    Int4,
}

/// Type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvCacheDtype {
    /// 16-bit brain float.
    Bfloat16,
    /// 32-bit float.
    Float32,
    /// 8-bit integers, with an f32 scale for every token's key and value under each head.
    Int8,
}

impl LoadFormat {
    /// Name of the source as an option's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Dummy => "dummy",
        }
    }
}

impl Dtype {
    /// Name of the type as an option's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
        }
    }

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bfloat16 => 2,
            Self::Float32 => 4,
        }
    }
}

impl Quantization {
    /// Name of the format as an option's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }
}

impl KvCacheDtype {
    /// Name of the type as an option's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Int8 => "int8",
        }
    }

    /// Bytes of one token's key or value under one head.
    pub fn row_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::Bfloat16 => 2 * head_dim,
            Self::Float32 => 4 * head_dim,
            Self::Int8 => head_dim + 4,
        }
    }
}
