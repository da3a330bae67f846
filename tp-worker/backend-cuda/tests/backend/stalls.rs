//! Collectives of ranks that exchange data from GPU to GPU: all ranks ask for equal ones, or
//! one rank asks for another. NCCL itself would wait for ever then.

use std::time::Duration;

use lockstep_backend::{
    Axis, BackendError, CollectiveCall, Exchange as _, Holds, Memory as _, PassKey, PassPlan,
    PassRecords, Passes as _,
};
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions, CudaPasses, CudaTensor};
use lockstep_types::{CollectiveBackend, Dtype};

use crate::ranks::{brought, tensor};
use crate::support::options;

/// Time limit for ranks to meet, on a machine with other work.
const JOINING: Duration = Duration::from_secs(30);

/// Options of a rank that exchanges by NCCL and gives up after `patience`.
pub fn nccl(dtype: Dtype, patience: Duration) -> CudaOptions {
    CudaOptions {
        graphs: vec![1, 2],
        collectives: CollectiveOptions {
            backend: CollectiveBackend::Nccl,
            joining: JOINING,
            patience,
            ..CollectiveOptions::default()
        },
        ..options(dtype)
    }
}

/// Operations that a rank asks for.
#[derive(Debug, Clone, Copy)]
pub enum Ask {
    /// Sums of these numbers of floats, one after the other.
    Sums(&'static [usize]),
    /// A gather of these numbers of rows, one number for each rank.
    Gather(&'static [usize]),
    /// A pass of this number of tokens that all ranks have recorded.
    Pass(usize),
}

/// Cases of ranks that differ: name, operations of all other ranks, operations of the odd one.
pub const DIFFERENT: [(&str, Ask, Ask); 7] = [
    ("count", Ask::Sums(&[4]), Ask::Sums(&[5])),
    ("kind", Ask::Sums(&[4]), Ask::Gather(&[4, 4, 4, 4])),
    ("order", Ask::Sums(&[4, 6, 8]), Ask::Sums(&[6, 4, 8])),
    ("one less", Ask::Sums(&[4, 6, 8]), Ask::Sums(&[4, 8])),
    ("one more", Ask::Sums(&[4, 6]), Ask::Sums(&[4, 4, 6])),
    (
        "root",
        Ask::Gather(&[1, 0, 0, 0]),
        Ask::Gather(&[0, 1, 0, 0]),
    ),
    ("key", Ask::Pass(1), Ask::Pass(2)),
];

impl Ask {
    /// Asks for the operations, and waits.
    pub fn run(self, gpu: &mut CudaBackend, recorded: &mut Recorded) -> Result<(), BackendError> {
        let (rank, size) = gpu.group(Axis::World);
        // Kept until the wait: freeing memory waits for the device, too.
        let mut kept = Vec::new();
        match self {
            Self::Sums(lens) => {
                let make = |len: &usize| tensor(gpu, &brought(rank, *len), 1, Holds::Sum);
                kept.extend(lens.iter().map(make));
                for x in &mut kept {
                    gpu.all_reduce(Axis::World, x)?;
                }
            }
            Self::Gather(counts) => {
                let counts = &counts[..size];
                let x = tensor(gpu, &brought(rank, 4), 1, Holds::Operand);
                let mut out = gpu.tensor(counts.iter().sum(), 1, Holds::Operand)?;
                gpu.all_gather_rows(Axis::World, &x, 0, counts, &mut out)?;
                kept.extend([x, out]);
            }
            Self::Pass(tokens) => {
                let x = &mut recorded.sums[tokens - 1];
                let mut work = |gpu: &mut CudaBackend| gpu.all_reduce(Axis::World, x);
                gpu.pass(&mut recorded.passes, key(tokens), &mut work)?;
            }
        }
        gpu.arrive()
    }
}

fn key(tokens: usize) -> PassKey {
    PassKey {
        requests: tokens,
        tokens,
        max_q_len: tokens,
    }
}

/// Recorded passes of one token and of two, and the tensors that they sum.
pub struct Recorded {
    passes: CudaPasses,
    sums: [CudaTensor; 2],
}

/// The passes as all ranks record them.
pub fn recorded(gpu: &mut CudaBackend) -> Result<Recorded, BackendError> {
    let (rank, _) = gpu.group(Axis::World);
    let plan = |tokens| PassPlan {
        key: key(tokens),
        exchanges: CollectiveCall::sum(Axis::World, 3 * tokens)
            .into_iter()
            .collect(),
    };
    let mut recorded = Recorded {
        passes: CudaPasses::planned(vec![plan(1), plan(2)]),
        sums: [1, 2].map(|tokens| tensor(gpu, &brought(rank, 3 * tokens), 1, Holds::Sum)),
    };
    for tokens in [2, 1] {
        Ask::Pass(tokens).run(gpu, &mut recorded)?;
    }
    Ok(recorded)
}
