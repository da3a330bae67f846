//! A text through a target and the EAGLE head behind it.

use lockstep_backend::{Axis, Backend, RowState};
use lockstep_model::{
    EagleHead, FileAccess, ForwardLimits, HiddenSource, LoadOptions, ModelCache, ModelError,
    Transformer, WholeTables,
};
use lockstep_types::{DraftModel, KvCacheDtype, ModelConfig, StateLimits};

use crate::{groups::add_groups, pass::Pass};

/// Way to feed texts.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub page_size: usize,
    /// Most new tokens per pass.
    pub chunk: usize,
    pub kv_dtype: KvCacheDtype,
    /// Length of the longest text, drafts included.
    pub positions: usize,
}

/// One rank: its part of the target and, on rank 0, the head.
pub struct Rig<B: Backend> {
    pub backend: B,
    pub target: Transformer<B>,
    cache: ModelCache<B>,
    /// Number of groups of the target's layers.
    groups: usize,
    /// True if the target has states.
    recurrent: bool,
    pub drafting: Option<Drafting<B>>,
    setup: Setup,
}

/// A head with its tables and its cache.
pub struct Drafting<B: Backend> {
    pub tables: WholeTables<B>,
    pub head: EagleHead<B>,
    cache: ModelCache<B>,
    setup: Setup,
}

/// Number of slots of every head here.
pub const REQUESTS: usize = 3;

impl<B: Backend> Rig<B> {
    pub fn new(mut backend: B, model: &ModelConfig, draft: &DraftModel, setup: Setup) -> Self {
        let limits = ForwardLimits {
            max_tokens: setup.chunk.min(setup.positions).max(8),
            requests: 1,
            positions: setup.positions,
            groups: model.kv_groups().len(),
            page_size: setup.page_size,
            tree_nodes: setup.positions,
            replays: usize::from(model.has_states()),
            // Small, so that some logits are collected.
            logit_block_rows: 3,
            max_commit: 0,
        };
        let silent = &mut |_| {};
        let mut target = Transformer::load(
            &mut backend,
            model,
            LoadOptions::new(Axis::World, limits),
            silent,
        )
        .unwrap();
        let pages = setup.pages();
        let mut cache = target
            .kv_cache(&mut backend, pages, setup.page_size, setup.kv_dtype)
            .unwrap();
        let states = StateLimits {
            states: 1,
            records: 1,
            nodes: 1,
        };
        target
            .allocate_states(&mut backend, &mut cache, states)
            .unwrap();
        // Every rank keeps the states that the head asks for; only rank 0 has a head.
        let own = ForwardLimits {
            groups: 1,
            ..limits
        };
        let head = EagleHead::load(
            &mut backend,
            draft,
            model,
            REQUESTS,
            own,
            FileAccess::Mapped,
            silent,
        )
        .unwrap();
        assert_eq!(head.own_tables(), (draft.own_embedding, draft.own_head));
        let tables = WholeTables::load(
            &mut backend,
            model,
            !draft.own_head,
            FileAccess::Mapped,
            silent,
        )
        .unwrap();
        let drafting = Drafting {
            tables,
            cache: head
                .kv_cache(&mut backend, pages, setup.page_size, setup.kv_dtype)
                .unwrap(),
            setup,
            head,
        };
        let capture = drafting.head.capture();
        let drafting = backend.leads(Axis::Attention).then_some(drafting);
        target.set_capture(&mut backend, capture).unwrap();
        Self {
            backend,
            target,
            cache,
            recurrent: model.has_states(),
            groups: limits.groups,
            drafting,
            setup,
        }
    }

    /// Runs `text` and takes it into the head, as the root of `slot`. Returns the target's
    /// next token on rank 0.
    pub fn prefill(&mut self, text: &[u32], slot: u32) -> Option<u32> {
        self.prefill_with(text, slot, None)
    }

    /// Runs a text without peers, in chunks of no more tokens than there are slots, or of one token
    /// where layers draft in turn. Returns the logits of a first draft at each position.
    pub fn positions(&mut self, text: &[u32]) -> Vec<Vec<f32>> {
        let mut all = Vec::new();
        self.prefill_with(text, 0, Some(&mut all));
        all
    }

    fn prefill_with(
        &mut self,
        text: &[u32],
        slot: u32,
        mut all: Option<&mut Vec<Vec<f32>>>,
    ) -> Option<u32> {
        let mut next = None;
        let setup = self.setup;
        for start in (0..text.len()).step_by(setup.chunk) {
            let range = start..text.len().min(start + setup.chunk);
            let mut pass = Pass::default();
            pass.push(text, range.clone(), setup.page_size, setup.page());
            add_groups(&mut pass, self.groups, setup.page_size, setup.pages());
            if self.recurrent {
                pass.states.push(RowState {
                    fresh: start == 0,
                    commits: true,
                    ..RowState::default()
                });
            }
            let wanted = [range.len() as u32 - 1];
            let wanted = if range.end == text.len() {
                &wanted[..]
            } else {
                &[]
            };
            let (backend, cache) = (&mut self.backend, &mut self.cache);
            self.target
                .forward(backend, cache, &pass.batch(wanted), None, &mut |block| {
                    next = Some(argmax(block.logits));
                })
                .unwrap();
            let Some(drafting) = &mut self.drafting else {
                continue;
            };
            // The token after each position.
            let shifted: Vec<u32> = text[1..].iter().copied().chain(next).collect();
            let mut pass = Pass::default();
            pass.push(&shifted, range.clone(), setup.page_size, setup.page());
            let rows: Vec<u32> = (0..range.len() as u32).collect();
            let features = self.target.features().unwrap();
            drafting
                .head
                .feed_features(backend, features, &rows)
                .unwrap();
            if drafting.head.layers() > 1 {
                let last = [range.len() as u32 - 1];
                let begins = [range.start == 0];
                drafting.take_in_turn(backend, &pass, &last, (&[slot], &begins));
                if let Some(all) = &mut all {
                    all.push(drafting.logits(backend, &[HiddenSource::Root(slot)]));
                }
                continue;
            }
            let Some(all) = &mut all else {
                let slots = &[slot][..wanted.len()];
                drafting.take_in(backend, &pass, wanted, slots).unwrap();
                continue;
            };
            drafting.take_in(backend, &pass, &rows, &rows).unwrap();
            for row in rows {
                all.push(drafting.logits(backend, &[HiddenSource::Root(row)]));
            }
        }
        next
    }

    /// Returns rank 0's backend and head.
    pub fn drafting(&mut self) -> (&mut B, &mut Drafting<B>) {
        (&mut self.backend, self.drafting.as_mut().unwrap())
    }
}

impl<B: Backend> Drafting<B> {
    fn run(&mut self, backend: &mut B, pass: &Pass) {
        self.try_run(backend, pass).unwrap();
    }

    pub fn try_run(&mut self, backend: &mut B, pass: &Pass) -> Result<(), ModelError> {
        let (batch, tables) = (pass.batch(&[]), self.tables.tables());
        self.head.forward(backend, &mut self.cache, tables, &batch)
    }

    /// Takes in tokens whose hidden states were fed, and keeps the outputs of `wanted` as
    /// roots.
    pub fn take_in(
        &mut self,
        backend: &mut B,
        pass: &Pass,
        wanted: &[u32],
        slots: &[u32],
    ) -> Result<(), ModelError> {
        let (batch, tables) = (pass.batch(wanted), self.tables.tables());
        self.head
            .take_in(backend, &mut self.cache, tables, &batch, slots)
    }

    /// Takes a text into layers that draft in turn.
    fn take_in_turn(
        &mut self,
        backend: &mut B,
        pass: &Pass,
        wanted: &[u32],
        rows: (&[u32], &[bool]),
    ) {
        let (batch, tables) = (pass.batch(wanted), self.tables.tables());
        self.head
            .take_in_turn(backend, &mut self.cache, tables, &batch, rows)
            .unwrap();
    }

    /// Runs nodes behind a text of `len` tokens. Each node is `(token, parent)`; without a
    /// parent it is a child of the root of `slot`. The last pass must have run over the nodes
    /// of the levels above. The deepest nodes are of the level of the pass.
    pub fn nodes(
        &mut self,
        backend: &mut B,
        len: usize,
        slot: u32,
        nodes: &[(u32, Option<usize>)],
    ) {
        let mut depths: Vec<usize> = Vec::new();
        let mut masks: Vec<u64> = Vec::new();
        for (node, (_, parent)) in nodes.iter().enumerate() {
            depths.push(parent.map_or(0, |parent| depths[parent] + 1));
            masks.push(parent.map_or(0, |parent| masks[parent]) | 1 << node);
        }
        let level = depths.iter().max().map_or(0, |depth| depth + 1);
        let last = self.head.layers() - 1;
        let source = |(node, (_, parent)): (usize, &(u32, Option<usize>))| match parent {
            // The last layer again: it has read the layer before for these nodes.
            _ if level > last && depths[node] < last => HiddenSource::Input(node as u32),
            Some(parent) => HiddenSource::Output(*parent as u32),
            None => HiddenSource::Root(slot),
        };
        let sources: Vec<_> = nodes.iter().enumerate().map(source).collect();
        let tokens: Vec<u32> = nodes.iter().map(|(token, _)| *token).collect();
        let mut text = vec![0; len];
        text.extend(&tokens);
        let mut pass = Pass::default();
        let setup = self.setup;
        pass.push(&text, len..len + nodes.len(), setup.page_size, setup.page());
        pass.rows[0].mask = Some(0);
        pass.masks = masks;
        for (position, depth) in pass.positions.iter_mut().zip(&depths) {
            *position = (len + depth) as u32;
        }
        self.head.feed_hidden(backend, level, &sources).unwrap();
        self.run(backend, &pass);
    }

    /// Runs the pass over the last of `tokens`, a chain behind a text of `len` tokens, as drafters
    /// do. The last passes must have run over the earlier ones in turn. Returns the output.
    pub fn chain(
        &mut self,
        backend: &mut B,
        len: usize,
        slot: u32,
        tokens: &[u32],
    ) -> HiddenSource {
        let (level, last) = (tokens.len(), self.head.layers() - 1);
        if level <= last {
            let nodes = tokens.iter().enumerate();
            let nodes: Vec<_> = nodes
                .map(|(at, token)| (*token, at.checked_sub(1)))
                .collect();
            self.nodes(backend, len, slot, &nodes);
            return HiddenSource::Output(level as u32 - 1);
        }
        let source = match level {
            1 => HiddenSource::Root(slot),
            _ if level - 1 <= last => HiddenSource::Output(level as u32 - 2),
            _ => HiddenSource::Output(0),
        };
        self.step(backend, level, (len + level - 1, source, tokens[level - 1]));
        HiddenSource::Output(0)
    }

    /// Runs the pass over the next token of a chain of a head with one layer.
    pub fn next(&mut self, backend: &mut B, position: usize, source: HiddenSource, token: u32) {
        self.step(backend, 1, (position, source, token));
    }

    fn step(
        &mut self,
        backend: &mut B,
        level: usize,
        (position, source, token): (usize, HiddenSource, u32),
    ) {
        let mut text = vec![0; position];
        text.push(token);
        let mut pass = Pass::default();
        let setup = self.setup;
        pass.push(&text, position..position + 1, setup.page_size, setup.page());
        self.head.feed_hidden(backend, level, &[source]).unwrap();
        self.run(backend, &pass);
    }

    pub fn logits(&mut self, backend: &mut B, sources: &[HiddenSource]) -> Vec<f32> {
        let tables = self.tables.tables();
        self.head.logits(backend, tables, sources).unwrap().to_vec()
    }
}

impl Setup {
    /// Returns the pages of a text, in falling order.
    fn page(self) -> impl Fn(usize) -> u32 {
        let pages = self.pages();
        move |page| (pages - 1 - page) as u32
    }

    /// Number of pages of the longest text.
    fn pages(self) -> usize {
        self.positions.div_ceil(self.page_size)
    }
}

pub fn argmax(logits: &[f32]) -> u32 {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    logits.iter().position(|l| *l == max).unwrap() as u32
}
