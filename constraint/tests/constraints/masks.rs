use std::sync::{Arc, LazyLock};

use lockstep_constraint::{Compiler, Matcher, Vocabulary};
use lockstep_sampling::{SamplingError, TokenConstraint as _, allows};
use lockstep_types::constraint::{Constraint, ConstraintKind, Reasoning};
use proptest::prelude::*;
use serde_json::json;

use crate::support::{ENDS, TOKENIZER, WIDTH, compact, matcher, regex, schema, vocabulary};

fn constraints() -> Vec<Constraint> {
    let person = json!({"type": "object", "properties": {"name": {"type": "string"},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}},
        "age": {"type": "integer", "minimum": 0}}, "required": ["name"]});
    // Many tokens end with this mark, and some blanks are tokens.
    let reasoned = |open: Option<&str>| Constraint {
        after: Some(Reasoning::new(open, "e")),
        ..regex("[ab\\n]{2,9}")
    };
    vec![
        compact(&person),
        schema(&person),
        compact(&json!({"type": "object"})),
        regex(r"[a-f]{2,40}(-\d+)*"),
        Constraint::new(
            ConstraintKind::Choice,
            json!(["yes", "yesterday", "no"]).to_string(),
        ),
        reasoned(None),
        reasoned(TOKENIZER.id_to_token(1).as_deref()),
        // The part may begin as the mark does.
        limited(regex("(ab|a<|[0-9]){2,9}"), Some("ab<c>"), false),
        limited(schema(&person), None, false),
        limited(anything(), None, false),
        limited(anything(), Some("ab"), false),
        limited(anything(), TOKENIZER.id_to_token(1).as_deref(), true),
        limited(anything(), Some("e "), true),
    ]
}

/// A constraint behind at most three tokens of free text.
fn limited(constraint: Constraint, open: Option<&str>, again: bool) -> Constraint {
    Constraint {
        after: Some(Reasoning {
            limit: Some(3),
            again,
            ..Reasoning::new(open, "</t>")
        }),
        ..constraint
    }
}

fn anything() -> Constraint {
    Constraint::new(ConstraintKind::Anything, "")
}

/// Tokens of marks.
static MARKS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let texts = [
        "a", "b", "ab", "<", "c", ">", "</", "/", "t", "e", " ", "e ",
    ];
    let tokens = texts.map(|text| TOKENIZER.encode(text, false).unwrap());
    tokens.concat().into_iter().chain([1]).collect()
});

/// Returns an allowed token, half of the time one of a mark, if there is one.
fn nth(allowed: &[u32], pick: u32) -> u32 {
    let (pick, of_mark) = (pick as usize / 2, pick.is_multiple_of(2));
    let marks = MARKS.iter().copied();
    let marks: Vec<_> = marks.filter(|token| allows(allowed, *token)).collect();
    if of_mark && !marks.is_empty() {
        return marks[pick % marks.len()];
    }
    let tokens = (0..WIDTH as u32).filter(|token| allows(allowed, *token));
    let tokens: Vec<_> = tokens.collect();
    tokens[pick % tokens.len()]
}

fn mask(matcher: &mut Matcher) -> Vec<u32> {
    matcher.allowed().unwrap().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A matcher that took drafts and gave them back, asked for masks on the way or not, has
    /// the masks of a fresh one that took the same tokens at once. No limit of a step shows.
    #[test]
    fn masks_are_a_function_of_the_tokens(
        kind in 0usize..13,
        steps in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u32>(), 0..7)), 1..30),
    ) {
        let constraint = &constraints()[kind];
        let mut warm = matcher(constraint);
        let mut taken = Vec::new();
        for (pick, drafts) in steps {
            let before = mask(&mut warm);
            let mut given = 0;
            for draft in drafts {
                // Half of the drafts are any token, and may be forbidden.
                let token = match draft % 2 {
                    0 => nth(warm.allowed().unwrap(), draft / 2),
                    _ => draft % WIDTH as u32,
                };
                let allowed = allows(warm.allowed().unwrap(), token);
                prop_assert_eq!(warm.take(token).is_ok(), allowed);
                given += usize::from(allowed);
            }
            warm.give_back(given).unwrap();
            prop_assert_eq!(&mask(&mut warm), &before);
            let token = nth(&before, pick);
            warm.take(token).unwrap();
            taken.push(token);
        }
        // The fresh one is of another compiler, so it shares no cache.
        let cold = Compiler::new(COLD.clone());
        let mut fresh = cold.matcher(constraint).unwrap();
        for token in &taken {
            fresh.take(*token).unwrap();
        }
        prop_assert_eq!(mask(&mut fresh), mask(&mut warm));
        prop_assert_eq!(fresh.is_fulfilled(), warm.is_fulfilled());
        // Nor does one know what it took, when it has given all of that back.
        let start = mask(&mut cold.matcher(constraint).unwrap());
        warm.give_back(taken.len()).unwrap();
        prop_assert_eq!(mask(&mut warm), start);
        prop_assert!(warm.give_back(1).is_err());
    }

    /// Random outputs are of the language.
    #[test]
    fn random_outputs_are_json(picks in prop::collection::vec(any::<u32>(), 200)) {
        let own = json!({"type": "object", "properties": {"n": {"type": "integer"},
            "w": {"enum": ["a", "b"]}}, "required": ["n", "w"], "additionalProperties": false});
        let mut matcher = matcher(&compact(&own));
        let mut bytes = Vec::new();
        for pick in picks {
            let token = nth(matcher.allowed().unwrap(), pick);
            matcher.take(token).unwrap();
            if ENDS.contains(&token) {
                let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
                prop_assert!(value["n"].is_number() && value["w"].is_string());
                prop_assert_eq!(value.as_object().unwrap().len(), 2);
                break;
            }
            bytes.extend(TOKENIZER.token_bytes(token).unwrap());
        }
    }
}

/// A vocabulary that no matcher has warmed.
static COLD: LazyLock<Arc<Vocabulary>> = LazyLock::new(vocabulary);

/// Drafts that were given back leave no mask behind, though nothing asks for one in between.
#[test]
fn given_back_tokens_leave_no_mask() {
    let constraint = compact(&json!({"type": "object"}));
    let encode = |text: &str| TOKENIZER.encode(text, false).unwrap();
    for (before, draft, after) in [
        ("{\"k\":", "[\"", "{\""),
        ("{\"k\":", "[", "{"),
        ("{\"k\":{", "\"a\":1", "\"b\":["),
    ] {
        for asked in 1..=encode(after).len() {
            let mut warm = matcher(&constraint);
            let mut taken = encode(before);
            taken.iter().for_each(|token| warm.take(*token).unwrap());
            let drafts = encode(draft);
            for token in &drafts {
                warm.allowed().unwrap();
                warm.take(*token).unwrap();
            }
            warm.allowed().unwrap();
            warm.give_back(drafts.len()).unwrap();
            for token in &encode(after)[..asked] {
                warm.take(*token).unwrap();
                taken.push(*token);
            }
            let mut fresh = Compiler::new(COLD.clone()).matcher(&constraint).unwrap();
            taken.iter().for_each(|token| fresh.take(*token).unwrap());
            assert_eq!(
                mask(&mut warm),
                mask(&mut fresh),
                "{before} {draft} {after}"
            );
        }
    }
}

/// Drafts behind a long output are given back without computing its masks again.
#[test]
fn giving_back_computes_one_mask_however_long_the_output_is() {
    let mut matcher = matcher(&regex("[a-z ]*"));
    let tokens = TOKENIZER.encode("a b c d e f g", false).unwrap();
    for token in tokens.iter().cycle().take(5000) {
        matcher.take(*token).unwrap();
    }
    let before = mask(&mut matcher);
    matcher.take_computed();
    for _ in 0..20 {
        tokens
            .iter()
            .for_each(|token| matcher.take(*token).unwrap());
        matcher.give_back(tokens.len()).unwrap();
    }
    assert_eq!(mask(&mut matcher), before);
    assert_eq!(matcher.take_computed().masks, 1);
}

/// Behind the end there are only end tokens, and drafts behind it spoil nothing.
#[test]
fn a_finished_output_goes_on_with_end_tokens_alone() {
    let mut matcher = matcher(&Constraint::new(ConstraintKind::Choice, "[\"yes\"]"));
    let tokens = TOKENIZER.encode("yes", false).unwrap();
    for token in &tokens {
        assert_eq!(matcher.take(ENDS[0]), Err(SamplingError::Constraint));
        matcher.take(*token).unwrap();
    }
    assert_eq!(matcher.is_fulfilled(), Ok(true));
    for _ in 0..3 {
        let allowed: Vec<u32> = (0..WIDTH as u32)
            .filter(|token| allows(matcher.allowed().unwrap(), *token))
            .collect();
        assert_eq!(allowed, ENDS);
        assert_eq!(matcher.take(tokens[0]), Err(SamplingError::Constraint));
        matcher.take(ENDS[1]).unwrap();
    }
    matcher.give_back(3 + tokens.len()).unwrap();
    assert!(!allows(matcher.allowed().unwrap(), ENDS[0]));
    assert!(allows(matcher.allowed().unwrap(), tokens[0]));
    assert_eq!(matcher.give_back(1), Err(SamplingError::Constraint));
}

/// Special tokens and numbers without a token are in no mask, and neither are bits beyond the
/// logits.
#[test]
fn special_tokens_are_no_text() {
    let mut matcher = matcher(&regex(r"(.|\n)*"));
    let allowed = mask(&mut matcher);
    assert_eq!(allowed.len(), WIDTH.div_ceil(32));
    for token in 0..allowed.len() as u32 * 32 {
        let plain = TOKENIZER.token_bytes(token).is_some() && !TOKENIZER.is_special(token);
        let wanted = ENDS.contains(&token) || plain;
        if !allows(&allowed, token) {
            // A byte that begins no character is not allowed either.
            let starts = TOKENIZER
                .token_bytes(token)
                .is_some_and(|bytes| std::str::from_utf8(bytes).is_ok());
            assert!(!wanted || !starts, "{token}");
        } else {
            assert!(wanted, "{token}");
        }
    }
}

/// Expressions whose automaton has no bound end with an error that says so, after a bounded
/// number of tokens, and until then have the masks of a matcher that was asked for none.
#[test]
fn an_automaton_without_bound_ends_with_an_error() {
    let constraint = regex(r"(.|\n)*~(.|\n){4000}");
    let token = TOKENIZER.encode("~", false).unwrap()[0];
    let mut asked = matcher(&constraint);
    let mut replayed = Compiler::new(COLD.clone()).matcher(&constraint).unwrap();
    let mut taken = 0;
    while asked.allowed().is_ok() {
        asked.take(token).unwrap();
        taken += 1;
        assert!(taken < 1000, "it is bounded");
        if taken == 300 {
            (0..taken).for_each(|_| replayed.take(token).unwrap());
            assert_eq!(mask(&mut replayed), mask(&mut asked));
        }
    }
    assert!(taken > 300);
    assert_eq!(
        asked.failure(),
        Some("its automaton takes too much memory; simplify it")
    );
    assert_eq!(asked.allowed(), Err(SamplingError::Constraint));
    assert_eq!(asked.take(token), Err(SamplingError::Constraint));
}

/// An expression with many states, of which an output can reach few, is followed to any length.
#[test]
fn a_large_automaton_goes_on_while_it_is_bounded() {
    let mut matcher = matcher(&regex(r"(.|\n)*a(.|\n){200}"));
    let tokens = TOKENIZER.encode("a", false).unwrap();
    for _ in 0..2000 {
        assert!(allows(matcher.allowed().unwrap(), tokens[0]));
        matcher.take(tokens[0]).unwrap();
    }
    assert_eq!(matcher.is_fulfilled(), Ok(true));
}
