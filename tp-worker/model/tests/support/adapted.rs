//! Drives a transformer with adapters over ranks as threads.

use std::path::PathBuf;

use lockstep_backend::{Axis, Backend, Batch, WorldRows};
use lockstep_model::{ForwardLimits, LoadOptions, LogitBlock, Topology, Transformer};
use lockstep_types::{AdapterLimits, KvCacheDtype, ModelConfig};

use crate::driver::{commit, of_texts};
use crate::groups::add_groups;
use crate::pass::Pass;
use crate::ranks::{WorldFactory, on_ranks};

/// Logits `[text][position][vocab]`; positions that were not wanted are missing.
pub type Logits = Vec<Vec<Vec<f32>>>;

/// Texts with adapters, and the way to feed them.
#[derive(Debug, Clone)]
pub struct Run {
    pub model: ModelConfig,
    /// Number of ranks, and of DP ranks among them.
    pub split: (usize, usize),
    /// Folders of the adapters, in the order of their places.
    pub adapters: Vec<PathBuf>,
    pub limits: AdapterLimits,
    pub kv_dtype: KvCacheDtype,
    pub page_size: usize,
    /// Most new tokens of one text per pass.
    pub chunk: usize,
    pub texts: Vec<Text>,
}

/// A text and the place of its adapter.
#[derive(Debug, Clone)]
pub struct Text {
    pub ids: Vec<u32>,
    pub adapter: Option<u16>,
    /// Pass in which it begins.
    pub start: usize,
    /// Distance between wanted positions. The last one is always wanted.
    pub every: usize,
}

impl Text {
    /// A text that begins at once and wants all logits.
    pub fn new(ids: &[u32], adapter: Option<u16>) -> Self {
        Self {
            ids: ids.to_vec(),
            adapter,
            start: 0,
            every: 1,
        }
    }
}

impl Run {
    /// Whole texts in one pass, on one rank.
    pub fn new(model: &ModelConfig, adapters: &[PathBuf], texts: Vec<Text>) -> Self {
        Self {
            model: model.clone(),
            split: (1, 1),
            adapters: adapters.to_vec(),
            limits: AdapterLimits { places: 3, rank: 8 },
            kv_dtype: KvCacheDtype::Float32,
            page_size: 16,
            chunk: usize::MAX,
            texts,
        }
    }

    /// Returns the run with one of its texts alone.
    pub fn alone(&self, text: usize) -> Self {
        Self {
            texts: vec![self.texts[text].clone()],
            ..self.clone()
        }
    }

    fn forward_limits(&self) -> ForwardLimits {
        let lengths = self.texts.iter().map(|text| text.ids.len());
        ForwardLimits {
            max_tokens: lengths.clone().sum(),
            requests: self.texts.len(),
            positions: lengths.max().unwrap(),
            groups: self.model.kv_groups().len(),
            page_size: self.page_size,
            tree_nodes: 1,
            replays: usize::from(self.model.has_states()),
            // Odd and small, so that blocks end inside of texts.
            logit_block_rows: 13,
            max_commit: 0,
        }
    }

    /// Loads the model with its adapters on one rank.
    pub fn load<B: Backend>(&self, backend: &mut B) -> Transformer<B> {
        let options = LoadOptions {
            adapters: self.limits,
            ..LoadOptions::new(Axis::World, self.forward_limits())
        };
        let mut loaded = Transformer::load(backend, &self.model, options, &mut |_| {}).unwrap();
        let reader = loaded.adapter_reader();
        for (place, folder) in (0..).zip(&self.adapters) {
            let read = reader.read(folder).unwrap();
            loaded.place_adapter(backend, place, &read).unwrap();
        }
        loaded
    }
}

/// Returns the wanted logits, from the leads.
pub fn logits<B: Backend + 'static>(factory: &WorldFactory<B>, run: &Run) -> Logits {
    let (tp_size, dp_size) = run.split;
    let own = run.clone();
    let ranks = on_ranks(factory, tp_size, dp_size, move |mut backend, at| {
        let mut model = own.load(&mut backend);
        feed(&own, &mut backend, &mut model, at)
    });
    let mut found: Logits = vec![Vec::new(); run.texts.len()];
    // Rows of one text come from one rank, in order.
    for (text, row) in ranks.into_iter().flatten() {
        found[text].push(row);
    }
    found
}

/// Feeds all texts on one rank, and returns the logits that it gets, each with its text.
pub fn feed<B: Backend>(
    run: &Run,
    backend: &mut B,
    model: &mut Transformer<B>,
    at: Topology,
) -> Vec<(usize, Vec<f32>)> {
    let (texts, dp_size) = (&run.texts, run.split.1);
    let longest = texts.iter().map(|text| text.ids.len()).max().unwrap();
    let pages = texts.len() * longest.div_ceil(run.page_size);
    let mut cache = model
        .kv_cache(backend, pages, run.page_size, run.kv_dtype)
        .unwrap();
    let states = of_texts(texts.len());
    model.allocate_states(backend, &mut cache, states).unwrap();
    let (stateful, groups) = (model.model().has_states(), model.model().kv_groups().len());
    let (mut done, mut found) = (vec![0; texts.len()], Vec::new());
    for number in 0.. {
        if done
            .iter()
            .zip(texts)
            .all(|(done, text)| *done == text.ids.len())
        {
            break;
        }
        let mut rows = WorldRows {
            tokens: vec![0; dp_size],
            wanted: vec![0; dp_size],
        };
        let (mut pass, mut wanted, mut owners) = (Pass::default(), Vec::new(), Vec::new());
        let mut adapters = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let from = done[index];
            let left = text.ids.len() - from;
            let count = if text.start <= number {
                left.min(run.chunk)
            } else {
                0
            };
            done[index] += count;
            let wants = |at: &usize| at.is_multiple_of(text.every) || at + 1 == text.ids.len();
            let picks: Vec<_> = (from..from + count).filter(wants).collect();
            let dp_rank = index % dp_size;
            rows.tokens[dp_rank] += count;
            rows.wanted[dp_rank] += picks.len();
            if dp_rank != at.dp_rank() || count == 0 {
                continue;
            }
            let first = pass.tokens.len();
            wanted.extend(picks.iter().map(|at| (first + at - from) as u32));
            owners.resize(owners.len() + picks.len(), index);
            let page = |page: usize| (pages - 1 - (page * texts.len() + index)) as u32;
            pass.push(&text.ids, from..from + count, run.page_size, page);
            adapters.push(text.adapter);
            if stateful {
                commit(&mut pass, index);
            }
        }
        add_groups(&mut pass, groups, run.page_size, pages);
        let batch = Batch {
            adapters: &adapters,
            ..pass.batch(&wanted)
        };
        let mut sink = |block: LogitBlock<'_>| {
            let rows = block.logits.chunks_exact(block.vocab);
            for (row, owner) in rows.zip(&owners[block.first..]) {
                found.push((*owner, row.to_vec()));
            }
        };
        let world = (dp_size > 1).then_some(&rows);
        model
            .forward(backend, &mut cache, &batch, world, &mut sink)
            .unwrap();
    }
    found
}
