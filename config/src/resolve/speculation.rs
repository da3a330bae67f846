//! Speculative decoding: the algorithm, what it drafts with, and how much.

use super::{ConfigError, ModelConfig, ServeArgs, SpeculationConfig};
use crate::args::{SpeculationArgs, VerificationArg};
use lockstep_model_folder::draft::OPTION as DRAFT_OPTION;
use lockstep_types::{Algorithm, Algorithms, DraftKind, DraftModel, NgramConfig, Verification};

mod shape;

const ALGORITHM: &str = "--speculative-algorithm";
const MIN_MATCH: &str = "--speculative-ngram-min-match-window-size";
const MAX_MATCH: &str = "--speculative-ngram-max-match-window-size";
const CAPACITY: &str = "--speculative-ngram-capacity";
const PRIVATE: &str = "--speculative-ngram-private";
/// The longest suffix that NGRAM looks up.
const LONGEST_MATCH: usize = 64;
/// Nodes of NGRAM's memory, whose numbers fit 32 bits with room to spare.
const MOST_NODES: usize = 1 << 28;

/// The configuration, and the bytes that the algorithm asks for beside a draft
/// model's.
pub(super) fn resolve(
    args: &ServeArgs,
    target: &ModelConfig,
    known: &Algorithms,
) -> Result<(SpeculationConfig, u64), ConfigError> {
    let given = &args.speculation;
    let name = match given.speculative_algorithm.as_deref() {
        Some(name) if !name.eq_ignore_ascii_case("none") => name,
        none => return without(none, given).map(|none| (none, 0)),
    };
    let algorithm = known.find(name).ok_or_else(|| unknown(name, known))?;
    let algorithm = algorithm.as_ref();
    let draft = draft(given, algorithm, target)?;
    let shape = shape::resolve(given, algorithm)?;
    let mut speculation = SpeculationConfig {
        algorithm: Some(algorithm.name().to_owned()),
        draft,
        draft_kv: algorithm.capabilities().draft_kv,
        num_steps: shape.num_steps,
        topk: shape.topk,
        num_draft_tokens: shape.num_draft_tokens,
        verification: verification(given, algorithm, shape.topk)?,
        max_speculative_num_draft_tokens: shape.num_draft_tokens,
        ngram: ngram(given, algorithm)?,
    };
    algorithm.validate(&speculation, target)?;
    speculation.max_speculative_num_draft_tokens = most(&speculation, algorithm)?;
    let bytes = algorithm.memory_bytes(&speculation);
    Ok((speculation, bytes))
}

/// What to know about a draft model that ends before the context does.
pub(super) fn beyond(speculation: &SpeculationConfig, context_length: usize) -> Option<String> {
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

/// Nothing is drafted, which options about drafting contradict.
fn without(none: Option<&str>, given: &SpeculationArgs) -> Result<SpeculationConfig, ConfigError> {
    let Some(option) = first(given) else {
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
        None => ConfigError::conflict(
            option,
            ALGORITHM,
            why,
            format!("Give {ALGORITHM} too, such as EAGLE3, or leave {option} out"),
        ),
    })
}

/// The first option about drafting that was given.
fn first(given: &SpeculationArgs) -> Option<&'static str> {
    [
        (DRAFT_OPTION, given.speculative_draft_model_path.is_some()),
        (shape::STEPS, given.speculative_num_steps.is_some()),
        (shape::TOPK, given.speculative_eagle_topk.is_some()),
        (shape::TOKENS, given.speculative_num_draft_tokens.is_some()),
        (VERIFICATION, given.speculative_verification.is_some()),
    ]
    .into_iter()
    .chain(ngram_options(given))
    .find_map(|(option, is_given)| is_given.then_some(option))
}

fn unknown(name: &str, known: &Algorithms) -> ConfigError {
    let mut names = String::new();
    for algorithm in known.iter() {
        let summary = algorithm.summary().trim_end_matches('.');
        names.push_str(&format!("; {}: {summary}", algorithm.name()));
    }
    ConfigError::value(
        ALGORITHM,
        name,
        "this program knows no algorithm of that name",
        format!("Known are none (nothing is drafted){names}"),
    )
}

/// What it drafts with.
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

fn ngram_options(given: &SpeculationArgs) -> [(&'static str, bool); 4] {
    [
        (
            MIN_MATCH,
            given.speculative_ngram_min_match_window_size.is_some(),
        ),
        (
            MAX_MATCH,
            given.speculative_ngram_max_match_window_size.is_some(),
        ),
        (CAPACITY, given.speculative_ngram_capacity.is_some()),
        (PRIVATE, given.speculative_ngram_private),
    ]
}

fn ngram(given: &SpeculationArgs, algorithm: &dyn Algorithm) -> Result<NgramConfig, ConfigError> {
    let option = ngram_options(given)
        .into_iter()
        .find_map(|(option, is_given)| is_given.then_some(option));
    if let Some(option) = option.filter(|_| !algorithm.reads_ngram_options()) {
        return Err(ConfigError::conflict(
            option,
            format!("{ALGORITHM} {}", algorithm.name()),
            "it looks no texts up",
            format!("Leave {option} out, or give {ALGORITHM} NGRAM"),
        ));
    }
    let default = NgramConfig::default();
    let min_match = given.speculative_ngram_min_match_window_size;
    let max_match = given.speculative_ngram_max_match_window_size;
    let ngram = NgramConfig {
        min_match: min_match.unwrap_or(default.min_match),
        max_match: max_match.unwrap_or(default.max_match.max(min_match.unwrap_or(0))),
        capacity: given.speculative_ngram_capacity.unwrap_or(default.capacity),
        private: given.speculative_ngram_private,
    };
    if let Some(capacity) = given.speculative_ngram_capacity.filter(|_| ngram.private) {
        return Err(ConfigError::conflict(
            format!("{CAPACITY} {capacity}"),
            PRIVATE,
            "no served text is remembered",
            "Leave one of them out",
        ));
    }
    for (option, value, most) in [
        (MIN_MATCH, ngram.min_match, LONGEST_MATCH),
        (MAX_MATCH, ngram.max_match, LONGEST_MATCH),
        (CAPACITY, ngram.capacity, MOST_NODES),
    ] {
        if value > most {
            let why = format!("at most {most}");
            return Err(ConfigError::value(option, value, why, "Give that or less"));
        }
    }
    if ngram.min_match > ngram.max_match {
        return Err(ConfigError::conflict(
            format!("{MIN_MATCH} {}", ngram.min_match),
            format!("{MAX_MATCH} {}", ngram.max_match),
            "the shortest suffix would be longer than the longest",
            format!("Give a {MAX_MATCH} that is no smaller"),
        ));
    }
    Ok(ngram)
}

/// The most tokens of one request in any pass that is shaped like a verification.
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
