//! Mixtures of experts in passes that are recorded and repeated.

use lockstep_backend::{
    AttentionShape, BackendError, Batch, ExpertSpace, Experts, ExpertsShape, Holds, InputLimits,
    KvShape, Linear, MatrixRole, MatrixShape, Memory as _, Ops as _, Passes as _, Row,
    WeightFormat,
};
use lockstep_backend_cuda::{CudaBackend, CudaMatrix, CudaOptions, CudaPasses, CudaTensor};
use lockstep_backend_cuda::{Inputs, PagedCache, check_experts};
use lockstep_types::{Dtype, ExpertGate, KvCacheDtype, Routing};

use crate::support::{host_matrix, matrix, noise, open, options, read};

const HIDDEN: usize = 24;
const EXPERTS: usize = 12;
const ACTIVE: usize = 2;
const COLUMNS: usize = 20;
/// Tokens of the only recorded pass.
const MOST: usize = 8;
const SHAPE: AttentionShape = AttentionShape::dense(1, 1, 8, 0.35);

/// A mixture behind attention that it does not read.
struct Layer {
    table: CudaMatrix,
    router: CudaMatrix,
    gate_up: Vec<CudaMatrix>,
    down: Vec<CudaMatrix>,
    cache: PagedCache,
    inputs: Inputs,
    /// Queries with keys and values, and what attention makes of them.
    heads: [CudaTensor; 2],
    /// Rows, scores, gates and ups, activated columns, results, and sums.
    tensors: [CudaTensor; 6],
    passes: CudaPasses,
}

impl Layer {
    fn new(gpu: &mut CudaBackend) -> Self {
        let mut load = |seed, rows: usize, cols, format| {
            let bytes = matrix(&noise(seed, rows * cols), cols);
            gpu.load_matrix(&host_matrix(&bytes, cols), format).unwrap()
        };
        let experts = 0..EXPERTS as u64;
        let float = WeightFormat::Float;
        let gate_up = experts
            .clone()
            .map(|of| load(10 + of, 2 * COLUMNS, HIDDEN, float));
        let gate_up = gate_up.collect();
        let down = experts
            .map(|of| load(50 + of, HIDDEN, COLUMNS, float))
            .collect();
        let table = load(1, 32, HIDDEN, float);
        let router = load(2, EXPERTS, HIDDEN, WeightFormat::Float32);
        let mut tensor = |rows, width| gpu.tensor(rows, width, Holds::Sum).unwrap();
        let choices = MOST * ACTIVE;
        let heads = [
            tensor(MOST, SHAPE.qkv_width()),
            tensor(MOST, SHAPE.out_width()),
        ];
        let tensors = [
            tensor(MOST, HIDDEN),
            tensor(MOST, EXPERTS),
            tensor(choices, 2 * COLUMNS),
            tensor(choices, COLUMNS),
            tensor(choices, HIDDEN),
            tensor(MOST, HIDDEN),
        ];
        let kv = KvShape {
            latent: None,
            group: 0,
            layers: 1,
            kv_heads: 1,
            head_dim: 8,
            pages: MOST,
            page_size: 1,
            dtype: KvCacheDtype::Float32,
        };
        let pages: Vec<u32> = (0..MOST as u32).collect();
        let limits = batch_of(&pages, &pages, |batch| InputLimits::of(batch, 1));
        Self {
            table,
            router,
            gate_up,
            down,
            cache: gpu.kv_cache(&kv).unwrap(),
            inputs: gpu.inputs(&limits).unwrap(),
            heads,
            tensors,
            passes: CudaPasses::default(),
        }
    }

    fn set_rows(&mut self, gpu: &mut CudaBackend, rows: usize) {
        let [qkv, attended] = &mut self.heads;
        let [x, scores, gate_up, activated, products, out] = &mut self.tensors;
        for tensor in [qkv, attended, x, scores, out] {
            gpu.set_rows(tensor, rows);
        }
        for tensor in [gate_up, activated, products] {
            gpu.set_rows(tensor, rows * ACTIVE);
        }
    }

    /// Runs the pass over a prompt, whose outputs are NaN before. Returns all rows of the pass.
    fn run(&mut self, gpu: &mut CudaBackend, tokens: &[u32], is_recorded: bool) -> Vec<f32> {
        let pages: Vec<u32> = (0..MOST as u32).collect();
        let size = batch_of(tokens, &pages, |batch| {
            gpu.stage(batch, &mut self.inputs).unwrap();
            match is_recorded {
                true => gpu.pad(batch.key(), &mut self.inputs),
                false => batch.key(),
            }
        });
        let rows = if is_recorded { MOST } else { tokens.len() };
        assert_eq!(size.tokens, rows);
        self.set_rows(gpu, rows);
        let poison = vec![f32::NAN; rows * HIDDEN];
        gpu.upload(&mut self.tensors[5], &poison);
        let poison = vec![0.5; rows * SHAPE.qkv_width()];
        gpu.upload(&mut self.heads[0], &poison);
        let mut passes = std::mem::take(&mut self.passes);
        let mut work = |gpu: &mut CudaBackend| self.work(gpu);
        gpu.pass(&mut passes, size, &mut work).unwrap();
        self.passes = passes;
        read(gpu, &self.tensors[5])
    }

    fn work(&mut self, gpu: &mut CudaBackend) -> Result<(), BackendError> {
        let [qkv, attended] = &mut self.heads;
        let [x, scores, gate_up, activated, products, out] = &mut self.tensors;
        gpu.embed(&self.table, 0, 1.0, &self.inputs, x);
        gpu.attention(
            &mut self.cache,
            0,
            qkv,
            &SHAPE,
            None,
            &self.inputs,
            attended,
        );
        gpu.matmul(x, Linear::unbiased(&self.router), scores);
        let space = ExpertSpace {
            gate_up,
            activated,
            products,
        };
        let experts = Experts {
            scored: self.gate_up.len(),
            first: 0,
            active: ACTIVE,
            shared: 0,
            routing: Routing::softmax(true),
            correction: None,
            scales: None,
            gate_up: &self.gate_up,
            gate_up_bias: None,
            gate: ExpertGate::Silu,
            down: &self.down,
            down_bias: None,
        };
        gpu.experts(x, scores, experts, space, out)
    }
}

/// Calls `run` with a prompt from its first token on.
fn batch_of<T>(tokens: &[u32], pages: &[u32], run: impl FnOnce(&Batch<'_>) -> T) -> T {
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let rows = [Row {
        start: 0,
        q_len: tokens.len() as u32,
        kv_len: 0,
        pages_start: 0,
        mask: None,
    }];
    run(&Batch {
        tokens,
        positions: &positions,
        cells: &positions,
        rows: &rows,
        pages,
        ..Batch::default()
    })
}

/// One recorded pass serves rows that choose other experts each time, and as many rows as there
/// are. Rows that are not there choose nothing: they stay as they are.
#[test]
fn a_recorded_pass_serves_every_choice_of_the_rows_that_there_are() {
    let graphs = |graphs: &[usize]| {
        let options = CudaOptions {
            graphs: graphs.to_vec(),
            ..options(Dtype::Float32)
        };
        let mut gpu = open(&options).unwrap();
        gpu.check_repetitions();
        gpu
    };
    for seed in 1..=3 {
        let _order = lockstep_fake_cuda::order(seed);
        let (mut recording, mut plain) = (graphs(&[MOST]), graphs(&[]));
        let mut recorded = Layer::new(&mut recording);
        let mut anew = Layer::new(&mut plain);
        for tokens in [
            &[5, 9, 2][..],
            &[1],
            &[7, 7, 30, 4, 0, 11, 2, 3],
            &[31, 6],
            &[5, 9, 2],
        ] {
            let expected = anew.run(&mut plain, tokens, false);
            let found = recorded.run(&mut recording, tokens, true);
            let (there, absent) = found.split_at(tokens.len() * HIDDEN);
            let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(there), bits(&expected), "{tokens:?}");
            assert!(absent.iter().all(|value| value.is_nan()), "{tokens:?}");
        }
        assert_eq!(recorded.passes.len(), 1);
    }
}

/// Experts that are so narrow that lists of routes may have no room, so wide that a row may not be
/// made in one piece, and layers of very many.
#[test]
fn experts_that_kernels_do_not_serve_are_refused_with_a_remedy() {
    let shape = |count, columns| {
        let matrix = |rows, cols| MatrixShape {
            rows,
            cols,
            role: MatrixRole::Projection,
            format: WeightFormat::Float,
        };
        ExpertsShape {
            count,
            scored: count,
            active: 2,
            gate_up: matrix(2 * columns, 64),
            down: matrix(64, columns),
        }
    };
    assert!(check_experts(&shape(1024, 8)).is_ok());
    assert!(check_experts(&shape(4, 1 << 20)).is_ok());
    for (count, columns, texts) in [
        (4, 7, ["7 columns", "--tp-size"]),
        (1025, 8, ["1025 experts", "--device cpu"]),
        (4, (1 << 20) + 1, ["1048577 columns", "--device cpu"]),
    ] {
        let error = check_experts(&shape(count, columns)).unwrap_err();
        let error = error.to_string();
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    }
}
