use lockstep_backend::{
    AttendLatent, AttentionShape, Batch, ChainLimits, CheckpointDtype, ChoiceLimits, DeltaOperands,
    DeltaShape, DeviceMemory, ExpertSpace, Experts, ExpertsShape, GatedDelta, Holds, HostBlock,
    HostFloats, HostMatrix, InputLimits, KvShape, LatentHeads, LatentShape, LatentSpace, Linear,
    MatrixRole, MatrixShape, Memory as _, Ops as _, PassShape, Passes as _, Recurrence, RopeTable,
    Row, StatesShape, WeightFormat,
};
use lockstep_collective::Single;
use lockstep_types::{Dtype, ExpertGate, KvCacheDtype, Routing, StateLimits};

use super::CpuMemory;
use crate::{CpuBackend, CpuOptions, Isa};

mod adapters;

const FORMS: [(Dtype, WeightFormat); 6] = [
    (Dtype::Bfloat16, WeightFormat::Float),
    (Dtype::Float32, WeightFormat::Float),
    (Dtype::Bfloat16, WeightFormat::Int8),
    (Dtype::Float32, WeightFormat::Int4),
    (Dtype::Bfloat16, WeightFormat::Fp8 { group: 32 }),
    (Dtype::Bfloat16, WeightFormat::Mxfp4),
];

/// A backend on one thread, and its memory as computed beforehand.
fn backend(isa: Isa, dtype: Dtype) -> (CpuBackend, CpuMemory) {
    let options = CpuOptions {
        threads: 1,
        dtype,
        pin: None,
        isa: Some(isa),
    };
    let memory = CpuMemory::new(&options);
    (
        CpuBackend::new(options, Box::new(Single::new())).unwrap(),
        memory,
    )
}

fn load(backend: &mut CpuBackend, shape: MatrixShape) -> crate::CpuMatrix {
    let bytes = vec![0; 4 * shape.rows * shape.cols];
    let block = HostBlock {
        bytes: &bytes,
        offset: 0,
        stride: 4 * shape.cols,
        rows: shape.rows,
    };
    let host = HostMatrix::Floats(HostFloats {
        cols: shape.cols,
        dtype: CheckpointDtype::F32,
        blocks: vec![block],
    });
    backend.load_matrix(&host, shape.format).unwrap()
}

fn shape(rows: usize, cols: usize, format: WeightFormat) -> MatrixShape {
    MatrixShape {
        rows,
        cols,
        role: MatrixRole::Projection,
        format,
    }
}

fn shapes(format: WeightFormat) -> Vec<MatrixShape> {
    [(1, 1), (32, 128), (33, 129), (100, 7), (64, 300)]
        .map(|(rows, cols)| shape(rows, cols, format))
        .into()
}

#[test]
fn weights_take_what_is_charged() {
    for form @ (dtype, format) in FORMS {
        let (mut backend, memory) = backend(Isa::detect(), dtype);
        let mut charged = 0;
        for shape in shapes(format) {
            let matrix = load(&mut backend, shape);
            charged += memory.matrix_bytes(shape);
            assert_eq!(
                backend.matrix_bytes(&matrix) as u64,
                memory.matrix_bytes(shape)
            );
            assert_eq!(backend.allocated().matrices, charged, "{form:?} {shape:?}");
        }
    }
    // Panels of 32 outputs; bf16 in pairs, integers in groups of 128 inputs.
    let bytes = |(dtype, format), rows, cols| {
        let (_, memory) = backend(Isa::Scalar, dtype);
        memory.matrix_bytes(shape(rows, cols, format))
    };
    let [bf16, f32, int8, int4, _, mxfp4] = FORMS;
    assert_eq!(bytes(bf16, 33, 5), 64 * 6 * 2);
    assert_eq!(bytes(f32, 33, 5), 64 * 5 * 4);
    assert_eq!(bytes(int8, 32, 128), 32 * (128 + 2));
    assert_eq!(bytes(int4, 32, 256), 32 * 2 * (64 + 4));
    assert_eq!(bytes(mxfp4, 32, 256), 32 * 2 * (64 + 4));
}

#[test]
fn vectors_activations_and_caches_take_what_is_charged() {
    let (mut backend, memory) = backend(Isa::detect(), Dtype::Bfloat16);
    backend.load_vector(&[0.0; 5]).unwrap();
    assert_eq!(
        (backend.allocated().vectors, memory.vector_bytes(5)),
        (20, 20)
    );
    let table = RopeTable {
        queries: Vec::new(),
        half: 3,
        cos: vec![1.0; 12],
        sin: vec![0.0; 12],
    };
    backend.load_rope(table).unwrap();
    assert_eq!(
        (backend.allocated().vectors, memory.rope_bytes(4, 3)),
        (20 + 96, 96)
    );
    backend.tensor(7, 3, Holds::Operand).unwrap();
    assert_eq!(
        (
            backend.allocated().activations,
            memory.tensor_bytes(7, 3, Holds::Operand)
        ),
        (84, 84)
    );
    let most = memory.tensor_bytes(usize::MAX, 4, Holds::Sum);
    assert_eq!(most, u64::MAX, "no overflow");
    let limits = InputLimits {
        tokens: 10,
        requests: 3,
        groups: 1,
        pages: 7,
        page_size: 16,
        mask_words: 5,
        replays: 0,
        choices: ChoiceLimits::default(),
        chain: ChainLimits::default(),
    };
    backend.inputs(&limits).unwrap();
    // A row is five words, of which one may be absent, and the place of an adapter.
    let inputs = 4 * 4 * 10 + (24 + 4) * 3 + 4 * 7 + 8 * 5;
    assert_eq!(
        (
            backend.allocated().activations,
            memory.inputs_bytes(&limits)
        ),
        (84 + inputs, inputs)
    );
    let mut charged = 0;
    for (dtype, row) in [
        (KvCacheDtype::Bfloat16, 16),
        (KvCacheDtype::Float32, 32),
        (KvCacheDtype::Int8, 12),
    ] {
        let shape = KvShape {
            latent: None,
            group: 0,
            layers: 3,
            kv_heads: 2,
            head_dim: 8,
            pages: 5,
            page_size: 4,
            dtype,
        };
        backend.kv_cache(&shape).unwrap();
        assert_eq!(memory.kv_bytes(&shape), 2 * 3 * 2 * row * 20);
        charged += memory.kv_bytes(&shape);
        assert_eq!(backend.allocated().kv, charged);
    }
}

/// Multiplies `rows` rows with the matrix.
fn multiply(backend: &mut CpuBackend, rows: usize, shape: MatrixShape) {
    let matrix = load(backend, shape);
    let x = backend.tensor(rows, shape.cols, Holds::Operand).unwrap();
    let mut out = backend.tensor(rows, shape.rows, Holds::Operand).unwrap();
    backend.matmul(&x, Linear::unbiased(&matrix), &mut out);
}

/// Attends to one request of `tokens` tokens.
fn attend(backend: &mut CpuBackend, shape: &AttentionShape, tokens: u32) {
    let cache = KvShape {
        latent: None,
        group: 0,
        layers: 1,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        pages: 1,
        page_size: tokens as usize,
        dtype: KvCacheDtype::Bfloat16,
    };
    let mut cache = backend.kv_cache(&cache).unwrap();
    let qkv = backend
        .tensor(tokens as usize, shape.qkv_width(), Holds::Operand)
        .unwrap();
    let mut out = backend
        .tensor(tokens as usize, shape.out_width(), Holds::Operand)
        .unwrap();
    let all: Vec<u32> = (0..tokens).collect();
    let row = Row {
        start: 0,
        q_len: tokens,
        kv_len: 0,
        pages_start: 0,
        mask: None,
    };
    let batch = Batch {
        tokens: &all,
        positions: &all,
        cells: &all,
        rows: &[row],
        pages: &[0],
        logit_tokens: &[],
        ..Batch::default()
    };
    let limits = InputLimits::of(&batch, tokens as usize);
    let mut inputs = backend.inputs(&limits).unwrap();
    backend.stage(&batch, &mut inputs).unwrap();
    backend.attention(&mut cache, 0, &qkv, shape, None, &inputs, &mut out);
}

#[test]
fn operations_need_what_is_charged() {
    for isa in Isa::available() {
        for form @ (dtype, format) in FORMS {
            for (heads, kv_heads, head_dim) in [(4, 2, 8), (400, 1, 20)] {
                let (mut backend, memory) = backend(isa, dtype);
                let attention = AttentionShape::dense(heads, kv_heads, head_dim, 1.0);
                // Packed inputs that fill a power of two, and sums beside them.
                let long = shape(32, 4_096, format);
                let short = shapes(format).into_iter().map(|shape| (6, shape));
                let pass = PassShape {
                    latent: Vec::new(),
                    tokens: 6,
                    positions: 6,
                    attention: vec![attention],
                    recurrences: Vec::new(),
                    products: short.chain([(256, long)]).collect(),
                    experts: Vec::new(),
                    adapted: Vec::new(),
                    gathered: 0,
                };
                attend(&mut backend, &attention, 6);
                for (rows, shape) in &pass.products {
                    multiply(&mut backend, *rows, *shape);
                }
                let other = PassShape {
                    tokens: 1,
                    products: vec![(1, shapes(format)[0])],
                    ..pass.clone()
                };
                let charged = memory.scratch_bytes(&[other, pass]);
                assert_eq!(
                    backend.allocated().scratch,
                    charged,
                    "{isa} {form:?} {heads}"
                );
            }
        }
    }
}

/// Runs a mixture of experts over `rows` rows, all of which take the same experts.
fn mix(backend: &mut CpuBackend, rows: usize, shape: &ExpertsShape) {
    let ExpertsShape {
        count,
        scored,
        active,
        gate_up,
        down,
    } = *shape;
    let mut all = |shape| -> Vec<_> { (0..count).map(|_| load(backend, shape)).collect() };
    let matrices = [all(gate_up), all(down)];
    let mut tensor = |rows, width| backend.tensor(rows, width, Holds::Sum).unwrap();
    let x = tensor(rows, gate_up.cols);
    let (mut scores, mut out) = (tensor(rows, scored), tensor(rows, down.rows));
    let choices = rows * active;
    let space = ExpertSpace {
        gate_up: &mut tensor(choices, gate_up.rows),
        activated: &mut tensor(choices, down.cols),
        products: &mut tensor(choices, down.rows),
    };
    let experts = Experts {
        scored,
        first: 0,
        active,
        shared: 0,
        routing: Routing::softmax(true),
        correction: None,
        scales: None,
        gate_up: &matrices[0],
        gate_up_bias: None,
        gate: ExpertGate::Silu,
        down: &matrices[1],
        down_bias: None,
    };
    backend
        .experts(&x, &mut scores, experts, space, &mut out)
        .unwrap();
}

#[test]
fn experts_need_what_is_charged() {
    for isa in Isa::available() {
        for form @ (dtype, format) in FORMS {
            for (rows, count, active) in [(1, 8, 2), (7, 5, 3), (40, 4, 1)] {
                let (mut backend, memory) = backend(isa, dtype);
                let experts = ExpertsShape {
                    count,
                    scored: count,
                    active,
                    gate_up: shape(2 * 33, 150, format),
                    down: shape(150, 33, format),
                };
                let pass = PassShape {
                    latent: Vec::new(),
                    tokens: rows,
                    positions: rows,
                    attention: Vec::new(),
                    recurrences: Vec::new(),
                    products: Vec::new(),
                    experts: vec![(rows, experts)],
                    adapted: Vec::new(),
                    gathered: 0,
                };
                let none = PassShape {
                    experts: Vec::new(),
                    ..pass.clone()
                };
                mix(&mut backend, rows, &experts);
                // Attention has scratch in any case.
                let charged = memory.scratch_bytes(&[pass]) - memory.scratch_bytes(&[none]);
                let scratch = backend.allocated().scratch;
                assert_eq!(scratch, charged, "{isa} {form:?} {rows} rows");
            }
        }
    }
}

/// Attends to the latents of `tokens` new tokens.
fn attend_latent(backend: &mut CpuBackend, heads: &LatentHeads, tokens: u32) {
    let (own, absorbed) = (heads.shape, heads.shape.absorbed());
    let cache = KvShape {
        group: 0,
        layers: 1,
        kv_heads: 1,
        head_dim: own.cell(),
        latent: Some(own.latent),
        pages: 1,
        page_size: tokens as usize,
        dtype: KvCacheDtype::Float32,
    };
    let mut cache = backend.kv_cache(&cache).unwrap();
    let mut all = |shape| -> Vec<_> { (0..own.heads).map(|_| load(backend, shape)).collect() };
    let [keys, values] = [heads.keys, heads.values].map(&mut all);
    let norm = backend.load_vector(&vec![1.0; own.latent]).unwrap();
    let half = own.rotated / 2;
    let table = RopeTable {
        half,
        cos: vec![1.0; tokens as usize * half],
        sin: vec![0.0; tokens as usize * half],
        queries: Vec::new(),
    };
    let rope = backend.load_rope(table).unwrap();
    let op = AttendLatent {
        shape: &own,
        norm: &norm,
        eps: 1e-6,
        rope: &rope,
        keys: &keys,
        values: &values,
    };
    let all: Vec<u32> = (0..tokens).collect();
    let row = Row {
        start: 0,
        q_len: tokens,
        kv_len: 0,
        pages_start: 0,
        mask: None,
    };
    let batch = Batch {
        tokens: &all,
        positions: &all,
        cells: &all,
        rows: &[row],
        pages: &[0],
        ..Batch::default()
    };
    let limits = InputLimits::of(&batch, tokens as usize);
    let mut inputs = backend.inputs(&limits).unwrap();
    backend.stage(&batch, &mut inputs).unwrap();
    let mut room = |width| backend.tensor(tokens as usize, width, Holds::Sum).unwrap();
    let (mut query, mut cell) = (room(own.query_width()), room(own.cell()));
    let (mut qkv, mut means) = (room(absorbed.qkv_width()), room(absorbed.out_width()));
    let mut out = room(own.heads * own.value);
    let space = LatentSpace {
        qkv: &mut qkv,
        means: &mut means,
    };
    let (query, cell, out) = (&mut query, &mut cell, &mut out);
    backend
        .attend_latent(&mut cache, 0, query, cell, &op, space, &inputs, out)
        .unwrap();
}

#[test]
fn latents_need_what_is_charged() {
    for isa in Isa::available() {
        for form @ (dtype, format) in FORMS {
            for (tokens, heads) in [(1, 3), (7, 40), (70, 4)] {
                let (mut backend, memory) = backend(isa, dtype);
                let own = LatentShape {
                    heads,
                    nope: 20,
                    rotated: 16,
                    latent: 48,
                    value: 36,
                    scale: 1.0,
                };
                let heads = LatentHeads {
                    shape: own,
                    keys: shape(own.latent, own.nope, format),
                    values: shape(own.value, own.latent, format),
                };
                attend_latent(&mut backend, &heads, tokens as u32);
                let pass = PassShape {
                    tokens,
                    positions: tokens,
                    attention: vec![own.absorbed()],
                    latent: vec![heads],
                    recurrences: Vec::new(),
                    products: Vec::new(),
                    experts: Vec::new(),
                    adapted: Vec::new(),
                    gathered: 0,
                };
                let charged = memory.scratch_bytes(&[pass]);
                let scratch = backend.allocated().scratch;
                assert_eq!(scratch, charged, "{isa} {form:?} {tokens} tokens");
            }
        }
    }
}

/// Results that several threads join, and gathered results, come on top.
#[test]
fn partial_results_are_charged_up_to_their_limit() {
    let attention = AttentionShape::dense(4, 2, 8, 1.0);
    let bytes = |threads: usize, tokens: usize, positions: usize, gathered: usize| {
        let options = CpuOptions {
            threads,
            dtype: Dtype::Bfloat16,
            pin: None,
            isa: None,
        };
        let pass = PassShape {
            latent: Vec::new(),
            tokens,
            positions,
            attention: vec![attention],
            recurrences: Vec::new(),
            products: Vec::new(),
            experts: Vec::new(),
            adapted: Vec::new(),
            gathered,
        };
        CpuMemory::new(&options).scratch_bytes(&[pass])
    };
    let one = bytes(1, 2, 1000, 0);
    assert_eq!(bytes(1, 2, 1000, 10), one + 40);
    // 2 tokens of 4 heads in 2 segments, 34 floats each, in a power of two.
    assert_eq!(bytes(2, 2, 1000, 0), 2 * one + 4 * 1024);
    assert_eq!(bytes(2, 2, 1025, 0), 2 * one + 4 * 1024);
    assert_eq!(bytes(2, 1, 512, 0), 2 * one + 4 * 256);
    assert_eq!(bytes(3, 1 << 20, 1 << 20, 0), 3 * one + (64 << 20));
}

/// States, records and the working memory of their operation. A pass without tokens takes it too.
#[test]
fn recurrent_layers_need_what_is_charged() {
    for isa in Isa::available() {
        let (mut backend, memory) = backend(isa, Dtype::Float32);
        let delta = DeltaShape {
            key_heads: 2,
            value_heads: 6,
            key_dim: 16,
            value_dim: 48,
            taps: 3,
        };
        let shape = StatesShape {
            layers: 3,
            recurrence: Recurrence::Delta(delta),
            limits: StateLimits {
                states: 5,
                records: 2,
                nodes: 7,
            },
        };
        let mut states = backend.states(&shape).unwrap();
        let (matrices, channels) = (6 * 16 * 48, 2 * 2 * 16 + 6 * 48);
        let state = matrices + 2 * channels;
        let record = 2 * 16 + 6 * 48 + 6 + channels;
        let expected = 4 * 3 * (5 * state + 2 * 2 * 7 * record) as u64;
        assert_eq!(backend.allocated().states, expected);
        assert_eq!(memory.states_bytes(&shape), expected);
        let mut vector = |len: usize| backend.load_vector(&vec![0.5; len]).unwrap();
        let (convolution, heads, norm) = (vector(3 * channels), vector(6), vector(48));
        let op = GatedDelta {
            shape: delta,
            convolution: &convolution,
            a_log: &heads,
            dt_bias: &heads,
            norm: &norm,
            eps: 1e-6,
        };
        let mut none = |width: usize| backend.tensor(0, width, Holds::Sum).unwrap();
        let (projected, mut gates) = (none(channels + 6 * 48), none(12));
        let (mut space, mut out) = (none(channels), none(6 * 48));
        let operands = DeltaOperands {
            projected: &projected,
            gates: &mut gates,
            space: &mut space,
        };
        let batch = Batch::default();
        let mut inputs = backend.inputs(&InputLimits::of(&batch, 1)).unwrap();
        backend.stage(&batch, &mut inputs).unwrap();
        backend
            .gated_delta(&mut states, 2, &op, operands, &inputs, &mut out)
            .unwrap();
        let pass = PassShape {
            tokens: 0,
            positions: 0,
            attention: Vec::new(),
            latent: Vec::new(),
            recurrences: vec![Recurrence::Delta(delta)],
            products: Vec::new(),
            experts: Vec::new(),
            adapted: Vec::new(),
            gathered: 0,
        };
        let without = PassShape {
            recurrences: Vec::new(),
            ..pass.clone()
        };
        let charged = memory.scratch_bytes(&[pass]) - memory.scratch_bytes(&[without]);
        assert_eq!(backend.allocated().scratch, charged, "{isa}");
        assert!(charged > 0);
    }
}
