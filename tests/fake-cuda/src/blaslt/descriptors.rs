//! Descriptors of a product, which callers fill before they ask for it.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::{INVALID_VALUE, NOT_SUPPORTED};
use crate::abi::{Answer, Handle, Refusal};

/// Types of values (`cudaDataType_t`).
const F32: c_int = 0;
const BF16: c_int = 14;
/// Sums in f32 (`cublasComputeType_t`).
const COMPUTE_F32: c_int = 68;

/// Type of a matrix's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    Bf16,
}

impl Kind {
    fn new(number: c_int) -> Answer<Self> {
        match number {
            F32 => Ok(Self::F32),
            BF16 => Ok(Self::Bf16),
            _ => Err(unknown(&format!("the type {number}"))),
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// A matrix in column-major order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) kind: Kind,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Number of values from one column to the next.
    pub(super) ld: usize,
}

impl Layout {
    pub(super) fn new(kind: c_int, rows: u64, columns: u64, ld: i64) -> Answer<Self> {
        let made = Self {
            kind: Kind::new(kind)?,
            rows: rows as usize,
            columns: columns as usize,
            ld: usize::try_from(ld).unwrap_or(0),
        };
        if made.ld < made.rows || made.rows == 0 || made.columns == 0 {
            let reason = format!("a matrix of {rows} x {columns} with {ld} from column to column");
            return Err(Refusal::new(INVALID_VALUE, reason));
        }
        Ok(made)
    }

    /// Bytes from the first value to behind the last one.
    pub(super) fn bytes(&self) -> usize {
        ((self.columns - 1) * self.ld + self.rows) * self.kind.bytes()
    }

    pub(super) fn set(&mut self, attribute: c_int, value: &[u8]) -> Answer {
        match (attribute, number(value)) {
            // Column-major order, and one matrix.
            (1, Some(0)) | (5, Some(1)) => Ok(()),
            (3, Some(columns)) if columns > 0 => {
                self.columns = columns as usize;
                Ok(())
            }
            _ => Err(unknown(&format!("the attribute {attribute} of a layout"))),
        }
    }
}

/// Operation on the matrices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Descriptor {
    pub(super) transposed_a: bool,
    pub(super) transposed_b: bool,
    /// Address of the bias, one value per row, and its type if it is not the sum's.
    pub(super) bias: Option<usize>,
    pub(super) bias_kind: Option<Kind>,
    pub(super) adds_bias: bool,
}

impl Descriptor {
    pub(super) fn new(compute: c_int, scale: c_int) -> Answer<Self> {
        if (compute, scale) == (COMPUTE_F32, F32) {
            return Ok(Self::default());
        }
        let what = format!("the type {compute} of sums, or {scale} of scales");
        Err(unknown(&what))
    }

    /// `cublasLtMatmulDescAttributes_t`
    pub(super) fn set(&mut self, attribute: c_int, value: &[u8]) -> Answer {
        let refused = || unknown(&format!("the attribute {attribute} as {value:?}"));
        let number = number(value).ok_or_else(refused)?;
        match (attribute, number) {
            // Scales lie on the host.
            (2, 0) => {}
            (3, 0 | 1) => self.transposed_a = number == 1,
            (4, 0 | 1) => self.transposed_b = number == 1,
            (7, 1) => self.adds_bias = false,
            (7, 4) => self.adds_bias = true,
            (8, at) => self.bias = Some(at as usize),
            (26, kind) => self.bias_kind = Some(Kind::new(kind as c_int)?),
            _ => return Err(refused()),
        }
        Ok(())
    }
}

/// Limits for an algorithm.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Preference {
    /// Bytes of working memory.
    pub(super) most_workspace: usize,
}

impl Preference {
    /// `cublasLtMatmulPreferenceAttributes_t`
    pub(super) fn set(&mut self, attribute: c_int, value: &[u8]) -> Answer {
        match (attribute, number(value)) {
            (1, Some(bytes)) => self.most_workspace = bytes as usize,
            _ => return Err(unknown(&format!("the preference {attribute}"))),
        }
        Ok(())
    }
}

/// All objects that callers made, by handle.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) layouts: HashMap<Handle, Layout>,
    pub(super) descriptors: HashMap<Handle, Descriptor>,
    pub(super) preferences: HashMap<Handle, Preference>,
}

static OBJECTS: LazyLock<Mutex<Objects>> = LazyLock::new(Mutex::default);

pub(super) fn objects() -> MutexGuard<'static, Objects> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Objects {
    pub(super) fn layouts(&self, handles: [Handle; 4]) -> Answer<[Layout; 4]> {
        let [a, b, c, d] = handles.map(|handle| self.layouts.get(&handle).copied());
        let all = a.zip(b).zip(c.zip(d));
        let missing = || Refusal::new(INVALID_VALUE, "no such layout");
        let ((a, b), (c, d)) = all.ok_or_else(missing)?;
        Ok([a, b, c, d])
    }

    pub(super) fn descriptor(&self, handle: Handle) -> Answer<Descriptor> {
        let missing = || Refusal::new(INVALID_VALUE, "no such descriptor");
        self.descriptors.get(&handle).copied().ok_or_else(missing)
    }
}

/// A value of 4 or 8 bytes.
fn number(bytes: &[u8]) -> Option<u64> {
    match *bytes {
        [a, b, c, d] => Some(u64::from(u32::from_ne_bytes([a, b, c, d]))),
        _ => bytes.try_into().ok().map(u64::from_ne_bytes),
    }
}

fn unknown(what: &str) -> Refusal {
    let reason = format!("the fake cuBLASLt does not know {what}");
    Refusal::new(NOT_SUPPORTED, reason)
}
