//! Reasoning with a limit of its tokens.

use lockstep_constraint::Matcher;
use lockstep_sampling::{TokenConstraint as _, allows};
use lockstep_types::constraint::{Constraint, ConstraintKind, Reasoning};

use crate::support::{COMPILER, ENDS, TOKENIZER, WIDTH, check, regex};

/// The one mark of the demo model's vocabulary that is a token.
const MARK: u32 = 1;

fn limited(constraint: Constraint, open: Option<&str>, close: &str, limit: u32) -> Constraint {
    let after = Some(Reasoning {
        limit: Some(limit),
        ..Reasoning::new(open, close)
    });
    Constraint {
        after,
        ..constraint
    }
}

fn anything() -> Constraint {
    Constraint::new(ConstraintKind::Anything, "")
}

fn start(constraint: &Constraint) -> Matcher {
    check(constraint).unwrap();
    COMPILER.matcher(constraint).unwrap()
}

fn encode(text: &str) -> Vec<u32> {
    TOKENIZER.encode(text, false).unwrap()
}

fn take(matcher: &mut Matcher, tokens: &[u32]) {
    for token in tokens {
        assert!(
            allows(matcher.allowed().unwrap(), *token),
            "{token} {tokens:?} {matcher:?}"
        );
        matcher.take(*token).unwrap();
    }
}

fn allowed(matcher: &mut Matcher) -> Vec<u32> {
    let mask = matcher.allowed().unwrap().to_vec();
    let tokens = 0..WIDTH as u32;
    tokens.filter(|token| allows(&mask, *token)).collect()
}

fn word(token: u32) -> String {
    String::from_utf8_lossy(TOKENIZER.token_bytes(token).unwrap()).into_owned()
}

/// The token that is the mark, and nothing that only looks like it.
#[test]
fn a_spent_budget_leaves_the_closing_token_alone() {
    let close = TOKENIZER.id_to_token(MARK).unwrap();
    for limit in 0..4 {
        let constraint = limited(regex("[0-9]+"), None, &close, limit);
        let mut matcher = start(&constraint);
        for at in 0..limit {
            assert!(allowed(&mut matcher).len() > 4000, "{at} of {limit}");
            take(&mut matcher, &encode("x"));
        }
        assert_eq!(allowed(&mut matcher), [MARK]);
        assert_eq!(matcher.forced(), Some(MARK), "it is drafted for nothing");
        assert!(matcher.take(encode("x")[0]).is_err());
        assert!(matcher.take(ENDS[0]).is_err());
        take(&mut matcher, &[MARK]);
        take(&mut matcher, &encode("42"));
        assert_eq!(matcher.is_fulfilled(), Ok(true));
    }
}

/// A mark of several tokens is spelled on from what the text has of it already.
#[test]
fn a_spent_budget_spells_the_mark() {
    let constraint = limited(regex("[0-9]+"), None, "</t>", 2);
    for begin in ["x ", "x<"] {
        let mut matcher = start(&constraint);
        let begin = encode(begin);
        assert_eq!(begin.len(), 2);
        take(&mut matcher, &begin);
        let rest = if word(begin[1]) == "<" { "/t>" } else { "</t>" };
        for token in allowed(&mut matcher) {
            let word = word(token);
            let blanks = word
                .strip_prefix(rest)
                .is_some_and(|rest| rest.trim().is_empty());
            assert!(rest.starts_with(&word) || blanks, "{word:?}");
        }
        take(&mut matcher, &encode(rest));
        take(&mut matcher, &encode("42"));
    }
}

/// Reasoning that ends by itself knows no budget, nor does an answer without reasoning.
#[test]
fn a_budget_counts_reasoning_alone() {
    let constraint = limited(anything(), Some("<t>"), "</t>", 12);
    for text in [
        "no thought at all, but many words",
        "<t>two words</t> and as many as it likes to have",
    ] {
        let mut matcher = start(&constraint);
        for token in encode(text) {
            assert!(allowed(&mut matcher).len() > 4000 || word(token).contains(['/', 't', '>']));
            take(&mut matcher, &[token]);
            assert_eq!(matcher.is_fulfilled(), Ok(true), "{matcher:?}");
        }
        assert_eq!(allowed(&mut matcher).len(), WIDTH);
        take(&mut matcher, &[ENDS[0], MARK, 4099, ENDS[1]]);
        assert_eq!(allowed(&mut matcher).len(), WIDTH);
    }
}

/// Below its limit a budget changes nothing: everything may come, and the output may end.
#[test]
fn a_budget_that_is_not_spent_forbids_nothing() {
    let mut matcher = start(&limited(anything(), None, "</t>", 3));
    for token in [ENDS[0], 4099, MARK] {
        assert_eq!(allowed(&mut matcher).len(), WIDTH);
        assert_eq!(matcher.is_fulfilled(), Ok(true));
        take(&mut matcher, &[token]);
    }
    assert_eq!(matcher.is_fulfilled(), Ok(false));
    assert!(
        ENDS.iter()
            .all(|end| !allows(matcher.allowed().unwrap(), *end))
    );
    matcher.give_back(1).unwrap();
    assert_eq!(allowed(&mut matcher).len(), WIDTH);
}

/// A call that begins inside a thought is not cut: its mark ends the thought. A mark that is no
/// token ends nothing, since no parser takes it for a call there.
#[test]
fn a_call_inside_of_a_thought_ends_it() {
    let mark = TOKENIZER.id_to_token(MARK).unwrap();
    for (breaks, ended) in [(mark.as_str(), true), ("x y", false)] {
        let constraint = Constraint {
            after: Some(Reasoning {
                limit: Some(8),
                breaks: vec![breaks.into()],
                ..Reasoning::new(None, "</t>")
            }),
            ..anything()
        };
        let mut matcher = start(&constraint);
        take(&mut matcher, &encode("x y"));
        take(&mut matcher, &[MARK]);
        let free = (0..20).all(|_| {
            let open = allowed(&mut matcher).len() == WIDTH;
            open && matcher.take(encode("z")[0]).is_ok()
        });
        assert_eq!(free, ended);
    }
    // A thought that is over can only be closed.
    let mut matcher = start(&Constraint {
        after: Some(Reasoning {
            limit: Some(0),
            breaks: vec![mark.as_str().into()],
            ..Reasoning::new(None, "</t>")
        }),
        ..anything()
    });
    assert!(!allows(matcher.allowed().unwrap(), MARK) && matcher.take(MARK).is_err());
}

/// The mark of a call inside a thought ends the constraint: the model may only have mentioned it.
#[test]
fn a_call_inside_of_a_thought_ends_its_constraint() {
    let mark = TOKENIZER.id_to_token(MARK).unwrap();
    let digits = |limit| Constraint {
        after: Some(Reasoning {
            limit,
            breaks: vec![mark.as_str().into()],
            ..Reasoning::new(None, "</t>")
        }),
        ..regex("[0-9]+")
    };
    let mut matcher = start(&digits(None));
    take(&mut matcher, &encode("x y </"));
    let thinking = allowed(&mut matcher);
    assert!(thinking.contains(&MARK) && !thinking.contains(&ENDS[0]));
    take(&mut matcher, &[MARK]);
    for token in encode("is a mark") {
        assert_eq!(allowed(&mut matcher).len(), WIDTH);
        assert_eq!((matcher.is_fulfilled(), matcher.forced()), (Ok(true), None));
        take(&mut matcher, &[token]);
    }
    take(&mut matcher, &[ENDS[0]]);
    // Back into the thought, and out of it by its own mark.
    matcher.give_back(encode("is a mark").len() + 2).unwrap();
    assert_eq!(allowed(&mut matcher), thinking);
    assert_eq!(matcher.is_fulfilled(), Ok(false));
    take(&mut matcher, &encode("t>"));
    assert!(matcher.take(MARK).is_err(), "constrained now");
    take(&mut matcher, &encode("42"));
    // A thought that is over can only be closed.
    let mut matcher = start(&digits(Some(0)));
    assert!(!allows(matcher.allowed().unwrap(), MARK) && matcher.take(MARK).is_err());
}

/// All thoughts of an output share one budget where they may come again is for all, and none begins when it is spent.
#[test]
fn later_thoughts_share_the_budget() {
    let constraint = Constraint {
        after: Some(Reasoning {
            limit: Some(9),
            again: true,
            ..Reasoning::new(Some("<|im_start|>A "), "</t>")
        }),
        ..anything()
    };
    let (open, close) = (encode("A "), encode("</t>"));
    let mut matcher = start(&constraint);
    take(&mut matcher, &[MARK]);
    take(&mut matcher, &open);
    take(&mut matcher, &encode("x y"));
    take(&mut matcher, &close);
    take(&mut matcher, &encode("text A "));
    take(&mut matcher, &[MARK]);
    take(&mut matcher, &open);
    // The last token of the mark is behind the thought.
    let left = 9 - encode("x y").len() - (close.len() - 1);
    for _ in 0..left {
        assert_eq!(allowed(&mut matcher).len(), WIDTH);
        take(&mut matcher, &encode("z"));
    }
    assert!(matcher.take(ENDS[0]).is_err());
    take(&mut matcher, &close);
    take(&mut matcher, &encode("A "));
    take(&mut matcher, &[MARK]);
    assert!(
        open.iter()
            .take(1)
            .all(|token| matcher.take(*token).is_err())
    );
    assert!(allowed(&mut matcher).len() >= WIDTH - 2);
    take(&mut matcher, &encode("B A "));
    assert_eq!(allowed(&mut matcher).len(), WIDTH);
}
