//! Types of tensors (ggml's).

use std::fmt;

/// Type of a tensor's elements: floats, or blocks of elements that share scales.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TensorType {
    /// Number of the type in files.
    pub id: u32,
    /// Name of the type, as ggml has it: "Q4_K".
    pub name: &'static str,
    /// Elements of a block.
    pub elements: usize,
    /// Bytes of a block.
    pub bytes: usize,
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// All types that ggml has, those of older versions excepted.
const ALL: [TensorType; 38] = [
    of(0, "F32", 1, 4),
    of(1, "F16", 1, 2),
    of(2, "Q4_0", 32, 18),
    of(3, "Q4_1", 32, 20),
    of(6, "Q5_0", 32, 22),
    of(7, "Q5_1", 32, 24),
    of(8, "Q8_0", 32, 34),
    of(9, "Q8_1", 32, 36),
    of(10, "Q2_K", 256, 84),
    of(11, "Q3_K", 256, 110),
    of(12, "Q4_K", 256, 144),
    of(13, "Q5_K", 256, 176),
    of(14, "Q6_K", 256, 210),
    of(15, "Q8_K", 256, 292),
    of(16, "IQ2_XXS", 256, 66),
    of(17, "IQ2_XS", 256, 74),
    of(18, "IQ3_XXS", 256, 98),
    of(19, "IQ1_S", 256, 50),
    of(20, "IQ4_NL", 32, 18),
    of(21, "IQ3_S", 256, 110),
    of(22, "IQ2_S", 256, 82),
    of(23, "IQ4_XS", 256, 136),
    of(24, "I8", 1, 1),
    of(25, "I16", 1, 2),
    of(26, "I32", 1, 4),
    of(27, "I64", 1, 8),
    of(28, "F64", 1, 8),
    of(29, "IQ1_M", 256, 56),
    of(30, "BF16", 1, 2),
    of(34, "TQ1_0", 256, 54),
    of(35, "TQ2_0", 256, 66),
    of(39, "MXFP4", 32, 17),
    of(40, "NVFP4", 64, 36),
    of(41, "Q1_0", 128, 18),
    of(42, "Q2_0", 64, 18),
    of(31, "Q4_0_4_4", 32, 18),
    of(32, "Q4_0_4_8", 32, 18),
    of(33, "Q4_0_8_8", 32, 18),
];

/// Names of the types that are served.
pub(crate) const SERVED: [&str; 14] = [
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4",
];

const fn of(id: u32, name: &'static str, elements: usize, bytes: usize) -> TensorType {
    TensorType {
        id,
        name,
        elements,
        bytes,
    }
}

impl TensorType {
    /// Returns the type with the number `id`; `None` if there is none.
    pub(crate) fn numbered(id: u32) -> Option<Self> {
        ALL.iter().find(|own| own.id == id).copied()
    }

    /// Returns true if matrices of the type are served.
    pub(crate) fn is_served(self) -> bool {
        SERVED.contains(&self.name)
    }

    /// Returns the bytes of a tensor of `dims`, innermost first; `None` if rows are no whole
    /// blocks, or if the product is too large.
    pub(crate) fn bytes_of(self, dims: &[u64]) -> Option<u64> {
        let (elements, bytes) = (self.elements as u64, self.bytes as u64);
        let row = dims.first().copied()?;
        if !row.is_multiple_of(elements) {
            return None;
        }
        let rest = dims.get(1..).unwrap_or_default();
        let mut product = (row / elements).checked_mul(bytes)?;
        for dim in rest {
            product = product.checked_mul(*dim)?;
        }
        Some(product)
    }
}
