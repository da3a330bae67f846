//! Requests that come, go on by what is accepted, pause and go.

use lockstep_speculation::Node;

use crate::world::{Brought, MOST, PAGE_SIZE, SLOTS, STEPS, Texts, World};

/// Tokens of a text, with which it ends.
const LONGEST: usize = 150;

/// A made-up server of two slots.
pub struct Script {
    world: World,
    texts: Texts,
    /// Of each slot: the first position of its text for the drafter, and the position up to which
    /// the drafter has seen it in steps that draft.
    spans: [(usize, usize); SLOTS],
    state: u64,
}

impl Script {
    pub fn new(world: World) -> Self {
        let mut script = Self {
            world,
            texts: Texts::default(),
            spans: [(0, 0); SLOTS],
            state: 1,
        };
        (0..SLOTS).for_each(|slot| script.open(slot));
        script
    }

    /// Takes so many steps, and gives the number of tokens that were drafted.
    pub fn run(mut self, steps: usize) -> usize {
        let mut drafted = 0;
        for _ in 0..steps {
            let pauses = self.world.pause_window() > 0 && self.draw(8) == 0;
            if pauses {
                // Within the window, or longer.
                let length = [3, 60][self.draw(2)];
                for _ in 0..length {
                    self.step(&[(0, 0), (1, 0)], true);
                }
                continue;
            }
            let depths = [(0, self.draw(STEPS + 1)), (1, self.draw(STEPS + 1))];
            drafted += match self.draw(4) {
                // One of them is not in the batch.
                0 => self.step(&depths[..1], false),
                1 => self.step(&depths[1..], false),
                _ => self.step(&depths, false),
            };
        }
        drafted
    }

    /// One step of slots, each as deep as it says: drafts, compares and accepts some.
    fn step(&mut self, asked: &[(usize, usize)], pauses: bool) -> usize {
        let drafts = match pauses {
            true => vec![Vec::new(); asked.len()],
            false => self.draft(asked),
        };
        let mut brought = Vec::new();
        for ((slot, _), nodes) in asked.iter().zip(&drafts) {
            let start = self.texts.tokens[*slot].len() - 1;
            let mut accepted = self.accept(nodes);
            accepted.push(self.token());
            let end = start + accepted.len();
            self.texts.tokens[*slot].extend(accepted);
            brought.push(Brought {
                slot: *slot,
                start,
                end,
                ends: true,
            });
            if !pauses {
                self.spans[*slot].1 = end;
            }
        }
        self.world.bring(0, &self.texts, &brought, pauses);
        for (slot, _) in asked {
            if self.texts.tokens[*slot].len() > LONGEST {
                let tokens = &self.texts.tokens[*slot];
                self.world.drafter(0).close(*slot, tokens);
                self.open(*slot);
            }
        }
        drafts.iter().map(Vec::len).sum()
    }

    /// Drafts, and compares with who sees the texts for the first time.
    fn draft(&mut self, asked: &[(usize, usize)]) -> Vec<Vec<Node>> {
        let drafts = self.world.draft(0, &self.texts, asked);
        for ((slot, steps), found) in asked.iter().zip(&drafts) {
            let from = self.beginning(*slot);
            self.spans[*slot] = (from, self.texts.tokens[*slot].len() - 1);
            self.read(1, *slot, from);
            let anew = self.world.draft(1, &self.texts, &[(*slot, *steps)]);
            assert_eq!(found, &anew[0], "slot {slot}, from {from}");
        }
        drafts
    }

    /// First position of the text for a drafter that may have missed more than its window.
    fn beginning(&self, slot: usize) -> usize {
        let (from, to) = self.spans[slot];
        let (window, now) = (self.world.reach(), self.texts.tokens[slot].len() - 1);
        if window == 0 || now - to <= window {
            return from;
        }
        match self.world.has_head() {
            true => (now - window).next_multiple_of(PAGE_SIZE),
            false => (now - window) / PAGE_SIZE * PAGE_SIZE,
        }
    }

    /// Begins another request, whose prompt comes in chunks.
    fn open(&mut self, slot: usize) {
        let length = 20 + self.draw(60);
        self.texts.tokens[slot] = (0..=length).map(|_| self.token()).collect();
        self.spans[slot] = (0, length);
        self.read(0, slot, 0);
    }

    /// Has a drafter begin a slot's text at a position, and take it in by chunks.
    fn read(&mut self, which: usize, slot: usize, from: usize) {
        let tokens = &self.texts.tokens[slot];
        let last = tokens.len() - 1;
        self.world.drafter(which).open(slot, tokens, from..from);
        let chunk = MOST / 2;
        for start in (from..last).step_by(chunk) {
            let end = last.min(start + chunk);
            let ends = end == last;
            let brought = Brought {
                slot,
                start,
                end,
                ends,
            };
            self.world.bring(which, &self.texts, &[brought], false);
        }
    }

    /// Tokens of a path from the root, not all of it as a rule.
    fn accept(&mut self, nodes: &[Node]) -> Vec<u32> {
        let (mut path, mut at) = (Vec::new(), 0);
        loop {
            let children: Vec<_> = (1..).zip(nodes).filter(|(_, n)| n.parent == at).collect();
            if children.is_empty() || self.draw(4) == 0 {
                return path;
            }
            let (number, node) = children[self.draw(children.len())];
            path.push(node.token);
            at = number;
        }
    }

    fn token(&mut self) -> u32 {
        self.draw(self.world.vocab()) as u32
    }

    fn draw(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005);
        self.state = self.state.wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % below
    }
}
