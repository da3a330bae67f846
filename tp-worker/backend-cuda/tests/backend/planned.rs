//! Recorded passes of several ranks. Their exchanges are planned, and other exchanges are
//! refused before they run.

use lockstep_backend::{
    Axis, BackendError, CollectiveCall, Exchange as _, ExchangeKind, Holds, PassKey, PassPlan,
    PassRecords, Passes as _,
};
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions, CudaPasses, Gpu};
use lockstep_collective::CollectiveError;
use lockstep_types::{CollectiveBackend, Dtype};

use crate::ranks::{PATIENCE, brought, summed, tensor, values, with_options};
use crate::support::options;

const KEY: PassKey = PassKey {
    requests: 1,
    tokens: 1,
    max_q_len: 1,
};
/// Numbers of floats that a pass sums, one sum after the other.
const SUMS: [usize; 4] = [6, 2, 8, 4];

fn plan(sums: &[usize]) -> CudaPasses {
    let exchanges = sums
        .iter()
        .map(|len| CollectiveCall::sum(Axis::World, *len));
    CudaPasses::planned(vec![PassPlan {
        key: KEY,
        exchanges: exchanges.map(Option::unwrap).collect(),
    }])
}

/// A pass with sums of `sums` floats, run twice.
fn run(
    gpu: &mut CudaBackend,
    passes: &mut CudaPasses,
    rank: usize,
    sums: &[usize],
) -> Result<Vec<Vec<f32>>, BackendError> {
    let make = |len: &usize| tensor(gpu, &brought(rank, *len), 1, Holds::Sum);
    let mut all: Vec<_> = sums.iter().map(make).collect();
    let mut work = |gpu: &mut CudaBackend| {
        let mut each = all.iter_mut();
        each.try_for_each(|x| gpu.all_reduce(Axis::World, x))
    };
    gpu.pass(passes, KEY, &mut work)?;
    gpu.arrive()?;
    Ok(all.iter().map(|x| values(gpu, x)).collect())
}

/// Sums with one collective left out, doubled, moved, or of another size.
fn wrong() -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    for at in 0..SUMS.len() {
        let mut with = |change: &dyn Fn(&mut Vec<usize>)| {
            let mut sums = SUMS.to_vec();
            change(&mut sums);
            all.push(sums);
        };
        with(&|sums| {
            sums.remove(at);
        });
        with(&|sums| sums.insert(at, SUMS[at]));
        with(&|sums| sums.swap(at, (at + 1) % SUMS.len()));
        with(&|sums| sums[at] += 1);
        with(&|sums| sums[at] -= 1);
    }
    all
}

fn ranks<T: Send + 'static>(
    count: usize,
    work: impl Fn(&mut CudaBackend, usize) -> T + Send + Sync + 'static,
) -> Vec<T> {
    if Gpu::count().unwrap() < count {
        return Vec::new();
    }
    let options = CudaOptions {
        graphs: vec![1],
        collectives: CollectiveOptions {
            backend: CollectiveBackend::Nccl,
            joining: PATIENCE,
            patience: PATIENCE,
            ..CollectiveOptions::default()
        },
        ..options(Dtype::Float32)
    };
    with_options(move |_| options.clone(), (count, 1), work)
}

#[test]
fn a_pass_that_exchanges_something_else_is_refused_before_it_runs() {
    ranks(2, |gpu, rank| {
        let asked = || lockstep_fake_cuda::calls(c"ncclAllReduce");
        let before = asked();
        for sums in wrong() {
            let mut passes = plan(&SUMS);
            let error = run(gpu, &mut passes, rank, &sums).unwrap_err();
            let first = sums
                .iter()
                .zip(SUMS)
                .position(|(sum, planned)| *sum != planned);
            let first = first.unwrap_or(sums.len().min(SUMS.len()));
            let BackendError::Unplanned {
                at, asked, planned, ..
            } = &error
            else {
                panic!("{error}");
            };
            let of = |one: &Option<CollectiveCall>| one.map(|one| one.elements);
            assert_eq!(*at, first, "{sums:?}");
            assert_eq!(of(asked), sums.get(first).copied());
            assert_eq!(of(planned), SUMS.get(first).copied());
            assert!(error.to_string().contains("an all-reduce of"), "{error}");
            assert_eq!(passes.noted(), []);
        }
        // A pass that was not planned.
        let error = run(gpu, &mut CudaPasses::default(), rank, &SUMS).unwrap_err();
        assert!(matches!(
            error,
            BackendError::Unplanned {
                planned: None,
                at: 0,
                ..
            }
        ));
        assert_eq!(asked(), before);
        // A pass as planned is noted as it ran, and ranks compare the note.
        let mut passes = plan(&SUMS);
        let found = run(gpu, &mut passes, rank, &SUMS).unwrap();
        assert_eq!(found, SUMS.map(|len| summed(0..2, len)));
        assert_eq!(passes.noted(), passes.plans());
        let kinds = passes.noted()[0].exchanges.clone();
        assert!(kinds.iter().all(|one| one.kind == ExchangeKind::AllReduce));
    });
}

/// The others don't wait for a rank that was refused.
#[test]
fn a_rank_that_is_refused_ends_the_others() {
    let found = ranks(4, |gpu, rank| {
        let sums = if rank == 2 { &SUMS[1..] } else { &SUMS };
        run(gpu, &mut plan(&SUMS), rank, sums).unwrap_err()
    });
    for (rank, error) in found.into_iter().enumerate() {
        match (rank, error) {
            (2, error) => assert!(matches!(error, BackendError::Unplanned { at: 0, .. })),
            (rank, BackendError::Collective(error)) => {
                assert!(
                    matches!(*error, CollectiveError::Deserted { rank: own, .. } if own == rank),
                    "{error}"
                );
            }
            (_, error) => panic!("{error}"),
        }
    }
}
