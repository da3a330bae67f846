use std::collections::BTreeMap;

use lockstep_backend::{
    Backend, CheckpointDtype, HostBlock, HostFloats, HostMatrix, Memory as _, WeightFormat,
};
use lockstep_backend_cpu::{CpuBackend, CpuMatrix, CpuOptions};
use lockstep_collective::{Collective, Single};
use lockstep_model::Tables;
use lockstep_types::Dtype;
use lockstep_types::sampling::SamplingParams;

use super::*;
use crate::{Node, PageTable, Requests, TreeGrower, TreeShape, depth};

const VOCAB: usize = 12;
const PAGES: usize = 4;
const PAGE_SIZE: u32 = 8;

/// Logits that depend on the slot and on the path behind its text alone. It notes what every
/// cell of each layer holds, and checks that a token finds the path before it: by whose state it
/// follows and which layer made that, by its position, and where keys and values lie.
#[derive(Default)]
struct Model {
    first_cell: usize,
    /// Number of the last layer of those that draft in turn.
    last: usize,
    level: usize,
    logits: Vec<f32>,
    /// The state that each token of the last pass has read.
    inputs: Vec<State>,
    outputs: Vec<State>,
    /// Path in each cell of each layer.
    cells: BTreeMap<(usize, u32), Vec<u32>>,
    /// All logits are equal.
    flat: bool,
}

/// Output of a layer for a path of a slot.
#[derive(Clone)]
struct State {
    layer: usize,
    slot: usize,
    path: Vec<u32>,
}

impl Model {
    fn logits_of(&self, slot: usize, path: &[u32]) -> Vec<f32> {
        let mut state = path.iter().fold(slot as u64 + 1, |hash, token| {
            (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        let mut draw = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % 97
        };
        let logit = |_| if self.flat { 0.0 } else { draw() as f32 * 0.05 };
        (0..VOCAB).map(logit).collect()
    }
}

impl<B: Backend> Proposer<B> for Model {
    fn vocab(&self) -> usize {
        VOCAB
    }
    fn ids(&self) -> Option<&[u32]> {
        None
    }
    fn first_cell(&self) -> usize {
        self.first_cell
    }
    fn layers(&self) -> usize {
        self.last + 1
    }
    fn first(&mut self, _: &mut Device<'_, B>, rows: &[DraftRow]) -> Result<(), DraftError> {
        self.level = 0;
        let logits = rows.iter().flat_map(|row| self.logits_of(row.slot, &[]));
        self.logits = logits.collect();
        Ok(())
    }
    fn next(
        &mut self,
        device: &mut Device<'_, B>,
        pass: &Pass,
        sources: &[HiddenSource],
    ) -> Result<(), DraftError> {
        let batch = pass.batch(device.pages);
        assert_eq!(sources.len(), batch.tokens.len());
        self.level += 1;
        let layer = self.level.min(self.last);
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for row in batch.rows {
            let slot = row.pages_start as usize / PAGES;
            let base = 3 + slot + self.first_cell;
            for at in row.start..row.start + row.q_len {
                let token = at as usize;
                let input = match sources[token] {
                    HiddenSource::Root(slot) => State {
                        layer: (self.level - 1).min(self.last),
                        slot: slot as usize,
                        path: Vec::new(),
                    },
                    HiddenSource::Output(output) => self.outputs[output as usize].clone(),
                    HiddenSource::Input(input) => self.inputs[input as usize].clone(),
                };
                inputs.push(input.clone());
                let mut path = input.path;
                assert_eq!(input.slot, slot, "it follows its own request");
                // The layer before reads on to the level of this one, and this one to its own end.
                let before = if path.len() < layer { layer - 1 } else { layer };
                assert_eq!(input.layer, before, "level {} of {path:?}", self.level);
                let position = base + path.len();
                assert_eq!(batch.positions[token] as usize, position);
                if row.mask.is_none() {
                    // A chain has its tokens behind each other.
                    let cell = |at: usize| device.pages.cell(row.pages_start, (base + at) as u32);
                    assert_eq!(batch.cells[token], cell(path.len()));
                    for at in 0..path.len() {
                        assert_eq!(self.cells[&(layer, cell(at))], path[..=at]);
                    }
                }
                path.push(batch.tokens[token]);
                let cell = (layer, batch.cells[token]);
                self.cells.insert(cell, path.clone());
                outputs.push(State { layer, slot, path });
            }
        }
        let mut cells: Vec<u32> = batch.cells.to_vec();
        cells.sort_unstable();
        assert!(
            cells.windows(2).all(|pair| pair[0] < pair[1]),
            "each has one"
        );
        let wanted = batch.logit_tokens.iter().flat_map(|at| {
            let State { slot, path, .. } = &outputs[*at as usize];
            self.logits_of(*slot, path)
        });
        self.logits = wanted.collect();
        (self.inputs, self.outputs) = (inputs, outputs);
        Ok(())
    }
    fn logits(&self) -> &[f32] {
        &self.logits
    }
}

/// Texts of no interest.
struct Texts(SamplingParams);

impl Requests for Texts {
    fn tokens(&self, _: usize) -> &[u32] {
        &[0]
    }
    fn prompt_len(&self, _: usize) -> usize {
        1
    }
    fn sampling(&self, _: usize) -> &SamplingParams {
        &self.0
    }
}

/// A row of slot `slot`, which stands at 3 and its number.
fn row(slot: usize, steps: usize, topk: usize, most: usize) -> DraftRow {
    DraftRow {
        slot,
        pages_start: (slot * PAGES) as u32,
        kv_len: 3 + slot,
        steps,
        topk,
        most,
        room: 20,
        may_stop: false,
    }
}

fn draft(model: &mut Model, rows: &[DraftRow], temperature: f32) -> Drafts {
    let group: Box<dyn Collective> = Box::new(Single::new());
    let options = CpuOptions {
        threads: 1,
        dtype: Dtype::Float32,
        pin: None,
        isa: None,
    };
    let mut backend = CpuBackend::new(options, group).expect("a processor");
    let table: CpuMatrix = nothing(&mut backend);
    let params = SamplingParams {
        temperature,
        ..SamplingParams::default()
    };
    let entries: Vec<u32> = (1..=16).rev().collect();
    let mut device = Device {
        backend: &mut backend,
        tables: Tables {
            embedding: &table,
            head: &table,
        },
        features: None,
        feature_rows: &[],
        pages: PageTable {
            entries: &entries,
            page_size: PAGE_SIZE,
        },
        requests: &Texts(params),
    };
    let sampled = temperature > 0.0;
    let mut growth = Growth::new(4, 64, Chooser::new(VOCAB, sampled));
    let mut drafts = Drafts::new(rows.len(), 9, if sampled { VOCAB } else { 0 });
    // What a step leaves behind is nothing to the next.
    for _ in 0..2 {
        drafts.begin(rows.len());
        let done = growth.draft(model, &mut device, rows, &mut drafts);
        done.expect("drafts");
    }
    drafts
}

/// A table that nobody reads.
fn nothing(backend: &mut CpuBackend) -> CpuMatrix {
    let matrix = HostMatrix::Floats(HostFloats {
        cols: 1,
        dtype: CheckpointDtype::F32,
        blocks: vec![HostBlock {
            bytes: &[0; 4],
            offset: 0,
            stride: 4,
            rows: 1,
        }],
    });
    let loaded = backend.load_matrix(&matrix, WeightFormat::Float);
    loaded.expect("there is memory")
}

/// The likeliest token after each.
fn chain(model: &Model, slot: usize, depth: usize) -> Vec<Node> {
    let mut path = Vec::new();
    for _ in 0..depth {
        let logits = model.logits_of(slot, &path);
        let likelier = |a: &usize, b: &usize| logits[*a].total_cmp(&logits[*b]);
        let best = (0..VOCAB).rev().max_by(likelier).unwrap_or(0);
        path.push(best as u32);
    }
    let nodes = path.into_iter().zip(0..);
    nodes
        .map(|(token, parent)| Node { token, parent })
        .collect()
}

/// The tree that a grower makes of the same logits by itself.
fn tree(model: &Model, row: &DraftRow) -> Vec<Node> {
    let mut grower = TreeGrower::default();
    grower.begin(TreeShape::fit(row, model.first_cell));
    grower.level(&model.logits_of(row.slot, &[]), &|token| token);
    while !grower.frontier().is_empty() {
        let nodes = grower.expanded();
        let path = |mut at: usize| {
            let mut path = vec![nodes[at].token];
            while let Some(parent) = nodes[at].parent.checked_sub(1) {
                at = parent as usize;
                path.insert(0, nodes[at].token);
            }
            path
        };
        let first = nodes.len() - grower.frontier().len();
        let logits = (first..nodes.len()).flat_map(|at| model.logits_of(row.slot, &path(at)));
        let logits: Vec<f32> = logits.collect();
        grower.level(&logits, &|token| token);
    }
    let mut drafts = Drafts::new(1, row.most, 0);
    drafts.begin(1);
    grower.finish(&mut drafts, 0);
    drafts.nodes(0).to_vec()
}

#[test]
fn each_row_gets_the_chain_behind_its_own_text() {
    for (first_cell, last) in [(0, 0), (1, 0), (0, 1), (0, 2), (0, 5)] {
        let mut model = Model {
            first_cell,
            last,
            ..Model::default()
        };
        let rows = [(2, 3, 5), (0, 0, 5), (3, 5, 2), (1, 5, 9)];
        let rows = rows.map(|(slot, steps, most)| row(slot, steps, 1, most));
        let drafts = draft(&mut model, &rows, 0.0);
        for (at, row) in rows.iter().enumerate() {
            let expected = chain(&model, row.slot, row.steps.min(row.most));
            assert_eq!(drafts.nodes(at), expected, "{row:?}");
        }
    }
}

#[test]
fn each_row_gets_the_tree_behind_its_own_text() {
    for (first_cell, last) in [(0, 0), (1, 0), (0, 1), (0, 2), (0, 5)] {
        let mut model = Model {
            first_cell,
            last,
            ..Model::default()
        };
        let rows = [(2, 3, 3, 9), (0, 0, 2, 5), (3, 2, 2, 4), (1, 4, 1, 4)];
        let rows = rows.map(|(slot, steps, topk, most)| row(slot, steps, topk, most));
        let drafts = draft(&mut model, &rows, 0.0);
        for (at, row) in rows.iter().enumerate() {
            assert_eq!(drafts.nodes(at), tree(&model, row), "{row:?}");
        }
    }
}

/// All of twelve tokens are as likely. What stops by what was drawn would be of another law.
#[test]
fn only_who_may_stops_before_the_depth_and_nobody_who_draws() {
    for (may_stop, temperature, expected) in [
        (true, 0.0, 3),
        (false, 0.0, 6),
        (true, 1.0, 6),
        (false, 1.0, 6),
    ] {
        let mut model = Model {
            flat: true,
            ..Model::default()
        };
        let asked = DraftRow {
            may_stop,
            ..row(1, 6, 1, 6)
        };
        let drafts = draft(&mut model, &[row(0, 2, 1, 2), asked], temperature);
        assert_eq!(depth(drafts.nodes(1)), expected, "{may_stop} {temperature}");
        assert_eq!(drafts.is_sampled(1), temperature > 0.0);
    }
}
