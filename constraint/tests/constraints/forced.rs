use lockstep_constraint::Lookahead;
use lockstep_sampling::{TokenConstraint as _, allows};
use lockstep_types::constraint::{Constraint, ConstraintKind, Reasoning};
use proptest::prelude::*;
use serde_json::json;

use crate::support::{COMPILER, ENDS, TOKENIZER, WIDTH, compact, matcher, regex, schema};

fn constraints() -> Vec<Constraint> {
    let ticket = json!({"type": "object", "properties": {
        "department": {"enum": ["billing", "billing and sales"]},
        "escalated": {"type": "boolean"}, "note": {"type": "string", "maxLength": 4}},
        "required": ["department", "escalated", "note"], "additionalProperties": false});
    vec![
        compact(&ticket),
        schema(&ticket),
        regex(r"(north|northern) [0-9]{2} of twelve"),
        Constraint::new(
            ConstraintKind::Choice,
            json!(["certainly", "certainly not"]).to_string(),
        ),
        Constraint {
            after: Some(Reasoning::new(None, "e")),
            ..regex("the answer is [ab]")
        },
    ]
}

fn lookahead(constraint: &Constraint) -> Lookahead {
    matcher(constraint);
    COMPILER.lookahead(constraint).unwrap()
}

/// Returns the tokens of a mask.
fn tokens(allowed: &[u32]) -> Vec<u32> {
    (0..WIDTH as u32)
        .filter(|token| allows(allowed, *token))
        .collect()
}

/// Returns the forced token of a mask, found the slow way.
fn naive(allowed: &[u32]) -> Option<u32> {
    let tokens = tokens(allowed);
    if tokens.iter().all(|token| ENDS.contains(token)) {
        return Some(ENDS[0]);
    }
    if tokens.iter().any(|token| ENDS.contains(token)) {
        return None;
    }
    let word = |token: &u32| TOKENIZER.token_bytes(*token).unwrap().to_vec();
    let longest = tokens.iter().map(word).max_by_key(Vec::len)?;
    let all = tokens.iter().all(|token| longest.starts_with(&word(token)));
    let spelt = tokens.into_iter().find(|token| word(token) == longest);
    spelt.filter(|_| all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Along random outputs of five languages: forced tokens are allowed where they stand, end
    /// where nothing is forced or with the output, and no draft that breaks the constraint is
    /// left. A second walk finds what the first did, so a walk leaves nothing behind.
    #[test]
    fn guided_drafts_follow_the_constraint(
        kind in 0usize..5,
        steps in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u32>(), 0..6)), 1..24),
        most in 1usize..9,
    ) {
        let constraint = &constraints()[kind];
        let mut own = matcher(constraint);
        let mut ahead = lookahead(constraint);
        let mut output = Vec::new();
        for (pick, picks) in steps {
            // Drafts are allowed tokens for a while, and then any.
            let (mut drafts, mut valid) = (Vec::new(), 0);
            for pick in picks.into_iter().take(most) {
                let allowed = tokens(own.allowed().unwrap());
                let token = match pick % 4 {
                    0 => pick / 4 % WIDTH as u32,
                    _ => allowed[pick as usize / 4 % allowed.len()],
                };
                drafts.push(token);
                if own.take(token).is_err() {
                    break;
                }
                valid += 1;
            }
            own.give_back(valid).unwrap();
            let mut chain = drafts.clone();
            let left = ahead.guide(&output, &mut chain, most);
            let mut again = drafts.clone();
            prop_assert_eq!(ahead.guide(&output, &mut again, most), left);
            prop_assert_eq!(&again, &chain);
            let ends = chain.last().is_some_and(|last| ENDS.contains(last));
            prop_assert!(left == valid || left < valid && ends);
            prop_assert!(chain.len() <= most);
            prop_assert_eq!(&chain[..left], &drafts[..left]);
            for token in &chain {
                prop_assert!(allows(own.allowed().unwrap(), *token));
                own.take(*token).unwrap();
            }
            if chain.len() < most && !ends {
                prop_assert_eq!(naive(own.allowed().unwrap()), None);
            }
            own.give_back(chain.len()).unwrap();
            let allowed = own.allowed().unwrap().to_vec();
            prop_assert_eq!(own.forced(), naive(&allowed));
            let allowed = tokens(&allowed);
            let token = allowed[pick as usize % allowed.len()];
            if ENDS.contains(&token) {
                break;
            }
            own.take(token).unwrap();
            output.push(token);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Behind random branches of drafts, asked for in any order, masks are those of a state that
    /// has taken nothing else; where a branch breaks the constraint there is none. A walk leaves
    /// nothing behind, and what was decided meanwhile is followed.
    #[test]
    fn masks_behind_drafts_are_those_of_a_fresh_state(
        kind in 0usize..5,
        steps in prop::collection::vec((any::<u32>(), any::<u32>()), 1..20),
        branches in prop::collection::vec(prop::collection::vec(0u32..12, 0..5), 1..6),
    ) {
        let constraint = &constraints()[kind];
        let mut own = matcher(constraint);
        let mut ahead = lookahead(constraint);
        let mut output = Vec::new();
        for (pick, salt) in steps {
            for branch in &branches {
                // Few tokens, so that branches share their beginnings; a quarter is forbidden or
                // allowed by chance.
                let (mut path, mut taken, mut whole) = (Vec::new(), 0, true);
                for choice in branch {
                    let allowed = tokens(own.allowed().unwrap());
                    let seed = choice.wrapping_mul(2_654_435_761) ^ salt;
                    let token = match choice % 4 {
                        0 => seed % WIDTH as u32,
                        _ => allowed[seed as usize % allowed.len()],
                    };
                    path.push(token);
                    whole = whole && own.take(token).is_ok();
                    taken += usize::from(whole);
                    if !whole {
                        break;
                    }
                }
                let expected = whole.then(|| own.allowed().unwrap().to_vec());
                own.give_back(taken).unwrap();
                let found = ahead.allowed_behind(&output, &path);
                prop_assert_eq!(found, expected.as_deref(), "{:?}", path);
            }
            ahead.come_back();
            let (mut chain, mut again) = (Vec::new(), Vec::new());
            ahead.guide(&output, &mut chain, 4);
            lookahead(constraint).guide(&output, &mut again, 4);
            prop_assert_eq!(chain, again);
            let allowed = tokens(own.allowed().unwrap());
            let token = allowed[pick as usize % allowed.len()];
            if ENDS.contains(&token) {
                break;
            }
            own.take(token).unwrap();
            output.push(token);
        }
    }
}

/// Most of this text is forced, and so is its end.
#[test]
fn names_of_fields_and_the_end_are_forced() {
    let own = json!({"type": "object", "properties": {"temperature": {"type": "boolean"}},
        "required": ["temperature"], "additionalProperties": false});
    let constraint = compact(&own);
    let mut ahead = lookahead(&constraint);
    let mut chain = Vec::new();
    assert_eq!(ahead.guide(&[], &mut chain, 64), 0);
    let text = |tokens: &[u32]| {
        let bytes = tokens.iter().map(|token| TOKENIZER.token_bytes(*token));
        String::from_utf8(bytes.map(Option::unwrap).collect::<Vec<_>>().concat()).unwrap()
    };
    assert_eq!(text(&chain), "{\"temperature\":");
    // One letter decides the rest.
    let mut output = chain.clone();
    output.extend(TOKENIZER.encode("t", false).unwrap());
    let mut chain = Vec::new();
    assert_eq!(ahead.guide(&output, &mut chain, 64), 0);
    let (end, rest) = chain.split_last().unwrap();
    assert_eq!((text(rest).as_str(), *end), ("rue}", ENDS[0]));
    assert!(ahead.is_end(*end));
    // Nothing is drafted behind the end, neither forced nor by a drafter.
    output.extend(rest);
    let mut chain = vec![ENDS[1], ENDS[0], 77];
    assert_eq!(ahead.guide(&output, &mut chain, 9), 1);
    assert_eq!(chain, [ENDS[1]]);
    // A word that does not come is cut, and the text that must come follows in its place.
    let mut ahead = lookahead(&constraint);
    let mut chain = TOKENIZER.encode("{\"no", false).unwrap();
    let drafted = chain.len();
    let left = ahead.guide(&[], &mut chain, 64);
    assert!(left < drafted);
    assert_eq!(text(&chain), "{\"temperature\":");
}

/// Drafts are not worth compiling a constraint for: what is not kept has none.
#[test]
fn a_lookahead_compiles_nothing() {
    let constraint = regex("[a-c]{2} of a kind that no other test has");
    for _ in 0..2 {
        assert!(COMPILER.lookahead(&constraint).is_none());
    }
    matcher(&constraint);
    assert!(COMPILER.lookahead(&constraint).is_some());
}

/// A constraint on which a walk ahead fails has no forced drafts any more. Its own state does not
/// notice.
#[test]
fn a_failed_walk_changes_no_draft_and_no_mask() {
    let constraint = regex(r"(.|\n)*~(.|\n){4000}");
    let token = TOKENIZER.encode("~", false).unwrap()[0];
    let (mut own, mut ahead) = (matcher(&constraint), lookahead(&constraint));
    let mut output = Vec::new();
    let mut cut = 0;
    // The lookahead gives up long before the automaton is too large for the output.
    for _ in 0..280 {
        let mut chain = vec![token];
        let left = ahead.guide(&output, &mut chain, 2);
        assert_eq!((left, chain[0]), (1, token));
        own.allowed().unwrap();
        own.take(token).unwrap();
        output.push(token);
        let mut any = vec![WIDTH as u32 - 1];
        cut += usize::from(ahead.guide(&output, &mut any, 2) == 0);
    }
    assert!((1..200).contains(&cut), "{cut}");
    assert!(!ahead.walks(output.len()) && ahead.allowed_behind(&output, &[token]).is_none());
    assert!(own.failure().is_none());
}
