//! Values of collectives, and their reductions.

use std::ffi::c_int;

use half::bf16;

use super::INVALID_ARGUMENT;
use crate::abi::{Answer, Refusal};

/// Types of values (`ncclDataType_t`) that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    I32,
    U32,
    U64,
    F32,
    Bf16,
}

impl Kind {
    pub(super) fn new(number: c_int) -> Answer<Self> {
        let all = [
            Self::U8,
            Self::I32,
            Self::U32,
            Self::U64,
            Self::F32,
            Self::Bf16,
        ];
        let known = all
            .into_iter()
            .find(|kind| c_int::from(kind.number()) == number);
        known.ok_or_else(|| unknown("type of values", number))
    }

    pub(super) fn number(self) -> u8 {
        match self {
            Self::U8 => 1,
            Self::I32 => 2,
            Self::U32 => 3,
            Self::U64 => 5,
            Self::F32 => 7,
            Self::Bf16 => 9,
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::U64 => 8,
        }
    }
}

/// Reductions (`ncclRedOp_t`) that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Sum,
    Max,
    Min,
}

impl Operation {
    pub(super) fn new(number: c_int) -> Answer<Self> {
        match number {
            0 => Ok(Self::Sum),
            2 => Ok(Self::Max),
            3 => Ok(Self::Min),
            _ => Err(unknown("reduction", number)),
        }
    }

    /// Reduces the ranks' values one by one, in the order of ranks; floats in f32.
    pub(super) fn of(self, kind: Kind, all: &[Vec<u8>]) -> Vec<u8> {
        match kind {
            Kind::U8 => self.whole::<1>(all, |b| b[0].into(), |v| [v as u8]),
            Kind::I32 => {
                let read = |b| i32::from_ne_bytes(b).into();
                self.whole::<4>(all, read, |v| (v as i32).to_ne_bytes())
            }
            Kind::U32 => {
                let read = |b| u32::from_ne_bytes(b).into();
                self.whole::<4>(all, read, |v| (v as u32).to_ne_bytes())
            }
            Kind::U64 => {
                let read = |b| u64::from_ne_bytes(b).into();
                self.whole::<8>(all, read, |v| (v as u64).to_ne_bytes())
            }
            Kind::F32 => self.float::<4>(all, f32::from_ne_bytes, f32::to_ne_bytes),
            Kind::Bf16 => {
                let read = |b| bf16::from_ne_bytes(b).to_f32();
                self.float::<2>(all, read, |v| bf16::from_f32(v).to_ne_bytes())
            }
        }
    }

    fn whole<const N: usize>(
        self,
        all: &[Vec<u8>],
        read: impl Fn([u8; N]) -> i128,
        write: impl Fn(i128) -> [u8; N],
    ) -> Vec<u8> {
        each(all, |values| {
            let values = values.map(&read);
            let reduced = match self {
                Self::Sum => values.sum::<i128>(),
                Self::Max => values.max().unwrap_or(0),
                Self::Min => values.min().unwrap_or(0),
            };
            write(reduced)
        })
    }

    fn float<const N: usize>(
        self,
        all: &[Vec<u8>],
        read: impl Fn([u8; N]) -> f32,
        write: impl Fn(f32) -> [u8; N],
    ) -> Vec<u8> {
        let reduce = match self {
            Self::Sum => |a: f32, b: f32| a + b,
            Self::Max => f32::max,
            Self::Min => f32::min,
        };
        each(all, |values| {
            write(values.map(&read).reduce(reduce).unwrap_or(0.0))
        })
    }
}

/// Calls `reduce` with all ranks' values of each element, and collects the results.
fn each<const N: usize>(
    all: &[Vec<u8>],
    reduce: impl Fn(&mut dyn Iterator<Item = [u8; N]>) -> [u8; N],
) -> Vec<u8> {
    let count = all.first().map_or(0, |first| first.len() / N);
    let value = |at: usize| {
        let mut values = all.iter().map(|bytes| {
            let mut value = [0; N];
            value.copy_from_slice(&bytes[at * N..][..N]);
            value
        });
        reduce(&mut values)
    };
    (0..count).flat_map(value).collect()
}

fn unknown(what: &str, number: c_int) -> Refusal {
    let reason = format!("the fake NCCL does not know the {what} {number}");
    Refusal::new(INVALID_ARGUMENT, reason)
}
