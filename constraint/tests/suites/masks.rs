//! Masks after drafts, along instances of strangers' schemas.

use std::time::Instant;

use lockstep_constraint::{Compiler, Matcher};
use lockstep_sampling::{Stream, TokenConstraint as _, allows, uniform};
use lockstep_types::constraint::Constraint;
use serde_json::Value;

use crate::{
    judge::{Group, TOKENIZER, VOCABULARY, WIDTH},
    report::Report,
};

/// Key of the random drafts.
const SEED: u64 = 0x5eed;
/// Tokens of an instance that are followed.
const LONGEST: usize = 120;

/// Follows the first valid instance. At every eighth token some random tokens are drafted and
/// given back; the masks are then those of a matcher that took the instance's tokens alone.
pub fn compare(constraint: &Constraint, group: &Group<'_>, report: &mut Report) {
    let valid = group.instances.iter().find(|(_, valid)| *valid);
    let Some(instance) = valid.map(|(instance, _)| Value::to_string(instance)) else {
        return;
    };
    let mut tokens = TOKENIZER.encode(&instance, false).expect("tokens");
    tokens.truncate(LONGEST);
    let compiler = Compiler::new(VOCABULARY.clone());
    let Ok(mut warm) = compiler.matcher(constraint) else {
        return;
    };
    let mut taken = 0;
    for (at, token) in (0u64..).zip(&tokens) {
        let begun = Instant::now();
        if warm.allowed().is_err() {
            report
                .failed_masks
                .push(format!("{}: {:?}", group.about, warm.failure()));
            return;
        }
        report.masks.push(begun.elapsed());
        if at % 8 == 3 && !drafted(&mut warm, at) {
            report.unlike_masks.push(format!("{}: drafts", group.about));
            return;
        }
        if warm.take(*token).is_err() {
            break;
        }
        taken += 1;
    }
    let mut fresh = Compiler::new(VOCABULARY.clone())
        .matcher(constraint)
        .expect("it compiled");
    let again = tokens[..taken]
        .iter()
        .all(|token| fresh.take(*token).is_ok());
    let masks = [&mut warm, &mut fresh].map(|matcher| matcher.allowed().map(<[u32]>::to_vec));
    report.compared += 1;
    if !again || masks[0] != masks[1] {
        report
            .unlike_masks
            .push(format!("{} after {taken}", group.about));
    }
}

/// Takes up to seven random tokens and gives them back. Returns true if the mask is what it was.
fn drafted(warm: &mut Matcher, at: u64) -> bool {
    let before = warm.allowed().map(<[u32]>::to_vec);
    let mut given = 0;
    for number in 0..1 + (at % 7) as u32 {
        let point = uniform(SEED, at, Stream::SAMPLE, number);
        let Ok(allowed) = warm.allowed() else { break };
        let first = (point * WIDTH as f64) as u32;
        // The next allowed token from there, or every third time any token.
        let any = (first..WIDTH as u32).find(|token| number % 3 == 2 || allows(allowed, *token));
        let Some(token) = any else { break };
        given += usize::from(warm.take(token).is_ok());
    }
    warm.give_back(given).is_ok() && warm.allowed().map(<[u32]>::to_vec) == before
}
