//! Verification of drafts: the drafted tokens that a request takes, and the token after them.
//!
//! Rows of logits arrive in the order of nodes and are not kept. So a decision is taken at the
//! node whose logits are there, and nothing as large as the vocabulary is held per node.
//! Parents come before children, so one look at each row of logits is enough in every mode.

use lockstep_sampling::{
    Request, Sampler, SamplingError, TokenConstraint, TokenHistory, allows, token_logprob,
};
use lockstep_types::Verification;
use lockstep_types::sampling::{SamplingParams, TokenLogprob};

use crate::{Drafts, Node};

mod block;
mod recursive;

/// Verifies drafted rows, one after the other.
///
/// For each row, call [`Self::begin`], then [`Self::node`] for node 0 (the root, the last known
/// token) and every drafted node in the order of their numbers, then [`Self::finish`]. Every
/// mode is lossless: the tokens follow the law of sampling from the target one by one, with all
/// of a request's parameters applied at each output position. With temperature 0 every mode
/// takes the same tokens as without speculation.
///
/// The random numbers are functions of the request's seed, the output position and the node's
/// number. A position can be drafted for in several steps. Where it matters, it has another
/// number each time: the outcome of block verification depends on the drafts and numbers after
/// the accepted ones, so using these numbers again would bias the next step.
#[derive(Debug)]
pub struct Verifier {
    mode: Verification,
    rule: Rule,
    /// The node whose logits decide the next token; `None` once all is decided.
    current: Option<u32>,
    verified: Verified,
    /// The target's distribution at a node, then the rest of it after rejections.
    law: Vec<f32>,
    block: block::Block,
}

/// A row to verify.
#[derive(Debug)]
pub struct VerifyRow<'a> {
    /// The drafts of the step.
    pub drafts: &'a Drafts,
    /// Index of the row in `drafts`.
    pub row: usize,
    /// Sampling parameters of the request.
    pub params: &'a SamplingParams,
    /// Counts of the request's tokens so far. They are only read and changed if `params` has
    /// penalties. Decided tokens are pushed as they are decided. After [`Verifier::finish`] the
    /// counts have taken in exactly [`Verified::tokens`].
    pub history: &'a mut TokenHistory,
    /// The constraint of the request's output. It is asked along the path alone, and after
    /// [`Verifier::finish`] it has taken in exactly [`Verified::tokens`].
    pub constraint: Option<&'a mut dyn TokenConstraint>,
    /// Number of output tokens before this row.
    pub position: u64,
    /// Number of most likely tokens whose log-probabilities are reported; `None` if nothing is
    /// reported.
    pub logprobs: Option<usize>,
}

/// Result of a row.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Verified {
    /// Numbers of the accepted nodes, from the root on, without the root.
    pub path: Vec<u32>,
    /// The tokens of `path`, and the token after them: always one more than `path`. Empty if
    /// the row failed.
    pub tokens: Vec<u32>,
    /// Log-probabilities of `tokens`; empty unless they are reported.
    pub logprobs: Vec<TokenLogprob>,
    /// Number of drafted tokens that the constraint forbade where their parents' logits decided
    /// something. It is counted for reports alone.
    pub cut: u32,
}

/// The rule that decides a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The target's token is sampled. If a child has this token, the path goes on there.
    Coupled,
    /// Children are accepted one by one with probability `min(1, p / q)`.
    Recursive,
    /// The chain is accepted as a block.
    Block,
}

impl Verifier {
    /// Makes a verifier for rows of `vocab` logits and at most `max_nodes` drafted nodes.
    pub fn new(mode: Verification, vocab: usize, max_nodes: usize) -> Self {
        Self {
            mode,
            rule: Rule::Coupled,
            current: None,
            verified: Verified {
                path: Vec::with_capacity(max_nodes),
                tokens: Vec::with_capacity(max_nodes + 1),
                logprobs: Vec::new(),
                cut: 0,
            },
            law: Vec::with_capacity(vocab),
            block: block::Block::default(),
        }
    }

    /// Begins a row.
    ///
    /// Drafts that were not sampled are verified as in mode `target`, which has the same law
    /// then. Trees in mode `block` are verified as in `rejection`.
    pub fn begin(&mut self, row: &VerifyRow<'_>) {
        self.rule = rule(self.mode, row);
        self.current = Some(0);
        self.verified.path.clear();
        self.verified.tokens.clear();
        self.verified.logprobs.clear();
        self.verified.cut = 0;
        self.block.begin();
    }

    /// Takes in the logits of one node. Logits off the path cost nothing and may be anything.
    ///
    /// # Errors
    /// [`SamplingError`] at the root: the row fails and gets no token. If logits further down
    /// are not finite, or the constraint fails there, the path ends before them, and the request
    /// meets them at its next step's root.
    pub fn node(
        &mut self,
        number: u32,
        logits: &[f32],
        row: &mut VerifyRow<'_>,
        sampler: &mut Sampler,
    ) -> Result<(), SamplingError> {
        if self.current != Some(number) {
            return Ok(());
        }
        self.current = None;
        let forbidden = cut(number, row);
        let decided = match self.rule {
            Rule::Coupled => self.coupled(number, logits, row, sampler),
            Rule::Recursive => self.recursive(number, logits, row, sampler),
            Rule::Block => self.block(number, logits, row, sampler),
        };
        match decided {
            Ok(()) => self.verified.cut += forbidden,
            Err(error) if number == 0 => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// Returns true if the tokens at a row's nodes are the tokens that [`Sampler`] gives there.
    /// A device that samples alike may then choose them, and take drafts as far as they agree,
    /// if it reports no log-probabilities and the request has no penalties.
    pub fn samples(&self, drafts: &Drafts, row: usize, params: &SamplingParams) -> bool {
        samples(self.mode, drafts, row, params)
    }

    /// Ends the row, and returns its result. The log-probabilities may be taken out.
    pub fn finish(&mut self, row: &mut VerifyRow<'_>) -> &mut Verified {
        self.current = None;
        if self.rule == Rule::Block {
            self.finish_block(row);
        }
        // If a node's logits decided nothing, the node is not on the path. Its token is the
        // last one, as if it had not been drafted.
        let decided = self.verified.tokens.len().saturating_sub(1);
        self.verified.path.truncate(decided);
        &mut self.verified
    }

    /// Samples as without speculation, and looks for a child with that token.
    fn coupled(
        &mut self,
        number: u32,
        logits: &[f32],
        row: &mut VerifyRow<'_>,
        sampler: &mut Sampler,
    ) -> Result<(), SamplingError> {
        let token = sampler.sample(logits, self.request(row)?)?;
        self.take(token, drafted(row, number, token), logits, row)
    }

    /// Emits a token, and goes on at the node that drafted it, if there is one.
    fn take(
        &mut self,
        token: u32,
        child: Option<u32>,
        logits: &[f32],
        row: &mut VerifyRow<'_>,
    ) -> Result<(), SamplingError> {
        let logprob = row.logprobs.map(|top| token_logprob(logits, token, top));
        let logprob = logprob.transpose()?;
        if let Some(constraint) = &mut row.constraint {
            constraint.take(token)?;
        }
        self.verified.logprobs.extend(logprob);
        self.verified.tokens.push(token);
        if row.params.has_penalties() {
            row.history.push(token);
        }
        self.verified.path.extend(child);
        self.current = child;
        Ok(())
    }

    /// Returns the request at the current node. The node's depth is the number of tokens
    /// decided so far.
    fn request<'a>(&self, row: &'a mut VerifyRow<'_>) -> Result<Request<'a>, SamplingError> {
        let VerifyRow {
            params,
            history,
            constraint,
            position,
            ..
        } = row;
        let allowed = match constraint {
            Some(constraint) => Some(constraint.allowed()?),
            None => None,
        };
        Ok(Request {
            params,
            history,
            position: *position + self.verified.tokens.len() as u64,
            allowed,
        })
    }
}

/// Returns the rule that decides a row.
fn rule(mode: Verification, row: &VerifyRow<'_>) -> Rule {
    if samples(mode, row.drafts, row.row, row.params) {
        return Rule::Coupled;
    }
    let nodes = row.drafts.nodes(row.row).len() as u32;
    let block = mode == Verification::Block
        && row.drafts.is_chain(row.row)
        && (1..=nodes).all(|number| block::law(row, number).is_some());
    if block { Rule::Block } else { Rule::Recursive }
}

fn samples(mode: Verification, drafts: &Drafts, row: usize, params: &SamplingParams) -> bool {
    mode == Verification::Target || params.temperature == 0.0 || !drafts.is_sampled(row)
}

/// Returns the node that was drafted as `token` after `parent`.
fn drafted(row: &VerifyRow<'_>, parent: u32, token: u32) -> Option<u32> {
    children(row.drafts.nodes(row.row), parent)
        .find(|(_, node)| node.token == token)
        .map(|(child, _)| child)
}

/// Returns the number of tokens drafted after `parent` that the row's constraint forbids there.
/// The mask is the one that the row's decision needs anyway.
fn cut(parent: u32, row: &mut VerifyRow<'_>) -> u32 {
    let nodes = row.drafts.nodes(row.row);
    let drafted = children(nodes, parent).next().is_some();
    let Some(constraint) = row.constraint.as_mut().filter(|_| drafted) else {
        return 0;
    };
    // One that fails is told of by the decision.
    let allowed = constraint.allowed();
    allowed.map_or(0, |allowed| forbidden(nodes, parent, allowed))
}

/// Returns the number of `nodes` drafted after `parent` that the mask of `parent` forbids.
pub fn forbidden(nodes: &[Node], parent: u32, mask: &[u32]) -> u32 {
    let cut = children(nodes, parent).filter(|(_, node)| !allows(mask, node.token));
    cut.map(|_| 1).sum()
}

/// Returns the children of `parent`, with their numbers.
fn children(nodes: &[Node], parent: u32) -> impl Iterator<Item = (u32, Node)> {
    let numbered = (1u32..).zip(nodes.iter().copied());
    numbered.filter(move |(_, node)| node.parent == parent)
}

#[cfg(test)]
mod tests;
