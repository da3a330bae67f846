use std::collections::BTreeMap;

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
    if let Some((node, _)) = trie.find(text, 1..=8) {
        trie.follow(node, shape, 0, &mut found);
    }
    let mut drafts = Drafts::new(1, shape.most, 0);
    drafts.begin(1);
    found.draft(shape, &mut drafts, 0);
    let nodes = drafts.nodes(0).iter();
    nodes.map(|node| (node.token, node.parent)).collect()
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
    // 2 and 5 follow as often now, 5 was used last.
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
    assert_eq!(trie.nodes.len(), 6);
    assert!(trie.find(&[1], 1..=4).is_some());
    trie.insert(&[8, 9]);
    assert!(trie.find(&[3], 1..=4).is_none());
    trie.nodes.check();
}

proptest! {
    #[test]
    fn a_full_trie_stays_sound(
        windows in prop::collection::vec(prop::collection::vec(0u32..5, 1..6), 0..60),
        capacity in 6usize..40,
    ) {
        let mut trie = Trie::new(capacity);
        for window in &windows {
            trie.insert(window);
            prop_assert!(trie.nodes.len() <= capacity);
            trie.nodes.check();
            // What came last is all there.
            let mut node = nodes::ROOT;
            for token in window {
                node = trie.nodes.child(node, *token).expect("just inserted");
            }
            trie.find(&window[..window.len() - 1], 1..=6);
            trie.nodes.check();
        }
    }

    #[test]
    fn counts_and_ends_are_the_naive_ones(
        windows in prop::collection::vec(prop::collection::vec(0u32..3, 1..6), 0..40),
        text in prop::collection::vec(0u32..3, 0..8),
        longest in 1usize..6,
    ) {
        let mut trie = Trie::new(10_000);
        let mut counts: BTreeMap<&[u32], u32> = BTreeMap::new();
        for window in &windows {
            trie.insert(window);
            for len in 1..=window.len() {
                *counts.entry(&window[..len]).or_default() += 1;
            }
        }
        prop_assert_eq!(trie.nodes.len(), counts.len());
        let continued = |path: &[u32]| counts.keys().any(|k| k.len() > path.len() && k.starts_with(path));
        let expected = (1..=longest.min(text.len()))
            .rev()
            .find(|len| continued(&text[text.len() - len..]));
        let found = trie.find(&text, 1..=longest);
        prop_assert_eq!(found.map(|(_, len)| len), expected);
        if let Some((node, len)) = found {
            for (_, token, count) in trie.nodes.children(node) {
                let path = [&text[text.len() - len..], &[token]].concat();
                prop_assert_eq!(count, counts[&path[..]]);
            }
        }
    }
}
