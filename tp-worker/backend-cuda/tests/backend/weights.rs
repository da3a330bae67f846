//! Weights on their way through pinned memory.

use half::{bf16, f16};
use lockstep_backend::{
    Batch, CheckpointDtype, Holds, HostBlock, HostFloats, HostForm as _, HostMatrix, HostMxfp4,
    Memory as _, Ops as _, RandomBlock, RandomMatrix, RandomNumbers, WeightFormat,
};
use lockstep_types::Dtype;

use crate::support::{DTYPES, gpu, noise, read, staged};

/// More than a dozen pieces, whose borders lie inside of rows.
const COLS: usize = 1027;
const ROWS: usize = 4001;

fn stored(values: &[f32], dtype: CheckpointDtype) -> Vec<u8> {
    let one = |value: &f32| match dtype {
        CheckpointDtype::F32 => value.to_le_bytes().to_vec(),
        CheckpointDtype::Bf16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
        CheckpointDtype::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}

fn rounded(value: f32, checkpoint: CheckpointDtype, dtype: Dtype) -> f32 {
    let value = match checkpoint {
        CheckpointDtype::F32 => value,
        CheckpointDtype::Bf16 => bf16::from_f32(value).to_f32(),
        CheckpointDtype::F16 => f16::from_f32(value).to_f32(),
    };
    match dtype {
        Dtype::Float32 => value,
        Dtype::Bfloat16 => bf16::from_f32(value).to_f32(),
    }
}

/// Two blocks of rows with unused columns between them, overwritten right after the load. All
/// values arrive, whatever the order of copies.
#[test]
fn matrices_arrive_whole_and_rounded() {
    let values = noise(1, COLS);
    for (turn, dtype) in (1..).zip(DTYPES) {
        for checkpoint in [
            CheckpointDtype::F32,
            CheckpointDtype::Bf16,
            CheckpointDtype::F16,
        ] {
            let _order = lockstep_fake_cuda::order(turn);
            let mut gpu = gpu(dtype);
            let row = stored(&values, checkpoint);
            // Each row begins with its number, in two bytes that are a number of every type.
            let mut bytes = row.repeat(ROWS);
            for (number, bytes) in bytes.chunks_mut(row.len()).enumerate() {
                let own = stored(&[(number % 128) as f32], checkpoint);
                bytes[..own.len()].copy_from_slice(&own);
            }
            let split = ROWS / 3;
            let block = |first: usize, rows: usize| HostBlock {
                bytes: &bytes,
                offset: first * row.len(),
                stride: row.len(),
                rows,
            };
            let matrix = HostMatrix::Floats(HostFloats {
                cols: COLS,
                dtype: checkpoint,
                // The later rows come first.
                blocks: vec![block(split, ROWS - split), block(0, split)],
            });
            let loaded = gpu.load_matrix(&matrix, WeightFormat::Float).unwrap();
            drop(matrix);
            bytes.fill(0xff);
            let ids = [0, 1, 777, 2000, (ROWS - split) as u32, ROWS as u32 - 1];
            let batch = Batch {
                tokens: &ids,
                positions: &ids,
                cells: &ids,
                ..Batch::default()
            };
            let inputs = staged(&mut gpu, &batch, 1);
            let mut out = gpu.tensor(ids.len(), COLS, Holds::Sum).unwrap();
            gpu.embed(&loaded, 0, 1.0, &inputs, &mut out);
            let found = read(&mut gpu, &out);
            for (found, id) in found.chunks(COLS).zip(ids) {
                let number = (id as usize + split) % ROWS;
                assert_eq!(found[0], (number % 128) as f32, "row {id}");
                for (found, value) in found.iter().zip(&values).skip(1) {
                    assert_eq!(*found, rounded(*value, checkpoint, dtype));
                }
            }
        }
    }
}

/// A rank whose part of a packed matrix begins inside of a group has that part as floats. It comes in
/// several pieces.
#[test]
fn parts_of_groups_arrive_as_floats() {
    const GROUPS: usize = COLS / 32 + 1;
    let codes: Vec<u8> = (0..ROWS * GROUPS * 16)
        .map(|at| (at * 37 + at / 977) as u8)
        .collect();
    let exponents: Vec<u8> = (0..ROWS * GROUPS).map(|at| 120 + (at % 11) as u8).collect();
    let block = |bytes, stride| HostBlock {
        bytes,
        offset: 0,
        stride,
        rows: ROWS,
    };
    let matrix = HostMatrix::Mxfp4(HostMxfp4 {
        cols: COLS - 16,
        skipped: 16,
        blocks: vec![block(&codes, 16 * GROUPS)],
        exponents: vec![block(&exponents, GROUPS)],
    });
    for (seed, dtype) in (1..).zip(DTYPES) {
        let _order = lockstep_fake_cuda::order(seed);
        let mut gpu = gpu(dtype);
        let loaded = gpu.load_matrix(&matrix, WeightFormat::Float).unwrap();
        let ids = [0, 1, 777, 2000, ROWS as u32 - 1];
        let batch = Batch {
            tokens: &ids,
            positions: &ids,
            cells: &ids,
            ..Batch::default()
        };
        let inputs = staged(&mut gpu, &batch, 1);
        let mut out = gpu.tensor(ids.len(), COLS - 16, Holds::Sum).unwrap();
        gpu.embed(&loaded, 0, 1.0, &inputs, &mut out);
        let mut expected = vec![0.0; ids.len() * (COLS - 16)];
        for (id, values) in ids.iter().zip(expected.chunks_mut(COLS - 16)) {
            matrix.form().read(*id as usize, 0, values);
        }
        assert!(read(&mut gpu, &out) == expected, "{dtype:?}");
    }
}

/// Parts of tensors, as ranks take them. The GPU makes the same bits as the host.
#[test]
fn random_weights_are_the_hosts_bit_for_bit() {
    const COLS: usize = 300;
    let numbers = |key| RandomNumbers::new(key, 0.05);
    let matrix = RandomMatrix {
        cols: COLS,
        blocks: vec![
            RandomBlock {
                numbers: numbers(7),
                // An index beyond 32 bits.
                first: (5 << 32) + 17,
                stride: 3 * COLS,
                rows: 70,
            },
            RandomBlock {
                numbers: numbers(u64::MAX),
                first: 0,
                stride: COLS,
                rows: 3,
            },
        ],
    };
    let mut expected = vec![0.0; 73 * COLS];
    for (row, values) in expected.chunks_exact_mut(COLS).enumerate() {
        matrix.read(row, 0, values);
    }
    for (seed, dtype) in (1..).zip(DTYPES) {
        let _order = lockstep_fake_cuda::order(seed);
        let mut gpu = gpu(dtype);
        let made = HostMatrix::Random(matrix.clone());
        let made = gpu.load_matrix(&made, WeightFormat::Float).unwrap();
        let ids: Vec<u32> = (0..73).collect();
        let batch = Batch {
            tokens: &ids,
            positions: &ids,
            cells: &ids,
            ..Batch::default()
        };
        let inputs = staged(&mut gpu, &batch, 1);
        let mut out = gpu.tensor(ids.len(), COLS, Holds::Sum).unwrap();
        gpu.embed(&made, 0, 1.0, &inputs, &mut out);
        assert!(read(&mut gpu, &out) == expected, "{dtype:?}");
    }
}
