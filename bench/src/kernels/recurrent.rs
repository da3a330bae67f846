//! The gated delta rule over states that are several times the last-level cache.

use lockstep_backend::{
    DeltaOperands, DeltaShape, GatedDelta, Holds, Recurrence, RowState, Span, StatesShape,
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
/// Tokens of the step before that were accepted, which a verification replays.
const REPLAYED: usize = NODES / 2;
/// Cases: decode, verification of a request's tokens, without and with a replay, and prefill. What
/// is replayed are the records of the cases before.
const CASES: [Case; 8] = [
    Case::new(1, 1, 0),
    Case::new(8, 1, 0),
    Case::new(32, 1, 0),
    Case::new(1, NODES, 0),
    Case::new(8, NODES, 0),
    Case::new(1, NODES, REPLAYED),
    Case::new(8, NODES, REPLAYED),
    Case::new(1, 512, 0),
];
/// Operations of a token for each element of a state: the decay, and three products with sums.
const OPERATIONS: usize = 7;

/// Requests of a call, new tokens of each, and tokens that each replays.
#[derive(Clone, Copy)]
struct Case {
    requests: usize,
    tokens: usize,
    replays: usize,
}

impl Case {
    const fn new(requests: usize, tokens: usize, replays: usize) -> Self {
        Self {
            requests,
            tokens,
            replays,
        }
    }

    /// True if tokens are to be verified, and leave records.
    fn verifies(&self) -> bool {
        (2..=NODES).contains(&self.tokens)
    }

    fn name(&self) -> &'static str {
        match (self.verifies(), self.tokens, self.replays) {
            (true, _, 0) => "first verify",
            (true, ..) => "verify",
            (false, 1, _) => "decode",
            (false, ..) => "prefill",
        }
    }

    /// Bytes of states and records that a request reads and writes. Verified tokens leave the state
    /// as it was behind the replay.
    fn bytes(&self, delta: &DeltaShape) -> usize {
        let (state, record) = (delta.state(), delta.record());
        let updates = !self.verifies() || self.replays > 0;
        let written = if updates { state } else { 0 };
        let records = if self.verifies() { self.tokens } else { 0 };
        4 * (state + written + (records + self.replays) * record)
    }
}

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
    layers.time(setup, Case::new(STATES, 1, 0), true)?;
    for case in CASES {
        let times = layers.time(setup, case, false)?;
        let Case {
            requests,
            tokens,
            replays,
        } = case;
        lines.push(Line {
            kernel: format!("gated_delta {}", case.name()),
            shape: shape.name.clone(),
            format: "f32",
            size: format!("{requests} x {tokens}"),
            tokens: requests * tokens,
            times,
            work: Work {
                bytes: (requests * case.bytes(&delta)) as f64,
                operations: (OPERATIONS * requests * (tokens + replays) * delta.matrices()) as f64,
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
    /// Times a layer's call; `fresh` requests begin their texts. Few tokens are bound by memory, so
    /// the calls go through all states of all layers.
    fn time(&mut self, setup: &Setup, case: Case, fresh: bool) -> anyhow::Result<super::Times> {
        let Case {
            requests, tokens, ..
        } = case;
        let (rows, delta) = (requests * tokens, self.delta);
        let backend = &mut self.backend;
        let width = delta.channels() + delta.value_width();
        let projected = filled(backend, rows, width, Holds::Sum)?;
        let mut gates = filled(backend, rows, 2 * delta.value_heads, Holds::Sum)?;
        let mut space = backend.tensor(rows, delta.channels(), Holds::Sum)?;
        let mut out = backend.tensor(rows, delta.value_width(), Holds::Operand)?;
        let mut groups = Vec::new();
        for first in (0..=STATES - requests).step_by(requests) {
            groups.push(self.staged(first, case, fresh)?);
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
    fn staged(&mut self, first: usize, case: Case, fresh: bool) -> anyhow::Result<B::Inputs> {
        let Case {
            requests, replays, ..
        } = case;
        let replayed: Vec<u32> = (0..(requests * replays) as u32)
            .map(|at| at % replays as u32)
            .collect();
        let row = |number: usize| RowState {
            state: u32::try_from(number).unwrap_or(u32::MAX),
            records: u32::try_from(number).unwrap_or(u32::MAX),
            // The other half than that of verifications without a replay, whose records it reads.
            side: u32::from(replays > 0),
            fresh,
            commits: !case.verifies(),
            replays: Span {
                start: ((number - first) * replays) as u32,
                len: replays as u32,
            },
            ..RowState::default()
        };
        let states: Vec<RowState> = (first..first + requests).map(row).collect();
        let call = Call::new(requests, case.tokens, 0, 1);
        let mut batch = call.batch();
        batch.states = &states;
        batch.replays = &replayed;
        Ok(staged(&mut self.backend, &batch, 1)?)
    }
}
