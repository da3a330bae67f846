//! Routes of mixtures of experts on a GPU are those on processors, bit for bit.

use lockstep_backend::{
    Axis, CheckpointDtype, Exchange, ExpertSpace, Experts, Holds, HostBlock, HostFloats,
    HostMatrix, Memory, Ops, Owners, WeightFormat,
};
use lockstep_backend_cpu::{CpuBackend, CpuOptions};
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions};
use lockstep_collective::Single;
use lockstep_types::{Dtype, ExpertGate, ExpertGroups, GroupWorth, RouterWeights, Routing};

/// Columns of an expert, of which the first alone is anything.
const COLUMNS: usize = 8;

/// A router's scores, and the rule by which experts are chosen and weighed.
struct Case {
    rows: usize,
    count: usize,
    active: usize,
    shared: usize,
    routing: Routing,
    correction: Option<Vec<f32>>,
    /// Factors of the weights.
    scales: Option<Vec<f32>>,
    scores: Vec<f32>,
}

/// Numbers in -8..8 that look random.
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let number = |at: u64| {
        let x = (seed << 32).wrapping_add(at + 1);
        let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((x ^ (x >> 27)) >> 40) as f32 / (1 << 20) as f32 - 8.0
    };
    (0..len as u64).map(number).collect()
}

fn matrix<B: Memory>(backend: &mut B, values: &[f32], cols: usize) -> B::Matrix {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let host = HostMatrix::Floats(HostFloats {
        cols,
        dtype: CheckpointDtype::F32,
        blocks: vec![HostBlock {
            bytes: &bytes,
            offset: 0,
            stride: 4 * cols,
            rows: values.len() / cols,
        }],
    });
    backend.load_matrix(&host, WeightFormat::Float).unwrap()
}

/// Groups of the experts of some cases, in which there are enough experts to choose.
fn groups(seed: u64, experts: usize, active: usize) -> Option<ExpertGroups> {
    let (count, chosen) = match experts {
        40 => (8, 2),
        64 => (16, 5),
        128 => (64, 5),
        8 => (4, 1),
        _ => return None,
    };
    let fits = experts.is_multiple_of(count) && chosen * (experts / count) >= active;
    let worth = match seed % 2 {
        0 => GroupWorth::TwoLargest,
        _ => GroupWorth::Largest,
    };
    (fits && seed % 3 != 2).then_some(ExpertGroups {
        count,
        chosen,
        worth,
    })
}

impl Case {
    fn new(seed: u64, (rows, count, active): (usize, usize, usize)) -> Self {
        let corrected = seed.is_multiple_of(2);
        Self {
            rows,
            count,
            active,
            shared: (seed % 3) as usize,
            routing: Routing {
                weights: match seed % 4 {
                    0 | 1 => RouterWeights::Sigmoid,
                    _ => RouterWeights::Softmax,
                },
                renormalized: seed % 5 < 3,
                factor: [1.0, 1.8][seed as usize % 2],
                corrected,
                groups: groups(seed, count, active),
            },
            correction: corrected.then(|| noise(seed + 100, count)),
            scales: (seed % 3 == 1).then(|| noise(seed + 200, count)),
            scores: noise(seed, rows * count),
        }
    }

    /// Returns a row of weights for each row of scores: an expert adds one in its own column, and
    /// nothing in others, so that a weighed sum is the weight itself.
    fn weights<B: Exchange + Ops>(
        &self,
        backend: &mut B,
        write: impl Fn(&mut B, &mut B::Tensor, &[f32]),
    ) -> Vec<f32> {
        let all = self.count + self.shared;
        let choices = self.rows * (self.active + self.shared);
        // The sigmoid of 64 is one in 32-bit floats.
        let mut both = vec![0.0; 2 * COLUMNS];
        (both[0], both[COLUMNS]) = (64.0, 1.0 / 64.0);
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for expert in 0..all {
            let mut back = vec![0.0; all * COLUMNS];
            back[expert * COLUMNS] = 1.0;
            gate_up.push(matrix(backend, &both, 1));
            down.push(matrix(backend, &back, COLUMNS));
        }
        let values = [&self.correction, &self.scales];
        let [correction, scales] =
            values.map(|values| Some(backend.load_vector(values.as_ref()?).unwrap()));
        let mut tensor = |rows, width, holds| backend.tensor(rows, width, holds).unwrap();
        let mut x = tensor(self.rows, 1, Holds::Operand);
        let mut scores = tensor(self.rows, self.count, Holds::Sum);
        let mut space = [
            tensor(choices, 2 * COLUMNS, Holds::Sum),
            tensor(choices, COLUMNS, Holds::Operand),
            tensor(choices, all, Holds::Sum),
        ];
        let mut out = tensor(self.rows, all, Holds::Sum);
        let mut logits = tensor(self.rows, all, Holds::Logits);
        write(backend, &mut x, &vec![1.0; self.rows]);
        write(backend, &mut scores, &self.scores);
        let [both, activated, products] = &mut space;
        let space = ExpertSpace {
            gate_up: both,
            activated,
            products,
        };
        let experts = Experts {
            scored: gate_up.len() - self.shared,
            first: 0,
            active: self.active,
            shared: self.shared,
            routing: self.routing,
            correction: correction.as_ref(),
            scales: scales.as_ref(),
            gate_up: &gate_up,
            gate_up_bias: None,
            gate: ExpertGate::Silu,
            down: &down,
            down_bias: None,
        };
        backend
            .experts(&x, &mut scores, experts, space, &mut out)
            .unwrap();
        backend.place_columns(&out, &mut logits, 0);
        let (mut space, rows) = (Vec::new(), [0..self.rows; 1]);
        let owners = Owners {
            widths: &[all],
            rows: &rows,
        };
        let found = backend.gather_to_host(Axis::Alone, &logits, owners, &mut space);
        found.unwrap().to_vec()
    }
}

#[test]
fn routes_are_those_of_processors_bit_for_bit() {
    let options = CudaOptions {
        ordinal: 0,
        dtype: Dtype::Float32,
        kernels: None,
        graphs: Vec::new(),
        collectives: CollectiveOptions::default(),
    };
    let mut gpu = CudaBackend::new(&options, Box::new(Single::new())).unwrap();
    let options = CpuOptions {
        threads: 1,
        dtype: Dtype::Float32,
        pin: None,
        isa: None,
    };
    let mut cpu = CpuBackend::new(options, Box::new(Single::new())).unwrap();
    let sizes = [(5, 8, 2), (9, 40, 3), (3, 64, 8), (7, 9, 9), (2, 128, 10)];
    for (seed, sizes) in (0..20).zip(sizes.into_iter().cycle()) {
        let mut case = Case::new(seed, sizes);
        if seed >= 15 {
            // Scores that are so far apart that weights vanish, and equal ones.
            case.scores
                .iter_mut()
                .for_each(|score| *score = (*score * 30.0).round());
        }
        let _order = lockstep_fake_cuda::order(seed);
        let expected = case.weights(&mut cpu, |_, tensor, values| {
            tensor.values_mut().copy_from_slice(values);
        });
        let found = case.weights(&mut gpu, CudaBackend::upload);
        let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected), "{sizes:?}, seed {seed}");
        assert!(expected.iter().any(|weight| *weight != 0.0));
    }
}
