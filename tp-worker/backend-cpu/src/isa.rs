//! Instruction sets with kernels, and their detection on this machine.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// An instruction set with kernels of its own, from the plainest to the fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust with the compiler's baseline.
    Scalar,
    /// 128-bit NEON with fused multiply-add (every aarch64).
    Neon,
    /// 256-bit AVX2 with fused multiply-add, and conversions of 16-bit floats.
    Avx2,
    /// AVX-512 F, BW, DQ and VL; bf16 weights are widened in registers.
    Avx512,
    /// AVX-512 with `vdpbf16ps`.
    Avx512Bf16,
    /// The bits of [`Self::Amx`] without its tiles, in plain Rust: for tests, and for groups
    /// of machines of which only some have tiles.
    AmxEmulated,
    /// AMX tiles for bf16 and 8-bit integers, AVX-512 for everything else, with
    /// its bf16 and VNNI.
    Amx,
}

/// A name that is no instruction set, or names one that this machine lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown instruction set {0:?}; known are scalar, neon, avx2, avx512, avx512-bf16, amx-emulated and amx"
)]
pub struct UnknownIsa(String);

impl Isa {
    /// All instruction sets, from the plainest to the fastest.
    pub const ALL: [Self; 7] = [
        Self::Scalar,
        Self::Neon,
        Self::Avx2,
        Self::Avx512,
        Self::Avx512Bf16,
        Self::AmxEmulated,
        Self::Amx,
    ];

    /// The fastest instruction set that this machine runs.
    ///
    /// On Intel's cores `vdpbf16ps` has less than half the throughput of two fused
    /// multiply-adds (measured on Emerald Rapids: 88 against 190 GFLOP/s a core), so plain
    /// AVX-512 is preferred there. The choice follows from the processor and from the
    /// features that the system lets this process use, never from a measurement: restarts
    /// give the same bits.
    #[must_use]
    pub fn detect() -> Self {
        let slow = |isa: &Self| match isa {
            Self::AmxEmulated => true,
            Self::Avx512Bf16 => is_intel(),
            _ => false,
        };
        Self::available()
            .rfind(|isa| !slow(isa))
            .unwrap_or(Self::Scalar)
    }

    /// The instruction set with the most of this machine's instructions, for measuring its
    /// limits.
    #[must_use]
    pub fn widest() -> Self {
        Self::available()
            .rfind(|isa| *isa != Self::AmxEmulated)
            .unwrap_or(Self::Scalar)
    }

    /// The instruction sets that this machine runs, from the plainest to the fastest.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Returns true if this machine runs the instruction set.
    #[must_use]
    pub fn is_available(self) -> bool {
        self.lacks().is_none()
    }

    /// The reason why this machine doesn't run the instruction set; `None` if it does.
    #[must_use]
    #[cfg(target_arch = "x86_64")]
    pub fn lacks(self) -> Option<Cow<'static, str>> {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = has!("avx2") && has!("fma") && has!("f16c");
        let avx512 =
            avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        let has = match self {
            Self::Scalar => true,
            Self::Neon => return Some(FOREIGN.into()),
            // Without a fused multiply-add emulation would be hundreds of times slower.
            Self::Avx2 | Self::AmxEmulated => avx2,
            Self::Avx512 => avx512,
            Self::Avx512Bf16 => avx512 && has!("avx512bf16"),
            Self::Amx => match crate::amx::permission() {
                // Every processor with AMX has bf16 and VNNI, but not every virtual machine
                // shows them.
                Ok(()) => avx512 && has!("avx512bf16") && has!("avx512vnni"),
                Err(reason) => return Some(reason.to_string().into()),
            },
        };
        let lacks = match self {
            Self::Avx2 | Self::AmxEmulated => "its processor has no AVX2 with FMA and F16C",
            Self::Avx512Bf16 => "its processor has no AVX-512 F, BW, DQ, VL and BF16",
            Self::Amx => "its processor has no AVX-512 F, BW, DQ, VL, BF16 and VNNI",
            _ => "its processor has no AVX-512 F, BW, DQ and VL",
        };
        (!has).then_some(lacks.into())
    }

    /// The reason why this machine doesn't run the instruction set; `None` if it does.
    #[must_use]
    #[cfg(not(target_arch = "x86_64"))]
    pub fn lacks(self) -> Option<Cow<'static, str>> {
        let here = match self {
            Self::Scalar => true,
            Self::Neon | Self::AmxEmulated => cfg!(target_arch = "aarch64"),
            Self::Avx2 | Self::Avx512 | Self::Avx512Bf16 | Self::Amx => false,
        };
        (!here).then_some(FOREIGN.into())
    }

    /// The name used on command lines and in logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::AmxEmulated => "amx-emulated",
            Self::Amx => "amx",
        }
    }

    /// The instruction set of all work that tiles don't compute.
    #[must_use]
    pub(crate) fn vectors(self) -> Self {
        let fits = |isa: &Self| *isa <= Self::Avx512 && isa.is_available();
        match self {
            Self::Amx => Self::Avx512,
            Self::AmxEmulated => Self::ALL.into_iter().rfind(fits).unwrap_or(Self::Scalar),
            isa => isa,
        }
    }
}

/// The reason why kernels of another architecture don't run.
const FOREIGN: &str = "its processor is of another architecture";

fn is_intel() -> bool {
    made_by(b"GenuineIntel")
}

/// Returns true if the processor is AMD's.
pub(crate) fn is_amd() -> bool {
    made_by(b"AuthenticAMD")
}

#[cfg(target_arch = "x86_64")]
fn made_by(vendor: &[u8]) -> bool {
    let leaf = std::arch::x86_64::__cpuid(0);
    [leaf.ebx, leaf.edx, leaf.ecx]
        .map(u32::to_le_bytes)
        .concat()
        == vendor
}

#[cfg(not(target_arch = "x86_64"))]
fn made_by(_: &[u8]) -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads a name in any case, with or without the dashes: AVX-512 is written in many ways,
/// all with one meaning.
impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        let plain = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|isa| plain(isa.name()) == plain(name))
            .ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_goes_by_any_spelling_of_its_name() {
        for isa in Isa::ALL {
            for name in [isa.name().to_owned(), isa.name().to_uppercase()] {
                assert_eq!(name.parse().ok(), Some(isa), "{name}");
            }
        }
        for (name, isa) in [
            ("AVX-512", Isa::Avx512),
            ("avx512_bf16", Isa::Avx512Bf16),
            ("AMX-Emulated", Isa::AmxEmulated),
        ] {
            assert_eq!(name.parse().ok(), Some(isa), "{name}");
        }
        for name in ["", "avx", "avx 2", "avx1024"] {
            assert!(name.parse::<Isa>().is_err(), "{name}");
        }
    }
}
