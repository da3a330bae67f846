//! The table of all layouts of integers in groups.

use lockstep_backend::{CodeTable, Codes, FactorType, GroupFormat, Minimum};
use lockstep_types::Dtype;

use super::Groups;
use crate::formats::{Format, float};

/// Kinds of codes, with their bits.
const CODES: [(u8, Codes); 4] = [
    (4, Codes::Integers),
    (4, Codes::Table(CodeTable::Iq4)),
    (4, Codes::Table(CodeTable::E2m1)),
    (8, Codes::Integers),
];
const GROUPS: [usize; 4] = [16, 32, 64, 128];
const MINIMUMS: [Minimum; 3] = [Minimum::None, Minimum::Zero, Minimum::Own];
const FACTORS: [FactorType; 3] = [FactorType::F16, FactorType::Bf16, FactorType::F32];

/// Number of combinations, of which devices keep some.
const ALL: usize = CODES.len() * GROUPS.len() * 2 * MINIMUMS.len() * FACTORS.len();

/// The combinations, in the order of [`format`].
static KNOWN: [Groups; ALL] = {
    let mut known = [const { Groups::new(format(0)) }; ALL];
    let mut index = 0;
    while index < ALL {
        known[index] = Groups::new(format(index));
        index += 1;
    }
    known
};

/// Combination number `index`.
const fn format(index: usize) -> GroupFormat {
    let (factors, rest) = (index % FACTORS.len(), index / FACTORS.len());
    let (minimum, rest) = (rest % MINIMUMS.len(), rest / MINIMUMS.len());
    let (shared, rest) = (rest % 2 == 1, rest / 2);
    let (group, codes) = (GROUPS[rest % GROUPS.len()], rest / GROUPS.len());
    GroupFormat {
        bits: CODES[codes].0,
        codes: CODES[codes].1,
        group,
        factor_group: if shared {
            GroupFormat::FACTOR_GROUP
        } else {
            group
        },
        minimum: MINIMUMS[minimum],
        factors: FACTORS[factors],
    }
}

/// Returns the packed form of matrices in `format`: floats, which hold all values, where there is
/// no other.
pub(in crate::formats) fn of(format: GroupFormat) -> &'static dyn Format {
    match known(format) {
        Some(known) => known,
        None => float::of(Dtype::Float32),
    }
}

/// Returns the packed form of integers in groups; `None` if it is not kept.
pub(super) fn known(format: GroupFormat) -> Option<&'static Groups> {
    let mut known = KNOWN.iter().filter(|known| known.format.is_kept());
    known.find(|known| known.format == format)
}

/// All layouts that there are.
#[cfg(test)]
pub(crate) fn all() -> impl Iterator<Item = GroupFormat> {
    let formats = KNOWN.iter().map(|known| known.format);
    formats.filter(GroupFormat::is_kept)
}

/// Layout of steps in `format`, which is kept.
#[cfg(test)]
pub(crate) fn layout(format: GroupFormat) -> &'static crate::gemm::Layout {
    of(format).layout()
}

/// Name of a layout, which tells it from all others.
#[derive(Clone, Copy)]
pub(super) struct Name {
    bytes: [u8; Self::MOST],
    len: usize,
}

impl Name {
    /// Most bytes of a name.
    const MOST: usize = 32;

    /// Returns the name of `format`: "int4-32-256-min-f16".
    pub(super) const fn of(format: GroupFormat) -> Self {
        let none = Self {
            bytes: [0; Self::MOST],
            len: 0,
        };
        let codes = match (format.bits, format.codes) {
            (4, Codes::Integers) => "int4-",
            (_, Codes::Integers) => "int8-",
            (_, Codes::Table(CodeTable::Iq4)) => "iq4-",
            (_, Codes::Table(CodeTable::E2m1)) => "e2m1-",
        };
        let group = match format.group {
            16 => "16",
            32 => "32",
            64 => "64",
            _ => "128",
        };
        let shared = if format.factor_group > format.group {
            "-256"
        } else {
            ""
        };
        let minimum = match format.minimum {
            Minimum::None => "",
            Minimum::Zero => "-zero",
            Minimum::Own => "-min",
        };
        let factors = match format.factors {
            FactorType::F16 => "-f16",
            FactorType::Bf16 => "-bf16",
            FactorType::F32 => "-f32",
        };
        none.with(codes)
            .with(group)
            .with(shared)
            .with(minimum)
            .with(factors)
    }

    const fn with(mut self, part: &str) -> Self {
        let mut at = 0;
        while at < part.len() {
            self.bytes[self.len] = part.as_bytes()[at];
            (self.len, at) = (self.len + 1, at + 1);
        }
        self
    }

    /// The name as text, which is ASCII.
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn layouts_have_names_of_their_own() {
        let kept: Vec<_> = all().collect();
        let names: BTreeSet<_> = kept.iter().map(|format| of(*format).name()).collect();
        assert_eq!(names.len(), kept.len());
        let q4_k = GroupFormat {
            bits: 4,
            codes: Codes::Integers,
            group: 32,
            factor_group: 256,
            minimum: Minimum::Own,
            factors: FactorType::F16,
        };
        assert_eq!(of(q4_k).name(), "int4-32-256-min-f16");
        // Packed as floats.
        let odd = GroupFormat { bits: 6, ..q4_k };
        assert_eq!(of(odd).name(), "f32");
    }
}
