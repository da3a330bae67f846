//! A device that counts its operations, and refuses tensors of other content than an operation
//! takes.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex},
};

use lockstep_backend::{
    Adapt, AttentionShape, Axis, BackendError, Batch, BlockEnd, Choice, ChoiceBatch, ChoiceMethod,
    ChoiceRow, Chosen, CountedKeys, DeviceSampler, DraftedRow, Exchange, ExpertSpace, Experts,
    FAILED, Holds, HostMatrix, InputLimits, KvShape, Linear, LogitScaling, Masks, MatrixRole,
    Memory, NoStates, Ops, Owners, Passes, RopeTable, RowParallel, Rows, Scatter, WeightFormat,
    WholeNorms,
};
use lockstep_backend_cpu::{CpuBackend, CpuTensor};
use lockstep_collective::Collective;
use lockstep_sampling::{Sampler, TokenHistory, allows};
use lockstep_types::{Activation, sampling::SamplingParams};

/// Operations by name.
pub type Counts = BTreeMap<&'static str, usize>;

/// The CPU backend, watched.
pub struct Counting {
    pub device: CpuBackend,
    pub counts: Arc<Mutex<Counts>>,
    /// Size of the vocabulary if the device chooses tokens; 0 if it leaves that to the host.
    pub vocab: usize,
    /// The group of the hosts, if it is not the group that carries the device's data.
    pub control: Option<Box<dyn Collective>>,
}

/// Activations that know what they hold. On the CPU all activations have one type, so no other
/// check would find a mix-up.
pub struct Tensor {
    values: CpuTensor,
    holds: Holds,
}

const COPIED: &[Holds] = &[Holds::Sum, Holds::Operand];
const PRODUCT: &[Holds] = &[Holds::Sum, Holds::Logits];

impl Tensor {
    fn of(&self, any: &[Holds]) -> &CpuTensor {
        assert!(any.contains(&self.holds), "{:?}, not {any:?}", self.holds);
        &self.values
    }
    fn of_mut(&mut self, any: &[Holds]) -> &mut CpuTensor {
        assert!(any.contains(&self.holds), "{:?}, not {any:?}", self.holds);
        &mut self.values
    }
    fn sums(&self) -> &CpuTensor {
        self.of(&[Holds::Sum])
    }
    fn sums_mut(&mut self) -> &mut CpuTensor {
        self.of_mut(&[Holds::Sum])
    }
    fn operands(&self) -> &CpuTensor {
        self.of(&[Holds::Operand])
    }
    fn operands_mut(&mut self) -> &mut CpuTensor {
        self.of_mut(&[Holds::Operand])
    }
}

type Matrix = <CpuBackend as Memory>::Matrix;
type Vector = <CpuBackend as Memory>::Vector;
type Rope = <CpuBackend as Memory>::Rope;
type KvCache = <CpuBackend as Memory>::KvCache;

/// A batch and the tokens chosen from it.
pub struct Inputs {
    batch: <CpuBackend as Memory>::Inputs,
    /// Most tokens of a request.
    most: usize,
    tokens: Vec<u32>,
    cells: Vec<u32>,
    choices: Vec<Choice>,
    rows: Vec<ChoiceRow>,
    drafted: Vec<DraftedRow>,
    parents: Vec<u32>,
    /// Tokens of the wanted rows.
    chosen: Vec<u32>,
    words: Vec<u32>,
}

impl Inputs {
    fn choices(&self) -> ChoiceBatch<'_> {
        ChoiceBatch {
            choices: &self.choices,
            rows: &self.rows,
            drafted: &self.drafted,
            parents: &self.parents,
        }
    }
}

impl Counting {
    fn count(&mut self, operation: &'static str) -> &mut CpuBackend {
        *self.counts.lock().unwrap().entry(operation).or_default() += 1;
        &mut self.device
    }
}

impl Memory for Counting {
    type Matrix = Matrix;
    type Vector = Vector;
    type Tensor = Tensor;
    type Rope = Rope;
    type KvCache = KvCache;
    type States = NoStates;
    type Inputs = Inputs;
    fn describe(&self, weights: WeightFormat) -> String {
        self.device.describe(weights)
    }
    fn serves_format(format: WeightFormat, role: MatrixRole) -> Result<(), &'static str> {
        CpuBackend::serves_format(format, role)
    }
    fn load_matrix(
        &mut self,
        matrix: &HostMatrix<'_>,
        format: WeightFormat,
    ) -> Result<Matrix, BackendError> {
        self.device.load_matrix(matrix, format)
    }
    fn load_vector(&mut self, values: &[f32]) -> Result<Vector, BackendError> {
        self.device.load_vector(values)
    }
    fn load_rope(&mut self, table: RopeTable) -> Result<Rope, BackendError> {
        self.device.load_rope(table)
    }
    fn tensor(&mut self, rows: usize, width: usize, holds: Holds) -> Result<Tensor, BackendError> {
        let values = self.device.tensor(rows, width, holds)?;
        Ok(Tensor { values, holds })
    }
    fn set_rows(&mut self, tensor: &mut Tensor, rows: usize) {
        self.device.set_rows(&mut tensor.values, rows);
    }
    fn kv_cache(&mut self, shape: &KvShape) -> Result<KvCache, BackendError> {
        self.device.kv_cache(shape)
    }
    fn inputs(&mut self, limits: &InputLimits) -> Result<Inputs, BackendError> {
        Ok(Inputs {
            batch: self.device.inputs(limits)?,
            most: limits.choices.most,
            tokens: Vec::new(),
            cells: Vec::new(),
            choices: Vec::new(),
            rows: Vec::new(),
            drafted: Vec::new(),
            parents: Vec::new(),
            chosen: Vec::new(),
            words: Vec::new(),
        })
    }
    fn matrix_bytes(&self, matrix: &Matrix) -> usize {
        self.device.matrix_bytes(matrix)
    }
}

impl Ops for Counting {
    fn embed(&mut self, table: &Matrix, first: u32, scale: f32, inputs: &Inputs, out: &mut Tensor) {
        self.count("embed")
            .embed(table, first, scale, &inputs.batch, out.sums_mut());
    }
    fn matmul(&mut self, x: &Tensor, w: Linear<'_, Matrix, Vector>, out: &mut Tensor) {
        self.count("matmul")
            .matmul(x.operands(), w, out.of_mut(PRODUCT));
    }
    fn rms_norm(&mut self, x: &Tensor, weight: &Vector, eps: f32, out: &mut Tensor) {
        self.count("rms_norm")
            .rms_norm(x.sums(), weight, eps, out.operands_mut());
    }
    fn end_block(
        &mut self,
        residual: &mut Tensor,
        delta: Option<&Tensor>,
        end: BlockEnd<'_, Vector>,
        out: &mut Tensor,
    ) {
        let (residual, delta, out) = (
            residual.sums_mut(),
            delta.map(Tensor::sums),
            out.operands_mut(),
        );
        self.count("end_block").end_block(residual, delta, end, out);
    }
    fn square_sums(
        &mut self,
        qkv: &Tensor,
        shape: &AttentionShape,
        counted: CountedKeys,
        sums: &mut Tensor,
    ) {
        self.count("square_sums")
            .square_sums(qkv.sums(), shape, counted, sums.sums_mut());
    }
    fn whole_norm(
        &mut self,
        qkv: &mut Tensor,
        shape: &AttentionShape,
        sums: &Tensor,
        norms: &WholeNorms<'_, Vector>,
    ) {
        self.count("whole_norm")
            .whole_norm(qkv.sums_mut(), shape, sums.sums(), norms);
    }
    fn head_norm(
        &mut self,
        qkv: &mut Tensor,
        shape: &AttentionShape,
        heads: Range<usize>,
        weight: &Vector,
        eps: f32,
    ) {
        self.count("head_norm")
            .head_norm(qkv.sums_mut(), shape, heads, weight, eps);
    }
    fn rope(&mut self, qkv: &mut Tensor, shape: &AttentionShape, table: &Rope, inputs: &Inputs) {
        self.count("rope")
            .rope(qkv.sums_mut(), shape, table, &inputs.batch);
    }
    fn attention(
        &mut self,
        cache: &mut KvCache,
        layer: usize,
        qkv: &Tensor,
        shape: &AttentionShape,
        sinks: Option<&Vector>,
        inputs: &Inputs,
        out: &mut Tensor,
    ) {
        let (qkv, out) = (qkv.sums(), out.operands_mut());
        self.count("attention")
            .attention(cache, layer, qkv, shape, sinks, &inputs.batch, out);
    }
    fn gate(&mut self, gate_up: &Tensor, activation: Activation, out: &mut Tensor) {
        self.count("gate")
            .gate(gate_up.sums(), activation, out.operands_mut());
    }
    fn activate(&mut self, x: &Tensor, activation: Activation, out: &mut Tensor) {
        self.count("activate")
            .activate(x.sums(), activation, out.operands_mut());
    }
    fn scale_logits(&mut self, logits: &mut Tensor, scaling: LogitScaling) {
        self.count("scale_logits")
            .scale_logits(logits.of_mut(&[Holds::Logits]), scaling);
    }
    fn experts(
        &mut self,
        x: &Tensor,
        scores: &mut Tensor,
        w: Experts<'_, Matrix, Vector>,
        space: ExpertSpace<'_, Tensor>,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        let space = ExpertSpace {
            gate_up: space.gate_up.sums_mut(),
            activated: space.activated.operands_mut(),
            products: space.products.sums_mut(),
        };
        let (x, scores, out) = (x.operands(), scores.sums_mut(), out.sums_mut());
        self.count("experts").experts(x, scores, w, space, out)
    }
    fn gather_rows(&mut self, x: &Tensor, rows: Rows<'_, Inputs>, out: &mut Tensor) {
        let rows = match rows {
            Rows::Wanted(inputs, range) => Rows::Wanted(&inputs.batch, range),
            Rows::List(list) => Rows::List(list),
            Rows::Range(range) => Rows::Range(range),
        };
        self.count("gather_rows")
            .gather_rows(x.of(COPIED), rows, out.of_mut(COPIED));
    }
    fn copy_rows(&mut self, x: &Tensor, from: &[u32], out: &mut Tensor, to: &[u32]) {
        self.count("copy_rows")
            .copy_rows(x.of(COPIED), from, out.of_mut(COPIED), to);
    }
    fn place_columns(&mut self, x: &Tensor, out: &mut Tensor, first: usize) {
        self.count("place_columns")
            .place_columns(x.of(COPIED), out.of_mut(COPIED), first);
    }
    fn take_columns(&mut self, x: &Tensor, first: usize, out: &mut Tensor) {
        self.count("take_columns")
            .take_columns(x.of(COPIED), first, out.of_mut(COPIED));
    }
    fn as_operand<'a>(&mut self, x: &'a Tensor, space: &'a mut Tensor) -> &'a Tensor {
        self.device.place_columns(x.sums(), space.operands_mut(), 0);
        space
    }
    fn copy_cells(&mut self, cache: &mut KvCache, moves: &[(u32, u32)]) {
        self.count("copy_cells").copy_cells(cache, moves);
    }
}

impl Passes for Counting {
    type Passes = ();
    fn stage(&mut self, batch: &Batch<'_>, inputs: &mut Inputs) -> Result<(), BackendError> {
        inputs.tokens = batch.tokens.to_vec();
        inputs.cells = batch.cells.to_vec();
        inputs.choices = batch.choices.choices.to_vec();
        inputs.rows = batch.choices.rows.to_vec();
        inputs.drafted = batch.choices.drafted.to_vec();
        inputs.parents = batch.choices.parents.to_vec();
        inputs.chosen = vec![u32::MAX - 1; batch.logit_tokens.len()];
        self.count("stage").stage(batch, &mut inputs.batch)
    }
    fn sampler(&mut self) -> Option<&mut dyn DeviceSampler<Tensor, Inputs, KvCache>> {
        // The device chooses only where it has whole rows of logits.
        (self.vocab > 0 && self.group(Axis::World).1 == 1).then_some(self)
    }
}

/// Its tests have no adapters.
impl Adapt for Counting {}

impl Exchange for Counting {
    fn matmul_end_block(
        &mut self,
        x: &Tensor,
        w: RowParallel<'_, Matrix, Vector>,
        residual: &mut Tensor,
        delta: &mut Tensor,
        end: BlockEnd<'_, Vector>,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        let (x, residual, delta) = (x.operands(), residual.sums_mut(), delta.sums_mut());
        self.count("matmul_end_block").matmul_end_block(
            x,
            w,
            residual,
            delta,
            end,
            out.operands_mut(),
        )
    }
    fn group(&self, axis: Axis) -> (usize, usize) {
        self.device.group(axis)
    }
    fn all_reduce(&mut self, axis: Axis, x: &mut Tensor) -> Result<(), BackendError> {
        self.count("all_reduce").all_reduce(axis, x.sums_mut())
    }
    fn matmul_scatter_end_block(
        &mut self,
        x: &Tensor,
        w: RowParallel<'_, Matrix, Vector>,
        scatter: Scatter<'_, Tensor>,
        residual: &mut Tensor,
        end: BlockEnd<'_, Vector>,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        let scatter = Scatter {
            rows: scatter.rows,
            product: scatter.product.sums_mut(),
        };
        let (x, residual, out) = (x.operands(), residual.sums_mut(), out.operands_mut());
        self.count("matmul_scatter_end_block")
            .matmul_scatter_end_block(x, w, scatter, residual, end, out)
    }
    fn scatter_end_block(
        &mut self,
        axis: Axis,
        scatter: Scatter<'_, Tensor>,
        residual: &mut Tensor,
        end: BlockEnd<'_, Vector>,
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        let scatter = Scatter {
            rows: scatter.rows,
            product: scatter.product.sums_mut(),
        };
        let (residual, out) = (residual.sums_mut(), out.operands_mut());
        self.count("scatter_end_block")
            .scatter_end_block(axis, scatter, residual, end, out)
    }
    fn all_gather_rows(
        &mut self,
        axis: Axis,
        x: &Tensor,
        first: usize,
        counts: &[usize],
        out: &mut Tensor,
    ) -> Result<(), BackendError> {
        self.count("all_gather_rows").all_gather_rows(
            axis,
            x.operands(),
            first,
            counts,
            out.operands_mut(),
        )
    }
    fn gather_to_host<'a>(
        &mut self,
        axis: Axis,
        x: &'a Tensor,
        owners: Owners<'_>,
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError> {
        let x = x.of(&[Holds::Logits]);
        self.count("gather_to_host")
            .gather_to_host(axis, x, owners, space)
    }
    fn control(&mut self, axis: Axis) -> &mut dyn Collective {
        self.count("control");
        match &mut self.control {
            Some(control) => &mut **control,
            None => self.device.control(axis),
        }
    }
    fn words_ride_on_data(&self) -> bool {
        self.control.is_none()
    }
}

impl DeviceSampler<Tensor, Inputs, KvCache> for Counting {
    fn prepare_masks(&mut self, _: usize, _: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn mask(&mut self, logits: &mut Tensor, first: usize, masks: Masks<'_>) {
        self.count("mask");
        let width = logits.values.width();
        let bits = masks.bits.chunks_exact(width.div_ceil(32));
        for (row, mask) in masks.rows.iter().zip(bits) {
            let start = (*row as usize - first) * width;
            let row = &mut logits.values.values_mut()[start..start + width];
            for (token, logit) in (0..).zip(row) {
                if !allows(mask, token) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    fn choose(&mut self, logits: &mut Tensor, first: usize, inputs: &mut Inputs) {
        let (mut space, vocab, count) = (Vec::new(), self.vocab, logits.values.rows());
        let owners = Owners {
            widths: &[vocab],
            rows: &[Range {
                start: 0,
                end: count,
            }],
        };
        let (device, logits) = (self.count("choose"), logits.of(&[Holds::Logits]));
        let rows = device
            .gather_to_host(Axis::Alone, logits, owners, &mut space)
            .unwrap();
        for (row, logits) in (first..).zip(rows.chunks_exact(vocab)) {
            if !inputs.choices().is_hosts_row(row) {
                let ChoiceRow { request, depth } = inputs.rows[row];
                let choice = inputs.choices[request as usize];
                let position = choice.position + u64::from(depth);
                inputs.chosen[row] = chosen(logits, &Choice { position, ..choice });
            }
        }
    }

    fn gather(
        &mut self,
        _: Axis,
        _: &Tensor,
        _: Owners<'_>,
        _: Option<(&mut Tensor, &mut Tensor)>,
    ) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("it chooses alone".into()))
    }

    fn accept(&mut self, inputs: &mut Inputs, caches: &mut [KvCache]) {
        let mut moves = Vec::new();
        inputs.words.clear();
        for request in 0..inputs.choices.len() {
            let (tokens, path) = match inputs.choices().is_hosts(request) {
                true => (vec![], vec![]),
                false => inputs.walk(request),
            };
            let mut words = vec![0; 2 * inputs.most];
            words[0] = tokens.len() as u32;
            words[1..][..tokens.len()].copy_from_slice(&tokens);
            words[1 + inputs.most..][..path.len()].copy_from_slice(&path);
            inputs.words.extend(words);
            let token = |node: u32| (inputs.drafted[request].token + node) as usize;
            let moved = (1..).zip(&path).filter(|(to, from)| to != *from);
            moves.extend(moved.map(|(to, from)| (token(*from), token(to))));
        }
        let device = self.count("accept");
        let tokens = (inputs.cells.len() / caches.len()).max(1);
        for (cache, cells) in caches.iter_mut().zip(inputs.cells.chunks(tokens)) {
            let moves = moves.iter().map(|(from, to)| (cells[*from], cells[*to]));
            device.copy_cells(cache, &moves.collect::<Vec<_>>());
        }
    }

    fn outcomes<'a>(&mut self, inputs: &'a mut Inputs) -> Result<Chosen<'a>, BackendError> {
        self.count("outcomes");
        let words = &inputs.words;
        Ok(Chosen {
            words,
            drafted: &[],
            parents: &[],
        })
    }
}

impl Inputs {
    /// Returns the tokens of a request, and the accepted nodes that lead to them.
    fn walk(&self, request: usize) -> (Vec<u32>, Vec<u32>) {
        let DraftedRow {
            logits,
            token,
            nodes,
            parents,
        } = self.drafted[request];
        let parent = |node: u32| match parents {
            Some(first) => self.parents[(first + node - 1) as usize],
            None => node - 1,
        };
        let (mut tokens, mut path, mut node) = (vec![], vec![], 0);
        loop {
            let chosen = self.chosen[(logits + node) as usize];
            if chosen == FAILED {
                path.pop();
                return (
                    if tokens.is_empty() {
                        vec![FAILED]
                    } else {
                        tokens
                    },
                    path,
                );
            }
            tokens.push(chosen);
            let drafted = |child: &u32| {
                parent(*child) == node && self.tokens[(token + child) as usize] == chosen
            };
            let Some(child) = (1..=nodes).find(drafted) else {
                return (tokens, path);
            };
            node = child;
            path.push(node);
        }
    }
}

/// Returns the token of a row. Returns a token of no vocabulary if the host has to choose.
fn chosen(logits: &[f32], choice: &Choice) -> u32 {
    let plain = SamplingParams {
        seed: choice.seed,
        ..SamplingParams::greedy()
    };
    let params = match choice.how {
        ChoiceMethod::Host => return u32::MAX - 1,
        ChoiceMethod::Greedy => plain,
        ChoiceMethod::Sample {
            temperature,
            top_k,
            top_p,
            min_p,
        } => SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            ..plain
        },
    };
    let request = lockstep_sampling::Request {
        params: &params,
        history: &TokenHistory::default(),
        position: choice.position,
        allowed: None,
    };
    let mut sampler = Sampler::new(logits.len());
    sampler.sample(logits, request).unwrap_or(FAILED)
}
