//! A model with two groups of layers, whose pages have different numbers.

use std::sync::Arc;

use lockstep_types::{Dtype, KvCacheDtype};

use super::cuda::gpus;
use super::data_parallel::{self, staggered, whole};
use super::{F32_TOLERANCE, cpu, max_error, naive};
use crate::driver::{Factory, Feed, logits};
use crate::groups::two_caches;
use crate::naive::Naive;
use crate::ranks::WorldFactory;
use crate::world;

/// Two texts that begin alike, and a short one.
fn texts() -> Vec<Vec<u32>> {
    let start = 1..40;
    vec![
        start.clone().collect(),
        start.take(36).chain([90, 91, 92]).collect(),
        vec![7, 3, 9, 1, 5],
    ]
}

fn near(what: &str, found: &[Vec<Vec<f32>>], expected: &[Vec<Vec<f32>>], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        let error = max_error(found, expected);
        assert!(error <= tolerance, "{what}: {error}");
    }
}

/// Feeds with chunks, pages and company of all kinds.
fn feeds(whole: Feed) -> impl Iterator<Item = Feed> {
    let kinds = [(1, 7, true), (4, 1, true), (16, 50, false), (4, 11, false)];
    kinds
        .into_iter()
        .map(move |(page_size, chunk, together)| Feed {
            page_size,
            chunk,
            together,
            ..whole
        })
}

#[test]
fn each_layer_reads_the_cache_of_its_group() {
    let (model, texts) = (two_caches(), texts());
    let plain = Feed::plain(KvCacheDtype::Float32);
    let expected = logits(&model, &naive(), plain, &texts);
    for tp_size in [1, 2] {
        let plain = Feed { tp_size, ..plain };
        let factory = cpu(Dtype::Float32);
        let whole = logits(&model, &factory, plain, &texts);
        near(
            &format!("{tp_size} ranks"),
            &whole,
            &expected,
            F32_TOLERANCE,
        );
        for feed in feeds(plain) {
            let found = logits(&model, &factory, feed, &texts);
            assert!(found == whole, "{feed:?} differs");
            let found = logits(&model, &naive(), feed, &texts);
            near(&format!("{feed:?}"), &found, &expected, F32_TOLERANCE);
        }
    }
}

/// The second text takes pages of the first one for its own, in both groups.
#[test]
fn a_prefix_is_shared_in_all_groups() {
    let (model, texts) = (two_caches(), texts()[..2].to_vec());
    for (kv_dtype, dtype) in [
        (KvCacheDtype::Float32, Dtype::Float32),
        (KvCacheDtype::Bfloat16, Dtype::Bfloat16),
        (KvCacheDtype::Int8, Dtype::Bfloat16),
    ] {
        let (plain, factory) = (Feed::plain(kv_dtype), cpu(dtype));
        let expected = logits(&model, &factory, plain, &texts);
        for page_size in [1, 4, 16] {
            let feed = Feed {
                page_size,
                shared: 32 / page_size,
                ..plain
            };
            let found = logits(&model, &factory, feed, &texts);
            assert!(found[0] == expected[0], "{feed:?}");
            assert!(found[1] == expected[1][32..], "{feed:?}");
        }
    }
}

#[test]
fn dp_ranks_have_two_groups_each() {
    let (model, texts) = (two_caches(), texts());
    let naive: WorldFactory<Naive> = Arc::new(Naive::new);
    for split in [(2, 2), (4, 2)] {
        let feed = staggered(split, KvCacheDtype::Float32, texts.len());
        let plain = whole(world::logits(&model, &naive, &feed, &texts));
        let factory = data_parallel::cpu(Dtype::Float32);
        let found = whole(world::logits(&model, &factory, &feed, &texts));
        near(&format!("{split:?}"), &found, &plain, F32_TOLERANCE);
    }
}

/// Passes that a GPU records hold the cells and page tables of all groups.
#[test]
fn gpus_read_the_caches_of_both_groups() {
    let (model, texts) = (two_caches(), texts());
    let plain = Feed::plain(KvCacheDtype::Float32);
    let expected = logits(&model, &naive(), plain, &texts);
    for tp_size in [1, 2] {
        for feed in feeds(Feed { tp_size, ..plain }) {
            let open = gpus(Dtype::Float32, 1 + feed.chunk as u64);
            let gpu: Factory<_> = Arc::new(move |group| open(group.into()));
            let found = logits(&model, &gpu, feed, &texts);
            near(&format!("{feed:?}"), &found, &expected, F32_TOLERANCE);
        }
    }
}
