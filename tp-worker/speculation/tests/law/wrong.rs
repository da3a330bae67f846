//! Verification of chains in textbook form, with typical mistakes.

use lockstep_sampling::{Request, Sampler, Stream, uniform};

use crate::{
    schemes::Scheme,
    toy::{Case, Context, LEN, PROMPT, history},
};

/// A rule for chains; the first two are right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Tokens,
    Block,
    /// Accepts with `min(1, q / p)`.
    InvertedRatio,
    /// Draws from the target itself after a rejection.
    ResidualIsTarget,
    /// Stops a block at the first length that fails.
    BlockFirstFailure,
    /// Keys the random numbers of a block by output position alone.
    BlockNumbersByPosition,
}

/// Number of drafted tokens of a round.
const STEPS: usize = 3;

/// Texts of chains verified by one rule.
pub struct Wrong {
    rule: Rule,
    text: Vec<u32>,
}

/// Drafts of a round: the tokens, `p` and `q` before each, and `p` after the last.
struct Chain {
    tokens: Vec<usize>,
    p: Vec<Vec<f64>>,
    q: Vec<Vec<f64>>,
}

impl Wrong {
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            text: Vec::new(),
        }
    }

    /// Returns the random number of a length (from 1), in the round that begins at `base`.
    fn number(&self, seed: u64, base: usize, length: usize, stream: Stream) -> f64 {
        let draw = match self.rule {
            Rule::BlockNumbersByPosition => 0,
            _ => length as u32,
        };
        uniform(seed, (base + length - 1) as u64, stream, draw)
    }

    fn draft(&self, case: &Case, seed: u64) -> Chain {
        let base = self.text.len() - PROMPT.len();
        let mut sampler = Sampler::new(case.vocab);
        let (mut text, mut next) = (self.text.clone(), Vec::new());
        let mut chain = Chain {
            tokens: Vec::new(),
            p: Vec::new(),
            q: Vec::new(),
        };
        for length in 1..=STEPS + 1 {
            let context = Context::of(&text);
            let request = Request {
                params: &case.params,
                history: &history(&text),
                position: (base + length - 1) as u64,
                allowed: None,
            };
            let logits = case.target(context);
            let taken = sampler.distribution(logits, request, &mut next);
            taken.expect("finite logits");
            chain.p.push(next.iter().map(|p| f64::from(*p)).collect());
            let q = softmax(case.draft(context), case.params.temperature);
            let token = invert(&q, self.number(seed, base, length, Stream::DRAFT));
            text.push(token as u32);
            chain.tokens.push(token);
            chain.q.push(q);
        }
        chain
    }

    fn round(&mut self, case: &Case, seed: u64) {
        let base = self.text.len() - PROMPT.len();
        let chain = self.draft(case, seed);
        let accepts = |length| self.number(seed, base, length, Stream::ACCEPT);
        let (length, weights) = match self.rule {
            Rule::Tokens | Rule::InvertedRatio | Rule::ResidualIsTarget => {
                tokens(&chain, self.rule, accepts)
            }
            _ => block(&chain, self.rule, accepts),
        };
        // Equal distributions leave only rounding errors.
        let nothing = weights.iter().all(|weight| *weight == 0.0);
        let weights = if nothing { &chain.p[length] } else { &weights };
        let point = self.number(seed, base, length + 1, Stream::RESIDUAL);
        let drafted = chain.tokens[..length].iter();
        self.text.extend(drafted.map(|token| *token as u32));
        self.text.push(invert(weights, point) as u32);
    }
}

impl Scheme for Wrong {
    fn text(&mut self, case: &Case, seed: u64) -> &[u32] {
        self.text.clear();
        self.text.extend(PROMPT);
        while self.text.len() < PROMPT.len() + LEN {
            self.round(case, seed);
        }
        &self.text[PROMPT.len()..]
    }
}

/// Returns the accepted length and the next token's weights, by verifying token by token.
fn tokens(chain: &Chain, rule: Rule, accepts: impl Fn(usize) -> f64) -> (usize, Vec<f64>) {
    for at in 0..STEPS {
        let (p, q) = (&chain.p[at], &chain.q[at]);
        let token = chain.tokens[at];
        let ratio = match rule {
            Rule::InvertedRatio => q[token] / p[token],
            _ => p[token] / q[token],
        };
        if accepts(at + 1) < ratio {
            continue;
        }
        let weights = match rule {
            Rule::ResidualIsTarget => p.clone(),
            _ => residual(p, q, 1.0),
        };
        return (at, weights);
    }
    (STEPS, chain.p[STEPS].clone())
}

/// Returns the accepted length and the next token's weights, by verifying a block.
fn block(chain: &Chain, rule: Rule, accepts: impl Fn(usize) -> f64) -> (usize, Vec<f64>) {
    let mut accepted = (0, residual(&chain.p[0], &chain.q[0], 1.0));
    let mut ratio = 1.0f64;
    for length in 1..=STEPS {
        let (at, token) = (length - 1, chain.tokens[length - 1]);
        ratio = (ratio * chain.p[at][token] / chain.q[at][token]).min(1.0);
        let (weights, chance) = if length == STEPS {
            (chain.p[STEPS].clone(), ratio)
        } else {
            let weights = residual(&chain.p[length], &chain.q[length], ratio);
            let left: f64 = weights.iter().sum();
            (weights, left / (left + 1.0 - ratio))
        };
        if accepts(length) < chance {
            accepted = (length, weights);
        } else if rule == Rule::BlockFirstFailure {
            break;
        }
    }
    accepted
}

fn residual(p: &[f64], q: &[f64], ratio: f64) -> Vec<f64> {
    let left = p.iter().zip(q).map(|(p, q)| (ratio * p - q).max(0.0));
    left.collect()
}

fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
    let weights: Vec<f64> = logits
        .iter()
        .map(|logit| f64::from(*logit / temperature).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

fn invert(weights: &[f64], point: f64) -> usize {
    let mut target = point * weights.iter().sum::<f64>();
    let possible = |(_, weight): &(usize, &f64)| **weight > 0.0;
    let mut last = 0;
    for (token, weight) in weights.iter().enumerate().filter(possible) {
        last = token;
        if target < *weight {
            break;
        }
        target -= weight;
    }
    last
}
