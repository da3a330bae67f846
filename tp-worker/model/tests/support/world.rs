//! Drives a transformer over several DP ranks, whose ranks are threads.

use lockstep_backend::{Axis, Backend, WorldRows};
use lockstep_model::{ForwardLimits, LoadOptions, LogitBlock, Topology, Transformer};
use lockstep_types::{KvCacheDtype, ModelConfig};

use crate::driver::of_texts;
use crate::groups::add_groups;
use crate::pass::Pass;
use crate::ranks::{WorldFactory, on_ranks};

/// Logits of each text and position; `None` if they were not wanted.
pub type Found = Vec<Vec<Option<Vec<f32>>>>;

/// Way to feed texts to several DP ranks.
#[derive(Debug, Clone)]
pub struct WorldFeed {
    pub tp_size: usize,
    pub dp_size: usize,
    /// Groups of ranks that experts are split over by number.
    pub ep_size: usize,
    pub page_size: usize,
    pub kv_dtype: KvCacheDtype,
    /// Most new tokens of one text per pass.
    pub chunk: usize,
    /// Place of each text.
    pub texts: Vec<Placed>,
}

/// Place of a text: its DP rank, the pass that it begins with, and the positions whose logits
/// are wanted. These are every `every`-th position, and the last one.
#[derive(Debug, Clone, Copy)]
pub struct Placed {
    pub dp_rank: usize,
    pub start: usize,
    pub every: usize,
}

impl WorldFeed {
    /// Returns how many tokens of every text pass number `pass` takes in, after `done` tokens
    /// of it.
    fn takes(&self, pass: usize, done: &[usize], texts: &[Vec<u32>]) -> Vec<usize> {
        let all = self.texts.iter().zip(done).zip(texts);
        all.map(|((placed, done), text)| match placed.start <= pass {
            true => (text.len() - done).min(self.chunk),
            false => 0,
        })
        .collect()
    }

    /// Returns true if the logits of a position of a text of `len` tokens are wanted.
    fn wants(&self, text: usize, position: usize, len: usize) -> bool {
        position.is_multiple_of(self.texts[text].every) || position + 1 == len
    }
}

/// Returns the wanted logits of every text, from the lead of its DP rank. The other ranks get
/// none.
pub fn logits<B: Backend + 'static>(
    model: &ModelConfig,
    factory: &WorldFactory<B>,
    feed: &WorldFeed,
    texts: &[Vec<u32>],
) -> Found {
    let (model, own, all) = (model.clone(), feed.clone(), texts.to_vec());
    let ranks = on_ranks(factory, feed.tp_size, feed.dp_size, move |backend, at| {
        (at, rank(&model, backend, at, &own, &all))
    });
    let mut found: Found = texts.iter().map(|text| vec![None; text.len()]).collect();
    for (at, rows) in ranks {
        assert!(at.attention.leads() || rows.is_empty());
        for (text, position, row) in rows {
            assert_eq!(feed.texts[text].dp_rank, at.dp_rank());
            assert!(found[text][position].replace(row).is_none());
        }
    }
    for (text, rows) in found.iter().enumerate() {
        for (position, row) in rows.iter().enumerate() {
            assert_eq!(row.is_some(), feed.wants(text, position, rows.len()));
        }
    }
    found
}

fn rank<B: Backend>(
    model: &ModelConfig,
    mut backend: B,
    at: Topology,
    feed: &WorldFeed,
    texts: &[Vec<u32>],
) -> Vec<(usize, usize, Vec<f32>)> {
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
    let options = LoadOptions {
        ep_size: feed.ep_size,
        ..LoadOptions::new(Axis::World, limits)
    };
    let mut model = Transformer::load(&mut backend, model, options, &mut |_| {}).unwrap();
    let pages_each = longest.div_ceil(feed.page_size);
    let pages = texts.len() * pages_each;
    let mut cache = model
        .kv_cache(&mut backend, pages, feed.page_size, feed.kv_dtype)
        .unwrap();
    let states = of_texts(texts.len());
    model
        .allocate_states(&mut backend, &mut cache, states)
        .unwrap();
    let stateful = model.model().has_states();
    let mut done = vec![0; texts.len()];
    let mut found = Vec::new();
    for number in 0.. {
        if done
            .iter()
            .zip(texts)
            .all(|(done, text)| *done == text.len())
        {
            return found;
        }
        let mut rows = WorldRows {
            tokens: vec![0; feed.dp_size],
            wanted: vec![0; feed.dp_size],
        };
        let (mut pass, mut wanted, mut owners) = (Pass::default(), Vec::new(), Vec::new());
        for (text, count) in feed.takes(number, &done, texts).into_iter().enumerate() {
            let range = done[text]..done[text] + count;
            done[text] = range.end;
            let dp_rank = feed.texts[text].dp_rank;
            let picks = range.clone().enumerate();
            let picks: Vec<_> = picks
                .filter(|(_, position)| feed.wants(text, *position, texts[text].len()))
                .collect();
            rows.tokens[dp_rank] += count;
            rows.wanted[dp_rank] += picks.len();
            if dp_rank != at.dp_rank() || count == 0 {
                continue;
            }
            for (place, position) in picks {
                wanted.push((pass.tokens.len() + place) as u32);
                owners.push((text, position));
            }
            let page = |page: usize| (pages - 1 - (page * texts.len() + text)) as u32;
            pass.push(&texts[text], range, feed.page_size, page);
            if stateful {
                pass.commit(text);
            }
        }
        let mut next = 0;
        let mut sink = |block: LogitBlock<'_>| {
            assert_eq!(block.first, next);
            for row in block.logits.chunks_exact(block.vocab) {
                let (text, position) = owners[next];
                found.push((text, position, row.to_vec()));
                next += 1;
            }
        };
        add_groups(&mut pass, groups, feed.page_size, pages);
        let batch = pass.batch(&wanted);
        model
            .forward(&mut backend, &mut cache, &batch, Some(&rows), &mut sink)
            .unwrap();
        let mine = if at.attention.leads() {
            owners.len()
        } else {
            0
        };
        assert_eq!(next, mine, "every wanted row arrives where it belongs");
    }
    found
}
