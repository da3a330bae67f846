//! Passes over some texts with states, made by a seed.

use lockstep_backend::{RowState, StateKeep};
use lockstep_types::StateLimits;

/// Texts, each with a live state and records.
const TEXTS: usize = 3;
pub const LIMITS: StateLimits = StateLimits {
    states: 2 * TEXTS,
    records: TEXTS,
    nodes: 9,
};
/// Different tokens.
pub const VOCAB: usize = 40;
/// Most tokens of a row; a row of as many takes several turns of the kernel.
const LONGEST: usize = 18;
/// Most tokens of a pass, with one in no row before each row.
pub const MOST_TOKENS: usize = TEXTS * (LONGEST + 1);

/// A row of a pass.
#[derive(Debug, Clone, Default)]
pub struct Part {
    pub tokens: Vec<usize>,
    /// Its replays and copies are those below.
    pub state: RowState,
    /// Parents of the nodes of a tree.
    pub parents: Option<Vec<Option<usize>>>,
    pub replays: Vec<u32>,
    pub keeps: Vec<StateKeep>,
}

/// A pass, and the copies of states before it.
#[derive(Debug, Clone, Default)]
pub struct Step {
    pub moves: Vec<(u32, u32)>,
    pub parts: Vec<Part>,
}

impl Step {
    fn one(commits: bool, tokens: usize) -> Self {
        let part = Part {
            tokens: (0..tokens).collect(),
            state: RowState {
                commits,
                fresh: true,
                ..RowState::default()
            },
            ..Part::default()
        };
        Self {
            parts: vec![part],
            ..Self::default()
        }
    }

    /// A row of so many nodes that are to be verified.
    pub fn verifying(nodes: usize) -> Self {
        Self::one(false, nodes)
    }

    /// A row that keeps a copy in this state.
    pub fn keeping(state: u32) -> Self {
        let mut step = Self::one(true, 2);
        step.parts[0].keeps.push(StateKeep { after: 1, state });
        step
    }
}

impl Part {
    /// Words of the mask of all nodes.
    pub fn masks(&self) -> Vec<u64> {
        let parents = self.parents.as_deref().unwrap_or_default();
        let nodes = 0..parents.len();
        let word = |node| {
            path(parents, node)
                .iter()
                .fold(0, |word, at| word | 1 << at)
        };
        nodes.map(word).collect()
    }
}

/// Nodes from the root to `node`.
fn path(parents: &[Option<usize>], node: usize) -> Vec<usize> {
    let mut path: Vec<_> = std::iter::successors(Some(node), |node| parents[*node]).collect();
    path.reverse();
    path
}

/// A text on its way.
#[derive(Debug, Clone, Default)]
struct Text {
    side: u32,
    accepted: Vec<u32>,
}

/// Numbers that look random (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % count as u64) as usize
    }

    fn tokens(&mut self, count: usize) -> Vec<usize> {
        (0..count).map(|_| self.below(VOCAB)).collect()
    }

    /// Up to two copies, behind committed tokens of at most `most`, in states among `free`.
    fn keeps(&mut self, most: usize, free: &mut Vec<u32>) -> Vec<StateKeep> {
        let mut keeps = Vec::new();
        let mut first = 0;
        for _ in 0..self.below(3) {
            let Some(state) = free.pop().filter(|_| first <= most) else {
                break;
            };
            let after = first + self.below(most + 1 - first);
            keeps.push(StateKeep {
                after: after as u32,
                state,
            });
            first = after + 1;
        }
        keeps
    }

    /// The next row of a text, which `first` begins.
    fn part(&mut self, text: &mut Text, number: usize, first: bool, free: &mut Vec<u32>) -> Part {
        let kind = if first { 0 } else { self.below(5) };
        let mut part = Part {
            state: RowState {
                state: number as u32,
                records: number as u32,
                side: 1 - text.side,
                fresh: kind == 0,
                commits: kind < 2,
                ..RowState::default()
            },
            ..Part::default()
        };
        if kind > 0 {
            part.replays = std::mem::take(&mut text.accepted);
        }
        text.accepted.clear();
        if part.state.commits {
            let count = 1 + self.below(LONGEST);
            part.tokens = self.tokens(count);
            part.keeps = self.keeps(part.replays.len() + count, free);
            return part;
        }
        let nodes = 1 + self.below(LIMITS.nodes);
        part.tokens = self.tokens(nodes);
        part.keeps = self.keeps(part.replays.len(), free);
        let chain = kind == 2;
        let parents: Vec<Option<usize>> = (0..nodes)
            .map(|node| match chain {
                true => node.checked_sub(1),
                // More than one node may have no parent.
                false => self.below(node + 1).checked_sub(1),
            })
            .collect();
        let accepted = path(&parents, self.below(nodes));
        text.accepted = accepted.iter().map(|node| *node as u32).collect();
        text.side = part.state.side;
        part.parents = (!chain).then_some(parents);
        part
    }
}

/// Makes `steps` passes. The first one begins all texts, and the last one asks each state for its
/// next output.
pub fn script(seed: u64, steps: usize) -> Vec<Step> {
    let mut dice = Dice(seed);
    let mut texts = vec![Text::default(); TEXTS];
    let mut made = Vec::new();
    for number in 0..steps {
        let first = number == 0;
        let mut step = Step::default();
        for (at, text) in texts.iter_mut().enumerate() {
            let kept = (TEXTS + dice.below(TEXTS)) as u32;
            // Texts go on from states that an earlier pass has kept.
            if number > 3 && dice.below(4) == 0 {
                step.moves.push((kept, at as u32));
                text.accepted.clear();
            }
        }
        let mut free: Vec<u32> = (TEXTS as u32..LIMITS.states as u32).collect();
        for (number, text) in texts.iter_mut().enumerate() {
            if first || dice.below(3) > 0 {
                step.parts.push(dice.part(text, number, first, &mut free));
            }
        }
        if first {
            // Every state is something from the first pass on.
            for (part, state) in step.parts.iter_mut().zip(TEXTS as u32..) {
                part.keeps = vec![StateKeep { after: 1, state }];
            }
        }
        if !step.parts.is_empty() {
            made.push(step);
        }
    }
    for round in 0..2 {
        let mut step = Step::default();
        for (number, text) in texts.iter_mut().enumerate() {
            // Behind the live states those of the copies, which take their places.
            if round == 1 {
                step.moves.push(((TEXTS + number) as u32, number as u32));
            }
            step.parts.push(Part {
                tokens: dice.tokens(1),
                state: RowState {
                    state: number as u32,
                    records: number as u32,
                    side: 1 - text.side,
                    commits: true,
                    ..RowState::default()
                },
                replays: std::mem::take(&mut text.accepted),
                ..Part::default()
            });
        }
        made.push(step);
    }
    made
}
