//! Shape of drafts: steps, branches, and tokens of a verification.

use lockstep_types::{Algorithm, ConfigError, DraftShape};

use super::{ADAPTIVE, ALGORITHM};
use crate::args::SpeculationArgs;

pub(super) const STEPS: &str = "--speculative-num-steps";
pub(super) const TOPK: &str = "--speculative-eagle-topk";
pub(super) const TOKENS: &str = "--speculative-num-draft-tokens";

const MOST_STEPS: usize = 64;
const MOST_BRANCHES: usize = 64;
pub(super) const MOST_TOKENS: usize = 512;

/// The shape that the options give; `default`, the algorithm's own, adds what they leave out.
pub(super) fn resolve(
    given: &SpeculationArgs,
    algorithm: &dyn Algorithm,
    default: DraftShape,
) -> Result<DraftShape, ConfigError> {
    for (option, value, most) in [
        (STEPS, given.speculative_num_steps, MOST_STEPS),
        (TOPK, given.speculative_eagle_topk, MOST_BRANCHES),
        (TOKENS, given.speculative_num_draft_tokens, MOST_TOKENS),
    ] {
        if let Some(value) = value.filter(|value| *value > most) {
            let why = format!("at most {most}");
            return Err(ConfigError::value(option, value, why, "Give that or less"));
        }
    }
    let topk = given.speculative_eagle_topk.unwrap_or(default.topk);
    if topk == 1 {
        return chain(given, default);
    }
    if !algorithm.capabilities().supports_tree {
        return Err(ConfigError::conflict(
            format!("{ALGORITHM} {}", algorithm.name()),
            format!("{TOPK} {topk}"),
            "it drafts chains, which do not branch",
            format!("Give {TOPK} 1 or leave it out"),
        ));
    }
    tree(given, default, topk)
}

/// A shape of `depth` steps with as many nodes per step as in `shape`.
///
/// # Errors
/// If it has more tokens than can be verified.
pub(super) fn at(shape: DraftShape, depth: usize) -> Result<DraftShape, ConfigError> {
    let DraftShape {
        num_steps, topk, ..
    } = shape;
    let num_draft_tokens = match topk {
        1 => depth + 1,
        _ => {
            // Rounded down, so that the given depth gets its given tokens back.
            let nodes = (shape.num_draft_tokens - 1) * depth / num_steps;
            (1 + nodes.max(depth)).min(DraftShape::most_tokens(depth, topk))
        }
    };
    if num_draft_tokens <= MOST_TOKENS {
        return Ok(DraftShape {
            num_steps: depth,
            topk,
            num_draft_tokens,
        });
    }
    Err(ConfigError::conflict(
        ADAPTIVE,
        format!("{TOKENS} {}", shape.num_draft_tokens),
        format!(
            "with as many nodes per step, depth {depth} would verify {num_draft_tokens} tokens \
             of a request at once, and at most {MOST_TOKENS} can be"
        ),
        format!("Give fewer {TOKENS} or {TOPK}, or less depth"),
    ))
}

/// The shape of a chain. A chain is verified whole, so its steps determine its tokens.
fn chain(given: &SpeculationArgs, default: DraftShape) -> Result<DraftShape, ConfigError> {
    let steps = given.speculative_num_steps;
    let num_steps = match (steps, given.speculative_num_draft_tokens) {
        (Some(steps), Some(tokens)) if tokens != steps + 1 => {
            return Err(ConfigError::conflict(
                format!("{STEPS} {steps}"),
                format!("{TOKENS} {tokens}"),
                "a chain has a token for each step, and the last known one before them",
                format!(
                    "Give {TOKENS} {}, leave one of them out, or give {TOPK} above 1 for a tree",
                    steps + 1
                ),
            ));
        }
        (Some(steps), _) => steps,
        (None, Some(tokens)) if !(2..=MOST_STEPS + 1).contains(&tokens) => {
            return Err(ConfigError::value(
                TOKENS,
                tokens,
                format!(
                    "a chain has 2 to {} tokens, the last known one included",
                    MOST_STEPS + 1
                ),
                format!("Give such a number, or {TOPK} above 1 for a tree"),
            ));
        }
        (None, Some(tokens)) => tokens - 1,
        (None, None) => default.num_steps,
    };
    Ok(DraftShape {
        num_steps,
        topk: 1,
        num_draft_tokens: num_steps + 1,
    })
}

/// The shape of a tree with its likeliest nodes, as many as are asked for.
fn tree(
    given: &SpeculationArgs,
    default: DraftShape,
    topk: usize,
) -> Result<DraftShape, ConfigError> {
    let num_steps = given.speculative_num_steps.unwrap_or(default.num_steps);
    let most = DraftShape::most_tokens(num_steps, topk).min(MOST_TOKENS);
    let as_default = (num_steps, topk) == (default.num_steps, default.topk);
    let num_draft_tokens = match given.speculative_num_draft_tokens {
        Some(tokens) => tokens,
        None if as_default => default.num_draft_tokens,
        None => (1 + num_steps * topk).min(most),
    };
    if (2..=most).contains(&num_draft_tokens) {
        return Ok(DraftShape {
            num_steps,
            topk,
            num_draft_tokens,
        });
    }
    Err(ConfigError::conflict(
        format!("{TOKENS} {num_draft_tokens}"),
        format!("{TOPK} {topk}"),
        format!("a tree of {num_steps} steps with so many branches has 2 to {most} tokens"),
        format!("Give {TOKENS} {most} or less, or more steps or branches"),
    ))
}
