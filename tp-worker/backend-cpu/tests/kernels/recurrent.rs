//! Recurrent layers of each rule: chunks, verification, replay and copies of states, bit for bit.

mod groups;
mod oracle;
mod world;

use lockstep_backend::{ConvolutionShape, DeltaShape, Recurrence};
use lockstep_backend_cpu::Isa;
use lockstep_types::StateLimits;
use proptest::prelude::*;

use crate::machine::{Values, bits};
use world::{Part, World};

/// Heads whose matrices have tiles of 32 columns, of 16, and several of these; and channels alone.
const RULES: [Recurrence; 8] = [
    Recurrence::Delta(DeltaShape::new([2, 4], [16, 32], 4)),
    Recurrence::Delta(DeltaShape::new([1, 3], [32, 16], 2)),
    Recurrence::Delta(DeltaShape::new([2, 2], [16, 48], 3)),
    Recurrence::Mamba2(DeltaShape::new([2, 6], [16, 32], 4)),
    Recurrence::Mamba2(DeltaShape::new([1, 3], [32, 16], 2)),
    Recurrence::Mamba2(DeltaShape::new([2, 2], [16, 48], 3)),
    Recurrence::Convolution(channels(37, 3)),
    Recurrence::Convolution(channels(64, 4)),
];

const fn channels(channels: usize, taps: usize) -> ConvolutionShape {
    ConvolutionShape { channels, taps }
}

const LIMITS: StateLimits = StateLimits {
    states: 6,
    records: 2,
    nodes: 9,
};

/// Output of tokens in one row from the begin of a text.
fn plain(world: &mut World, tokens: &[usize]) -> Vec<Vec<u32>> {
    rows(&world.run(&[Part::of(tokens).fresh()]))
}

/// Output of the last token of a text.
fn last(world: &mut World, tokens: &[usize]) -> Vec<u32> {
    plain(world, tokens).pop().unwrap()
}

fn rows(out: &[Vec<f32>]) -> Vec<Vec<u32>> {
    out.iter().map(|row| bits(row)).collect()
}

#[test]
fn outputs_are_those_of_plain_arithmetic_on_all_instruction_sets() {
    for rule in RULES {
        let mut first: Option<Vec<Vec<u32>>> = None;
        for isa in Isa::available() {
            for threads in [1, 3] {
                let mut world = World::new(isa, threads, rule, LIMITS, 40);
                let tokens: Vec<usize> = (0..40).collect();
                let found = world.run(&[Part::of(&tokens).fresh()]);
                let expected = oracle::outputs(&world.data, &tokens);
                for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                    let error = (f64::from(*found) - expected).abs();
                    assert!(error <= 2e-5 * expected.abs().max(0.5), "{isa} {rule:?}");
                }
                let found = rows(&found);
                assert!(
                    first.get_or_insert(found.clone()) == &found,
                    "{isa} {rule:?}"
                );
            }
        }
    }
}

/// A tree of random parents: a node's parent is before it, and the first node has none.
fn tree(nodes: usize, values: &mut Values) -> Vec<Option<usize>> {
    let parent = |node: usize| node.checked_sub(1).map(|most| values.below(most + 1));
    (0..nodes).map(parent).collect()
}

/// Nodes from the root to `node`.
fn path(parents: &[Option<usize>], node: usize) -> Vec<usize> {
    let mut path: Vec<_> = std::iter::successors(Some(node), |node| parents[*node]).collect();
    path.reverse();
    path
}

/// Feeds `text` in chunks of random lengths, from the state `from` on.
fn chunks(world: &mut World, text: &[usize], values: &mut Values, fresh: bool) -> Vec<Vec<u32>> {
    let (mut found, mut done) = (Vec::new(), 0);
    while done < text.len() {
        let count = 1 + values.below(text.len() - done);
        let part = Part::of(&text[done..done + count]);
        let part = if fresh && done == 0 {
            part.fresh()
        } else {
            part
        };
        found.extend(rows(&world.run(&[part])));
        done += count;
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn chunks_change_no_bit(seed: u64, which in 0..RULES.len(), len in 1usize..24) {
        let mut values = Values::new(seed);
        let mut world = World::new(Isa::detect(), 2, RULES[which], LIMITS, len);
        let text: Vec<usize> = (0..len).collect();
        let expected = plain(&mut world, &text);
        prop_assert_eq!(chunks(&mut world, &text, &mut values, true), expected);
    }

    /// Steps of random trees, each of which accepts a random path. Verification gives each node the
    /// bits that plain rows give to its path, and replay leaves the states of plain rows.
    #[test]
    fn verified_paths_have_the_bits_of_plain_rows(
        seed: u64,
        which in 0..RULES.len(),
        prompt in 1usize..6,
        chain: bool,
    ) {
        let mut values = Values::new(seed);
        let mut world = World::new(Isa::detect(), 2, RULES[which], LIMITS, 40);
        let mut other = World::new(Isa::detect(), 1, RULES[which], LIMITS, 40);
        let mut text: Vec<usize> = (0..prompt).collect();
        plain(&mut world, &text);
        let mut replays: Vec<u32> = Vec::new();
        for step in 0..5u32 {
            // A step without drafts may follow accepted drafts: it replays them, then commits.
            if values.below(4) == 0 {
                let token = values.below(40);
                text.push(token);
                let part = Part::of(&[token]).replaying(&replays, step % 2);
                let found = rows(&world.run(&[part]));
                prop_assert_eq!(&found[0], &last(&mut other, &text));
                replays.clear();
                continue;
            }
            let nodes = 1 + values.below(LIMITS.nodes);
            let parents = match chain {
                true => (0..nodes).map(|node: usize| node.checked_sub(1)).collect(),
                false => tree(nodes, &mut values),
            };
            let tokens: Vec<usize> = (0..nodes).map(|_| values.below(40)).collect();
            let part = Part::of(&tokens).replaying(&replays, step % 2).verify();
            let part = if chain { part } else { part.tree(&parents) };
            let found = rows(&world.run(&[part]));
            for (node, found) in found.iter().enumerate() {
                let mut whole = text.clone();
                whole.extend(path(&parents, node).iter().map(|node| tokens[*node]));
                prop_assert_eq!(found, &last(&mut other, &whole));
            }
            let accepted = path(&parents, values.below(nodes));
            text.extend(accepted.iter().map(|node| tokens[*node]));
            replays = accepted.iter().map(|node| *node as u32).collect();
        }
        let token = values.below(40);
        text.push(token);
        let found = rows(&world.run(&[Part::of(&[token]).replaying(&replays, 1)]));
        prop_assert_eq!(&found[0], &last(&mut other, &text));
    }

    /// Copies that a row keeps on its way, and whole copies, are the states of these positions.
    #[test]
    fn kept_copies_are_states_of_their_positions(
        seed: u64,
        which in 0..RULES.len(),
        commits: bool,
    ) {
        let mut values = Values::new(seed);
        let mut world = World::new(Isa::detect(), 2, RULES[which], LIMITS, 40);
        let mut other = World::new(Isa::detect(), 1, RULES[which], LIMITS, 40);
        let draw = |values: &mut Values, len| -> Vec<usize> {
            (0..len).map(|_| values.below(40)).collect()
        };
        let mut text = draw(&mut values, 3);
        plain(&mut world, &text);
        let drafts = draw(&mut values, 4);
        world.run(&[Part::of(&drafts).replaying(&[], 1).verify()]);
        let replays = 1 + values.below(4);
        let tokens = draw(&mut values, 5);
        let accepted: Vec<u32> = (0..replays as u32).collect();
        let part = Part::of(&tokens).replaying(&accepted, 0);
        let most = replays + if commits { tokens.len() } else { 0 };
        let first = values.below(most);
        let second = first + 1 + values.below(most - first);
        let part = part.keeping(&[(first, 2), (second, 4)]);
        let part = if commits { part } else { part.verify() };
        world.run(&[part]);
        world.copy(&[(2, 3), (4, 2)]);
        text.extend(&drafts[..replays]);
        text.extend(&tokens);
        for (state, after) in [(3, first), (2, second), (4, second)] {
            let token = values.below(40);
            let mut whole = text[..3 + after].to_vec();
            whole.push(token);
            let found = rows(&world.run(&[Part::of(&[token]).in_state(state)]));
            prop_assert_eq!(&found[0], &last(&mut other, &whole));
        }
    }
}

/// Rows of a batch change no bits of each other, and tokens outside of rows are left alone.
#[test]
fn rows_of_a_batch_stand_alone() {
    for rule in RULES {
        let mut world = World::new(Isa::detect(), 3, rule, LIMITS, 40);
        let texts: [Vec<usize>; 2] = [(0..11).collect(), (20..23).collect()];
        let alone = texts.each_ref().map(|text| plain(&mut world, text));
        let both = world.run(&[
            Part::of(&texts[0]).fresh(),
            Part::of(&texts[1]).fresh().in_state(5),
        ]);
        assert_eq!(rows(&both), alone.concat());
    }
}

/// Layers of several shapes share working memory. A text that begins reads zeros, whatever a layer
/// with fewer channels left there.
#[test]
fn layers_of_other_shapes_leave_nothing_behind() {
    for (small, large) in [(1, 0), (4, 3), (6, 7), (1, 3)] {
        let text = [3, 1, 4];
        let expected = plain(
            &mut World::new(Isa::detect(), 1, RULES[large], LIMITS, 40),
            &text,
        );
        let mut other = World::new(Isa::detect(), 1, RULES[small], LIMITS, 40);
        plain(&mut other, &text);
        other.run(&[Part::of(&[5, 6]).verify()]);
        let mut world = World::on(other.into_backend(), RULES[large], LIMITS, 40);
        assert_eq!(plain(&mut world, &text), expected);
    }
}

/// Sizing records by the tier that runs, instead of the largest, is found before a record is
/// written.
#[test]
#[should_panic(expected = "size them by all tiers")]
fn records_of_the_current_tier_are_too_few() {
    let tier = 3;
    let mut world = World::new(Isa::detect(), 1, RULES[0], LIMITS.with_nodes(tier), 40);
    plain(&mut world, &[1, 2]);
    world.run(&[Part::of(&[3, 4, 5]).verify()]);
    world.run(&[Part::of(&[6, 7, 8, 9]).replaying(&[0], 1).verify()]);
}

#[test]
#[should_panic(expected = "rows and copies have states of their own")]
fn a_copy_is_not_kept_in_a_state_of_the_batch() {
    let mut world = World::new(Isa::detect(), 1, RULES[0], LIMITS, 40);
    world.run(&[Part::of(&[1, 2]).fresh().keeping(&[(1, 0)])]);
}

#[test]
#[should_panic(expected = "a state that does not exist")]
fn a_state_beyond_the_last_is_refused() {
    let mut world = World::new(Isa::detect(), 1, RULES[0], LIMITS, 40);
    world.run(&[Part::of(&[1, 2]).fresh().in_state(6)]);
}
