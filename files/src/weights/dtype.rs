//! Types of tensors' elements.

use std::fmt;

use crate::gguf::TensorType;

/// Type of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "the types have these names in files")]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// 8-bit float of four exponent bits.
    F8_E4M3,
    /// 8-bit exponent.
    F8_E8M0,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed byte.
    I8,
    /// Unsigned byte.
    U8,
    /// Blocks of elements that share scales, in GGUF files.
    Blocks(TensorType),
    /// Another type of safetensors.
    Other(safetensors::Dtype),
}

/// Names of the types that safetensors have too.
const NAMED: [(Dtype, safetensors::Dtype); 9] = [
    (Dtype::F32, safetensors::Dtype::F32),
    (Dtype::F16, safetensors::Dtype::F16),
    (Dtype::BF16, safetensors::Dtype::BF16),
    (Dtype::F8_E4M3, safetensors::Dtype::F8_E4M3),
    (Dtype::F8_E8M0, safetensors::Dtype::F8_E8M0),
    (Dtype::I64, safetensors::Dtype::I64),
    (Dtype::I32, safetensors::Dtype::I32),
    (Dtype::I8, safetensors::Dtype::I8),
    (Dtype::U8, safetensors::Dtype::U8),
];

impl From<safetensors::Dtype> for Dtype {
    fn from(dtype: safetensors::Dtype) -> Self {
        let named = NAMED.iter().find(|(_, theirs)| *theirs == dtype);
        named.map_or(Self::Other(dtype), |(own, _)| *own)
    }
}

/// Writes the name that files have for the type.
impl fmt::Debug for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks(kind) => kind.fmt(f),
            Self::Other(dtype) => dtype.fmt(f),
            named => {
                let theirs = NAMED.iter().find(|(own, _)| own == named);
                theirs.map_or(Ok(()), |(_, dtype)| dtype.fmt(f))
            }
        }
    }
}
