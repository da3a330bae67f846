//! Exchanges of a rank without peers.

use lockstep_backend::{
    Axis, Exchange as _, Holds, Linear, Memory as _, Ops as _, RmsNorm, RowParallel, Scatter,
    WeightFormat,
};

use crate::support::{DTYPES, gpu, host_matrix, matrix, noise, read, sums};

/// Operations of several ranks, run by the only rank.
#[test]
fn a_rank_alone_gathers_and_scatters_what_it_has() {
    const WIDTH: usize = 16;
    for dtype in DTYPES {
        let mut gpu = gpu(dtype);
        let host = matrix(&noise(1, WIDTH * WIDTH), WIDTH);
        let host = host_matrix(&host, WIDTH);
        let weight = gpu.load_matrix(&host, WeightFormat::Float).unwrap();
        let ones = gpu.load_vector(&[1.0; WIDTH]).unwrap();
        let mut x = gpu.tensor(3, WIDTH, Holds::Operand).unwrap();
        let values = sums(&mut gpu, &noise(2, 3 * WIDTH), WIDTH);
        gpu.rms_norm(&values, &ones, 1e-5, &mut x);
        let mut all = gpu.tensor(3, WIDTH, Holds::Operand).unwrap();
        gpu.all_gather_rows(Axis::World, &x, 0, &[3], &mut all)
            .unwrap();
        assert_eq!(read(&mut gpu, &all), read(&mut gpu, &x));

        let linear = RowParallel {
            axis: Axis::World,
            part: Linear {
                weight: &weight,
                bias: None,
            },
        };
        let norm = RmsNorm {
            weight: &ones,
            eps: 1e-5,
        };
        let found = [false, true].map(|scattered| {
            let mut residual = sums(&mut gpu, &noise(3, 3 * WIDTH), WIDTH);
            let mut product = gpu.tensor(3, WIDTH, Holds::Sum).unwrap();
            let mut out = gpu.tensor(3, WIDTH, Holds::Operand).unwrap();
            let (rest, product) = (&mut residual, &mut product);
            let done = match scattered {
                true => {
                    let rows = &[0..3; 1];
                    let scatter = Scatter { rows, product };
                    gpu.matmul_scatter_end_block(&x, linear, scatter, rest, norm.into(), &mut out)
                }
                false => gpu.matmul_end_block(&x, linear, rest, product, norm.into(), &mut out),
            };
            done.unwrap();
            [read(&mut gpu, &residual), read(&mut gpu, &out)]
        });
        assert_eq!(found[0], found[1], "{dtype:?}");
    }
}
