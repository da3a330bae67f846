//! A drafter and its device, of which a test says what the target's passes brought.

use std::path::{Path, PathBuf};

use lockstep_backend::{Holds, Memory as _};
use lockstep_backend_cpu::{CpuBackend, CpuOptions, CpuTensor};
use lockstep_collective::{Collective, Single};
use lockstep_model::{FileAccess, ForwardLimits, WholeTables};
use lockstep_speculation::{
    Build, Device, DraftRow, Drafter, DrafterRegistry, Drafts, ExtendRow, Node, PageTable,
    Requests, WithModel,
};
use lockstep_types::sampling::SamplingParams;
use lockstep_types::{Algorithm, Dtype, KvCacheDtype, ModelConfig};
use lockstep_types::{SpeculationConfig, Verification};

/// Slots, tokens of a page, and pages of a slot.
pub const SLOTS: usize = 2;
pub const PAGE_SIZE: usize = 16;
const PAGES: usize = 16;
/// Tokens of a pass.
pub const MOST: usize = 64;
/// Draft steps.
pub const STEPS: usize = 3;

/// Texts by slot; a prompt has no end here.
#[derive(Default)]
pub struct Texts {
    pub tokens: [Vec<u32>; SLOTS],
    params: SamplingParams,
}

impl Requests for Texts {
    fn tokens(&self, slot: usize) -> &[u32] {
        &self.tokens[slot]
    }
    fn prompt_len(&self, _: usize) -> usize {
        0
    }
    fn sampling(&self, _: usize) -> &SamplingParams {
        &self.params
    }
}

/// Positions of a slot that a step of the target brought.
#[derive(Clone, Copy)]
pub struct Brought {
    pub slot: usize,
    pub start: usize,
    pub end: usize,
    /// The last known token is behind them.
    pub ends: bool,
}

pub struct World {
    backend: CpuBackend,
    tables: WholeTables<CpuBackend>,
    target: ModelConfig,
    speculation: SpeculationConfig,
    features: Option<CpuTensor>,
    pages: Vec<u32>,
    /// The one that is tested, and one that sees each text anew.
    drafters: [Box<dyn Drafter<CpuBackend>>; 2],
}

fn model(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = here.ancestors();
    let root = above.find(|folder| folder.join("models").is_dir());
    root.expect("the models are above this crate")
        .join("models")
        .join(name)
}

fn limits() -> ForwardLimits {
    ForwardLimits {
        max_tokens: MOST,
        requests: SLOTS,
        positions: PAGES * PAGE_SIZE,
        groups: 1,
        page_size: PAGE_SIZE,
        tree_nodes: MOST,
        replays: 0,
        logit_block_rows: MOST,
        max_commit: 0,
    }
}

impl World {
    pub fn new(algorithm: WithModel, draft: &str, topk: usize, pause_window: usize) -> Self {
        let target = lockstep_model_folder::load(&model("lockstep-demo-7m")).expect("the target");
        let draft = algorithm.load_draft(Some(&model(draft)), &target);
        let tokens = 1 + STEPS * topk;
        let speculation = SpeculationConfig {
            algorithm: Some(algorithm.name().to_owned()),
            draft: draft.expect("the draft"),
            draft_kv: algorithm.capabilities().draft_kv,
            num_steps: STEPS,
            topk,
            num_draft_tokens: tokens,
            verification: Verification::Target,
            max_speculative_num_draft_tokens: tokens,
            pause_window,
            ..SpeculationConfig::none()
        };
        let group: Box<dyn Collective> = Box::new(Single::new());
        let options = CpuOptions {
            threads: 1,
            dtype: Dtype::Float32,
            pin: None,
            isa: None,
        };
        let mut backend = CpuBackend::new(options, group).expect("a processor");
        let files = FileAccess::Mapped;
        let tables = WholeTables::load(&mut backend, &target, true, files, &mut |_| {});
        let registry = DrafterRegistry::builtin();
        let mut build = || {
            let build = Build {
                backend: &mut backend,
                speculation: &speculation,
                target: &target,
                requests: SLOTS,
                limits: limits(),
                pages: 1 + SLOTS * PAGES,
                page_size: PAGE_SIZE,
                kv_dtype: KvCacheDtype::Float32,
                files,
                progress: &mut |_| {},
            };
            let drafter = registry.build(build).expect("a drafter");
            drafter.expect("it is configured")
        };
        let drafters = [build(), build()];
        let width = drafters[0].capture().width(target.hidden_size);
        let features = (width > 0).then(|| backend.tensor(MOST, width, Holds::Operand));
        Self {
            tables: tables.expect("the target's tables"),
            features: features.transpose().expect("memory"),
            backend,
            target,
            speculation,
            pages: (1..=(SLOTS * PAGES) as u32).collect(),
            drafters,
        }
    }

    pub fn vocab(&self) -> usize {
        self.target.vocab_size
    }

    pub fn pause_window(&self) -> usize {
        self.speculation.pause_window
    }

    /// Positions that the drafter may have missed and still takes in.
    pub fn reach(&self) -> usize {
        match self.has_head() {
            true => self.speculation.kept_positions(),
            false => self.speculation.pause_window,
        }
    }

    /// Returns true if a head drafts. Heads read features.
    pub fn has_head(&self) -> bool {
        self.features.is_some()
    }

    pub fn drafter(&mut self, which: usize) -> &mut dyn Drafter<CpuBackend> {
        &mut *self.drafters[which]
    }

    /// Drafts with one of the drafters for the slots of `asked`, in their order.
    pub fn draft(&mut self, which: usize, texts: &Texts, asked: &[(usize, usize)]) -> Drafted {
        let row = |(slot, steps): &(usize, usize)| DraftRow {
            slot: *slot,
            pages_start: (*slot * PAGES) as u32,
            kv_len: texts.tokens[*slot].len() - 1,
            steps: *steps,
            topk: self.speculation.topk,
            most: self.speculation.num_draft_tokens - 1,
            room: 2 * self.speculation.num_draft_tokens,
            may_stop: false,
        };
        let rows: Vec<DraftRow> = asked.iter().map(row).collect();
        let mut drafts = Drafts::new(SLOTS, self.speculation.num_draft_tokens - 1, 0);
        drafts.begin(rows.len());
        let (drafter, mut device) = self.device(which, texts, &[]);
        let drafted = drafter.draft(&mut device, &rows, &mut drafts);
        drafted.expect("drafts");
        (0..rows.len())
            .map(|row| drafts.nodes(row).to_vec())
            .collect()
    }

    /// Tells one of the drafters what a step of the target brought, which drafts again or not.
    pub fn bring(&mut self, which: usize, texts: &Texts, brought: &[Brought], pauses: bool) {
        self.compute(texts, brought);
        let (mut rows, mut from) = (Vec::new(), 0);
        for one in brought {
            let features = from..from + one.end - one.start;
            from = features.end;
            rows.push(ExtendRow {
                slot: one.slot,
                pages_start: (one.slot * PAGES) as u32,
                start: one.start,
                features,
                ends: one.ends,
            });
        }
        let numbers: Vec<u32> = (0..from as u32).collect();
        let (drafter, mut device) = self.device(which, texts, &numbers);
        let told = match pauses {
            true => drafter.pause(&mut device, &rows),
            false => drafter.extend(&mut device, &rows),
        };
        told.expect("it takes them in");
    }

    /// Features of positions, each by its tokens alone.
    fn compute(&mut self, texts: &Texts, brought: &[Brought]) {
        let Some(features) = &mut self.features else {
            return;
        };
        let positions = brought
            .iter()
            .flat_map(|one| (one.start..one.end).map(|at| (at as u32, texts.tokens[one.slot][at])));
        let positions: Vec<(u32, u32)> = positions.collect();
        self.backend.set_rows(features, positions.len());
        let width = features.width();
        let rows = features.values_mut().chunks_exact_mut(width);
        for (row, (at, token)) in rows.zip(positions) {
            let mut state = at.wrapping_mul(40_503) ^ token.wrapping_mul(0x9e37_79b9) | 1;
            for value in row {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *value = (state >> 16) as f32 / 32_768.0 - 1.0;
            }
        }
    }

    fn device<'a>(
        &'a mut self,
        which: usize,
        texts: &'a Texts,
        feature_rows: &'a [u32],
    ) -> (&'a mut dyn Drafter<CpuBackend>, Device<'a, CpuBackend>) {
        let device = Device {
            backend: &mut self.backend,
            tables: self.tables.tables(),
            features: self.features.as_ref(),
            feature_rows,
            pages: PageTable {
                entries: &self.pages,
                page_size: PAGE_SIZE as u32,
            },
            requests: texts,
        };
        (&mut *self.drafters[which], device)
    }
}

/// Nodes of each row.
pub type Drafted = Vec<Vec<Node>>;
