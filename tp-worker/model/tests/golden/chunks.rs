//! Chunks, pages and cached prefixes of many sizes change no bit of a model with experts, of one
//! with windows, of one with sinks, and of one whose layers share caches.

use lockstep_types::{Dtype, KvCacheDtype};

use super::{Case, cpu, named};
use crate::driver::{Feed, logits};

const MODELS: [&str; 4] = ["qwen3_moe", "gemma3", "gpt_oss_mxfp4", "gemma4_per_layer"];
const CHUNKS: [usize; 5] = [1, 3, 7, 64, usize::MAX];
const PAGES: [usize; 3] = [1, 16, 64];
/// Window of the models that have one.
const WINDOW: usize = 16;
/// Length of the prefix that both texts have.
const COMMON: usize = 70;

const PLAIN: KvCacheDtype = KvCacheDtype::Bfloat16;

fn models() -> impl Iterator<Item = (&'static str, Case)> {
    named(&MODELS)
}

/// Returns two texts that begin alike.
fn texts(case: &Case) -> [Vec<u32>; 2] {
    let longest = case.golden.prompts.iter().map(|prompt| &prompt.ids);
    let first: Vec<u32> = longest.max_by_key(|ids| ids.len()).unwrap()[..100].to_vec();
    let mut second = first[..90].to_vec();
    second[COMMON..].reverse();
    assert!(second[COMMON] != first[COMMON]);
    [first, second]
}

#[test]
fn chunks_and_pages_of_all_sizes_change_no_bit() {
    for (name, case) in models() {
        let (texts, factory) = (texts(&case), cpu(Dtype::Bfloat16));
        let whole = Feed::plain(PLAIN);
        let expected = logits(&case.model, &factory, whole, &texts);
        for (number, chunk) in CHUNKS.into_iter().enumerate() {
            for (turn, page_size) in PAGES.into_iter().enumerate() {
                let feed = Feed {
                    page_size,
                    chunk,
                    together: (number + turn) % 2 == 0,
                    ..whole
                };
                let found = logits(&case.model, &factory, feed, &texts);
                assert!(found == expected, "{name}: {feed:?} differs");
            }
        }
    }
}

/// The second text begins behind the edge of a window, one position more or less, and at the end
/// of the prefix, as far as pages end there.
#[test]
fn hits_at_the_edges_of_windows_change_no_bit() {
    for (name, case) in models() {
        let (texts, factory) = (texts(&case), cpu(Dtype::Bfloat16));
        let whole = Feed::plain(PLAIN);
        let expected = logits(&case.model, &factory, whole, &texts);
        for (page_size, chunk) in PAGES.into_iter().zip([5, 7, usize::MAX]) {
            let edges = [WINDOW - 1, WINDOW, WINDOW + 1, COMMON];
            let mut pages: Vec<usize> = edges.iter().map(|edge| edge / page_size).collect();
            pages.dedup();
            for shared in pages.into_iter().filter(|pages| *pages > 0) {
                let feed = Feed {
                    page_size,
                    chunk,
                    shared,
                    ..whole
                };
                let found = logits(&case.model, &factory, feed, &texts);
                assert!(found[0] == expected[0], "{name}: {feed:?}");
                let rest = &expected[1][shared * page_size..];
                assert!(found[1] == rest, "{name}: {feed:?}");
            }
        }
    }
}
