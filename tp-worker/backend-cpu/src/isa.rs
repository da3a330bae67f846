//! Instruction sets the kernels are written for, and which of them run here.

use std::fmt;
use std::str::FromStr;

/// An instruction set with kernels of its own, from the plainest to the fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, whatever the compiler's baseline offers.
    Scalar,
    /// 128-bit NEON with fused multiply-add (every aarch64).
    Neon,
    /// 256-bit AVX2 with fused multiply-add.
    Avx2,
    /// AVX-512 F, BW, DQ and VL; bf16 weights are widened in registers.
    Avx512,
    /// AVX-512 with `vdpbf16ps`.
    Avx512Bf16,
}

/// A name that is no instruction set, or one this machine lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set {0:?}; known are scalar, neon, avx2, avx512 and avx512-bf16")]
pub struct UnknownIsa(String);

impl Isa {
    /// All instruction sets, from the plainest to the fastest.
    pub const ALL: [Self; 5] = [
        Self::Scalar,
        Self::Neon,
        Self::Avx2,
        Self::Avx512,
        Self::Avx512Bf16,
    ];

    /// The fastest one this machine runs.
    ///
    /// On Intel's cores `vdpbf16ps` has less than half the throughput of two
    /// fused multiply-adds (measured on Emerald Rapids: 88 against 190 GFLOP/s
    /// a core), so plain AVX-512 is preferred there. The choice follows from
    /// the processor alone, never from a measurement: restarts give the same bits.
    #[must_use]
    pub fn detect() -> Self {
        let slow = |isa: &Self| *isa == Self::Avx512Bf16 && is_intel();
        Self::available()
            .rfind(|isa| !slow(isa))
            .unwrap_or(Self::Scalar)
    }

    /// Those this machine runs, from the plainest to the fastest.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Whether this machine runs it.
    #[must_use]
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = has!("avx2") && has!("fma");
        let avx512 =
            avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        match self {
            Self::Scalar => true,
            Self::Neon => false,
            Self::Avx2 => avx2,
            Self::Avx512 => avx512,
            Self::Avx512Bf16 => avx512 && has!("avx512bf16"),
        }
    }

    /// Whether this machine runs it.
    #[must_use]
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Neon => cfg!(target_arch = "aarch64"),
            Self::Avx2 | Self::Avx512 | Self::Avx512Bf16 => false,
        }
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
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0);
    [leaf.ebx, leaf.edx, leaf.ecx]
        .map(u32::to_le_bytes)
        .concat()
        == b"GenuineIntel"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_intel() -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}
