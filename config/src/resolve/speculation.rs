//! Speculative decoding: the algorithm, its draft model, and the number of drafts.

use super::{ConfigError, ModelConfig, Ranks, ServeArgs, SpeculationConfig};
use crate::args::{SpeculationArgs, VerificationArg};
use lockstep_adaptive::AdaptiveConfig;
use lockstep_model_folder::draft::OPTION as DRAFT_OPTION;
use lockstep_types::{Algorithm, Algorithms, DraftKind, DraftModel, Footprint, Verification};

mod adaptive;
mod options;
mod shape;
mod unknown;

const ALGORITHM: &str = "--speculative-algorithm";
const ADAPTIVE: &str = "--speculative-adaptive";

/// The configuration, and the bytes that the algorithm asks for on every drafting rank, beside
/// a draft model. With data-parallel attention, depths adapt by default.
pub(super) fn resolve(
    args: &ServeArgs,
    target: &ModelConfig,
    known: &Algorithms,
    ranks: &Ranks,
    footprint: &dyn Footprint,
) -> Result<(SpeculationConfig, u64), ConfigError> {
    let given = &args.speculation;
    let name = match given.speculative_algorithm.as_deref() {
        Some(name) if !name.eq_ignore_ascii_case("none") => name,
        none => return without(none, given, known).map(|none| (none, 0)),
    };
    let algorithm = known
        .find(name)
        .ok_or_else(|| unknown::refused(name, target, known))?;
    let algorithm = algorithm.as_ref();
    let draft = draft(given, algorithm, target)?;
    let default = draft.as_ref().map_or_else(
        || algorithm.default_shape(),
        |draft| algorithm.default_shape_with(draft),
    );
    let first = shape::resolve(given, algorithm, default)?;
    // The deepest tier sets all sizes.
    let dp_attention = ranks.parallel.dp_size > 1;
    let wanted = adaptive::wanted(given, algorithm, dp_attention)?;
    let shapes = adaptive::Shapes { first, default };
    let adaptive = wanted.map(|wanted| adaptive::resolve(wanted, given, algorithm, shapes, known));
    let (adaptive, shape) = match adaptive.transpose()? {
        Some((adaptive, deepest)) => {
            let attn_tp_size = ranks.parallel.attn_tp_size();
            let shared_part = footprint.shared_part(target, attn_tp_size);
            let adaptive = AdaptiveConfig {
                shared_part,
                ..adaptive
            };
            (Some(adaptive), deepest)
        }
        None => (None, first),
    };
    let mut speculation = SpeculationConfig {
        algorithm: Some(algorithm.name().to_owned()),
        draft,
        draft_kv: algorithm.capabilities().draft_kv,
        drafts_from_texts: algorithm.capabilities().drafts_from_texts,
        num_steps: shape.num_steps,
        topk: shape.topk,
        num_draft_tokens: shape.num_draft_tokens,
        verification: verification(given, algorithm, shape.topk)?,
        max_speculative_num_draft_tokens: shape.num_draft_tokens,
        options: options::resolve(&given.algorithm.0, algorithm, known)?,
        pause_window: match &adaptive {
            Some(_) => algorithm.pause_window(),
            None => 0,
        },
        adaptive,
    };
    algorithm.validate(&speculation, target)?;
    speculation.max_speculative_num_draft_tokens = most(&speculation, algorithm)?;
    let bytes = algorithm.memory_bytes(&speculation);
    Ok((speculation, bytes))
}

/// Checks drafts against the context, and returns a note about it.
pub(super) fn fit(
    speculation: &SpeculationConfig,
    context_length: usize,
) -> Result<Option<String>, ConfigError> {
    check(speculation, context_length)?;
    Ok(beyond(speculation, context_length))
}

/// Checks that the largest verification fits into the context, beside a token of the prompt and
/// a token of the answer.
fn check(speculation: &SpeculationConfig, context_length: usize) -> Result<(), ConfigError> {
    let tokens = speculation.max_speculative_num_draft_tokens;
    if speculation.adaptive.is_none() || tokens + 2 <= context_length {
        return Ok(());
    }
    Err(ConfigError::conflict(
        ADAPTIVE,
        format!("a context length of {context_length}"),
        format!(
            "depth {} verifies {tokens} tokens at once, which leaves no room for a text",
            speculation.num_steps
        ),
        format!(
            "Give {} or {} of less, or a larger --context-length",
            adaptive::CANDIDATES,
            shape::STEPS
        ),
    ))
}

/// A note about a draft model whose positions end before the context does.
fn beyond(speculation: &SpeculationConfig, context_length: usize) -> Option<String> {
    let DraftModel { model, kind, .. } = speculation.draft.as_ref()?;
    let end = model.max_position_embeddings;
    // Heads commonly name fewer positions than they work at.
    (*kind == DraftKind::Model && end < context_length).then(|| {
        format!(
            "the draft model's positions end at {end} of {context_length}; drafts beyond it are \
             seldom accepted"
        )
    })
}

/// The configuration without drafts. Options about drafting contradict it.
fn without(
    none: Option<&str>,
    given: &SpeculationArgs,
    known: &Algorithms,
) -> Result<SpeculationConfig, ConfigError> {
    let Some(option) = first(given, known) else {
        return Ok(SpeculationConfig::none());
    };
    let why = "nothing is drafted without an algorithm";
    Err(match none {
        Some(_) => ConfigError::conflict(
            option,
            format!("{ALGORITHM} none"),
            why,
            "Leave one of them out",
        ),
        None => {
            let remedy = format!("Give {ALGORITHM} too, such as EAGLE3, or leave {option} out");
            ConfigError::conflict(option, ALGORITHM, why, remedy)
        }
    })
}

/// The first option about drafting that was given.
fn first(given: &SpeculationArgs, known: &Algorithms) -> Option<String> {
    let general = [
        (DRAFT_OPTION, given.speculative_draft_model_path.is_some()),
        (shape::STEPS, given.speculative_num_steps.is_some()),
        (shape::TOPK, given.speculative_eagle_topk.is_some()),
        (shape::TOKENS, given.speculative_num_draft_tokens.is_some()),
        (VERIFICATION, given.speculative_verification.is_some()),
        (ADAPTIVE, given.speculative_adaptive == Some(true)),
        (
            adaptive::CONFIG,
            given.speculative_adaptive_config.is_some(),
        ),
    ]
    .into_iter()
    .find_map(|(option, is_given)| is_given.then(|| option.to_owned()));
    general.or_else(|| options::first(&given.algorithm.0, known))
}

/// The model that the algorithm drafts with.
fn draft(
    given: &SpeculationArgs,
    algorithm: &dyn Algorithm,
    target: &ModelConfig,
) -> Result<Option<DraftModel>, ConfigError> {
    let path = given.speculative_draft_model_path.as_deref();
    let conflict = |why: &str, remedy: &str| {
        let name = format!("{ALGORITHM} {}", algorithm.name());
        Err(ConfigError::conflict(name, DRAFT_OPTION, why, remedy))
    };
    match (path, algorithm.capabilities().needs_draft_model) {
        (None, true) => conflict(
            "it drafts with a model of its own, and none is named",
            "Name its folder with --speculative-draft-model-path; those for the demo model \
             are in models/ of the source",
        ),
        (Some(_), false) => conflict(
            "it drafts without a model of its own",
            "Leave --speculative-draft-model-path out, or give another algorithm",
        ),
        _ => algorithm.load_draft(path, target),
    }
}

const VERIFICATION: &str = "--speculative-verification";

fn verification(
    given: &SpeculationArgs,
    algorithm: &dyn Algorithm,
    topk: usize,
) -> Result<Verification, ConfigError> {
    let mode = match given.speculative_verification {
        None | Some(VerificationArg::Target) => return Ok(Verification::Target),
        Some(VerificationArg::Rejection) => Verification::Rejection,
        Some(VerificationArg::Block) => Verification::Block,
    };
    let option = format!("{VERIFICATION} {}", mode.name());
    if !algorithm.capabilities().draft_probabilities {
        return Err(ConfigError::conflict(
            option,
            format!("{ALGORITHM} {}", algorithm.name()),
            "it does not sample its drafts, and has no probabilities to compare",
            format!("Leave {VERIFICATION} out"),
        ));
    }
    if mode == Verification::Block && topk > 1 {
        return Err(ConfigError::conflict(
            option,
            format!("{} {topk}", shape::TOPK),
            "only a chain can be accepted as a block",
            format!("Give {} 1, or {VERIFICATION} rejection", shape::TOPK),
        ));
    }
    Ok(mode)
}

/// Largest number of tokens of one request in any pass that is shaped like a verification.
fn most(speculation: &SpeculationConfig, algorithm: &dyn Algorithm) -> Result<usize, ConfigError> {
    let tokens = speculation.num_draft_tokens;
    let most = algorithm
        .max_draft_tokens(speculation)
        .max(algorithm.tokens_per_request_for_verify(tokens, false))
        .max(algorithm.tokens_per_request_for_verify(tokens, true))
        .max(tokens);
    if most <= shape::MOST_TOKENS {
        return Ok(most);
    }
    Err(ConfigError::conflict(
        format!("{ALGORITHM} {}", algorithm.name()),
        format!("{} {tokens}", shape::TOKENS),
        format!(
            "it would verify {most} tokens of a request at once, and at most {} can be",
            shape::MOST_TOKENS
        ),
        format!("Give fewer {} or {}", shape::STEPS, shape::TOKENS),
    ))
}

#[cfg(test)]
mod tests;
