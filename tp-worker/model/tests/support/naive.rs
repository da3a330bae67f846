//! The plainest possible backend: f32 loops in textbook order. The oracle for
//! the model and the worker; far too slow for anything else.

#[path = "naive/adapters.rs"]
mod adapters;
#[path = "naive/arithmetic.rs"]
mod arithmetic;
#[path = "naive/delta.rs"]
mod delta;
#[path = "naive/exchange.rs"]
mod exchange;
#[path = "naive/experts.rs"]
mod experts;
#[path = "naive/latent.rs"]
mod latent;
#[path = "naive/mamba2.rs"]
mod mamba2;
#[path = "naive/memory.rs"]
mod memory;
#[path = "naive/recurrent.rs"]
pub mod recurrent;

use std::{collections::BTreeSet, ops::Range};

use arithmetic::{activated, dot, layer_normed, normed, seen};
use lockstep_backend::{
    AttendLatent, AttentionShape, Axis, BackendError, Batch, BlockEnd, ColumnGroups, CountedKeys,
    DeltaOperands, Exchange, ExpertSpace, Experts, GatedDelta, Groups, Holds, KvShape, LatentSpace,
    Linear, LogitScaling, Mamba2, Mamba2Operands, Norm, Ops, PassKey, PassRecords, Passes, RmsNorm,
    RopeTable, Row, RowState, Rows, ShortConvolution, StateKeep, WholeNorms,
};
use lockstep_model::{CollectiveKind, CollectiveStep, CountedRows};
use lockstep_types::Activation;

/// A backend with every operation as a loop.
pub struct Naive {
    groups: Groups,
    /// Collectives issued so far.
    pub issued: Vec<CollectiveStep>,
    /// Number of times that each pass is repeated.
    pub replays: usize,
    /// Number of passes run whose size was not yet among the model's [`Seen`].
    pub recorded: usize,
    /// Number of rows that MLPs ran over.
    pub activated: usize,
    /// Number of tokens that attended.
    pub attended: usize,
    /// True if the device fails at the end of each pass.
    pub failing: bool,
    /// Mistake of operations; `None` if there is none.
    pub fault: Option<recurrent::Fault>,
    /// Gates of the last Mamba-2 block's tokens, where its fault is to apply them behind the norm.
    late: Vec<Vec<f32>>,
}

/// `[rows, width]`, row-major.
pub struct Tensor {
    width: usize,
    rows: usize,
    data: Vec<f32>,
    holds: Holds,
}

impl Tensor {
    fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..][..self.width]
    }
    fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.width..][..self.width]
    }
    fn used(&mut self) -> &mut [f32] {
        &mut self.data[..self.rows * self.width]
    }
    /// Panics unless the tensor holds one of `any`: a device has another type for each.
    fn holds(&self, any: &[Holds]) {
        assert!(any.contains(&self.holds), "{:?}, not {any:?}", self.holds);
    }
}

const SUM: &[Holds] = &[Holds::Sum];
const OPERAND: &[Holds] = &[Holds::Operand];
/// Kinds of tensors whose rows are copied.
const COPIED: &[Holds] = &[Holds::Sum, Holds::Operand];

/// Keys and values, `[layer][cell][kv_heads · head_dim]`.
pub struct Cache {
    shape: KvShape,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// A batch, copied.
#[derive(Default)]
pub struct Inputs {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    cells: Vec<u32>,
    rows: Vec<Row>,
    pages: Vec<u32>,
    wanted: Vec<u32>,
    masks: Vec<u64>,
    states: Vec<RowState>,
    replays: Vec<u32>,
    keeps: Vec<StateKeep>,
    adapters: Vec<Option<u16>>,
}

impl Inputs {
    /// The new token of a row before its token `node` that it sees last.
    fn parent(&self, row: &Row, node: usize) -> Option<usize> {
        let seen = seen(row, node, &self.masks);
        let own = seen
            .into_iter()
            .filter_map(|at| at.checked_sub(row.kv_len as usize));
        own.filter(|at| *at < node).max()
    }
}

impl Naive {
    pub fn new(groups: impl Into<Groups>) -> Self {
        Self {
            groups: groups.into(),
            issued: Vec::new(),
            replays: 0,
            recorded: 0,
            activated: 0,
            attended: 0,
            failing: false,
            fault: None,
            late: Vec::new(),
        }
    }
}

impl Naive {
    /// Returns true if this rank alone is one of several DP ranks.
    fn is_alone(&self, axis: Axis) -> bool {
        self.group(axis).1 == 1 && self.group(Axis::World).1 > 1
    }

    fn note(&mut self, kind: CollectiveKind, axis: Axis, width: usize) {
        let rows = match kind {
            CollectiveKind::AllReduce => CountedRows::DpRank,
            _ => CountedRows::World,
        };
        self.issued.push(CollectiveStep {
            kind,
            axis,
            rows,
            width,
        });
    }
}

/// Sizes of passes that have run.
#[derive(Default)]
pub struct Seen(BTreeSet<PassKey>);

impl PassRecords for Seen {}

impl Ops for Naive {
    fn embed(&mut self, table: &Tensor, first: u32, scale: f32, inputs: &Inputs, out: &mut Tensor) {
        assert_eq!(out.rows, inputs.tokens.len());
        out.holds(SUM);
        for (row, token) in inputs.tokens.iter().enumerate() {
            match token.checked_sub(first).map(|t| t as usize) {
                Some(t) if t < table.rows => {
                    let values = out.row_mut(row).iter_mut().zip(table.row(t));
                    values.for_each(|(out, value)| *out = value * scale);
                }
                _ => out.row_mut(row).fill(0.0),
            }
        }
    }
    fn matmul(&mut self, x: &Tensor, w: Linear<'_, Tensor, Vec<f32>>, out: &mut Tensor) {
        let Linear { weight: w, bias } = w;
        assert_eq!((x.rows, x.width, w.rows), (out.rows, w.width, out.width));
        x.holds(OPERAND);
        out.holds(&[Holds::Sum, Holds::Logits]);
        for row in 0..x.rows {
            for column in 0..w.rows {
                let sum = dot(x.row(row), w.row(column));
                out.row_mut(row)[column] = sum + bias.map_or(0.0, |b| b[column]);
            }
        }
    }
    fn rms_norm(&mut self, x: &Tensor, weight: &Vec<f32>, eps: f32, out: &mut Tensor) {
        assert_eq!(x.rows, out.rows);
        x.holds(SUM);
        out.holds(OPERAND);
        for row in 0..x.rows {
            out.row_mut(row)
                .copy_from_slice(&normed(x.row(row), weight, eps));
        }
    }
    fn end_block(
        &mut self,
        residual: &mut Tensor,
        delta: Option<&Tensor>,
        end: BlockEnd<'_, Vec<f32>>,
        out: &mut Tensor,
    ) {
        residual.holds(SUM);
        out.holds(OPERAND);
        assert_eq!(residual.rows, out.rows);
        if let Some(delta) = delta {
            assert_eq!(residual.rows, delta.rows);
            delta.holds(SUM);
            for row in 0..residual.rows {
                let added = match end.output {
                    None => delta.row(row).to_vec(),
                    Some(norm) => normed(delta.row(row), norm.weight, norm.eps),
                };
                let sum = residual.row_mut(row).iter_mut().zip(added);
                sum.for_each(|(r, d)| *r += d);
            }
        }
        for row in 0..residual.rows {
            let x = residual.row(row);
            let read = match end.next {
                None => x.to_vec(),
                Some(Norm::Rms(norm)) => normed(x, norm.weight, norm.eps),
                Some(Norm::Layer { norm, bias }) => layer_normed(x, norm.weight, bias, norm.eps),
            };
            out.row_mut(row).copy_from_slice(&read);
        }
    }
    fn head_norm(
        &mut self,
        qkv: &mut Tensor,
        shape: &AttentionShape,
        heads: Range<usize>,
        weight: &Vec<f32>,
        eps: f32,
    ) {
        qkv.holds(SUM);
        for row in 0..qkv.rows {
            for head in heads.clone() {
                let x = &mut qkv.row_mut(row)[head * shape.head_dim..][..shape.head_dim];
                let y = normed(x, weight, eps);
                x.copy_from_slice(&y);
            }
        }
    }
    fn square_sums(
        &mut self,
        qkv: &Tensor,
        shape: &AttentionShape,
        counted: CountedKeys,
        sums: &mut Tensor,
    ) {
        qkv.holds(SUM);
        sums.holds(SUM);
        let dim = shape.head_dim;
        for row in 0..qkv.rows {
            let (queries, rest) = qkv.row(row).split_at(shape.heads * dim);
            let keys = rest.chunks(dim).take(shape.kv_heads).enumerate();
            let keys = keys.filter(|(head, _)| counted.counts(*head));
            let of_keys = keys.map(|(_, head)| dot(head, head)).sum();
            sums.row_mut(row)
                .copy_from_slice(&[dot(queries, queries), of_keys]);
        }
    }
    fn whole_norm(
        &mut self,
        qkv: &mut Tensor,
        shape: &AttentionShape,
        sums: &Tensor,
        norms: &WholeNorms<'_, Vec<f32>>,
    ) {
        qkv.holds(SUM);
        sums.holds(SUM);
        let queries = shape.heads * shape.head_dim;
        for row in 0..qkv.rows {
            let squares = sums.row(row);
            let scale = |at: usize| (squares[at] / norms.widths[at] as f32 + norms.eps).sqrt();
            let (query, rest) = qkv.row_mut(row).split_at_mut(queries);
            let keys = rest.iter_mut().zip(norms.keys);
            keys.for_each(|(x, weight)| *x = *x / scale(1) * weight);
            let queries = query.iter_mut().zip(norms.queries);
            queries.for_each(|(x, weight)| *x = *x / scale(0) * weight);
        }
    }
    fn rope(
        &mut self,
        qkv: &mut Tensor,
        shape: &AttentionShape,
        table: &RopeTable,
        inputs: &Inputs,
    ) {
        assert_eq!(qkv.rows, inputs.positions.len());
        qkv.holds(SUM);
        for (row, position) in inputs.positions.iter().enumerate() {
            for head in 0..shape.heads + shape.written_heads() {
                let x = &mut qkv.row_mut(row)[head * shape.head_dim..][..shape.head_dim];
                for i in 0..table.half {
                    let at = *position as usize * table.half + i;
                    let (cos, sin) = (table.cos[at], table.sin[at]);
                    let (a, b) = (x[i], x[i + table.half]);
                    (x[i], x[i + table.half]) = (a * cos - b * sin, b * cos + a * sin);
                }
                if let (Some(factor), true) =
                    (table.queries.get(*position as usize), head < shape.heads)
                {
                    x.iter_mut().for_each(|value| *value *= factor);
                }
            }
        }
    }
    fn attention(
        &mut self,
        cache: &mut Cache,
        layer: usize,
        qkv: &Tensor,
        shape: &AttentionShape,
        sinks: Option<&Vec<f32>>,
        inputs: &Inputs,
        out: &mut Tensor,
    ) {
        qkv.holds(SUM);
        out.holds(OPERAND);
        assert_eq!(sinks.map(Vec::len), shape.sinks.then_some(shape.heads));
        let (dim, width) = (shape.head_dim, shape.kv_heads * shape.head_dim);
        let (keys, values) = (&mut cache.keys[layer], &mut cache.values[layer]);
        let (cells, pages) = inputs.of_group(cache.shape.group);
        let written = cells.iter().enumerate().filter(|_| !shape.reads_only);
        for (token, cell) in written {
            let new = &qkv.row(token)[shape.heads * dim..];
            keys[*cell as usize * width..][..width].copy_from_slice(&new[..width]);
            values[*cell as usize * width..][..width].copy_from_slice(&new[width..]);
        }
        let size = cache.shape.page_size;
        for row in &inputs.rows {
            self.attended += row.q_len as usize;
            for new in 0..row.q_len as usize {
                let token = row.start as usize + new;
                let up_to = seen(row, new, &inputs.masks);
                // A window counts positions, so it needs each token where its ancestors end.
                if row.mask.is_none() || shape.window.is_some() {
                    assert_eq!(inputs.positions[token] as usize + 1, up_to.len());
                }
                let seen = &up_to[shape.visible(up_to.len())];
                for head in 0..shape.heads {
                    let column = head / (shape.heads / shape.kv_heads) * dim;
                    let at = |position: usize| {
                        let page = pages[row.pages_start as usize + position / size];
                        (page as usize * size + position % size) * width + column
                    };
                    let query = &qkv.row(token)[head * dim..][..dim];
                    let score = |p: &usize| {
                        let score = dot(query, &keys[at(*p)..][..dim]) * shape.scale;
                        shape
                            .softcap
                            .map_or(score, |cap| cap * (score / cap).tanh())
                    };
                    let scores: Vec<f32> = seen.iter().map(score).collect();
                    let sink = sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
                    let max = scores.iter().copied().fold(sink, f32::max);
                    let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
                    let total: f32 = weights.iter().sum::<f32>() + (sink - max).exp();
                    for i in 0..dim {
                        let terms = seen.iter().zip(&weights);
                        let sum: f32 = terms.map(|(p, w)| w * values[at(*p) + i]).sum();
                        let mean = if seen.is_empty() { 0.0 } else { sum / total };
                        out.row_mut(token)[head * dim + i] = mean;
                    }
                }
            }
        }
    }
    fn attend_latent(
        &mut self,
        cache: &mut Cache,
        layer: usize,
        query: &mut Tensor,
        cell: &mut Tensor,
        op: &AttendLatent<'_, Tensor, Vec<f32>, RopeTable>,
        _: LatentSpace<'_, Tensor>,
        inputs: &Inputs,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        latent::attend(cache, layer, [query, cell], op, inputs, out);
        Ok(())
    }
    fn gate(&mut self, gate_up: &Tensor, activation: Activation, out: &mut Tensor) {
        gate_up.holds(SUM);
        out.holds(OPERAND);
        let m = out.width;
        self.activated += gate_up.rows;
        for row in 0..gate_up.rows {
            let (gate, up) = gate_up.row(row).split_at(m);
            for (i, (gate, up)) in gate.iter().zip(up).enumerate() {
                out.data[row * m + i] = activated(activation, *gate) * up;
            }
        }
    }
    fn activate(&mut self, x: &Tensor, activation: Activation, out: &mut Tensor) {
        assert_eq!((x.rows, x.width), (out.rows, out.width));
        x.holds(SUM);
        out.holds(OPERAND);
        self.activated += x.rows;
        for row in 0..x.rows {
            let values = out.row_mut(row).iter_mut().zip(x.row(row));
            values.for_each(|(out, x)| *out = activated(activation, *x));
        }
    }
    fn scale_logits(&mut self, logits: &mut Tensor, scaling: LogitScaling) {
        logits.holds(&[Holds::Logits, Holds::Sum]);
        for logit in logits.used() {
            let x = *logit / scaling.divisor;
            *logit = scaling.softcap.map_or(x, |cap| cap * (x / cap).tanh());
        }
    }
    /// Runs one expert of one row after the other, and leaves all space alone.
    fn experts(
        &mut self,
        x: &Tensor,
        scores: &mut Tensor,
        w: Experts<'_, Tensor, Vec<f32>>,
        space: ExpertSpace<'_, Tensor>,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        self.activated += x.rows;
        experts::run(x, scores, w, space, out);
        Ok(())
    }
    fn gather_rows(&mut self, x: &Tensor, rows: Rows<'_, Inputs>, out: &mut Tensor) {
        let rows = match rows {
            Rows::Wanted(inputs, range) => inputs.wanted[range].to_vec(),
            Rows::List(rows) => rows.to_vec(),
            Rows::Range(range) => range.map(|row| row as u32).collect(),
        };
        assert_eq!(out.rows, rows.len());
        x.holds(COPIED);
        out.holds(COPIED);
        for (to, from) in rows.iter().enumerate() {
            assert!((*from as usize) < x.rows);
            out.row_mut(to).copy_from_slice(x.row(*from as usize));
        }
    }
    fn copy_rows(&mut self, x: &Tensor, from: &[u32], out: &mut Tensor, to: &[u32]) {
        assert_eq!((x.width, from.len()), (out.width, to.len()));
        x.holds(COPIED);
        out.holds(COPIED);
        for (from, to) in from.iter().zip(to) {
            assert!((*from as usize) < x.rows && (*to as usize) < out.rows);
            out.row_mut(*to as usize)
                .copy_from_slice(x.row(*from as usize));
        }
    }
    fn place_columns(&mut self, x: &Tensor, out: &mut Tensor, first: usize) {
        assert_eq!(x.rows, out.rows);
        x.holds(COPIED);
        out.holds(COPIED);
        for row in 0..x.rows {
            out.row_mut(row)[first..first + x.width].copy_from_slice(x.row(row));
        }
    }
    fn take_columns(&mut self, x: &Tensor, first: usize, out: &mut Tensor) {
        assert_eq!(x.rows, out.rows);
        x.holds(COPIED);
        out.holds(COPIED);
        for row in 0..x.rows {
            let columns = first..first + out.width;
            out.row_mut(row).copy_from_slice(&x.row(row)[columns]);
        }
    }
    fn as_operand<'a>(&mut self, x: &'a Tensor, space: &'a mut Tensor) -> &'a Tensor {
        assert_eq!((x.rows, x.width), (space.rows, space.width));
        x.holds(SUM);
        space.holds(OPERAND);
        space.used().copy_from_slice(&x.data[..x.rows * x.width]);
        space
    }
    fn sigmoid_gate(&mut self, gate: &Tensor, out: &mut Tensor) -> Result<(), BackendError> {
        assert_eq!(gate.rows, out.rows);
        assert!([1, out.width].contains(&gate.width));
        gate.holds(SUM);
        out.holds(OPERAND);
        let left_out = self.fault == Some(recurrent::Fault::OutputGates);
        for row in (0..out.rows).filter(|_| !left_out) {
            let gate = gate.row(row).iter().cycle();
            let values = out.row_mut(row).iter_mut().zip(gate);
            values.for_each(|(out, gate)| *out /= 1.0 + (-gate).exp());
        }
        Ok(())
    }
    fn gated_delta(
        &mut self,
        states: &mut recurrent::States,
        layer: usize,
        op: &GatedDelta<'_, Vec<f32>>,
        operands: DeltaOperands<'_, Tensor>,
        inputs: &Inputs,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        delta::run(self.fault, states, layer, op, &operands, inputs, out);
        Ok(())
    }
    fn mamba2(
        &mut self,
        states: &mut recurrent::States,
        layer: usize,
        op: &Mamba2<'_, Vec<f32>>,
        operands: Mamba2Operands<'_, Tensor>,
        inputs: &Inputs,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        self.late = mamba2::run(self.fault, states, layer, op, &operands, inputs, out);
        Ok(())
    }
    fn group_square_sums(
        &mut self,
        x: &Tensor,
        groups: &ColumnGroups,
        sums: &mut Tensor,
    ) -> Result<(), BackendError> {
        mamba2::group_square_sums(x, groups, sums);
        Ok(())
    }
    fn group_norm(
        &mut self,
        x: &Tensor,
        groups: &ColumnGroups,
        sums: &Tensor,
        norm: RmsNorm<'_, Vec<f32>>,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        mamba2::group_norm(self.fault, x, groups, sums, norm, out);
        mamba2::gate_late(&self.late, out);
        Ok(())
    }
    fn short_convolution(
        &mut self,
        states: &mut recurrent::States,
        layer: usize,
        op: &ShortConvolution<'_, Vec<f32>>,
        projected: &Tensor,
        space: &mut Tensor,
        inputs: &Inputs,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        let read = [projected, &*space];
        mamba2::short_convolution(self.fault, states, layer, op, read, inputs, out);
        Ok(())
    }
    fn copy_states(
        &mut self,
        states: &mut recurrent::States,
        moves: &[(u32, u32)],
    ) -> Result<(), BackendError> {
        states.copy(moves);
        Ok(())
    }
    fn copy_cells(&mut self, cache: &mut Cache, moves: &[(u32, u32)]) {
        let width = cache.shape.kv_heads * cache.shape.head_dim;
        let at = |cell: u32| cell as usize * width;
        for (from, to) in moves {
            for part in cache.keys.iter_mut().chain(&mut cache.values) {
                part.copy_within(at(*from)..at(*from) + width, at(*to));
            }
        }
    }
}

impl Passes for Naive {
    type Passes = Seen;
    fn stage(&mut self, batch: &Batch<'_>, inputs: &mut Inputs) -> Result<(), BackendError> {
        *inputs = Inputs {
            tokens: batch.tokens.to_vec(),
            positions: batch.positions.to_vec(),
            cells: batch.cells.to_vec(),
            rows: batch.rows.to_vec(),
            pages: batch.pages.to_vec(),
            wanted: batch.logit_tokens.to_vec(),
            masks: batch.masks.to_vec(),
            states: batch.states.to_vec(),
            replays: batch.replays.to_vec(),
            keeps: batch.keeps.to_vec(),
            adapters: batch.adapters.to_vec(),
        };
        Ok(())
    }
    fn pass(
        &mut self,
        passes: &mut Seen,
        key: PassKey,
        work: &mut dyn FnMut(&mut Self) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        self.recorded += usize::from(passes.0.insert(key));
        (0..=self.replays).try_for_each(|_| work(self))?;
        match self.failing {
            true => Err(BackendError::Unsupported("it fails".to_owned())),
            false => Ok(()),
        }
    }
}
