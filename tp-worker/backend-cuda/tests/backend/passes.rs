//! Recorded and repeated passes, compared with passes that run anew each time.

use lockstep_backend::{
    Attend, AttentionShape, BackendError, Batch, ChainLimits, Choice, ChoiceBatch, ChoiceLimits,
    ChoiceMethod, ChoiceRow, DeviceMemory, DeviceSampler, DraftedRow, Holds, InputLimits, KvShape,
    Linear, Memory, Ops as _, PassKey, Passes as _, RopeTable, Row, Rows, WeightFormat,
};
use lockstep_backend_cuda::{
    CudaBackend, CudaMemory, CudaOptions, CudaPasses, CudaTensor, Inputs, PagedCache, Recorded,
};
use lockstep_fake_cuda::calls;
use lockstep_types::{CollectiveBackend, Dtype, KvCacheDtype};

use crate::support::{DTYPES, host_matrix, matrix, noise, open, options, other_gpus, read};

const SIZES: [usize; 4] = [1, 2, 4, 8];
const REQUESTS: usize = 4;
const PAGE: usize = 4;
/// Pages of each request, in no order.
const PAGES: [[u32; 5]; REQUESTS] = [
    [7, 3, 19, 11, 0],
    [1, 18, 2, 9, 14],
    [16, 4, 12, 5, 10],
    [8, 15, 6, 13, 17],
];
const HIDDEN: usize = 16;
/// Tokens to choose from, so few that drafts are often accepted.
const VOCAB: usize = 3;
const SHAPE: AttentionShape = AttentionShape::dense(2, 1, 16, 0.25);

type Matrix = <CudaBackend as Memory>::Matrix;
type Vector = <CudaBackend as Memory>::Vector;
type Rope = <CudaBackend as Memory>::Rope;

/// A layer of a model, and its head.
struct Layer {
    table: Matrix,
    head: Matrix,
    norm: Vector,
    qkv: Matrix,
    rope: Rope,
    cache: PagedCache,
    inputs: Inputs,
    /// Residual, normed, queries with keys and values, attended, a second residual, logits.
    tensors: [CudaTensor; 6],
    passes: CudaPasses,
    /// Number of calls of the pass's work.
    works: usize,
}

/// Effect of a planted fault on the pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The pass reads the host's state.
    HostState,
    /// Two tensors change places.
    Swap,
    /// The pass depends on the batch's length.
    Length,
    /// The pass names rows by a list.
    List,
    /// The pass allocates memory.
    Allocation,
    /// The pass looks at chosen tokens.
    Outcomes,
}

fn gpu(dtype: Dtype, graphs: &[usize]) -> CudaBackend {
    let options = CudaOptions {
        graphs: graphs.to_vec(),
        ..options(dtype)
    };
    open(&options).unwrap()
}

impl Layer {
    fn new(gpu: &mut CudaBackend, cached: KvCacheDtype) -> Self {
        let mut load = |seed, rows: usize, width| {
            let values = matrix(&noise(seed, rows * width), width);
            let host = host_matrix(&values, width);
            gpu.load_matrix(&host, WeightFormat::Float).unwrap()
        };
        let (table, qkv) = (load(1, 32, HIDDEN), load(2, SHAPE.qkv_width(), HIDDEN));
        let head = load(5, VOCAB, SHAPE.out_width());
        let angles = noise(3, 20 * 8);
        let rope = RopeTable {
            queries: Vec::new(),
            half: 8,
            cos: angles.iter().map(|angle| angle.cos()).collect(),
            sin: angles.iter().map(|angle| angle.sin()).collect(),
        };
        let shape = KvShape {
            latent: None,
            group: 0,
            layers: 1,
            kv_heads: 1,
            head_dim: 16,
            pages: 20,
            page_size: PAGE,
            dtype: cached,
        };
        let limits = InputLimits {
            tokens: 12,
            requests: REQUESTS,
            groups: 1,
            pages: 5 * REQUESTS,
            page_size: PAGE,
            mask_words: 0,
            replays: 0,
            choices: ChoiceLimits {
                requests: REQUESTS,
                rows: 12,
                parents: 12,
                most: 12,
            },
            chain: ChainLimits::default(),
        };
        let most = limits.tokens;
        let mut tensor = |width, holds| gpu.tensor(most, width, holds).unwrap();
        let tensors = [
            tensor(HIDDEN, Holds::Sum),
            tensor(HIDDEN, Holds::Operand),
            tensor(SHAPE.qkv_width(), Holds::Sum),
            tensor(SHAPE.out_width(), Holds::Operand),
            tensor(HIDDEN, Holds::Sum),
            tensor(VOCAB, Holds::Logits),
        ];
        Self {
            table,
            head,
            norm: gpu.load_vector(&noise(4, HIDDEN)).unwrap(),
            qkv,
            rope: gpu.load_rope(rope).unwrap(),
            cache: gpu.kv_cache(&shape).unwrap(),
            inputs: gpu.inputs(&limits).unwrap(),
            tensors,
            passes: CudaPasses::default(),
            works: 0,
        }
    }

    /// Records its passes of all sizes.
    fn record(&mut self, gpu: &mut CudaBackend) {
        for size in gpu.repeated(&self.inputs) {
            gpu.stage(&Batch::default(), &mut self.inputs).unwrap();
            let padded = gpu.pad(size, &mut self.inputs);
            assert_eq!(padded, size);
            self.set_rows(gpu, size.tokens);
            let mut passes = std::mem::take(&mut self.passes);
            let mut work = |gpu: &mut CudaBackend| self.work(gpu, 0, Fault::None);
            gpu.pass(&mut passes, size, &mut work).unwrap();
            self.passes = passes;
        }
    }

    /// Runs the pass. Returns the values of a batch's tokens, and the words with the outcomes
    /// of its drafts.
    fn run(
        &mut self,
        gpu: &mut CudaBackend,
        batch: &Batch<'_>,
        fault: Fault,
    ) -> Result<(Vec<f32>, Vec<u32>), BackendError> {
        gpu.stage(batch, &mut self.inputs)?;
        let size = gpu.pad(batch.key(), &mut self.inputs);
        assert!(size.holds(&batch.key()));
        self.set_rows(gpu, size.tokens);
        let mut passes = std::mem::take(&mut self.passes);
        let (layer, tokens) = (&mut *self, batch.tokens.len());
        let mut work = |gpu: &mut CudaBackend| layer.work(gpu, tokens, fault);
        let done = gpu.pass(&mut passes, size, &mut work);
        self.passes = passes;
        self.set_rows(gpu, tokens);
        done?;
        let words = gpu.outcomes(&mut self.inputs)?.words.to_vec();
        Ok((read(gpu, &self.tensors[3]), words))
    }

    fn set_rows(&mut self, gpu: &mut CudaBackend, rows: usize) {
        for tensor in &mut self.tensors {
            gpu.set_rows(tensor, rows);
        }
    }

    fn work(
        &mut self,
        gpu: &mut CudaBackend,
        tokens: usize,
        fault: Fault,
    ) -> Result<(), BackendError> {
        self.works += 1;
        let [residual, normed, qkv, attended, _, logits] = &mut self.tensors;
        let mut eps = 1e-5;
        match fault {
            Fault::HostState => eps *= self.works as f32,
            Fault::Length => eps *= tokens as f32,
            _ => {}
        }
        gpu.embed(&self.table, 0, 1.0, &self.inputs, residual);
        if fault == Fault::List {
            let rows: Vec<u32> = (0..normed.rows() as u32).collect();
            gpu.gather_rows(residual, Rows::List(&rows), normed);
        }
        gpu.rms_norm(residual, &self.norm, eps, normed);
        gpu.matmul(normed, Linear::unbiased(&self.qkv), qkv);
        let op = Attend {
            shape: &SHAPE,
            q_norm: None,
            k_norm: None,
            v_norm: None,
            eps,
            rope: &self.rope,
            sinks: None,
            next: None,
        };
        gpu.attend(&mut self.cache, 0, qkv, &op, &self.inputs, attended);
        gpu.matmul(attended, Linear::unbiased(&self.head), logits);
        gpu.choose(logits, 0, &mut self.inputs);
        gpu.accept(&mut self.inputs, std::slice::from_mut(&mut self.cache));
        match fault {
            Fault::Swap => self.tensors.swap(0, 4),
            Fault::Allocation => drop(gpu.tensor(1, 1, Holds::Sum)?),
            Fault::Outcomes => drop(gpu.outcomes(&mut self.inputs)?.words.to_vec()),
            _ => {}
        }
        Ok(())
    }
}

/// Requests that grow, and begin anew when their room is full.
struct Requests {
    cached: [usize; REQUESTS],
    turn: u64,
}

impl Requests {
    /// Calls `run` with a batch of `tokens` tokens, in as many rows as that takes. Lengths of
    /// rows change.
    fn batch<T>(&mut self, tokens: usize, run: impl FnOnce(&Batch<'_>) -> T) -> T {
        self.turn += 1;
        let draw = noise(self.turn, 2 * REQUESTS + 2 * tokens);
        let number = |at: usize, below: usize| ((draw[at] + 2.0) * 1e4) as usize % below;
        let (mut rows, mut ids, mut positions, mut cells) = (vec![], vec![], vec![], vec![]);
        let mut drafts = Drafts::default();
        let pages: Vec<u32> = PAGES.iter().flatten().copied().collect();
        let mut left = tokens;
        for (request, own) in PAGES.iter().enumerate() {
            let last = request + 1 == REQUESTS;
            let len = if last {
                left
            } else {
                number(request, left + 1)
            };
            if len == 0 {
                continue;
            }
            if self.cached[request] + len > 5 * PAGE {
                self.cached[request] = number(REQUESTS + request, 3);
            }
            let from = self.cached[request];
            let parent = |node: usize| number(2 * REQUESTS + tokens + ids.len() + node, node);
            drafts.push(request, ids.len(), len, self.turn, parent);
            rows.push(Row {
                start: ids.len() as u32,
                q_len: len as u32,
                kv_len: from as u32,
                pages_start: 5 * request as u32,
                mask: None,
            });
            for position in from..from + len {
                ids.push(number(2 * REQUESTS + ids.len(), VOCAB) as u32);
                positions.push(position as u32);
                let page = own[position / PAGE] as usize;
                cells.push((page * PAGE + position % PAGE) as u32);
            }
            self.cached[request] = from + len;
            left -= len;
        }
        let wanted: Vec<u32> = (0..tokens as u32).collect();
        run(&Batch {
            tokens: &ids,
            positions: &positions,
            cells: &cells,
            rows: &rows,
            pages: &pages,
            logit_tokens: &wanted,
            choices: ChoiceBatch {
                choices: &drafts.choices,
                rows: &drafts.rows,
                drafted: &drafts.drafted,
                parents: &drafts.parents,
            },
            ..Batch::default()
        })
    }
}

/// The choices of a batch in which every row is a tree.
#[derive(Default)]
struct Drafts {
    choices: Vec<Choice>,
    rows: Vec<ChoiceRow>,
    drafted: Vec<DraftedRow>,
    parents: Vec<u32>,
}

impl Drafts {
    /// Adds a row of `len` tokens from `start` on. `parent` gives the parents of its nodes.
    fn push(
        &mut self,
        request: usize,
        start: usize,
        len: usize,
        turn: u64,
        parent: impl Fn(usize) -> usize,
    ) {
        let how = match (request as u64 + turn) % 4 {
            0 => ChoiceMethod::Host,
            1 => ChoiceMethod::Sample {
                temperature: 0.7,
                top_k: 2,
                top_p: 1.0,
                min_p: 0.0,
            },
            _ => ChoiceMethod::Greedy,
        };
        self.drafted.push(DraftedRow {
            logits: start as u32,
            token: start as u32,
            nodes: len as u32 - 1,
            parents: Some(self.parents.len() as u32),
        });
        let parents: Vec<usize> = (1..len).map(parent).collect();
        let mut depths = vec![0];
        for parent in &parents {
            depths.push(depths[*parent] + 1);
        }
        let row = |depth| ChoiceRow {
            request: self.choices.len() as u32,
            depth,
        };
        self.rows.extend(depths.into_iter().map(row));
        self.parents
            .extend(parents.iter().map(|parent| *parent as u32));
        self.choices.push(Choice {
            how,
            seed: request as u64,
            position: turn,
        });
    }
}

/// All sizes, each with every number of tokens, and a size without a graph. Lengths of requests
/// change, and orders of work, which CUDA leaves open, do too.
#[test]
fn repeated_passes_have_the_bits_of_passes_run_anew() {
    for seed in 1..=5 {
        let _order = lockstep_fake_cuda::order(seed);
        for (dtype, cached) in DTYPES
            .into_iter()
            .zip([KvCacheDtype::Float32, KvCacheDtype::Bfloat16])
        {
            let mut gpus = [gpu(dtype, &SIZES), gpu(dtype, &[])];
            gpus[0].check_repetitions();
            let [one, other] = &mut gpus;
            let mut layers = [Layer::new(one, cached), Layer::new(other, cached)];
            let mut requests = Requests {
                cached: [0; REQUESTS],
                turn: 100 * seed,
            };
            let mut accepted = 0;
            for turn in 0..3 {
                for tokens in (1..=10).rev() {
                    requests.batch(tokens, |batch| {
                        let found = [0, 1].map(|at: usize| {
                            let done = layers[at].run(&mut gpus[at], batch, Fault::None);
                            done.unwrap()
                        });
                        let what = format!("{tokens} tokens, turn {turn}, seed {seed}, {dtype:?}");
                        assert!(found[0].0.iter().all(|value| value.is_finite()), "{what}");
                        assert_eq!(found[0], found[1], "{what}");
                        let counts = found[0].1.chunks(24).map(|words| words[0]);
                        accepted += counts.map(|count| count.saturating_sub(1)).sum::<u32>();
                    });
                }
            }
            assert!(accepted > 10, "{accepted}");
            assert_eq!(layers[0].passes.len(), SIZES.len());
            assert!(layers[1].passes.is_empty());
        }
    }
}

/// Graphs take no more memory than is kept free for them, and give it back.
#[test]
fn what_graphs_take_is_within_what_is_charged() {
    if !lockstep_fake_cuda::seed(1) {
        return; // Others take memory of a real GPU meanwhile.
    }
    let _turn = other_gpus();
    let options = CudaOptions {
        ordinal: 1,
        graphs: SIZES.to_vec(),
        ..options(Dtype::Bfloat16)
    };
    let mut gpu = open(&options).unwrap();
    let mut layer = Layer::new(&mut gpu, KvCacheDtype::Bfloat16);
    assert_eq!(gpu.recorded(), Recorded::default());
    layer.record(&mut gpu);
    let Recorded { graphs, bytes } = gpu.recorded();
    let charged = graphs * CudaMemory::new(Dtype::Bfloat16, CollectiveBackend::Host).graph_bytes();
    assert!(
        graphs == 4 && 0 < bytes && bytes <= charged,
        "{bytes} bytes"
    );
    assert!(
        gpu.describe(WeightFormat::Float)
            .contains("(4 recorded passes: ")
    );
    drop(layer);
    assert_eq!(gpu.recorded(), Recorded::default());
}

/// A repetition asks for no work again, launches only the graph, and allocates nothing.
#[test]
fn a_repetition_is_one_launch() {
    let mut gpu = gpu(Dtype::Bfloat16, &SIZES);
    let mut layer = Layer::new(&mut gpu, KvCacheDtype::Bfloat16);
    layer.record(&mut gpu);
    // Rehearsed, run and recorded.
    assert_eq!((layer.passes.len(), layer.works), (4, 12));
    let mut requests = Requests {
        cached: [0; REQUESTS],
        turn: 1,
    };
    const CALLS: [&std::ffi::CStr; 7] = [
        c"cuGraphLaunch",
        c"cuLaunchKernelEx",
        c"cuMemcpyHtoDAsync_v2",
        c"cuMemAlloc_v2",
        c"cuMemHostAlloc",
        c"cuStreamSynchronize",
        c"cuEventSynchronize",
    ];
    for tokens in [1, 3, 8, 5, 2] {
        requests.batch(tokens, |batch| {
            let before = CALLS.map(calls);
            gpu.stage(batch, &mut layer.inputs).unwrap();
            let size = gpu.pad(batch.key(), &mut layer.inputs);
            let mut passes = std::mem::take(&mut layer.passes);
            let mut work = |_: &mut CudaBackend| panic!("what was recorded is repeated");
            gpu.pass(&mut passes, size, &mut work).unwrap();
            layer.passes = passes;
            if before[0].is_none() {
                return; // A real driver does not count.
            }
            let now = CALLS.map(calls);
            let made: Vec<_> = (0..6)
                .map(|at| now[at].unwrap() - before[at].unwrap())
                .collect();
            // The copy waits only if the memory that it is sent from was used lately.
            assert!(now[6].unwrap() - before[6].unwrap() <= 1);
            assert_eq!(made, [1, 0, 1, 0, 0, 0], "of {CALLS:?}");
        });
    }
}

#[test]
fn passes_that_are_too_large_run_as_they_are() {
    let mut gpu = gpu(Dtype::Float32, &[1, 2, 4, 8, 16]);
    let mut layer = Layer::new(&mut gpu, KvCacheDtype::Float32);
    let key = |requests, tokens, max_q_len| PassKey {
        requests,
        tokens,
        max_q_len,
    };
    // No tensor has room for 16 tokens.
    let sizes = gpu.repeated(&layer.inputs);
    let tokens: Vec<_> = sizes.iter().map(|size| size.tokens).collect();
    assert_eq!(tokens, [8, 4, 2, 1]);
    assert_eq!(gpu.pad(key(2, 9, 8), &mut layer.inputs), key(2, 9, 8));
    assert_eq!(gpu.pad(key(2, 3, 2), &mut layer.inputs), key(4, 4, 4));
    assert_eq!(gpu.pad(key(1, 1, 1), &mut layer.inputs), key(1, 1, 1));
    // If products have other bits, nothing is repeated.
    let mut gpu = self::gpu(Dtype::Float32, &[2, 96, 200]);
    let limits = InputLimits {
        tokens: 200,
        requests: 200,
        ..*layer.inputs.limits()
    };
    let mut inputs = gpu.inputs(&limits).unwrap();
    assert_eq!(gpu.pad(key(64, 64, 1), &mut inputs), key(64, 64, 1));
    assert_eq!(gpu.pad(key(65, 65, 1), &mut inputs), key(96, 96, 96));
    assert_eq!(gpu.pad(key(100, 128, 2), &mut inputs), key(100, 128, 2));
    assert_eq!(gpu.pad(key(100, 129, 2), &mut inputs), key(200, 200, 200));
}

/// Each fault is in a pass that a device would repeat wrongly.
#[test]
fn work_that_cannot_be_repeated_is_found() {
    for (fault, told) in [
        (Fault::HostState, "other work"),
        (Fault::Swap, "other work"),
        (Fault::Length, "other work"),
        (Fault::List, "nothing from the host"),
        (Fault::Allocation, "CAPTURE_UNSUPPORTED"),
        (Fault::Outcomes, "nothing from the host"),
    ] {
        let mut gpu = gpu(Dtype::Float32, &SIZES);
        gpu.check_repetitions();
        let mut layer = Layer::new(&mut gpu, KvCacheDtype::Float32);
        let mut requests = Requests {
            cached: [0; REQUESTS],
            turn: 7,
        };
        let mut run = |tokens| requests.batch(tokens, |batch| layer.run(&mut gpu, batch, fault));
        let first = run(4);
        let found = match fault {
            // Only another batch shows the fault.
            Fault::Length => {
                first.unwrap();
                run(3)
            }
            _ => first,
        };
        let text = found.unwrap_err().to_string();
        assert!(text.contains(told), "{text}");
        // The device is as good as before.
        gpu.stage(&Batch::default(), &mut layer.inputs).unwrap();
        layer.passes = CudaPasses::default();
        let after = requests.batch(4, |batch| layer.run(&mut gpu, batch, Fault::None));
        after.unwrap();
    }
}

/// Memory that graphs name is freed, and other work takes more of the memory that they share.
#[test]
fn what_names_other_memory_is_recorded_anew() {
    let mut gpu = gpu(Dtype::Float32, &SIZES);
    let mut layer = Layer::new(&mut gpu, KvCacheDtype::Float32);
    let mut requests = Requests {
        cached: [0; REQUESTS],
        turn: 3,
    };
    let mut works = |gpu: &mut CudaBackend, layer: &mut Layer| {
        let before = layer.works;
        let done = requests.batch(4, |batch| layer.run(gpu, batch, Fault::None));
        done.unwrap();
        layer.works - before
    };
    assert_eq!(works(&mut gpu, &mut layer), 3);
    assert_eq!(works(&mut gpu, &mut layer), 0);
    gpu.forget_passes();
    assert_eq!(works(&mut gpu, &mut layer), 3);
    // A first room of another shape replaces no room, but a larger one does.
    let mut other = Layer::new(&mut gpu, KvCacheDtype::Bfloat16);
    works(&mut gpu, &mut other);
    assert_eq!(works(&mut gpu, &mut layer), 0);
    let limits = InputLimits {
        requests: 2 * REQUESTS,
        ..*layer.inputs.limits()
    };
    let mut larger = Layer::new(&mut gpu, KvCacheDtype::Float32);
    larger.inputs = gpu.inputs(&limits).unwrap();
    works(&mut gpu, &mut larger);
    assert_eq!(works(&mut gpu, &mut layer), 3);
}
