//! Texts by speculative decoding, over as many rounds as they take.

use lockstep_sampling::{DraftKey, DraftSampler, Sampler, TokenHistory};
use lockstep_speculation::{Drafts, Drawing, Node, TreeGrower, TreeShape, Verifier, VerifyRow};
use lockstep_types::Verification;
use lockstep_types::sampling::SamplingParams;

use crate::toy::{Case, Context, LEN, PROMPT, history};

/// A way to draw texts.
pub trait Scheme {
    /// Returns a text of at least [`LEN`] tokens.
    fn text(&mut self, case: &Case, seed: u64) -> &[u32];
}

/// The way in which nodes get their children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Children {
    /// Drawn without replacement.
    Sampled,
    /// The most likely ones.
    Likeliest,
    /// All but the last are drawn; the last is the likeliest token left.
    Mixed,
    /// Drawn as a model's trees are grown, in a shape that changes from round to round.
    Grown(TreeShape),
}

/// Speculative decoding by the crate under test.
pub struct Speculative {
    /// Number of children of a node, by its depth.
    widths: &'static [usize],
    children: Children,
    drafts: Drafts,
    draft_sampler: DraftSampler,
    grower: TreeGrower,
    verifier: Verifier,
    sampler: Sampler,
    /// Context and depth of each node of the round.
    nodes: Vec<(Context, usize)>,
    params: SamplingParams,
    history: TokenHistory,
    text: Vec<u32>,
}

impl Speculative {
    pub fn new(
        case: &Case,
        mode: Verification,
        widths: &'static [usize],
        children: Children,
    ) -> Self {
        let sampled = children != Children::Likeliest;
        Self {
            widths,
            children,
            drafts: Drafts::new(1, 16, if sampled { case.vocab } else { 0 }),
            draft_sampler: DraftSampler::new(case.vocab),
            grower: TreeGrower::default(),
            verifier: Verifier::new(mode, case.vocab, 16),
            sampler: Sampler::new(case.vocab),
            nodes: Vec::new(),
            params: case.params.clone(),
            history: TokenHistory::default(),
            text: Vec::new(),
        }
    }

    /// Returns the mean number of tokens accepted in the first round.
    pub fn accepted(&mut self, case: &Case, texts: u64) -> f64 {
        let mut accepted = 0;
        for seed in 0..texts {
            self.begin(seed);
            self.round(case);
            accepted += self.text.len() - PROMPT.len() - 1;
        }
        accepted as f64 / texts as f64
    }

    fn begin(&mut self, seed: u64) {
        self.params.seed = seed;
        self.text.clear();
        self.text.extend(PROMPT);
        self.history.reset(&PROMPT);
    }

    fn round(&mut self, case: &Case) {
        self.draft(case);
        let mut row = VerifyRow {
            drafts: &self.drafts,
            row: 0,
            params: &self.params,
            history: &mut self.history,
            constraint: None,
            position: (self.text.len() - PROMPT.len()) as u64,
            logprobs: None,
        };
        self.verifier.begin(&row);
        for (number, (context, _)) in (0..).zip(&self.nodes) {
            let logits = case.target(*context);
            let taken = self
                .verifier
                .node(number, logits, &mut row, &mut self.sampler);
            taken.expect("finite logits");
        }
        let verified = self.verifier.finish(&mut row);
        assert_eq!(verified.tokens.len(), verified.path.len() + 1);
        self.text.extend(&verified.tokens);
    }

    fn draft(&mut self, case: &Case) {
        self.drafts.begin(1);
        self.nodes.clear();
        self.nodes.push((Context::of(&self.text), 0));
        let base = (self.text.len() - PROMPT.len()) as u64;
        if let Children::Grown(shape) = self.children {
            return self.grow(case, base, shape);
        }
        let mut parent = 0;
        while let Some((context, depth)) = self.nodes.get(parent).copied() {
            let width = self.widths.get(depth).copied().unwrap_or(0);
            let (sampler, temperature) = (&mut self.draft_sampler, self.params.temperature);
            let set = sampler.set(case.draft(context), None, temperature);
            set.expect("finite logits");
            for child in 0..width {
                let sampled = match self.children {
                    Children::Sampled => true,
                    Children::Likeliest | Children::Grown(_) => false,
                    Children::Mixed => child + 1 < width,
                };
                let key = DraftKey {
                    seed: self.params.seed,
                    position: base + depth as u64,
                    node: self.nodes.len() as u32,
                };
                let drawn = if sampled {
                    sampler.draw(key)
                } else {
                    likeliest(sampler.law())
                };
                let Some(token) = drawn else { break };
                if sampled {
                    let law = self.drafts.distribution(0);
                    law.copy_from_slice(sampler.law());
                }
                let parent = parent as u32;
                self.drafts.push(0, Node { token, parent });
                self.nodes.push((context.then(token), depth + 1));
                sampler.exclude(token);
            }
            parent += 1;
        }
    }

    fn grow(&mut self, case: &Case, base: u64, shape: TreeShape) {
        let root = self.nodes[0].0;
        let mut drawing = Drawing {
            sampler: &mut self.draft_sampler,
            ids: None,
            params: &self.params,
            position: base,
        };
        self.grower.begin(TreeShape {
            most: shape.most - self.text.len() % 2,
            ..shape
        });
        let mut logits = case.draft(root).to_vec();
        while !logits.is_empty() {
            self.grower
                .sample_level(&logits, &mut drawing, &mut self.drafts, 0);
            let mut contexts: Vec<Context> = Vec::new();
            for node in self.grower.expanded() {
                let parent = node.parent.checked_sub(1);
                let before = parent.map_or(root, |parent| contexts[parent as usize]);
                contexts.push(before.then(node.token));
            }
            let frontier = contexts.len() - self.grower.frontier().len();
            let rows = contexts[frontier..].iter();
            logits = rows
                .flat_map(|context| case.draft(*context))
                .copied()
                .collect();
        }
        for node in self.drafts.nodes(0) {
            let (context, depth) = self.nodes[node.parent as usize];
            self.nodes.push((context.then(node.token), depth + 1));
        }
    }
}

impl Scheme for Speculative {
    fn text(&mut self, case: &Case, seed: u64) -> &[u32] {
        self.begin(seed);
        while self.text.len() < PROMPT.len() + LEN {
            self.round(case);
        }
        debug_assert!(!case.params.has_penalties() || self.history == history(&self.text));
        &self.text[PROMPT.len()..]
    }
}

fn likeliest(law: &[f32]) -> Option<u32> {
    let most = law.iter().copied().fold(0.0, f32::max);
    let at = law.iter().position(|p| *p == most && *p > 0.0);
    at.map(|token| token as u32)
}
