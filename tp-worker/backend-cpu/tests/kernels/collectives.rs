//! Collectives through the backend, and how one is built.

use lockstep_backend::Backend;
use lockstep_backend_cpu::{Compute, CpuBackend, CpuError, CpuOptions, Isa, WeightFormat};
use lockstep_collective::{Single, local_group};

use crate::machine::tensor;

fn options(threads: usize) -> CpuOptions {
    CpuOptions {
        threads,
        dtype: Compute::F32,
        weights: WeightFormat::Native,
        pin: None,
        isa: None,
    }
}

#[test]
fn ranks_sum_gather_and_broadcast() {
    let widths = [3usize, 2, 4];
    std::thread::scope(|scope| {
        for (rank, group) in local_group(3).into_iter().enumerate() {
            scope.spawn(move || {
                let mut backend = CpuBackend::new(options(1), Box::new(group)).unwrap();
                assert_eq!(backend.group(), (rank, 3));
                let mut x = tensor(&mut backend, &[rank as f32, 1.0], 2);
                backend.all_reduce(&mut x).unwrap();
                assert_eq!(x.values(), [3.0, 3.0]);

                let width = widths[rank];
                let own: Vec<f32> = (0..2 * width).map(|i| (rank * 100 + i) as f32).collect();
                let x = tensor(&mut backend, &own, width);
                let mut out = Vec::with_capacity(18);
                let place = out.as_ptr();
                for _ in 0..2 {
                    backend.gather_to_host(&x, &widths, &mut out).unwrap();
                    let expected: &[f32] = &[
                        0.0, 1.0, 2.0, 100.0, 101.0, 200.0, 201.0, 202.0, 203.0, //
                        3.0, 4.0, 5.0, 102.0, 103.0, 204.0, 205.0, 206.0, 207.0,
                    ];
                    assert_eq!(out, if rank == 0 { expected } else { &[] });
                    assert_eq!(out.as_ptr(), place);
                }
                let mut tokens = [rank as u32 + 5; 4];
                backend.broadcast_tokens(&mut tokens).unwrap();
                assert_eq!(tokens, [5; 4]);
            });
        }
    });
}

#[test]
fn one_rank_gathers_by_copying() {
    let mut backend = CpuBackend::new(options(2), Box::new(Single::new())).unwrap();
    let x = tensor(&mut backend, &[1.0, 2.0, 3.0, 4.0], 2);
    let mut out = vec![9.0; 7];
    backend.gather_to_host(&x, &[2], &mut out).unwrap();
    assert_eq!(out, [1.0, 2.0, 3.0, 4.0]);
    let description = backend.describe();
    assert_eq!(
        description,
        format!("cpu {}, f32, 2 threads", Isa::detect())
    );
}

#[test]
fn impossible_options_are_refused() {
    let refuse = |options| {
        CpuBackend::new(options, Box::new(Single::new()))
            .err()
            .unwrap()
    };
    assert!(matches!(refuse(options(0)), CpuError::NoThreads));
    let pinned = CpuOptions {
        pin: Some(vec![0]),
        ..options(2)
    };
    assert!(matches!(
        refuse(pinned),
        CpuError::Pinning {
            cores: 1,
            threads: 2
        }
    ));
    let nowhere = CpuOptions {
        pin: Some(vec![100_000]),
        ..options(1)
    };
    assert!(matches!(refuse(nowhere), CpuError::Threads(_)));
    if let Some(isa) = Isa::ALL.into_iter().find(|isa| !isa.is_available()) {
        let foreign = CpuOptions {
            isa: Some(isa),
            ..options(1)
        };
        assert!(matches!(refuse(foreign), CpuError::Isa(_)));
    }
    assert_eq!("avx2".parse(), Ok(Isa::Avx2));
    assert!(
        "sse9"
            .parse::<Isa>()
            .unwrap_err()
            .to_string()
            .contains("avx512-bf16")
    );
}
