//! Drives a transformer over several ranks as threads.

use std::{sync::Arc, thread};

use lockstep_backend::{Axis, Backend};
use lockstep_collective::{Collective, local_group};
use lockstep_model::{ForwardLimits, LoadOptions, Transformer};
use lockstep_types::{KvCacheDtype, ModelConfig, StateLimits};

use crate::groups::add_groups;
use crate::pass::Pass;

/// Makes a rank's backend from its collectives.
pub type Factory<B> = Arc<dyn Fn(Box<dyn Collective>) -> B + Send + Sync>;

/// Way to feed texts.
#[derive(Debug, Clone, Copy)]
pub struct Feed {
    pub tp_size: usize,
    /// Groups of ranks that experts are split over by number.
    pub ep_size: usize,
    pub page_size: usize,
    /// Most new tokens of one text per pass.
    pub chunk: usize,
    /// True if all texts run in the same passes; false if they run one after the other.
    pub together: bool,
    pub kv_dtype: KvCacheDtype,
    /// Number of first pages of the first text that the other texts take for their own. All
    /// texts must begin alike. The others have no logits of these pages.
    pub shared: usize,
}

impl Feed {
    /// Feed of whole texts, one at a time, on one rank.
    pub fn plain(kv_dtype: KvCacheDtype) -> Self {
        Self {
            tp_size: 1,
            ep_size: 1,
            page_size: 16,
            chunk: usize::MAX,
            together: false,
            kv_dtype,
            shared: 0,
        }
    }
}

/// Returns the logits of every position of every text, `[text][position][vocab]`.
pub fn logits<B: Backend + 'static>(
    model: &ModelConfig,
    factory: &Factory<B>,
    feed: Feed,
    texts: &[Vec<u32>],
) -> Vec<Vec<Vec<f32>>> {
    let ranks = local_group(feed.tp_size).into_iter().map(|collective| {
        let (model, factory, texts) = (model.clone(), factory.clone(), texts.to_vec());
        thread::spawn(move || rank(&model, factory(Box::new(collective)), feed, &texts))
    });
    let ranks: Vec<_> = ranks.collect();
    let mut results = ranks.into_iter().map(|rank| rank.join().unwrap());
    results.next().unwrap()
}

/// Returns a state for each text, which is never verified.
pub fn of_texts(texts: usize) -> StateLimits {
    StateLimits {
        states: texts,
        records: texts,
        nodes: 1,
    }
}

fn rank<B: Backend>(
    model: &ModelConfig,
    mut backend: B,
    feed: Feed,
    texts: &[Vec<u32>],
) -> Vec<Vec<Vec<f32>>> {
    let longest = texts.iter().map(Vec::len).max().unwrap();
    let groups = model.kv_groups().len();
    let limits = ForwardLimits {
        max_tokens: texts.iter().map(Vec::len).sum(),
        requests: texts.len(),
        positions: longest,
        groups,
        page_size: feed.page_size,
        tree_nodes: 1,
        replays: usize::from(model.has_states()),
        // Odd and small, so that blocks end inside of texts.
        logit_block_rows: 13,
        max_commit: 0,
    };
    let mut transformer = Transformer::load(
        &mut backend,
        model,
        LoadOptions {
            ep_size: feed.ep_size,
            ..LoadOptions::new(Axis::World, limits)
        },
        &mut |_| {},
    )
    .unwrap();
    let pages_each = longest.div_ceil(feed.page_size);
    let pages = texts.len() * pages_each;
    let mut cache = transformer
        .kv_cache(&mut backend, pages, feed.page_size, feed.kv_dtype)
        .unwrap();
    let states = of_texts(texts.len());
    transformer
        .allocate_states(&mut backend, &mut cache, states)
        .unwrap();
    let mut all: Vec<Vec<Vec<f32>>> = vec![Vec::new(); texts.len()];
    let mut done = vec![feed.shared * feed.page_size; texts.len()];
    done[0] = 0;
    loop {
        let waiting = (0..texts.len()).filter(|text| done[*text] < texts[*text].len());
        let take = if feed.together { usize::MAX } else { 1 };
        let turn: Vec<usize> = waiting.take(take).collect();
        if turn.is_empty() {
            return all;
        }
        let (mut pass, mut owners) = (Pass::default(), Vec::new());
        for text in turn {
            let from = done[text];
            done[text] = texts[text].len().min(from.saturating_add(feed.chunk));
            // Pages of all texts interleaved, in falling order.
            let owner = |n: usize| if n < feed.shared { 0 } else { text };
            let page = |n: usize| (pages - 1 - (n * texts.len() + owner(n))) as u32;
            pass.push(&texts[text], from..done[text], feed.page_size, page);
            if model.has_states() {
                pass.commit(text);
            }
            owners.resize(pass.tokens.len(), text);
        }
        add_groups(&mut pass, groups, feed.page_size, pages);
        let wanted: Vec<u32> = (0..pass.tokens.len() as u32).collect();
        let batch = pass.batch(&wanted);
        let mut next = 0;
        let mut sink = |block: lockstep_model::LogitBlock<'_>| {
            assert_eq!(block.first, next);
            for row in block.logits.chunks_exact(block.vocab) {
                all[owners[next]].push(row.to_vec());
                next += 1;
            }
        };
        transformer
            .forward(&mut backend, &mut cache, &batch, None, &mut sink)
            .unwrap();
    }
}
