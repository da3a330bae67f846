//! Kernels of all instruction sets.

use super::Layout;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::scalar;
use super::tables::Tables;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::gemm::tiles::Tiles;
use crate::isa::Isa;

/// Kernels of one instruction set.
pub(super) struct Kernels {
    pub name: &'static str,
    /// The backend's instruction set from which on these kernels are used.
    isa: Isa,
    pub runs: fn() -> bool,
    tables: &'static Tables,
}

/// All kernels, from the plainest to the fastest.
pub(super) static KERNELS: &[Kernels] = &[
    Kernels {
        name: "scalar",
        isa: Isa::Scalar,
        runs: || true,
        tables: &scalar::plain::TABLES,
    },
    #[cfg(target_arch = "aarch64")]
    Kernels {
        name: "neon",
        isa: Isa::Neon,
        runs: || Isa::Neon.is_available(),
        tables: &neon::plain::TABLES,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx2",
        isa: Isa::Avx2,
        runs: || Isa::Avx2.is_available(),
        tables: &avx2::plain::TABLES,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx-vnni",
        isa: Isa::Avx2,
        runs: || Isa::Avx2.is_available() && std::arch::is_x86_feature_detected!("avxvnni"),
        tables: &avx2::vnni::TABLES,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512",
        isa: Isa::Avx512,
        runs: || Isa::Avx512.is_available(),
        tables: &avx512::plain::TABLES,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512-vnni",
        isa: Isa::Avx512,
        runs: has_vnni,
        tables: &avx512::vnni::TABLES,
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512-vnni",
        isa: Isa::Avx512Bf16,
        runs: || Isa::Avx512Bf16.is_available() && has_vnni(),
        tables: &avx512::vnni::ONE_BY_ONE,
    },
    // Machines with AMX too: no tiles multiply these weights.
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512-vnni",
        isa: Isa::AmxEmulated,
        runs: has_vnni,
        tables: &avx512::vnni::TABLES,
    },
];

#[cfg(target_arch = "x86_64")]
fn has_vnni() -> bool {
    Isa::Avx512.is_available() && std::arch::is_x86_feature_detected!("avx512vnni")
}

/// The fastest kernels that this machine runs, up to those of `isa`.
fn fastest(isa: Isa) -> &'static Kernels {
    let fit = |kernels: &&Kernels| kernels.isa <= isa && (kernels.runs)();
    KERNELS.iter().rev().find(fit).unwrap_or(&KERNELS[0])
}

impl Kernels {
    /// Returns the tiles for a layout.
    pub(super) fn of(&self, layout: &Layout) -> &'static Tiles {
        self.tables.of(layout)
    }
}

/// The tiles that multiply by weights in a layout.
pub(crate) fn select(isa: Isa, layout: &Layout) -> &'static Tiles {
    fastest(isa).of(layout)
}

/// The instruction set that such weights are multiplied with, for people.
pub(crate) fn describe(isa: Isa) -> &'static str {
    fastest(isa).name
}
