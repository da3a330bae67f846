//! Integers in groups, as most rounded checkpoints hold weights.

/// Layout of integers in groups. A weight is `factor · multiple · code − min_factor ·
/// min_multiple`, where each product of a factor and a multiple is exact in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupFormat {
    /// Bits of a code on a device: 4 or 8. Codes of 5 and 6 bits take 8.
    pub bits: u8,
    /// Numbers that codes stand for.
    pub codes: Codes,
    /// Values of a row that share a multiple: 16, 32, 64 or 128.
    pub group: usize,
    /// Values of a row that share a factor: [`Self::FACTOR_GROUP`] where groups have multiples
    /// of a common factor, else as many as [`Self::group`], and every multiple is 1.
    pub factor_group: usize,
    /// The part of a weight that does not depend on its code.
    pub minimum: Minimum,
    /// Type that holds every factor exactly.
    pub factors: FactorType,
}

/// Numbers that codes stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codes {
    /// Integers. Those of 8 bits are −128 to 127. Those of 4 bits are −8 to 7 without
    /// minimums, and 0 to 15 with minimums.
    Integers,
    /// Entries of a table, by 4 bits.
    Table(CodeTable),
}

/// Tables of 16 integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CodeTable {
    /// The levels of IQ4_NL and IQ4_XS (GGUF).
    Iq4,
    /// Doubled values of 4-bit floats (e2m1).
    E2m1,
}

/// Minimums of groups, which are subtracted from the products of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Minimum {
    /// None.
    None,
    /// A zero point of each group: the group's own factor times `min_multiple`, an integer from
    /// −128 to 127.
    Zero,
    /// A factor of its own times `min_multiple`. Where [`GroupFormat::factor_group`] is as many
    /// values as a group, `min_multiple` is 1.
    Own,
}

/// Types of factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FactorType {
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// 32-bit float.
    F32,
}

impl CodeTable {
    /// Returns the table's integers.
    pub const fn values(self) -> [i8; 16] {
        match self {
            Self::Iq4 => [
                -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
            ],
            Self::E2m1 => [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12],
        }
    }
}

impl GroupFormat {
    /// Values that share a factor where groups have multiples of it.
    pub const FACTOR_GROUP: usize = 256;
    /// Values of a row that devices work on at a time. A part of a row that begins at a multiple of
    /// them has no factor that changes inside of such a run, but at groups.
    pub const STEP: usize = 128;

    /// Layout that holds every matrix of integers in groups.
    pub const ANY: Self = Self {
        bits: 8,
        codes: Codes::Integers,
        group: 16,
        factor_group: 16,
        minimum: Minimum::Own,
        factors: FactorType::F32,
    };

    /// Returns true if devices that have integers in groups have this layout.
    pub fn is_kept(&self) -> bool {
        let Self {
            bits,
            codes,
            group,
            factor_group,
            minimum,
            ..
        } = *self;
        let fits = match (bits, codes) {
            (4, Codes::Integers) => group >= 32,
            (4, Codes::Table(_)) => group >= 32 && minimum == Minimum::None,
            (8, Codes::Integers) => true,
            _ => false,
        };
        let shared = factor_group == Self::FACTOR_GROUP && minimum != Minimum::Zero;
        fits && [16, 32, 64, 128].contains(&group) && (factor_group == group || shared)
    }

    /// Returns the layout of a rank's part of a row that begins at column `first`: groups are as
    /// long as those that always share multiples, counted from there. `None` if devices don't
    /// keep that layout.
    #[must_use]
    pub fn of_part(mut self, first: usize) -> Option<Self> {
        let aligned = |length: usize| match first {
            0 => length,
            _ => length.min(1 << first.trailing_zeros()),
        };
        let group = aligned(self.group);
        if self.factor_group == self.group {
            self.factor_group = group;
        } else if !first.is_multiple_of(Self::STEP) {
            // Products of factors and multiples, which f32 holds.
            (self.factor_group, self.factors) = (group, FactorType::F32);
        }
        self.group = group;
        self.is_kept().then_some(self)
    }

    /// Returns the smallest layout for rows of this layout and rows of `other`, which lie one below
    /// the other. Where they differ, codes take 8 bits.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        if self == other {
            return self;
        }
        let both = [self, other];
        let group = self.group.min(other.group);
        let minimum = match (self.minimum, other.minimum) {
            (one, other) if one == other => one,
            (Minimum::None, Minimum::Zero) | (Minimum::Zero, Minimum::None) => Minimum::Zero,
            _ => Minimum::Own,
        };
        let shared = both.iter().all(|layout| layout.factor_group > layout.group);
        // Products with multiples, and with zero points in minimums, may need all bits of f32.
        let exact = |layout: &Self| {
            let multiples = layout.factor_group > layout.group && !shared;
            let zeros = layout.minimum == Minimum::Zero && minimum == Minimum::Own;
            !multiples && !zeros && layout.factors == self.factors
        };
        Self {
            bits: 8,
            codes: Codes::Integers,
            group,
            factor_group: if shared { Self::FACTOR_GROUP } else { group },
            minimum,
            factors: match both.iter().all(exact) {
                true => self.factors,
                false => FactorType::F32,
            },
        }
    }

    /// Returns true if this layout holds all values of a matrix that has layout `stored`, where
    /// groups of `stored` begin at groups of this one.
    pub fn holds(&self, stored: &Self) -> bool {
        let codes = match self.bits {
            4 => self.codes == stored.codes && self.bits == stored.bits,
            _ => self.codes == Codes::Integers,
        };
        let minimums = match (self.minimum, stored.minimum) {
            (Minimum::None, Minimum::None) | (Minimum::Zero, Minimum::Zero) => true,
            (Minimum::None, _) | (Minimum::Zero, Minimum::Own) => false,
            // Integers of 4 bits are other ones with minimums than without.
            (Minimum::Own | Minimum::Zero, Minimum::None) => self.bits == 8,
            (Minimum::Own, Minimum::Own | Minimum::Zero) => true,
        };
        let flat = stored.factor_group == stored.group;
        let factors = match self.factor_group == self.group {
            true => {
                let zeros = self.minimum == Minimum::Own && stored.minimum == Minimum::Zero;
                self.factors == FactorType::F32
                    || (flat && !zeros && self.factors == stored.factors)
            }
            false => !flat && [FactorType::F32, stored.factors].contains(&self.factors),
        };
        codes && minimums && factors && self.group <= stored.group
    }
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

    #[test]
    fn a_part_keeps_groups_that_share_everything() {
        let alone = |group, factors| GroupFormat {
            group,
            factor_group: group,
            factors,
            ..Q4_K
        };
        let g128 = alone(128, FactorType::Bf16);
        let bytes = GroupFormat { bits: 8, ..Q4_K };
        for (whole, first, expected) in [
            (Q4_K, 0, Some(Q4_K)),
            (Q4_K, 384, Some(Q4_K)),
            (Q4_K, 96, Some(alone(32, FactorType::F32))),
            (Q4_K, 16, None),
            (
                bytes,
                16,
                Some(GroupFormat {
                    bits: 8,
                    ..alone(16, FactorType::F32)
                }),
            ),
            (bytes, 8, None),
            (g128, 0, Some(g128)),
            (g128, 64, Some(alone(64, FactorType::Bf16))),
            (g128, 32, Some(alone(32, FactorType::Bf16))),
            (g128, 33, None),
        ] {
            let part = whole.of_part(first);
            assert_eq!(part, expected, "{first}");
            assert!(part.is_none_or(|part| part.holds(&whole)), "{first}");
        }
    }

    #[test]
    fn rows_of_two_layouts_have_one_together() {
        let of = |bits, group, factor_group, minimum, factors| GroupFormat {
            bits,
            codes: Codes::Integers,
            group,
            factor_group,
            minimum,
            factors,
        };
        let (f16, bf16, f32) = (FactorType::F16, FactorType::Bf16, FactorType::F32);
        let q6_k = of(8, 16, 256, Minimum::None, f16);
        let q8_0 = of(8, 32, 32, Minimum::None, f16);
        let q4_1 = of(4, 32, 32, Minimum::Own, f16);
        let awq = of(4, 128, 128, Minimum::Zero, f16);
        let iq4 = GroupFormat {
            codes: Codes::Table(CodeTable::Iq4),
            ..of(4, 32, 32, Minimum::None, f16)
        };
        for (one, other, expected) in [
            (Q4_K, Q4_K, Q4_K),
            (Q4_K, q6_k, of(8, 16, 256, Minimum::Own, f16)),
            (q8_0, iq4, q8_0),
            (q8_0, q4_1, of(8, 32, 32, Minimum::Own, f16)),
            (q8_0, q6_k, of(8, 16, 16, Minimum::None, f32)),
            (awq, q8_0, of(8, 32, 32, Minimum::Zero, f16)),
            (awq, q4_1, of(8, 32, 32, Minimum::Own, f32)),
            (
                awq,
                GroupFormat {
                    factors: bf16,
                    ..awq
                },
                of(8, 128, 128, Minimum::Zero, f32),
            ),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let both = one.with(other);
                assert_eq!(both, expected, "{one:?} {other:?}");
                assert!(both.is_kept() && both.holds(&one) && both.holds(&other));
            }
        }
        assert!(!q4_1.holds(&of(4, 32, 32, Minimum::None, f16)));
    }

    #[test]
    fn layouts_of_checkpoints_are_kept() {
        let of = |bits, group, factor_group, minimum| GroupFormat {
            bits,
            group,
            factor_group,
            minimum,
            ..Q4_K
        };
        for (format, kept) in [
            (of(4, 32, 32, Minimum::None), true),
            (of(8, 16, 256, Minimum::None), true),
            (of(4, 128, 128, Minimum::Zero), true),
            (of(4, 16, 16, Minimum::None), false),
            (of(5, 32, 32, Minimum::None), false),
            (of(8, 32, 64, Minimum::None), false),
            (of(8, 32, 256, Minimum::Zero), false),
            (of(8, 256, 256, Minimum::None), false),
        ] {
            assert_eq!(format.is_kept(), kept, "{format:?}");
        }
    }
}
