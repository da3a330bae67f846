//! The battery's requests.

use lockstep_types::{generation::GenerationParams, sampling::SamplingParams};

use super::CONTEXT;

/// A request and its fate.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) prompt: Vec<u32>,
    pub(super) generation: GenerationParams,
    /// Most tokens of the text.
    pub(super) tokens: usize,
    pub(super) fate: Fate,
    /// An earlier request that begins with the same prompt tokens. This request reads its
    /// pages.
    pub(super) shares: Option<usize>,
}

/// The way a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The request ends with its last token.
    Finishes,
    /// The request is aborted when its text has so many tokens.
    Aborted(usize),
    /// The request loses its slot when its text has so many tokens, and begins anew with them.
    Retracted(usize),
}

/// Returns all requests, in the order of arrival.
pub(super) fn all() -> Vec<Request> {
    let long = words(1, 70);
    let phrase = words(2, 5).repeat(8);
    let branch = [&long[..50], &words(3, 10)].concat();
    vec![
        Request::new(long.clone(), 24),
        Request::new(words(4, 1), 12),
        Request::new(phrase.clone(), 20).sampled(0.8),
        // This request reaches the end of the context first.
        Request::new(words(5, 100), CONTEXT - 100),
        Request::new(branch, 16).sharing(0),
        Request::new(words(6, 90), 20).with(Fate::Aborted(3)),
        Request::new(words(7, 20), 10).capped(0),
        Request::new(phrase.clone(), 18).sampled(1.2).capped(1),
        Request::new(long, 12).sharing(0),
        Request::new(phrase, 16).with(Fate::Retracted(6)),
        Request::new(words(8, 33), 14)
            .sampled(0.5)
            .with(Fate::Retracted(1)),
    ]
}

impl Request {
    fn new(prompt: Vec<u32>, tokens: usize) -> Self {
        Self {
            prompt,
            generation: SamplingParams::greedy().into(),
            tokens,
            fate: Fate::Finishes,
            shares: None,
        }
    }

    fn sampled(mut self, temperature: f32) -> Self {
        self.generation.sampling.temperature = temperature;
        self.generation.sampling.seed = self.prompt.len() as u64;
        self
    }

    fn sharing(mut self, other: usize) -> Self {
        self.shares = Some(other);
        self
    }

    fn capped(mut self, steps: u32) -> Self {
        self.generation.max_draft_steps = Some(steps);
        self
    }

    fn with(mut self, fate: Fate) -> Self {
        self.fate = fate;
        self
    }
}

/// Returns `count` tokens that every vocabulary has, others for each seed.
fn words(seed: u32, count: usize) -> Vec<u32> {
    let step = |word: &u32| Some(word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let words = std::iter::successors(Some(seed), step).skip(1).take(count);
    words.map(|word| 10 + (word >> 16) % 200).collect()
}
