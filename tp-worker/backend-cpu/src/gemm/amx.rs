//! AMX tiles: 32 rows times a panel are four tiles of sums.
//!
//! A block of 16 steps of a panel is two tiles of weights as it lies. Inputs are packed as
//! [`Input::Blocks`], one tile for every 16 rows. Every loop is one `asm!`, so that no tile
//! outlives it.

use std::arch::asm;
use std::arch::x86_64::{_mm512_load_ps, _mm512_stream_ps};
use std::mem::MaybeUninit;

use super::prefetch::STREAMS;
use super::tile::{LANES, PANEL, Tile};
use super::tiles::{BLOCK_STEPS, Tiles, tiles};
use crate::amx::shape;

/// Rows of a tile of inputs.
const ROWS: usize = 16;
/// Bytes from step to step of a panel.
const STEP: usize = PANEL * 4;
/// Bytes from row to row of a block of inputs.
const ROW: usize = BLOCK_STEPS * 4;

/// Operands and result of a loop over blocks.
struct Work {
    inputs: *const u32,
    weights: *const u32,
    /// Number of blocks, at least one.
    blocks: usize,
    out: *mut f32,
    /// Bytes from row to row of `out`.
    stride: usize,
    resume: bool,
    /// Start of the next slice, which is asked for, and bytes between its runs.
    next: *const u32,
    runs: usize,
}

/// `asm!` lines that ask for cache lines at `base` plus these offsets in bytes.
macro_rules! ask {
    ($hint:literal, $base:literal, [$($offset:literal)*]) => {
        concat!($($hint, " [", $base, " + ", $offset, "]\n"),*)
    };
    ($hint:literal, $base:literal) => {
        ask!($hint, $base, [0 64 128 192 256 320 384 448])
    };
}

/// Multiplies up to 16 rows: one tile of inputs. Weights come from memory. A tile reads
/// every second line, which the processor's own prefetching follows badly. So the loop asks
/// for half a block after each tile, from the block's second half on, and gives the
/// processor the lines in order. Asking from anywhere else, a line off or further ahead,
/// into either cache, reads a seventh slower.
unsafe fn few(work: &Work, rows: usize) {
    // SAFETY: the caller's promise: tiles have their shapes, and the pointers are
    // valid for the rows and blocks.
    unsafe {
        asm!(
            "test {resume:e}, {resume:e}",
            "jnz 3f",
            "tilezero tmm0",
            "tilezero tmm1",
            "jmp 2f",
            "3:",
            "tileloadd tmm0, [{out} + {stride}]",
            "tileloadd tmm1, [{out} + {stride} + 64]",
            "2:",
            "tileloadd tmm4, [{a} + {row}]",
            "tileloadd tmm6, [{b} + {step}]",
            ask!("prefetcht0", "{b} + 1024"),
            ask!("prefetcht0", "{b} + 1536"),
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {step} + 64]",
            ask!("prefetcht0", "{b} + 2048"),
            ask!("prefetcht0", "{b} + 2560"),
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {a}, {block}",
            "add {b}, 2048",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{out} + {stride}], tmm0",
            "tilestored [{out} + {stride} + 64], tmm1",
            resume = in(reg) u32::from(work.resume),
            out = in(reg) work.out,
            stride = in(reg) work.stride,
            a = inout(reg) work.inputs => _,
            b = inout(reg) work.weights => _,
            blocks = inout(reg) work.blocks => _,
            block = in(reg) rows * ROW,
            row = in(reg) ROW,
            step = in(reg) STEP,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Multiplies more than 16 rows: two tiles of inputs. After each product the loop asks for a
/// part of the next slice, one run each. It also brings a quarter of the next block into the
/// first-level cache, as a tile that loads from the second level holds up the products
/// behind it. Where eight blocks of rows pass over a slice, the loop has another form. It
/// loads inputs with a hint that they are not needed again soon, and brings nothing near.
/// Together these save a tenth of the time; either alone saves nothing.
macro_rules! many {
    (near: $name:ident, $lines:tt, $advance:literal) => {
        many!($name, "tileloadd", [0 64 128 192 256 320 384 448], $lines, $advance);
    };
    (passing: $name:ident, $lines:tt, $advance:literal) => {
        many!($name, "tileloaddt1", [], $lines, $advance);
    };
    ($name:ident, $load:literal, [$($near:literal)*], [$($line:literal)*], $advance:literal) => {
        unsafe fn $name(work: &Work, rows: usize) {
            // SAFETY: as for `few`.
            unsafe {
                asm!(
                    "test {resume:e}, {resume:e}",
                    "jnz 3f",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "jmp 2f",
                    "3:",
                    "tileloadd tmm0, [{out} + {stride}]",
                    "tileloadd tmm1, [{out} + {stride} + 64]",
                    "tileloadd tmm2, [{others} + {stride}]",
                    "tileloadd tmm3, [{others} + {stride} + 64]",
                    "2:",
                    "tileloadd tmm6, [{b} + {step}]",
                    concat!($load, " tmm4, [{a} + {row}]"),
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    ask!("prefetcht1", "{next}", [$($line)*]),
                    ask!("prefetcht0", "{b} + 2048", [$($near)*]),
                    ask!("prefetcht0", "{a} + {block}", [$($near)*]),
                    "tileloadd tmm7, [{b} + {step} + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    ask!("prefetcht1", "{next} + {runs}", [$($line)*]),
                    ask!("prefetcht0", "{b} + 2560", [$($near)*]),
                    ask!("prefetcht0", "{a} + {block} + 512", [$($near)*]),
                    concat!($load, " tmm5, [{a} + {row} + 1024]"),
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    ask!("prefetcht1", "{next} + 2 * {runs}", [$($line)*]),
                    ask!("prefetcht0", "{b} + 3072", [$($near)*]),
                    ask!("prefetcht0", "{a} + {block} + 1024", [$($near)*]),
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    ask!("prefetcht1", "{next} + {runs3}", [$($line)*]),
                    ask!("prefetcht0", "{b} + 3584", [$($near)*]),
                    ask!("prefetcht0", "{a} + {block} + 1536", [$($near)*]),
                    concat!("add {next}, ", $advance, " /* {runs} {runs3} */"),
                    "add {a}, {block}",
                    "add {b}, 2048",
                    "dec {blocks}",
                    "jnz 2b",
                    "tilestored [{out} + {stride}], tmm0",
                    "tilestored [{out} + {stride} + 64], tmm1",
                    "tilestored [{others} + {stride}], tmm2",
                    "tilestored [{others} + {stride} + 64], tmm3",
                    resume = in(reg) u32::from(work.resume),
                    out = in(reg) work.out,
                    others = in(reg) work.out.wrapping_byte_add(ROWS * work.stride),
                    stride = in(reg) work.stride,
                    a = inout(reg) work.inputs => _,
                    b = inout(reg) work.weights => _,
                    blocks = inout(reg) work.blocks => _,
                    next = inout(reg) work.next => _,
                    runs = in(reg) work.runs,
                    runs3 = in(reg) 3 * work.runs,
                    block = in(reg) rows * ROW,
                    row = in(reg) ROW,
                    step = in(reg) STEP,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

many!(near: many_alone, [], "0");
many!(passing: many_eighth, [0], "64");
many!(near: many_quarter, [0 64], "128");
many!(near: many_half, [0 64 128 192], "256");
many!(near: many_whole, [0 64 128 192 256 320 384 448], "512");

/// Multiplies `M` rows by one panel; `P` and `H` are the parameters of other tiles' tables.
///
/// # Safety
/// The conditions of every tile; the process may use AMX.
unsafe fn bf16_tile<const M: usize, const P: usize, const H: usize>(work: &Tile) {
    // SAFETY: the process may use AMX.
    unsafe { shape(M) };
    let (blocks, tail) = (work.steps / BLOCK_STEPS, work.steps % BLOCK_STEPS);
    let mut own = MaybeUninit::<Sums>::uninit();
    let aside = work.aside.filter(|_| M > ROWS);
    let (out, stride) = match aside {
        Some(aside) if aside.sums.is_null() => (own.as_mut_ptr().cast(), STEP),
        Some(aside) => (aside.sums, STEP),
        None => (work.c, work.ldc * 4),
    };
    let whole = Work {
        inputs: work.a,
        weights: work.b,
        blocks,
        out,
        stride,
        resume: work.resume,
        next: work.ahead.from,
        runs: work.ahead.stride * 4,
    };
    let run = match work.ahead.parts {
        _ if M <= ROWS => few,
        _ if work.ahead.stride == 0 => many_alone,
        1 => many_whole,
        2 => many_half,
        3..=4 => many_quarter,
        _ => many_eighth,
    };
    if blocks > 0 {
        // SAFETY: forwarded to the caller.
        unsafe { run(&whole, M) };
    }
    if aside.is_some_and(|aside| aside.complete) {
        // SAFETY: the tile has set `M` rows of sums, and `c` has room for them; a
        // processor with tiles has AVX-512.
        unsafe { write_past_caches::<M>(out, work.c, work.ldc) };
    }
    if tail > 0 || blocks == 0 {
        let mut padded = Padded([0; BLOCK_STEPS * PANEL]);
        // SAFETY: the panel holds its last steps, and a block of inputs is whole
        // or, where there are no steps at all, not read: zeros stand in.
        unsafe {
            let from = work.b.add(blocks * BLOCK_STEPS * PANEL);
            padded.0[..tail * PANEL]
                .copy_from_slice(std::slice::from_raw_parts(from, tail * PANEL));
            let inputs = match tail {
                0 => ZEROS.0.as_ptr(),
                _ => work.a.add(blocks * M * BLOCK_STEPS),
            };
            let last = Work {
                inputs,
                weights: padded.0.as_ptr(),
                blocks: 1,
                resume: work.resume || blocks > 0,
                ..whole
            };
            if M <= ROWS {
                few(&last, M);
            } else {
                many_alone(&last, M);
            }
        }
    }
}

/// Sums of a tile before they are written to the result.
#[repr(C, align(64))]
struct Sums([f32; 2 * ROWS * PANEL]);

/// Writes rows of sums past all caches. A tile that stores to rows of a wide matrix reads
/// each line first, and these lines share few places of a cache. [`crate::amx::Release`]
/// waits until other threads see the sums.
///
/// # Safety
/// The conditions of [`bf16_tile`]; `out`'s rows begin on lines of the cache.
#[target_feature(enable = "avx512f")]
unsafe fn write_past_caches<const M: usize>(sums: *const f32, out: *mut f32, stride: usize) {
    for row in 0..M {
        for half in [0, LANES] {
            // SAFETY: forwarded to the caller.
            unsafe {
                let part = _mm512_load_ps(sums.add(row * PANEL + half));
                _mm512_stream_ps(out.add(row * stride + half), part);
            }
        }
    }
}

/// A block of a panel, apart from the panel.
#[repr(align(64))]
struct Padded([u32; BLOCK_STEPS * PANEL]);

/// A block of inputs of 32 rows.
static ZEROS: Padded = Padded([0; BLOCK_STEPS * PANEL]);

// The loops ask for one run after each of four products.
const _: () = assert!(STREAMS == 4 && BLOCK_STEPS * STEP == 2_048);

pub(crate) static TILES_BF16: Tiles = tiles!(
    Blocks, bf16_tile:
    [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32],
    [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 : 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1],
    [1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1]
);
