//! Layouts of steps of integers in groups.

use lockstep_backend::{CodeTable, Codes, FactorType, GroupFormat, Minimum};

use crate::gemm::tile::PANEL;
use crate::quantize::{GROUP, GROUP_WORDS};

/// Layout of a step of a panel: 128 inputs of 32 columns.
///
/// Codes come first. Those of 4 bits are `[16][32]` words with eight codes of a column each: four
/// consecutive ones in the low halves of its bytes, the next four in the high halves. Those of 8
/// bits are `[32][32]` words with four codes each, plus 128. Then come factors `[32]` of 2 or 4
/// bytes, and multiples `[32]` of one byte, of one group after the other. Where groups share
/// factors, the factors of the step come before all multiples. Zeros fill the step up to whole
/// lines of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Groups of a step.
    pub groups: usize,
    /// Words of codes of a step.
    pub code_words: usize,
    /// Words of a step.
    pub step_words: usize,
    /// Type of factors.
    pub factors: FactorType,
    /// Factors of groups.
    pub factor: Places,
    /// Multiples of the factors; `None` if all are 1.
    pub multiple: Option<Places>,
    /// Factors of minimums, which may be those of groups; `None` if there are no minimums.
    pub min_factor: Option<Places>,
    /// Multiples of minimums' factors; `None` if all are 1.
    pub min_multiple: Option<Places>,
    /// Offset that codes are stored with, or entries of the table.
    pub offset: i32,
    /// Entries that codes of 4 bits stand for, plus 128.
    pub table: [u8; 16],
}

/// Places of numbers `[32]`, in bytes behind the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Places {
    first: usize,
    /// Bytes from one group to the next.
    stride: usize,
}

impl Places {
    /// Returns the place of the numbers of group `group`.
    #[inline(always)]
    pub(crate) const fn at(self, group: usize) -> usize {
        self.first + group * self.stride
    }

    /// Returns true if all groups have the same numbers.
    #[inline(always)]
    pub(crate) const fn is_shared(self) -> bool {
        self.stride == 0
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl Layout {
    /// Layout of steps that have no groups.
    pub(crate) const NONE: Self = Self {
        groups: 1,
        code_words: 0,
        step_words: 0,
        factors: FactorType::F32,
        factor: Places {
            first: 0,
            stride: 0,
        },
        multiple: None,
        min_factor: None,
        min_multiple: None,
        offset: 0,
        table: [0; 16],
    };

    /// Returns the layout for `format`, which devices keep.
    pub(crate) const fn of(format: GroupFormat) -> Self {
        let shared = format.factor_group > format.group;
        let wide = match format.factors {
            FactorType::F32 => 4 * PANEL,
            FactorType::F16 | FactorType::Bf16 => 2 * PANEL,
        };
        let own = matches!(format.minimum, Minimum::Own);
        let zero = matches!(format.minimum, Minimum::Zero);
        let factors = if own { 2 * wide } else { wide };
        let multiples = (shared as usize + (zero || shared && own) as usize) * PANEL;
        let groups = GROUP / format.group;
        // Bytes of all factors, and of a group's numbers.
        let (common, stride) = match shared {
            true => (factors, multiples),
            false => (0, factors + multiples),
        };
        let factor_stride = if shared { 0 } else { stride };
        let code_words = format.bits as usize * GROUP_WORDS / 8 * PANEL;
        let bytes = (common + groups * stride).next_multiple_of(LINE);
        Self {
            groups,
            code_words,
            step_words: code_words + bytes / 4,
            factors: format.factors,
            factor: Places {
                first: 0,
                stride: factor_stride,
            },
            multiple: match shared {
                true => Some(Places {
                    first: factors,
                    stride,
                }),
                false => None,
            },
            min_factor: match format.minimum {
                Minimum::None => None,
                Minimum::Zero => Some(Places {
                    first: 0,
                    stride: factor_stride,
                }),
                Minimum::Own => Some(Places {
                    first: wide,
                    stride: factor_stride,
                }),
            },
            min_multiple: match (shared, format.minimum) {
                (false, Minimum::Zero) => Some(Places {
                    first: factors,
                    stride,
                }),
                (true, Minimum::Zero | Minimum::Own) => Some(Places {
                    first: factors + PANEL,
                    stride,
                }),
                _ => None,
            },
            offset: offset(format),
            table: match format.codes {
                Codes::Integers => [0; 16],
                Codes::Table(table) => raised(table),
            },
        }
    }

    /// Returns the place of a code: its byte in a step, and its lowest bit there. `input` counts
    /// in the step.
    pub(crate) const fn code(&self, input: usize, lane: usize) -> (usize, u32) {
        if self.is_wide() {
            return ((input / 4 * PANEL + lane) * 4 + input % 4, 0);
        }
        let word = input / 8 * PANEL + lane;
        (word * 4 + input % 4, (input % 8 / 4 * 4) as u32)
    }

    /// Returns true if codes take 8 bits, and inputs 16.
    pub(crate) const fn is_wide(&self) -> bool {
        self.code_words > GROUP_WORDS / 2 * PANEL
    }

    /// Bytes of a factor.
    pub(crate) const fn factor_bytes(&self) -> usize {
        match self.factors {
            FactorType::F32 => 4,
            FactorType::F16 | FactorType::Bf16 => 2,
        }
    }
}

/// Returns the offset that codes of a format, or entries of its table, are stored with, so that
/// they are not negative.
const fn offset(format: GroupFormat) -> i32 {
    match (format.bits, format.codes, format.minimum) {
        (4, Codes::Integers, Minimum::None) => 8,
        (4, Codes::Integers, _) => 0,
        _ => 128,
    }
}

/// Returns the entries of a table plus 128.
const fn raised(table: CodeTable) -> [u8; 16] {
    let (values, mut raised) = (table.values(), [0; 16]);
    let mut code = 0;
    while code < raised.len() {
        raised[code] = (values[code] as u8) ^ 0x80;
        code += 1;
    }
    raised
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q4_K: GroupFormat = GroupFormat {
        bits: 4,
        codes: Codes::Integers,
        group: 32,
        factor_group: 256,
        minimum: Minimum::Own,
        factors: FactorType::F16,
    };

    /// Bits of a weight, with all scales.
    fn bits(format: GroupFormat) -> f64 {
        Layout::of(format).step_words as f64 * 32.0 / (GROUP * PANEL) as f64
    }

    #[test]
    fn weights_take_hardly_more_than_in_files() {
        let q4_0 = GroupFormat {
            factor_group: 32,
            minimum: Minimum::None,
            ..Q4_K
        };
        let of_128 = GroupFormat {
            group: 128,
            factor_group: 128,
            ..q4_0
        };
        let q6_k = GroupFormat {
            bits: 8,
            group: 16,
            minimum: Minimum::None,
            ..Q4_K
        };
        for (format, expected) in [
            (Q4_K, 4.75),
            (q4_0, 4.5),
            (
                GroupFormat {
                    minimum: Minimum::Own,
                    ..q4_0
                },
                5.0,
            ),
            (GroupFormat { bits: 8, ..q4_0 }, 8.5),
            (q6_k, 8.625),
            (of_128, 4.125),
            (
                GroupFormat {
                    minimum: Minimum::Zero,
                    ..of_128
                },
                4.25,
            ),
            (
                GroupFormat {
                    factors: FactorType::F32,
                    ..q4_0
                },
                5.0,
            ),
        ] {
            assert_eq!(bits(format), expected, "{format:?}");
        }
    }

    /// No two numbers of a step share a byte, and none lies past its end.
    #[test]
    fn numbers_have_places_of_their_own() {
        let formats = crate::formats::all_groups();
        for format in formats {
            let layout = Layout::of(format);
            let mut taken = vec![0u8; 4 * layout.step_words];
            for input in 0..GROUP {
                for lane in 0..PANEL {
                    let (byte, shift) = layout.code(input, lane);
                    taken[byte] += if format.bits == 4 { 1 << shift } else { 0x11 };
                }
            }
            let codes = 4 * layout.code_words;
            assert!(taken[..codes].iter().all(|bits| *bits == 0x11));
            let own = layout.min_factor.filter(|_| format.minimum == Minimum::Own);
            let common = format.factor_group > format.group;
            for group in 0..layout.groups {
                let factors = [Some(layout.factor), own].into_iter().flatten();
                for place in factors.filter(|_| group == 0 || !common) {
                    let first = codes + place.at(group);
                    let bytes = &mut taken[first..first + PANEL * layout.factor_bytes()];
                    bytes.iter_mut().for_each(|bits| *bits += 1);
                }
                for place in [layout.multiple, layout.min_multiple].into_iter().flatten() {
                    let first = codes + place.at(group);
                    taken[first..first + PANEL]
                        .iter_mut()
                        .for_each(|bits| *bits += 1);
                }
            }
            assert!(taken[codes..].iter().all(|bits| *bits <= 1), "{format:?}");
            let unused = taken[codes..].iter().filter(|bits| **bits == 0).count();
            assert!(unused < LINE, "{format:?}");
        }
    }
}
