use lockstep_sampling::DraftSampler;
use lockstep_types::sampling::SamplingParams;
use proptest::prelude::*;

use super::*;
use crate::depth;

/// A draft model whose logits depend only on the path. It has few different values, so ties are
/// common.
struct Model {
    vocab: usize,
    values: u64,
    seed: u64,
}

impl Model {
    fn logits(&self, path: &[u32]) -> Vec<f32> {
        let mut state = path.iter().fold(self.seed, |hash, token| {
            (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        let mut draw = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % self.values
        };
        (0..self.vocab).map(|_| draw() as f32 * 0.37).collect()
    }

    /// Runs a grower over the model, and checks frontier and mask on the way.
    fn grow(&self, grower: &mut TreeGrower, shape: TreeShape) -> Drafts {
        grower.begin(shape);
        grower.level(&self.logits(&[]), &|token| token + 7);
        let mut levels = 1;
        while !grower.frontier().is_empty() {
            levels += 1;
            let expanded = grower.expanded();
            let paths: Vec<Vec<u32>> = (0..expanded.len()).map(|n| path(expanded, n)).collect();
            assert!(expanded.len() <= shape.expanded());
            check_mask(expanded, grower);
            let frontier = &paths[expanded.len() - grower.frontier().len()..];
            let logits = frontier.iter().flat_map(|path| self.logits(path));
            let logits: Vec<f32> = logits.collect();
            grower.level(&logits, &|token| token + 7);
        }
        assert!(levels <= shape.steps.max(1));
        let mut drafts = Drafts::new(1, shape.most, 0);
        drafts.begin(1);
        grower.finish(&mut drafts, 0);
        drafts
    }
}

/// Returns the draft tokens from the root to an expanded node, and checks its depth.
fn path(expanded: &[Expanded], index: usize) -> Vec<u32> {
    let node = expanded[index];
    let mut tokens = match node.parent {
        0 => Vec::new(),
        parent => {
            assert!((parent as usize) <= index);
            path(expanded, parent as usize - 1)
        }
    };
    tokens.push(node.token - 7);
    assert_eq!(node.depth as usize, tokens.len());
    tokens
}

fn check_mask(expanded: &[Expanded], grower: &TreeGrower) {
    let mut masks = vec![99];
    grower.push_mask(&mut masks);
    let words = expanded.len().div_ceil(64);
    assert_eq!(masks.len(), 1 + expanded.len() * words);
    for (query, words) in masks[1..].chunks(words).enumerate() {
        for seen in 0..words.len() * 64 {
            let mut at = query as u32 + 1;
            while at > seen as u32 + 1 {
                at = expanded[at as usize - 1].parent;
            }
            let bit = words[seen / 64] >> (seen % 64) & 1 == 1;
            assert_eq!(bit, at == seen as u32 + 1, "{query} sees {seen}");
        }
    }
}

/// Returns the tree by the definition, from `(token, parent candidate, score)`.
fn oracle(model: &Model, shape: TreeShape) -> Vec<Node> {
    let mut all: Vec<(u32, Option<usize>, f32)> = Vec::new();
    let path_of = |all: &[(u32, Option<usize>, f32)], mut at: Option<usize>| {
        let mut path = Vec::new();
        while let Some(node) = at {
            path.insert(0, all[node].0);
            at = all[node].1;
        }
        path
    };
    let mut front = vec![None];
    for _ in 0..shape.steps {
        let first = all.len();
        for node in front {
            let logits = model.logits(&path_of(&all, node));
            let (max, log_sum) = log_mass(&logits).unwrap();
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            for token in order.into_iter().take(shape.topk) {
                let before = node.map_or(0.0, |node| all[node].2);
                let score = before + (logits[token] - max - log_sum);
                all.push((token as u32, node, score));
            }
        }
        front = best(&all, first).take(shape.topk).map(Some).collect();
    }
    let mut keep: Vec<usize> = best(&all, 0).take(shape.most).collect();
    keep.sort_unstable();
    let number = |at: usize| keep.iter().position(|kept| *kept == at).unwrap() as u32 + 1;
    let node = |at: &usize| Node {
        token: all[*at].0 + 7,
        parent: all[*at].1.map_or(0, number),
    };
    keep.iter().map(node).collect()
}

fn best(all: &[(u32, Option<usize>, f32)], first: usize) -> impl Iterator<Item = usize> {
    let mut order: Vec<usize> = (first..all.len()).collect();
    order.sort_by(|a, b| all[*b].2.partial_cmp(&all[*a].2).unwrap());
    order.into_iter()
}

fn shape(steps: usize, topk: usize, most: usize) -> TreeShape {
    TreeShape { steps, topk, most }
}

#[test]
fn a_known_tree_keeps_the_best_paths() {
    // After the root, token 2 has probability 0.5, tokens 0 and 1 have 0.25. After each of
    // them, token 0 is certain.
    let ln = f32::ln;
    let mut grower = TreeGrower::new(shape(2, 2, 3));
    grower.begin(shape(2, 2, 3));
    grower.level(&[ln(0.25), ln(0.25), ln(0.5)], &|token| token * 10);
    let frontier: Vec<_> = grower
        .frontier()
        .iter()
        .map(|n| (n.token, n.depth))
        .collect();
    assert_eq!(frontier, [(20, 1), (0, 1)]);
    let sure = [0.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
    grower.level(&[sure, sure].concat(), &|token| token * 10);
    assert!(grower.frontier().is_empty());
    let mut drafts = Drafts::new(1, 3, 0);
    drafts.begin(1);
    grower.finish(&mut drafts, 0);
    let node = |token, parent| Node { token, parent };
    assert_eq!(drafts.nodes(0), [node(20, 0), node(0, 0), node(0, 1)]);
}

#[test]
fn logits_that_are_no_numbers_bring_the_first_tokens() {
    let mut grower = TreeGrower::default();
    let mut drafts = Drafts::new(1, 4, 0);
    let node = |token, parent| Node { token, parent };
    for logits in [
        [f32::NAN, 1.0, 2.0],
        [f32::NEG_INFINITY; 3],
        [0.0, 0.0, f32::INFINITY],
    ] {
        grower.begin(shape(2, 2, 4));
        grower.level(&logits, &|token| token + 5);
        // Tokens after one of them have as little chance.
        grower.level(&[logits, [0.0, 1.0, 2.0]].concat(), &|token| token);
        assert!(grower.frontier().is_empty());
        drafts.begin(1);
        grower.finish(&mut drafts, 0);
        let expected = [node(5, 0), node(6, 0), node(0, 1), node(1, 1)];
        assert_eq!(drafts.nodes(0), expected, "{logits:?}");
    }
}

fn row(steps: usize, topk: usize, most: usize, room: usize) -> DraftRow {
    DraftRow {
        slot: 0,
        pages_start: 0,
        kv_len: 10,
        steps,
        topk,
        most,
        room,
        may_stop: false,
    }
}

#[test]
fn branches_give_way_to_depth_near_the_end_of_the_context() {
    let fit = |room: usize, own: usize| TreeShape::fit(&row(3, 4, 15, room), own);
    assert_eq!(fit(100, 1), shape(3, 4, 15));
    assert_eq!(fit(8, 0), shape(3, 4, 7));
    assert_eq!(fit(8, 1), shape(3, 3, 7));
    assert_eq!(fit(3, 1), shape(2, 2, 2));
    assert_eq!(fit(2, 1), shape(1, 4, 1));
    assert_eq!(fit(1, 1), shape(0, 4, 0));
    assert_eq!(fit(0, 1), shape(0, 4, 0));
}

proptest! {
    #[test]
    fn the_tree_is_the_oracle_s(
        steps in 0usize..5,
        topk in 1usize..6,
        most in 0usize..40,
        vocab in 1usize..12,
        values in 1u64..6,
        seed: u64,
    ) {
        let model = Model { vocab, values, seed };
        let mut grower = TreeGrower::default();
        // The second tree meets the state that the first one left.
        for shape in [shape(3, 3, 9), shape(steps, topk, most)] {
            let drafts = model.grow(&mut grower, shape);
            let nodes = drafts.nodes(0);
            prop_assert_eq!(nodes, &oracle(&model, shape)[..]);
            prop_assert_eq!(nodes.len(), shape.nodes(vocab));
            prop_assert!(crate::depth(drafts.nodes(0)) as usize <= shape.steps);
            for (at, node) in nodes.iter().enumerate() {
                prop_assert!(node.parent as usize <= at);
            }
        }
    }

    #[test]
    fn a_tree_fits_its_room(
        steps in 1usize..8,
        topk in 1usize..6,
        most in 1usize..40,
        room in 0usize..50,
        own in 0usize..2,
    ) {
        let row = row(steps, topk, most, room);
        let shape = TreeShape::fit(&row, own);
        prop_assert!(shape.most < room.max(1) && shape.most <= most);
        prop_assert!(shape.steps <= steps.min(shape.most) && shape.topk <= topk);
        prop_assert!(shape.topk >= 1);
        prop_assert!(shape.expanded() + own <= room || shape.steps <= 1);
    }

    #[test]
    fn masks_are_the_closure_of_ancestors(parents in prop::collection::vec(any::<u32>(), 0..150)) {
        let nodes: Vec<Node> = parents
            .iter()
            .enumerate()
            .map(|(at, parent)| Node { token: 0, parent: parent % (at as u32 + 1) })
            .collect();
        let (mut depths, mut masks) = (vec![5], vec![5]);
        push_depths(&nodes, &mut depths);
        push_masks(&nodes, &mut masks);
        let words = (nodes.len() + 1).div_ceil(64);
        prop_assert_eq!(depths.len(), nodes.len() + 2);
        prop_assert_eq!(masks.len(), (nodes.len() + 1) * words + 1);
        for query in 0..=nodes.len() {
            let mut expected = vec![0u64; words];
            let (mut at, mut depth) = (query, 0);
            loop {
                expected[at / 64] |= 1 << (at % 64);
                if at == 0 {
                    break;
                }
                at = nodes[at - 1].parent as usize;
                depth += 1;
            }
            prop_assert_eq!(&masks[1 + query * words..][..words], &expected[..]);
            prop_assert_eq!(depths[1 + query], depth);
        }
    }
}

proptest! {
    /// Drawn trees keep their shape. All drawn tokens are drafted, with their distributions.
    #[test]
    fn drawn_trees_keep_their_limits(
        (steps, topk, extra) in (1usize..6, 1usize..5, 0usize..12),
        vocab in 1usize..7,
        seed: u64,
    ) {
        let shape = TreeShape { steps, topk, most: steps + extra };
        let model = Model { vocab, values: 5, seed };
        let params = SamplingParams { seed, ..SamplingParams::default() };
        let mut drafts = Drafts::new(1, shape.most, vocab);
        drafts.begin(1);
        let mut sampler = DraftSampler::new(vocab);
        let mut drawing = Drawing { sampler: &mut sampler, ids: None, params: &params, position: 3 };
        let mut grower = TreeGrower::default();
        grower.begin(shape);
        let mut logits = model.logits(&[]);
        while !logits.is_empty() {
            grower.sample_level(&logits, &mut drawing, &mut drafts, 0);
            let expanded = grower.expanded();
            prop_assert!(expanded.len() <= shape.expanded());
            let first = expanded.len() - grower.frontier().len();
            let tokens = |mut at: usize| {
                let mut tokens = vec![expanded[at].token];
                while let Some(parent) = expanded[at].parent.checked_sub(1) {
                    at = parent as usize;
                    tokens.insert(0, expanded[at].token);
                }
                tokens
            };
            logits = (first..expanded.len()).flat_map(|at| model.logits(&tokens(at))).collect();
        }
        let nodes = drafts.nodes(0);
        // The tree has at least as many nodes as a chain, because each level has a share.
        prop_assert!((steps..=shape.most).contains(&nodes.len()));
        prop_assert_eq!(depth(nodes) as usize, steps);
        for (at, node) in nodes.iter().enumerate() {
            prop_assert!(node.parent as usize <= at && !nodes[..at].contains(node));
            let siblings = nodes.iter().filter(|other| other.parent == node.parent).count();
            prop_assert!(siblings <= topk);
            let law = drafts.probabilities(0, at as u32 + 1).unwrap();
            prop_assert!(law[node.token as usize] > 0.0);
        }
    }
}
