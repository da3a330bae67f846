//! Toy models, whose logits depend on the last two tokens.

use lockstep_sampling::{Request, Sampler, Stream, TokenHistory, uniform};
use lockstep_types::sampling::SamplingParams;

/// Number of tokens of a text whose joint law is tested.
pub const LEN: usize = 3;

/// The prompt of every text.
pub const PROMPT: [u32; 3] = [2, 0, 1];

/// A target, a draft and sampling parameters.
pub struct Case {
    pub name: &'static str,
    pub vocab: usize,
    target: Vec<Vec<f32>>,
    draft: Vec<Vec<f32>>,
    pub params: SamplingParams,
}

/// The last two tokens of a text.
#[derive(Debug, Clone, Copy)]
pub struct Context(u32, u32);

impl Context {
    pub fn of(text: &[u32]) -> Self {
        let [.., before, last] = text else {
            panic!("a text starts with a prompt");
        };
        Self(*before, *last)
    }

    pub fn then(self, token: u32) -> Self {
        Self(self.1, token)
    }
}

impl Case {
    /// Makes a case with logits `scale · U(-2, 2)` for the target. The draft's logits are these
    /// plus `noise · U(-2, 2)`.
    fn new(name: &'static str, vocab: usize, scale: f64, noise: f64) -> Self {
        let mut drawn = 0;
        let mut random = |scale: f64| {
            drawn += 1;
            let seed = name
                .bytes()
                .fold(vocab as u64, |h, b| h * 31 + u64::from(b));
            (scale * (4.0 * uniform(seed, drawn, Stream(99), 0) - 2.0)) as f32
        };
        let mut rows = |scale: f64| -> Vec<Vec<f32>> {
            let mut row = || (0..vocab).map(|_| random(scale)).collect();
            (0..vocab * vocab).map(|_| row()).collect()
        };
        let target = rows(scale);
        let mut draft = rows(noise);
        for (draft, target) in draft.iter_mut().flatten().zip(target.iter().flatten()) {
            *draft += target;
        }
        Self {
            name,
            vocab,
            target,
            draft,
            params: SamplingParams::default(),
        }
    }

    /// Makes tokens impossible for which the masks of target and draft, called with (context,
    /// token), return true.
    fn without(
        mut self,
        target: impl Fn(usize, usize) -> bool,
        draft: impl Fn(usize, usize) -> bool,
    ) -> Self {
        for (rows, mask) in [
            (&mut self.target, &target as &dyn Fn(usize, usize) -> bool),
            (&mut self.draft, &draft),
        ] {
            for (context, row) in rows.iter_mut().enumerate() {
                for (token, logit) in row.iter_mut().enumerate() {
                    if mask(context, token) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
        self
    }

    fn with(mut self, params: SamplingParams) -> Self {
        self.params = params;
        self
    }

    pub fn all() -> [Self; 7] {
        let default = SamplingParams::default;
        [
            Self::new("close", 6, 1.0, 0.5),
            Self::new("far", 6, 1.0, 1.5).with(SamplingParams {
                temperature: 0.8,
                ..default()
            }),
            Self::new("same", 5, 1.0, 0.0),
            Self::new("disjoint", 6, 0.5, 0.5).without(|_, t| t > 2, |_, t| t < 3),
            Self::new("zeros", 7, 1.0, 1.0)
                .without(|c, t| (c + t) % 5 == 0, |c, t| (c + 2 * t) % 3 == 0)
                .with(SamplingParams {
                    min_p: 0.15,
                    temperature: 1.3,
                    ..default()
                }),
            Self::new("truncated", 8, 0.7, 0.5).with(SamplingParams {
                top_k: 5,
                top_p: 0.85,
                ..default()
            }),
            Self::new("penalties", 6, 0.7, 0.5).with(SamplingParams {
                frequency_penalty: 0.7,
                presence_penalty: 0.4,
                repetition_penalty: 1.4,
                logit_bias: vec![(1, 0.8), (4, -0.5)],
                min_new_tokens: 2,
                stop_token_ids: vec![3],
                temperature: 0.9,
                ..default()
            }),
        ]
    }

    pub fn target(&self, context: Context) -> &[f32] {
        &self.target[self.index(context)]
    }

    pub fn draft(&self, context: Context) -> &[f32] {
        &self.draft[self.index(context)]
    }

    fn index(&self, context: Context) -> usize {
        context.0 as usize * self.vocab + context.1 as usize
    }

    /// Returns the probabilities of all texts of [`LEN`] tokens, sampled one by one.
    pub fn law(&self) -> Vec<f64> {
        let mut law = Vec::new();
        let mut text = PROMPT.to_vec();
        self.extend_law(&mut text, 1.0, &mut Sampler::new(self.vocab), &mut law);
        law
    }

    fn extend_law(&self, text: &mut Vec<u32>, p: f64, sampler: &mut Sampler, law: &mut Vec<f64>) {
        let output = text.len() - PROMPT.len();
        if output == LEN {
            law.push(p);
            return;
        }
        let request = Request {
            params: &self.params,
            history: &history(text),
            position: output as u64,
            allowed: None,
        };
        let mut next = Vec::new();
        let logits = self.target(Context::of(text));
        let taken = sampler.distribution(logits, request, &mut next);
        taken.expect("finite logits");
        for (token, q) in next.into_iter().enumerate() {
            text.push(token as u32);
            self.extend_law(text, p * f64::from(q), sampler, law);
            text.pop();
        }
    }
}

/// Returns the token counts of a request with this text.
pub fn history(text: &[u32]) -> TokenHistory {
    let mut history = TokenHistory::default();
    let (prompt, output) = text.split_at(PROMPT.len());
    history.reset(prompt);
    output.iter().for_each(|token| history.push(*token));
    history
}
