//! AMX: 32 rows times 32 columns of a group are 2 × 2 tiles of sums, each over
//! two tiles of 64 inputs.

use std::arch::asm;

use super::avx512::Vnni;
use super::blocks::{Group, Unit, blocks};
use crate::amx::shape;
use crate::gemm::tile::PANEL;
use crate::gemm::tiles::{Tiles, tiles};
use crate::isa::Isa;

/// Rows of a tile of inputs.
const ROWS: usize = 16;
/// Bytes from row to row of a tile of inputs.
const ROW: usize = 64;
/// Bytes from row to row of weights, and of sums.
const STEP: usize = PANEL * 4;

struct Tmul;

/// `asm!` lines that ask for eight cache lines at `from` + `at` bytes.
macro_rules! ask {
    ($hint:literal, $from:literal, $at:literal) => {
        ask!($hint, $from, $at, [0 64 128 192 256 320 384 448])
    };
    ($hint:literal, $from:literal, $at:literal, [$($line:literal)*]) => {
        concat!($($hint, " [{", $from, "} + ", $at, " + ", $line, "]\n"),*)
    };
}

/// Asks for an eighth of the next group's weights in the second-level cache.
macro_rules! weights {
    ($at:literal) => {
        ask!("prefetcht0", "near", $at)
    };
}

/// Asks for 512 bytes of the next group's inputs.
macro_rules! inputs {
    ($at:literal) => {
        ask!("prefetcht0", "next", $at)
    };
}

/// Asks for an eighth of a group's weights in memory, given a hint.
macro_rules! memory {
    ([], $at:literal) => {
        ""
    };
    ([$hint:literal], $at:literal) => {
        ask!($hint, "far", $at)
    };
}

/// Defines the product of up to 16 rows.
macro_rules! few {
    ($name:ident, $hint:tt) => {
        unsafe fn $name(group: &Group) {
            // SAFETY: the caller's promise: tiles have their shapes, and the pointers
            // are valid for a group of the rows.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tileloadd tmm4, [{a} + {row}]",
                    "tileloadd tmm6, [{b} + {step}]",
                    "tdpbsud tmm0, tmm4, tmm6",
                    weights!(0),
                    memory!($hint, 0),
                    weights!(512),
                    memory!($hint, 512),
                    inputs!(0),
                    "tileloadd tmm7, [{b} + {step} + 64]",
                    "tdpbsud tmm1, tmm4, tmm7",
                    weights!(1024),
                    memory!($hint, 1024),
                    weights!(1536),
                    memory!($hint, 1536),
                    inputs!(512),
                    "tileloadd tmm4, [{second} + {row}]",
                    "tileloadd tmm6, [{b} + {step} + 2048]",
                    "tdpbsud tmm0, tmm4, tmm6",
                    weights!(2048),
                    memory!($hint, 2048),
                    weights!(2560),
                    memory!($hint, 2560),
                    inputs!(1024),
                    "tileloadd tmm7, [{b} + {step} + 2112]",
                    "tdpbsud tmm1, tmm4, tmm7",
                    weights!(3072),
                    memory!($hint, 3072),
                    weights!(3584),
                    memory!($hint, 3584),
                    inputs!(1536),
                    "tilestored [{sums} + {step}], tmm0",
                    "tilestored [{sums} + {step} + 64], tmm1",
                    "/* {far} */",
                    a = in(reg) group.a,
                    second = in(reg) group.a.wrapping_byte_add(group.rows * ROW),
                    b = in(reg) group.b,
                    sums = in(reg) group.sums,
                    near = in(reg) group.near,
                    next = in(reg) group.next,
                    far = in(reg) group.far,
                    row = in(reg) ROW,
                    step = in(reg) STEP,
                    out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

few!(few_cached, []);
few!(few_streamed, ["prefetcht1"]);

/// Multiplies 17 to 32 rows.
unsafe fn many(group: &Group) {
    // SAFETY: as for fewer rows.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "tileloadd tmm6, [{b} + {step}]",
            "tileloadd tmm4, [{a} + {row}]",
            "tdpbsud tmm0, tmm4, tmm6",
            weights!(0),
            inputs!(0),
            "tileloadd tmm7, [{b} + {step} + 64]",
            "tdpbsud tmm1, tmm4, tmm7",
            weights!(512),
            inputs!(512),
            "tileloadd tmm5, [{a} + {row} + 1024]",
            "tdpbsud tmm2, tmm5, tmm6",
            weights!(1024),
            inputs!(1024),
            "tileloadd tmm6, [{b} + {step} + 2048]",
            "tdpbsud tmm3, tmm5, tmm7",
            weights!(1536),
            inputs!(1536),
            "tileloadd tmm4, [{second} + {row}]",
            "tdpbsud tmm0, tmm4, tmm6",
            weights!(2048),
            inputs!(2048),
            "tileloadd tmm7, [{b} + {step} + 2112]",
            "tdpbsud tmm1, tmm4, tmm7",
            weights!(2560),
            inputs!(2560),
            "tileloadd tmm5, [{second} + {row} + 1024]",
            "tdpbsud tmm2, tmm5, tmm6",
            weights!(3072),
            inputs!(3072),
            "tdpbsud tmm3, tmm5, tmm7",
            weights!(3584),
            inputs!(3584),
            "tilestored [{sums} + {step}], tmm0",
            "tilestored [{sums} + {step} + 64], tmm1",
            "tilestored [{sums} + {step} + 2048], tmm2",
            "tilestored [{sums} + {step} + 2112], tmm3",
            a = in(reg) group.a,
            second = in(reg) group.a.wrapping_byte_add(group.rows * ROW),
            b = in(reg) group.b,
            sums = in(reg) group.sums,
            near = in(reg) group.near,
            next = in(reg) group.next,
            row = in(reg) ROW,
            step = in(reg) STEP,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

impl Unit for Tmul {
    type Lanes = Vnni;

    #[inline(always)]
    unsafe fn enter(rows: usize) {
        // SAFETY: the process may use AMX.
        unsafe { shape(rows) };
    }

    #[inline(always)]
    unsafe fn sums(group: &Group) {
        // SAFETY: forwarded to the caller.
        unsafe {
            match group.rows {
                ..=ROWS if group.far.is_null() => few_cached(group),
                ..=ROWS => few_streamed(group),
                _ => many(group),
            }
        }
    }
}

blocks!(
    #[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    Tmul,
    Isa::Amx
);
