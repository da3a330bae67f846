use std::{cmp::Reverse, collections::BTreeMap};

use proptest::prelude::*;

use super::*;
use crate::Drafts;

fn shape(steps: usize, topk: usize) -> TreeShape {
    TreeShape {
        steps,
        topk,
        most: 16,
    }
}

fn following(trie: &mut Trie, text: &[u32], shape: TreeShape) -> Vec<(u32, u32)> {
    let mut found = Continuations::default();
    found.clear();
    if let Some((end, _)) = trie.find(text, 1..=8) {
        trie.follow(end, shape, 0, &mut found);
    }
    drafted(&mut found, shape)
}

#[test]
fn the_most_frequent_continuation_wins_then_the_latest() {
    let mut trie = Trie::new(100);
    for window in [[1, 2, 3], [1, 2, 4], [1, 2, 3], [1, 5, 6]] {
        trie.insert(&window);
    }
    assert_eq!(following(&mut trie, &[9, 1], shape(2, 1)), [(2, 0), (3, 1)]);
    let both = [(2, 0), (3, 1), (5, 0), (4, 1)];
    assert_eq!(following(&mut trie, &[1], shape(2, 2))[..2], both[..2]);
    trie.insert(&[1, 5, 7]);
    trie.insert(&[1, 5, 8]);
    // Token 2 and token 5 follow equally often now, and 5 was used last.
    assert_eq!(following(&mut trie, &[1], shape(1, 1)), [(5, 0)]);
}

#[test]
fn an_end_without_continuation_gives_way_to_a_shorter_one() {
    let mut trie = Trie::new(100);
    trie.insert(&[1, 2, 3]);
    trie.insert(&[3, 7]);
    assert_eq!(trie.find(&[1, 2, 3], 1..=8).unwrap().1, 1);
    assert_eq!(trie.find(&[1, 2], 1..=8).unwrap().1, 2);
    assert_eq!(trie.find(&[1, 2], 1..=1), None);
    assert_eq!(trie.find(&[1, 2, 3], 2..=8), None);
    assert_eq!(trie.find(&[], 1..=8), None);
}

#[test]
fn what_was_unserved_for_longest_goes_first() {
    let mut trie = Trie::new(6);
    trie.insert(&[1, 2]);
    trie.insert(&[3, 4]);
    trie.insert(&[1, 2]);
    trie.insert(&[5, 6, 7]);
    // The tokens after 5 take the memory of one node.
    assert_eq!(trie.used(), 6);
    assert!(trie.find(&[3], 1..=4).is_some());
    trie.insert(&[8, 9]);
    assert!(trie.find(&[3], 1..=4).is_none());
    assert!(trie.find(&[1], 1..=4).is_some());
    trie.nodes.check();
}

#[test]
fn a_window_that_is_longer_than_the_memory_is_cut() {
    let window: Vec<u32> = (0..40).collect();
    let mut trie = Trie::new(2);
    for _ in 0..2 {
        trie.insert(&window);
        trie.nodes.check();
        assert!(trie.used() <= 2, "{}", trie.used());
        assert!(trie.find(&[0], 1..=4).is_some());
    }
    assert!(trie.nodes.allocated() <= Trie::bytes(2));
}

#[test]
fn a_text_that_does_not_repeat_takes_a_leaf_per_window() {
    let text: Vec<u32> = (0..1000).collect();
    let mut trie = Trie::new(10_000);
    let windows = text.windows(22);
    let count = windows.len();
    for window in windows {
        trie.insert(window);
    }
    // Each leaf takes its own entry, and three entries for the 21 tokens after it.
    assert_eq!(trie.used(), count * 4);
    trie.nodes.check();
}

#[test]
fn a_leaf_unfolds_where_it_is_the_one_to_go() {
    let mut trie = Trie::new(6);
    for window in [&[1, 2, 3][..], &[5, 6], &[1, 2, 4]] {
        trie.insert(window);
        trie.nodes.check();
    }
    // The first window's continuation was unserved for longest.
    let expected: [(&[u32], u32); 5] = [
        (&[1], 2),
        (&[1, 2], 2),
        (&[1, 2, 4], 1),
        (&[5], 1),
        (&[5, 6], 1),
    ];
    let expected = expected.map(|(path, count)| (path.to_vec(), count));
    assert_eq!(trie.nodes.paths(), expected);
}

#[test]
fn a_window_is_cut_where_no_more_of_it_fits() {
    for capacity in 0..3 {
        let mut trie = Trie::new(capacity);
        for window in [[1, 2, 3, 4], [5, 6, 7, 8], [5, 6, 9, 9]] {
            trie.insert(&window);
            trie.nodes.check();
            assert!(trie.used() <= capacity);
            assert_eq!(trie.nodes.paths().len(), capacity);
        }
    }
}

/// A trie by the definition: every path of every window, with the number of windows that began
/// with it and the number of the last one.
#[derive(Default)]
struct Naive {
    paths: BTreeMap<Vec<u32>, (u32, usize)>,
    windows: usize,
}

impl Naive {
    fn insert(&mut self, window: &[u32]) {
        self.windows += 1;
        for len in 1..=window.len() {
            let (count, last) = self.paths.entry(window[..len].to_vec()).or_default();
            (*count, *last) = (*count + 1, self.windows);
        }
    }

    /// Returns paths with counts, the one used last first.
    fn by_use(&self) -> Vec<(Vec<u32>, u32)> {
        let mut paths: Vec<_> = self.paths.iter().collect();
        paths.sort_by_key(|(path, (_, last))| (Reverse(*last), path.len()));
        let counted = paths.into_iter();
        counted.map(|(path, at)| (path.clone(), at.0)).collect()
    }

    /// Returns tokens and counts, the one used last first.
    fn children(&self, path: &[u32]) -> Vec<(u32, u32)> {
        let paths = self.by_use().into_iter();
        let children = paths.filter(|(child, _)| child[..child.len() - 1] == *path);
        children.map(|(child, n)| (child[path.len()], n)).collect()
    }

    fn find(&self, text: &[u32], lengths: RangeInclusive<usize>) -> Option<usize> {
        let end = |len: &usize| &text[text.len() - len..];
        let mut lengths = lengths.rev().filter(|len| *len <= text.len());
        lengths.find(|len| !self.children(end(len)).is_empty())
    }

    /// Adds the nodes that [`Trie::follow`] adds.
    fn follow(&self, path: &[u32], shape: TreeShape, found: &mut Continuations) {
        let mut level = vec![(path.to_vec(), ROOT)];
        for _ in 0..shape.steps {
            let mut next = Vec::new();
            for (path, at) in &level {
                let children = self.children(path).into_iter();
                next.extend(children.map(|(token, count)| (count, token, path.clone(), *at)));
            }
            // A stable sort: nodes of the better parent, and nodes used later, stay first.
            next.sort_by_key(|(count, ..)| Reverse(*count));
            next.truncate(shape.topk);
            let nodes = next.into_iter().map(|(count, token, path, at)| {
                let at = found.add(at, token, 0, count);
                ([&path[..], &[token]].concat(), at)
            });
            level = nodes.collect();
        }
    }
}

fn drafted(found: &mut Continuations, shape: TreeShape) -> Vec<(u32, u32)> {
    let mut drafts = Drafts::new(1, shape.most, 0);
    drafts.begin(1);
    found.draft(shape, &mut drafts, 0);
    let nodes = drafts.nodes(0).iter();
    nodes.map(|node| (node.token, node.parent)).collect()
}

/// Windows of up to 24 tokens that share a lot. Long ones are phrases with similar beginnings,
/// one after the other, cut somewhere; short ones are of all kinds.
fn windows() -> impl Strategy<Value = Vec<Vec<u32>>> {
    const PHRASES: [&[u32]; 4] = [&[1, 1, 1, 1, 1], &[1, 1, 1, 2], &[1, 2, 1], &[3, 1, 1, 1]];
    let phrases = prop::collection::vec(0..PHRASES.len(), 1..8);
    let long = (phrases, 1usize..24).prop_map(|(phrases, len)| {
        let tokens = phrases.into_iter().flat_map(|phrase| PHRASES[phrase]);
        tokens.copied().take(len).collect()
    });
    let short = prop::collection::vec(0u32..3, 1..6);
    prop::collection::vec(prop_oneof![3 => long, 1 => short], 0..40)
}

proptest! {
    #[test]
    fn it_reads_as_the_naive_one_does_in_no_more_nodes(
        windows in windows(),
        text in prop::collection::vec(1u32..3, 0..8),
        (shortest, longest) in (1usize..3, 1usize..8),
        (steps, topk) in (1usize..9, 1usize..4),
    ) {
        let mut trie = Trie::new(10_000);
        let mut naive = Naive::default();
        for window in &windows {
            trie.insert(window);
            naive.insert(window);
            trie.nodes.check();
            prop_assert_eq!(trie.nodes.paths(), naive.by_use());
            prop_assert!(trie.used() <= naive.paths.len());
        }
        let mut found = Continuations::default();
        let shape = shape(steps, topk);
        let texts = windows.iter().map(|window| &window[..window.len() / 2]);
        for text in texts.chain([&text[..]]) {
            let at = trie.find(text, shortest..=longest);
            let len = naive.find(text, shortest..=longest);
            prop_assert_eq!(at.map(|(_, len)| len), len);
            let Some((end, len)) = at else {
                continue;
            };
            let path = &text[text.len() - len..];
            let children = trie.nodes.children(end).map(|(_, token, count)| (token, count));
            prop_assert_eq!(children.collect::<Vec<_>>(), naive.children(path));
            found.clear();
            trie.follow(end, shape, 0, &mut found);
            let drafts = drafted(&mut found, shape);
            found.clear();
            naive.follow(path, shape, &mut found);
            prop_assert_eq!(drafts, drafted(&mut found, shape));
        }
    }

    #[test]
    fn a_full_trie_stays_sound_and_within_its_memory(
        windows in windows(),
        capacity in 24usize..60,
    ) {
        let mut trie = Trie::new(capacity);
        let mut all = Naive::default();
        for (at, window) in windows.iter().enumerate() {
            trie.insert(window);
            all.insert(window);
            trie.nodes.check();
            prop_assert!(trie.used() <= capacity);
            let paths: BTreeMap<_, _> = trie.nodes.paths().into_iter().collect();
            for (path, count) in &paths {
                prop_assert!(*count <= all.paths[path].0);
            }
            // All windows at the end that fit, with room for one more, must be there.
            let mut last = Naive::default();
            for window in windows[..=at].iter().rev() {
                last.insert(window);
                if last.paths.len() + 24 > capacity && last.windows > 1 {
                    break;
                }
                for (path, (count, _)) in &last.paths {
                    prop_assert!(paths.get(path) >= Some(count), "{:?}", path);
                }
            }
        }
        prop_assert!(trie.nodes.allocated() <= Trie::bytes(capacity));
    }
}
