//! Sums inside of mixers, which run over every token even in the last layer.

use std::sync::Arc;

use lockstep_backend::{Axis, RowState, WorldRows};
use lockstep_model::{CollectiveKind, ForwardLimits, LoadOptions, Transformer};
use lockstep_types::{KvCacheDtype, StateLimits};

use crate::naive::Naive;
use crate::pass::{Pass, fixture};
use crate::ranks::{WorldFactory, on_ranks};

const TOKENS: usize = 6;

/// Models whose last layer sums inside of its mixer, with the width of that sum, the numbers of
/// ranks and of DP ranks: norms of whole queries and keys, and Mamba-2 with groups that ranks
/// share, in front of an MLP and alone.
const MODELS: [(&str, usize, usize, usize); 5] = [
    ("olmo2", 2, 2, 1),
    ("olmo2", 2, 4, 2),
    ("granite_hybrid", 1, 2, 1),
    ("granite_hybrid", 1, 4, 2),
    ("nemotron_h", 2, 4, 1),
];

#[test]
fn sums_inside_of_the_last_mixer_follow_the_schedule() {
    let naive: WorldFactory<Naive> = Arc::new(Naive::new);
    for (name, width, tp_size, dp_size) in MODELS {
        on_ranks(&naive, tp_size, dp_size, move |backend, _| {
            run(backend, name, width, dp_size);
        });
    }
}

/// Compares the collectives of passes that want all logits, some, and none with the schedule.
fn run(mut backend: Naive, name: &str, width: usize, dp_size: usize) {
    let model = lockstep_model_folder::load(&fixture(name)).unwrap();
    let limits = ForwardLimits {
        max_tokens: TOKENS,
        requests: 1,
        positions: TOKENS,
        groups: 1,
        page_size: 8,
        tree_nodes: 1,
        replays: usize::from(model.has_states()),
        logit_block_rows: 4,
        max_commit: 0,
    };
    let options = LoadOptions::new(Axis::World, limits);
    let mut model = Transformer::load(&mut backend, &model, options, &mut |_| {}).unwrap();
    let cache = model.kv_cache(&mut backend, 1, 8, KvCacheDtype::Float32);
    let mut cache = cache.unwrap();
    let one = StateLimits {
        states: 1,
        records: 1,
        nodes: 1,
    };
    model
        .allocate_states(&mut backend, &mut cache, one)
        .unwrap();
    let mut pass = Pass::default();
    pass.push(&[5, 9, 2, 7, 1, 3], 0..TOKENS, 8, |_| 0);
    if model.model().has_states() {
        pass.states.push(RowState {
            fresh: true,
            commits: true,
            ..RowState::default()
        });
    }
    let schedule = model.schedule();
    let last = schedule.tokens.last().unwrap();
    assert_eq!((last.kind, last.width), (CollectiveKind::AllReduce, width));
    for wanted in [&[0, 1, 2, 3, 4, 5][..], &[1, 5], &[]] {
        backend.issued.clear();
        let rows = (dp_size > 1).then(|| WorldRows {
            tokens: vec![TOKENS; dp_size],
            wanted: vec![wanted.len(); dp_size],
        });
        let batch = pass.batch(wanted);
        model
            .forward(&mut backend, &mut cache, &batch, rows.as_ref(), &mut |_| {})
            .unwrap();
        let steps: Vec<_> = schedule.steps(wanted.len() * dp_size).copied().collect();
        assert_eq!(backend.issued, steps, "{name}, {wanted:?}");
    }
}
