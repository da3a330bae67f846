//! Norms over groups of columns, against plain arithmetic, with groups that several ranks share.

use lockstep_backend::{ColumnGroups, Holds, Memory as _, Ops as _, RmsNorm};
use lockstep_backend_cpu::Isa;
use lockstep_types::Dtype;

use crate::machine::{Values, backend, bits, tensor};

const ROWS: usize = 5;
const EPS: f32 = 1e-5;

#[test]
fn norms_of_groups_are_those_of_plain_arithmetic_on_any_ranks() {
    let mut values = Values::new(3);
    // Ranks that have several groups, one each, and a part of one.
    for (count, width, ranks) in [(4, 33, 1), (4, 33, 2), (3, 48, 3), (1, 96, 2), (2, 60, 3)] {
        let all = count * width;
        let (x, weight) = (values.floats(ROWS * all), values.floats(all));
        let own = all / ranks;
        let part = |from: &[f32], rank: usize| -> Vec<f32> {
            let rows = from.chunks(all);
            rows.flat_map(|row| row[rank * own..(rank + 1) * own].to_vec())
                .collect()
        };
        let mut first: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            let mut backend = backend(isa, Dtype::Float32, 2);
            let groups = |rank| ColumnGroups {
                count,
                width,
                first: rank * own,
            };
            let mut total = vec![0.0; ROWS * count];
            for rank in 0..ranks {
                let x = tensor(&mut backend, &part(&x, rank), own);
                let mut sums = backend.tensor(ROWS, count, Holds::Sum).unwrap();
                backend
                    .group_square_sums(&x, &groups(rank), &mut sums)
                    .unwrap();
                let sums = total.iter_mut().zip(sums.values());
                sums.for_each(|(total, sum)| *total += sum);
            }
            let total = tensor(&mut backend, &total, count);
            let mut all_bits = Vec::new();
            for rank in 0..ranks {
                let own_x = tensor(&mut backend, &part(&x, rank), own);
                let weights = backend.load_vector(&part(&weight, rank)).unwrap();
                let norm = RmsNorm {
                    weight: &weights,
                    eps: EPS,
                };
                let mut out = backend.tensor(ROWS, own, Holds::Operand).unwrap();
                backend
                    .group_norm(&own_x, &groups(rank), &total, norm, &mut out)
                    .unwrap();
                for (place, found) in out.values().iter().enumerate() {
                    let (row, column) = (place / own, rank * own + place % own);
                    let group = &x[row * all + column / width * width..][..width];
                    let squares: f64 = group.iter().map(|x| f64::from(*x).powi(2)).sum();
                    let rms = (squares / width as f64 + f64::from(EPS)).sqrt();
                    let x = f64::from(x[row * all + column]);
                    let expected = x / rms * f64::from(weight[column]);
                    assert!((f64::from(*found) - expected).abs() < 1e-5);
                }
                all_bits.extend(bits(out.values()));
            }
            assert_eq!(first.get_or_insert(all_bits.clone()), &all_bits, "{isa}");
        }
    }
}
