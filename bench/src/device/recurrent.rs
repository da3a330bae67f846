//! A recurrent layer between its projections: one new token of each request, and a prompt.

use lockstep_backend::{
    BackendError, Batch, DeltaOperands, DeltaShape, GatedDelta, Holds, Recurrence, Row, RowState,
    StatesShape,
};
use lockstep_devices::Device;
use lockstep_types::{ModelConfig, StateLimits};

use super::kernels::Kernels;
use super::parts::{Alone, EPS, Line, Names};
use crate::kernels::{filled, staged};

const READS: &str = "read_all";
const BEFORE: Names = &["delta_prepare", READS];
const RECURS: Names = &["delta_recur", READS];
const BEHIND: Names = &["delta_finish", READS];
/// Most requests, each of which has a state: more rows are a prompt's.
const MOST_REQUESTS: usize = 256;
/// Most layers whose states are used in turn.
const MOST_LAYERS: usize = 16;

/// Returns the heads of the first recurrent layer.
pub fn delta(model: &ModelConfig) -> Option<DeltaShape> {
    let mut deltas = model.gated_deltas();
    deltas.next().map(|delta| DeltaShape::of(delta, 1))
}

/// Weights of a layer, and activations of some tokens.
struct Arrays<B: Device> {
    /// Taps, logarithms of decays, their biases, weights of the norm.
    weights: [B::Vector; 4],
    projected: B::Tensor,
    gates: B::Tensor,
    space: B::Tensor,
    out: B::Tensor,
}

/// Bytes of the parts of a layer over some rows.
struct Sizes {
    shape: DeltaShape,
    rows: usize,
    tokens: usize,
    element: usize,
}

impl Sizes {
    /// Projections, and columns behind the convolution.
    fn before(&self) -> f64 {
        (4 * self.tokens * (2 * self.shape.channels() + 4 * self.shape.value_heads)) as f64
    }

    /// States, twice, and columns with the outputs in place of values.
    fn recurs(&self) -> f64 {
        let columns = self.shape.channels() + self.shape.value_width();
        (4 * (2 * self.rows * self.shape.state() + self.tokens * columns)) as f64
    }

    /// Outputs and their gates.
    fn behind(&self) -> f64 {
        (self.tokens * self.shape.value_width() * (8 + self.element)) as f64
    }

    /// Operations of the recurrence: a matrix is decayed, read twice and added to.
    fn operations(&self) -> f64 {
        7.0 * (self.tokens * self.shape.matrices()) as f64
    }
}

impl<B: Device> Kernels<'_, B> {
    /// Measures a layer for each number of requests with one new token, and for a prompt.
    pub fn recurrent(
        &mut self,
        shape: DeltaShape,
        rows: &[usize],
        prompt: usize,
    ) -> anyhow::Result<()> {
        let requests = rows.iter().filter(|rows| **rows <= MOST_REQUESTS);
        let decode = requests.map(|rows| (*rows, 1));
        for (rows, tokens) in decode.chain([(1, prompt)]) {
            self.recur(shape, rows, tokens)?;
        }
        Ok(())
    }

    fn recur(&mut self, shape: DeltaShape, rows: usize, each: usize) -> anyhow::Result<()> {
        let sizes = Sizes {
            shape,
            rows,
            tokens: rows * each,
            element: self.config.dtype.bytes(),
        };
        let layers = self.bench.turns(4 * rows * shape.state()).min(MOST_LAYERS);
        let mut arrays = self.arrays(&sizes)?;
        let backend = &mut self.bench.backend;
        let mut states = backend.states(&StatesShape {
            layers,
            recurrence: Recurrence::Delta(shape),
            limits: StateLimits {
                states: rows,
                records: rows,
                nodes: 1,
            },
        })?;
        let inputs = staged_rows(backend, rows, each)?;
        let mut failed = None;
        let mut call = |backend: &mut B, layer: usize| {
            let done = run(backend, &mut states, layer, shape, &mut arrays, &inputs);
            failed = done.err().or(failed.take());
        };
        let size = match each {
            1 => format!("{rows} x {} x {}", shape.value_heads, shape.value_dim),
            tokens => format!("{tokens} tokens"),
        };
        let times = self.bench.times(layers, &mut call)?;
        self.keep(&Line {
            kernel: "recurrent".to_owned(),
            size: size.clone(),
            times,
            bytes: sizes.before() + sizes.recurs() + sizes.behind(),
            operations: sizes.operations(),
        })?;
        for (names, label, bytes, operations) in [
            (BEFORE, "recurrent, before", sizes.before(), 0.0),
            (
                RECURS,
                "recurrent, states",
                sizes.recurs(),
                sizes.operations(),
            ),
            (BEHIND, "recurrent, behind", sizes.behind(), 0.0),
        ] {
            let of = Alone {
                names,
                label,
                size: size.clone(),
                arrays: layers,
                once: false,
                bytes,
                operations,
            };
            self.alone(&of, &mut call)?;
        }
        failed.map_or(Ok(()), |error: BackendError| Err(error.into()))
    }

    fn arrays(&mut self, sizes: &Sizes) -> anyhow::Result<Arrays<B>> {
        let &Sizes { shape, tokens, .. } = sizes;
        let (channels, heads, values) = (shape.channels(), shape.value_heads, shape.value_width());
        let backend = &mut self.bench.backend;
        let lens = [shape.taps * channels, heads, heads, shape.value_dim];
        let [taps, a_log, dt_bias, norm] = lens.map(|len| backend.load_vector(&vec![0.1; len]));
        Ok(Arrays {
            weights: [taps?, a_log?, dt_bias?, norm?],
            projected: filled(backend, tokens, channels + values, Holds::Sum)?,
            gates: filled(backend, tokens, 2 * heads, Holds::Sum)?,
            space: backend.tensor(tokens, channels, Holds::Sum)?,
            out: backend.tensor(tokens, values, Holds::Operand)?,
        })
    }
}

/// Stages rows of `each` tokens, which go into the states of the rows.
fn staged_rows<B: Device>(
    backend: &mut B,
    rows: usize,
    each: usize,
) -> Result<B::Inputs, BackendError> {
    let numbers: Vec<u32> = (0..(rows * each) as u32).collect();
    let row = |number: usize| Row {
        start: (number * each) as u32,
        q_len: each as u32,
        kv_len: 0,
        pages_start: 0,
        mask: None,
    };
    let state = |number: usize| RowState {
        state: number as u32,
        records: number as u32,
        commits: true,
        ..RowState::default()
    };
    let all: Vec<Row> = (0..rows).map(row).collect();
    let states: Vec<RowState> = (0..rows).map(state).collect();
    let batch = Batch {
        tokens: &numbers,
        positions: &numbers,
        cells: &numbers,
        rows: &all,
        pages: &[0],
        states: &states,
        ..Batch::default()
    };
    staged(backend, &batch, each)
}

/// Runs a recurrent layer between its projections.
fn run<B: Device>(
    backend: &mut B,
    states: &mut B::States,
    layer: usize,
    shape: DeltaShape,
    arrays: &mut Arrays<B>,
    inputs: &B::Inputs,
) -> Result<(), BackendError> {
    let [convolution, a_log, dt_bias, norm] = &arrays.weights;
    let op = GatedDelta {
        shape,
        convolution,
        a_log,
        dt_bias,
        norm,
        eps: EPS,
    };
    let operands = DeltaOperands {
        projected: &arrays.projected,
        gates: &mut arrays.gates,
        space: &mut arrays.space,
    };
    backend.gated_delta(states, layer, &op, operands, inputs, &mut arrays.out)
}
