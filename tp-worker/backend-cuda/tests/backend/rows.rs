//! Lists that the host names, more of them than may be on their way at once.

use lockstep_backend::{Holds, KvShape, Memory as _, Ops as _, Rows};
use lockstep_types::{Dtype, KvCacheDtype};

use crate::support::{gpu, noise, read, sums};

#[test]
fn lists_are_those_that_were_given() {
    const ROWS: usize = 700;
    for seed in 1..=3 {
        let _order = lockstep_fake_cuda::order(seed);
        let mut gpu = gpu(Dtype::Bfloat16);
        let values: Vec<f32> = (0..2 * ROWS).map(|i| (i % 256) as f32).collect();
        let x = sums(&mut gpu, &values, 2);
        let mut expected = values.clone();
        let mut kept = sums(&mut gpu, &values, 2);
        // The lists outgrow their room, and shrink.
        let mut outs = Vec::new();
        for (turn, len) in [3, 9, 700, 1, 50, 600, 2, 2, 2, 2, 2, 2, 300]
            .into_iter()
            .enumerate()
        {
            let from: Vec<u32> = (0..len).map(|i| (i * 7 + turn) as u32 % 700).collect();
            let to: Vec<u32> = (0..len as u32).rev().collect();
            let mut out = gpu.tensor(len, 2, Holds::Operand).unwrap();
            gpu.gather_rows(&x, Rows::List(&from), &mut out);
            gpu.copy_rows(&x, &from, &mut kept, &to);
            for (from, to) in from.iter().zip(&to) {
                let source = values[2 * *from as usize..][..2].to_vec();
                expected[2 * *to as usize..][..2].copy_from_slice(&source);
            }
            outs.push((from, out));
        }
        assert_eq!(read(&mut gpu, &kept), expected);
        for (from, out) in outs {
            let rows = from
                .iter()
                .flat_map(|row| &values[2 * *row as usize..][..2]);
            assert_eq!(read(&mut gpu, &out), rows.copied().collect::<Vec<_>>());
        }
    }
}

/// Rows that lie together come from any row on, in units of any size.
#[test]
fn ranges_of_rows_are_those_that_were_given() {
    let mut gpu = gpu(Dtype::Bfloat16);
    for (width, range) in [(5, 0..9), (5, 3..7), (16, 8..9)] {
        let values: Vec<f32> = (0..9 * width as u16).map(f32::from).collect();
        let x = sums(&mut gpu, &values, width);
        let own = &values[range.start * width..range.end * width];
        for holds in [Holds::Sum, Holds::Operand] {
            let mut out = gpu.tensor(range.len(), width, holds).unwrap();
            gpu.gather_rows(&x, Rows::Range(range.clone()), &mut out);
            assert_eq!(read(&mut gpu, &out), own);
        }
    }
}

/// Sums become operands. If both are of one type, nothing is copied.
#[test]
fn operands_are_sums_in_their_type() {
    for dtype in [Dtype::Float32, Dtype::Bfloat16] {
        let mut gpu = gpu(dtype);
        let x = sums(&mut gpu, &noise(5, 40), 8);
        let mut space = gpu.tensor(5, 8, Holds::Operand).unwrap();
        let operand = gpu.as_operand(&x, &mut space);
        assert_eq!(std::ptr::eq(operand, &x), dtype == Dtype::Float32);
        let found = read(&mut gpu, operand);
        let wanted = read(&mut gpu, &x);
        for (found, wanted) in found.iter().zip(wanted) {
            assert_eq!(*found, wanted, "a lookup has rounded already");
        }
    }
}

/// No attention has run yet.
#[test]
fn cells_of_a_fresh_cache_can_be_moved() {
    let mut gpu = gpu(Dtype::Bfloat16);
    let shape = KvShape {
        latent: None,
        group: 0,
        layers: 1,
        kv_heads: 1,
        head_dim: 16,
        pages: 2,
        page_size: 2,
        dtype: KvCacheDtype::Bfloat16,
    };
    let mut cache = gpu.kv_cache(&shape).unwrap();
    gpu.copy_cells(&mut cache, &[(0, 1), (1, 3)]);
    gpu.copy_cells(&mut cache, &[]);
    let x = sums(&mut gpu, &[1.0, 2.0], 2);
    assert_eq!(read(&mut gpu, &x), [1.0, 2.0]);
}
