//! The gated delta rule over states that are several times the last-level cache.

use lockstep_backend::{
    DeltaOperands, DeltaShape, GatedDelta, Holds, Recurrence, RowState, StatesShape,
};
use lockstep_devices::{Arithmetic, Device};
use lockstep_types::StateLimits;

use super::attention::Call;
use super::line::Line;
use super::setup::{Setup, Weights, filled, staged};
use super::shape::Shape;
use crate::roofline::{Traffic, Work};

/// States of each layer.
const STATES: usize = 32;
/// The most tokens that a step verifies for a request.
const NODES: usize = 8;
/// Cases of (requests, new tokens): decode, verification of a request's tokens, and prefill.
const CASES: [(usize, usize); 6] = [(1, 1), (8, 1), (32, 1), (1, NODES), (8, NODES), (1, 512)];
/// Operations of a token for each element of a state: the decay, and three products with sums.
const OPERATIONS: usize = 7;

/// Adds a line for each case.
pub fn measure<B: Device>(
    setup: &Setup,
    shape: &Shape,
    delta: DeltaShape,
    lines: &mut Vec<Line>,
) -> anyhow::Result<()> {
    let mut backend: B = setup.backend(Weights::Bf16)?;
    let state = 4 * delta.state();
    let states = StatesShape {
        layers: setup.working_set.div_ceil(STATES * state),
        recurrence: Recurrence::Delta(delta),
        limits: StateLimits {
            states: STATES,
            records: STATES,
            nodes: NODES,
        },
    };
    let mut layers = Layers::<B> {
        states: backend.states(&states)?,
        convolution: backend.load_vector(&vec![0.25; delta.taps * delta.channels()])?,
        a_log: backend.load_vector(&vec![0.0; delta.value_heads])?,
        dt_bias: backend.load_vector(&vec![-4.0; delta.value_heads])?,
        norm: backend.load_vector(&vec![1.0; delta.value_dim])?,
        backend,
        delta,
        count: states.layers,
    };
    // Memory that nobody wrote is one page of zeros.
    layers.time(setup, STATES, 1, true)?;
    for (requests, tokens) in CASES {
        let times = layers.time(setup, requests, tokens, false)?;
        let kernel = match tokens {
            1 => "decode",
            // Later verifications also replay what the one before accepted.
            2..=NODES => "first verify",
            _ => "prefill",
        };
        // Verified tokens leave the state as it was, and write records.
        let written = match tokens {
            2..=NODES => 4 * tokens * delta.record(),
            _ => state,
        };
        lines.push(Line {
            kernel: format!("gated_delta {kernel}"),
            shape: shape.name.clone(),
            format: "f32",
            size: format!("{requests} x {tokens}"),
            tokens: requests * tokens,
            times,
            work: Work {
                bytes: (requests * (state + written)) as f64,
                operations: (OPERATIONS * requests * tokens * delta.matrices()) as f64,
            },
            arithmetics: &[Arithmetic::F32Fma],
            traffic: Traffic::Update,
        });
    }
    Ok(())
}

/// Recurrent layers that are used in turn.
struct Layers<B: Device> {
    backend: B,
    delta: DeltaShape,
    /// Number of layers.
    count: usize,
    states: B::States,
    convolution: B::Vector,
    a_log: B::Vector,
    dt_bias: B::Vector,
    norm: B::Vector,
}

impl<B: Device> Layers<B> {
    /// Times a layer's call for so many requests of so many new tokens each; `fresh` ones begin
    /// their texts. Few tokens are bound by memory, so the calls go through all states of all
    /// layers.
    fn time(
        &mut self,
        setup: &Setup,
        requests: usize,
        tokens: usize,
        fresh: bool,
    ) -> anyhow::Result<super::Times> {
        let (rows, delta) = (requests * tokens, self.delta);
        let backend = &mut self.backend;
        let width = delta.channels() + delta.value_width();
        let projected = filled(backend, rows, width, Holds::Sum)?;
        let mut gates = filled(backend, rows, 2 * delta.value_heads, Holds::Sum)?;
        let mut space = backend.tensor(rows, delta.channels(), Holds::Sum)?;
        let mut out = backend.tensor(rows, delta.value_width(), Holds::Operand)?;
        let mut groups = Vec::new();
        for first in (0..=STATES - requests).step_by(requests) {
            groups.push(self.staged(first, requests, tokens, fresh)?);
        }
        let calls = match tokens {
            1..=NODES => self.count * groups.len(),
            _ => 1,
        };
        let op = GatedDelta {
            shape: delta,
            convolution: &self.convolution,
            a_log: &self.a_log,
            dt_bias: &self.dt_bias,
            norm: &self.norm,
            eps: 1e-6,
        };
        let (backend, states) = (&mut self.backend, &mut self.states);
        let (mut call, mut outcome) = (0, Ok(()));
        let times = setup.time(calls, || {
            let operands = DeltaOperands {
                projected: &projected,
                gates: &mut gates,
                space: &mut space,
            };
            let (layer, group) = (call % self.count, &groups[call / self.count % groups.len()]);
            let done = backend.gated_delta(states, layer, &op, operands, group, &mut out);
            outcome = std::mem::replace(&mut outcome, Ok(())).and(done);
            call += 1;
        });
        outcome?;
        Ok(times)
    }

    /// A batch of requests, whose states begin with number `first`.
    fn staged(
        &mut self,
        first: usize,
        requests: usize,
        tokens: usize,
        fresh: bool,
    ) -> anyhow::Result<B::Inputs> {
        let row = |number: usize| RowState {
            state: u32::try_from(number).unwrap_or(u32::MAX),
            records: u32::try_from(number).unwrap_or(u32::MAX),
            fresh,
            commits: !(2..=NODES).contains(&tokens),
            ..RowState::default()
        };
        let states: Vec<RowState> = (first..first + requests).map(row).collect();
        let call = Call::new(requests, tokens, 0, 1);
        let mut batch = call.batch();
        batch.states = &states;
        Ok(staged(&mut self.backend, &batch, 1)?)
    }
}
