use lockstep_backend::{CheckpointDtype, HostBlock, HostFloats, HostMatrix, WeightFormat};
use lockstep_types::Dtype;

use super::*;
use crate::formats;
use crate::memory::{Arena, grown};

/// The format of bf16 weights.
fn bf16() -> &'static dyn Format {
    formats::of(Dtype::Bfloat16, WeightFormat::Float)
}

/// Instruction sets with tiles that keep sums aside, whether or not this machine runs them.
fn tiled() -> impl Iterator<Item = Isa> {
    let amx = cfg!(target_arch = "x86_64").then_some(Isa::Amx);
    std::iter::once(Isa::AmxEmulated).chain(amx)
}

/// Words of sums among the words that a product is charged.
fn sums_words(threads: usize, isa: Isa, rows: usize, matrix: [usize; 2]) -> usize {
    scratch_words(threads, bf16(), isa, rows, matrix) - packed_words(bf16(), isa, rows, matrix[1])
}

#[test]
fn sums_of_a_long_prompt_take_a_mebibyte_of_a_thread() {
    const OUTPUTS: usize = 28_672;
    let long = [OUTPUTS, 4_096];
    for isa in tiled() {
        for threads in 1..=64 {
            let words = sums_words(threads, isa, 8_192, long);
            assert!(words > 0 && 4 * words <= threads << 20, "{threads} {words}");
        }
        // As many panels as a part has, and as many blocks as pass together.
        assert_eq!(sums_words(1, isa, 8_192, long), 32 * 32 * 256);
        // A single slice needs no sums, and neither do few rows, or parts of tiles.
        assert_eq!(sums_words(1, isa, 8_192, [OUTPUTS, 2_048]), 0);
        assert_eq!(sums_words(1, isa, 255, long), 0);
        assert_eq!(sums_words(1, isa, 8_192, [OUTPUTS, 4_098]), 0);
        assert_eq!(sums_words(1, isa, 8_192, [OUTPUTS - 2, 4_096]), 0);
        // A panel that is only half full has its sums in the result.
        assert_eq!(sums_words(1, isa, 256, [48, 4_096]), 32 * 256);
        // Block counts beyond any machine are not gone through one by one.
        assert!(sums_words(1, isa, usize::MAX / 4_096, long) > 0);
    }
    assert_eq!(sums_words(1, Isa::Scalar, 8_192, long), 0);
}

#[test]
fn products_take_no_more_than_is_charged_for_as_many_rows_or_more() {
    for isa in tiled() {
        for threads in [1, 2, 3, 4, 6, 12, 48] {
            for outputs in [16, 32, 80, 144, 1_024, 28_672] {
                let matrix = [outputs, 4_096];
                let mut most = 0;
                for rows in 0..1_100 {
                    let rooms = Rooms::new(threads, bf16().tiles(isa, rows), bf16(), rows, matrix);
                    let sums = rooms.map_or(0, |rooms| rooms.words());
                    most = most.max(packed_words(bf16(), isa, rows, 4_096) + sums);
                    let charged = scratch_words(threads, bf16(), isa, rows, matrix);
                    assert!(most <= charged, "{threads} {outputs} {rows}");
                }
            }
        }
    }
}

/// A matrix of zeros with `outputs` outputs and `inputs` inputs.
fn zeros(pool: &mut Pool, isa: Isa, [outputs, inputs]: [usize; 2]) -> CpuMatrix {
    let block = HostBlock {
        bytes: &vec![0; 4 * outputs * inputs],
        offset: 0,
        stride: 4 * inputs,
        rows: outputs,
    };
    let host = HostMatrix::Floats(HostFloats {
        cols: inputs,
        dtype: CheckpointDtype::F32,
        blocks: vec![block],
    });
    CpuMatrix::pack(pool, &mut Arena::default(), isa, bf16(), &host).unwrap()
}

#[test]
fn products_grow_to_what_is_charged() {
    for isa in Isa::available() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads, None, false).unwrap();
            for (rows, matrix) in [(256, [96, 2_080]), (300, [112, 2_080]), (40, [64, 64])] {
                let w = zeros(&mut pool, isa, matrix);
                let x = vec![1.0; rows * matrix[1]];
                let mut scratch = Buffer::empty();
                let mut out = vec![f32::NAN; rows * matrix[0]];
                matmul(&mut pool, isa, &x, &w, None, &mut scratch, &mut out).unwrap();
                assert!(out.iter().all(|x| *x == 0.0));
                let charged = scratch_words(threads, bf16(), isa, rows, matrix);
                assert!(scratch.len() <= grown(charged), "{isa} {threads} {rows}");
            }
        }
    }
}
