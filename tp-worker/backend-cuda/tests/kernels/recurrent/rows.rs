//! Passes of a prompt and of a tree behind it, through one recurrent layer.

use std::ops::Range;

use lockstep_backend::{
    Axis, Batch, Exchange as _, Holds, InputLimits, Memory as _, Ops as _, Owners, Passes as _,
    Recurrence, Row, RowState, Span, StateKeep, StatesShape,
};
use lockstep_backend_cuda::{
    CollectiveOptions, CudaBackend, CudaOptions, CudaStates, CudaTensor, Element, Inputs,
};
use lockstep_collective::Single;
use lockstep_types::{Dtype, StateLimits};

/// Tokens of the prompt, and the parents of the nodes behind it.
pub const PROMPT: usize = 19;
pub const PARENTS: [Option<usize>; 5] = [None, Some(0), Some(0), Some(1), Some(2)];
pub const TOKENS: usize = PROMPT + PARENTS.len();
pub const LIMITS: StateLimits = StateLimits {
    states: 3,
    records: 1,
    nodes: PARENTS.len(),
};

pub fn backend(element: Element) -> CudaBackend {
    let options = CudaOptions {
        ordinal: 0,
        dtype: match element {
            Element::F32 => Dtype::Float32,
            Element::Bf16 => Dtype::Bfloat16,
        },
        kernels: None,
        graphs: Vec::new(),
        collectives: CollectiveOptions::default(),
    };
    CudaBackend::new(&options, Box::new(Single::new())).expect("a device")
}

pub fn states(gpu: &mut CudaBackend, recurrence: Recurrence) -> CudaStates {
    let shape = StatesShape {
        layers: 1,
        recurrence,
        limits: LIMITS,
    };
    gpu.states(&shape).expect("room")
}

/// Nodes from the root to `node`.
fn path(node: usize) -> Vec<usize> {
    let path = std::iter::successors(Some(node), |node| PARENTS[*node]);
    let mut path: Vec<usize> = path.collect();
    path.reverse();
    path
}

/// Tokens up to `token`, its own included: those of the prompt, and its ancestors in the tree.
pub fn text_of(token: usize) -> Vec<usize> {
    let mut text: Vec<usize> = (0..=token.min(PROMPT - 1)).collect();
    if let Some(node) = token.checked_sub(PROMPT) {
        text.extend(path(node).iter().map(|node| PROMPT + node));
    }
    text
}

/// Stages one row of `count` tokens.
pub fn stage(gpu: &mut CudaBackend, count: usize, state: RowState, keeps: &[StateKeep]) -> Inputs {
    let numbers: Vec<u32> = (0..count as u32).collect();
    let masks: Vec<u64> = (0..PARENTS.len())
        .map(|node| path(node).iter().fold(0, |word, at| word | 1 << at))
        .collect();
    let row = Row {
        start: 0,
        q_len: count as u32,
        kv_len: 0,
        pages_start: 0,
        mask: (!state.commits).then_some(0),
    };
    let batch = Batch {
        tokens: &numbers,
        positions: &numbers,
        cells: &numbers,
        rows: &[row],
        pages: &[0],
        masks: &masks,
        states: &[state],
        keeps,
        ..Batch::default()
    };
    let mut inputs = gpu.inputs(&InputLimits::of(&batch, TOKENS)).expect("room");
    gpu.stage(&batch, &mut inputs).expect("a copy");
    inputs
}

/// Rows of `values` that `tokens` bring, on the device.
pub fn brought(
    gpu: &mut CudaBackend,
    values: &[f32],
    width: usize,
    tokens: &Range<usize>,
) -> CudaTensor {
    let mut tensor = gpu.tensor(tokens.len(), width, Holds::Sum).expect("room");
    let own = &values[tokens.start * width..tokens.end * width];
    gpu.upload(&mut tensor, own);
    tensor
}

pub fn read(gpu: &mut CudaBackend, out: &CudaTensor) -> Vec<f32> {
    let (rows, width) = (out.rows(), out.width());
    let mut logits = gpu.tensor(rows, width, Holds::Logits).expect("room");
    gpu.place_columns(out, &mut logits, 0);
    let owners = Owners {
        widths: &[width],
        rows: &[0..rows; 1],
    };
    let mut space = Vec::new();
    let found = gpu.gather_to_host(Axis::Alone, &logits, owners, &mut space);
    found.expect("values").to_vec()
}

/// Outputs of a prompt, and of a tree behind the copy that it has kept of its state. `layer` runs
/// some tokens through the layer.
pub fn texts(
    element: Element,
    recurrence: Recurrence,
    mut layer: impl FnMut(&mut CudaBackend, &mut CudaStates, Range<usize>, &Inputs) -> CudaTensor,
) -> Vec<f32> {
    let gpu = &mut backend(element);
    let mut states = states(gpu, recurrence);
    let prompt = RowState {
        fresh: true,
        commits: true,
        keeps: Span { start: 0, len: 1 },
        ..RowState::default()
    };
    let keep = StateKeep {
        after: PROMPT as u32,
        state: 1,
    };
    let inputs = stage(gpu, PROMPT, prompt, &[keep]);
    let out = layer(gpu, &mut states, 0..PROMPT, &inputs);
    let mut found = read(gpu, &out);
    gpu.copy_states(&mut states, &[(1, 2)]).expect("launches");
    let tree = RowState {
        state: 2,
        ..RowState::default()
    };
    let inputs = stage(gpu, PARENTS.len(), tree, &[]);
    let out = layer(gpu, &mut states, PROMPT..TOKENS, &inputs);
    found.extend(read(gpu, &out));
    found
}
