//! Copies of weights in bf16 whose inputs stand in the order of pairs that lie 4 apart.

use lockstep_backend::{CheckpointDtype, HostBlock, HostFloats, HostMatrix};

/// Inputs in the order in which pairs 4 apart are neighbours, filled up with zeros to whole runs
/// of 8.
pub(crate) fn split(x: &[f32], cols: usize) -> Vec<f32> {
    let rows = x.chunks_exact(cols);
    let runs = rows.flat_map(|row| row.chunks(8));
    let at = |run: &[f32], input: usize| run.get(input).copied().unwrap_or(0.0);
    runs.flat_map(|run| [0, 4, 1, 5, 2, 6, 3, 7].map(|input| at(run, input)))
        .collect()
}

/// The bytes of values in bf16.
pub(crate) fn in_bf16(values: &[f32]) -> Vec<u8> {
    let bytes = |value: &f32| half::bf16::from_f32(*value).to_le_bytes();
    values.iter().flat_map(bytes).collect()
}

/// A matrix of bf16.
pub(crate) fn bf16_matrix(bytes: &[u8], rows: usize, cols: usize) -> HostMatrix<'_> {
    HostMatrix::Floats(HostFloats {
        cols,
        dtype: CheckpointDtype::Bf16,
        blocks: vec![HostBlock {
            bytes,
            offset: 0,
            stride: cols * 2,
            rows,
        }],
    })
}
