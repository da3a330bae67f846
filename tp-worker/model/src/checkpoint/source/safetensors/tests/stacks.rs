//! Stacks of experts' matrices, turned around and in MXFP4.

use std::path::Path;

use lockstep_backend::{E2m1, E8m0};
use lockstep_types::Mxfp4Checkpoint;

use super::*;

/// Rows of the gate and the up of one expert of a stack of 3, of 2 columns of 5 each.
fn part(name: &str) -> TensorRows {
    TensorRows {
        step: 2,
        turned: Some(10),
        ..TensorRows::of(name.to_owned(), 30, vec![16..20, 17..20])
    }
}

fn values(matrix: &HostMatrix<'_>) -> Vec<f32> {
    let mut all = vec![0.0; matrix.rows() * matrix.cols()];
    for (row, values) in all.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.form().read(row, 0, values);
    }
    all
}

/// Reads a part from a file that is mapped, and from one that is read.
fn both(
    folder: &Path,
    format: &CheckpointFormat,
    part: &TensorRows,
    width: usize,
) -> [Vec<f32>; 2] {
    [FileAccess::Mapped, FileAccess::Read].map(|access| {
        let opened = Safetensors::open(folder, access).unwrap().in_format(format);
        let found = opened.matrix(part, width, &(width / 2..width)).unwrap();
        let mut bytes = Vec::new();
        let fetched = opened.fetch(&found, &mut bytes).unwrap();
        assert_eq!(fetched.is_some(), access == FileAccess::Read);
        let of_file = found.bytes();
        let values = values(fetched.as_ref().unwrap_or(&found));
        assert!(access == FileAccess::Mapped || bytes.len() as u64 == of_file);
        opened.release(&found);
        values
    })
}

#[test]
fn matrices_that_lie_turned_around_are_read_by_outputs() {
    let stored: Vec<f32> = (0..3 * 4 * 10).map(|at| at as f32).collect();
    let bytes: Vec<u8> = stored.iter().flat_map(|x| x.to_le_bytes()).collect();
    let file = file(&[("x", Dtype::F32, &[3, 4, 10], &bytes)]);
    let folder = folder(&[("model.safetensors", &file)]);
    let mut expected = Vec::new();
    for row in [16, 18, 17, 19] {
        // Inputs 2 and 3 of 4, of output `row % 10` of matrix `row / 10`.
        expected.extend([2, 3].map(|col| ((row / 10 * 4 + col) * 10 + row % 10) as f32));
    }
    for found in both(folder.path(), &CheckpointFormat::Floats, &part("x"), 4) {
        assert_eq!(found, expected);
    }
}

#[test]
fn mxfp4_is_found_in_two_tensors() {
    let codes: Vec<u8> = (0..30 * 4 * 16).map(|at| (at * 7) as u8).collect();
    let exponents: Vec<u8> = (0..30 * 4).map(|at| 110 + at as u8 % 31).collect();
    let file = file(&[
        ("x_blocks", Dtype::U8, &[3, 10, 4, 16], &codes),
        ("x_scales", Dtype::U8, &[3, 10, 4], &exponents),
    ]);
    let folder = folder(&[("model.safetensors", &file)]);
    let format = CheckpointFormat::Mxfp4(Mxfp4Checkpoint { floats: Vec::new() });
    let value = |row: usize, col: usize| {
        let code = codes[row * 64 + col / 2] >> (4 * (col % 2));
        E2m1(code).value() * E8m0(exponents[row * 4 + col / 32]).value()
    };
    let rows = [16, 18, 17, 19].into_iter();
    let expected: Vec<f32> = rows
        .flat_map(|row| (64..128).map(move |col| (row, col)))
        .map(|(row, col)| value(row, col))
        .collect();
    for found in both(folder.path(), &format, &part("x"), 128) {
        assert_eq!(found, expected);
    }
    let opened = Safetensors::open(folder.path(), FileAccess::Mapped).unwrap();
    let opened = opened.in_format(&format);
    for (part, width) in [(part("x"), 96), (part("y"), 128)] {
        assert!(opened.matrix(&part, width, &(0..width)).is_err());
    }
}
