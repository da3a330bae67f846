use lockstep_constraint::Matcher;
use lockstep_sampling::{SamplingError, TokenConstraint as _, allows};
use lockstep_types::constraint::{Constraint, Reasoning};

use crate::support::{COMPILER, ENDS, TOKENIZER, WIDTH, check, regex};

fn behind(open: Option<&str>, close: &str) -> Constraint {
    Constraint {
        after: Some(Reasoning::new(open, close)),
        ..regex("[0-9]+")
    }
}

fn take(matcher: &mut Matcher, text: &str) -> Result<(), SamplingError> {
    for token in TOKENIZER.encode(text, false).unwrap() {
        let allowed = allows(matcher.allowed()?, token);
        let taken = matcher.take(token);
        assert_eq!(taken.is_ok(), allowed, "{text}");
        taken?;
    }
    Ok(())
}

#[test]
fn reasoning_is_free_until_its_mark() {
    let constraint = behind(None, "</t>");
    check(&constraint).unwrap();
    let mut matcher = COMPILER.matcher(&constraint).unwrap();
    take(&mut matcher, "Hm, 7 times 6 </").unwrap();
    assert_eq!(matcher.is_fulfilled(), Ok(false));
    assert!(
        ENDS.iter()
            .all(|end| !allows(matcher.allowed().unwrap(), *end))
    );
    assert!(matcher.take(ENDS[0]).is_err());
    let before = matcher.allowed().unwrap().to_vec();
    let close = TOKENIZER.encode("t>", false).unwrap();
    close.iter().for_each(|token| matcher.take(*token).unwrap());
    assert!(take(&mut matcher, "x").is_err(), "constrained now");
    let digits = TOKENIZER.encode("42", false).unwrap();
    digits
        .iter()
        .for_each(|token| matcher.take(*token).unwrap());
    assert_eq!(matcher.is_fulfilled(), Ok(true));
    matcher.take(ENDS[1]).unwrap();
    // Back into the mark.
    matcher.give_back(1 + digits.len() + close.len()).unwrap();
    assert_eq!(matcher.allowed().unwrap(), before);
    take(&mut matcher, "t>").unwrap();
    take(&mut matcher, "42").unwrap();
}

/// A constrained part that has the marks as text has them, and fails nothing.
#[test]
fn an_expression_may_spell_the_marks() {
    let constraint = Constraint {
        after: behind(None, "</think>").after,
        ..regex("<think>[a-z]+</think>")
    };
    check(&constraint).unwrap();
    let mut matcher = COMPILER.matcher(&constraint).unwrap();
    take(&mut matcher, "One <think> two </think>").unwrap();
    take(&mut matcher, "<think>three</think>").unwrap();
    assert_eq!(matcher.is_fulfilled(), Ok(true));
    assert!(allows(matcher.allowed().unwrap(), ENDS[0]));
    assert_eq!(matcher.failure(), None);
}

/// With an opening mark, the output may have reasoning or not.
#[test]
fn reasoning_may_be_left_out() {
    const OPEN: u32 = 1;
    let open = TOKENIZER.id_to_token(OPEN).unwrap();
    let constraint = behind(Some(&open), "</t>");
    for reasons in [false, true] {
        let mut matcher = COMPILER.matcher(&constraint).unwrap();
        let start = matcher.allowed().unwrap().to_vec();
        assert!(allows(&start, OPEN));
        assert!(take(&mut matcher, "x").is_err());
        if reasons {
            matcher.take(OPEN).unwrap();
            assert!(
                ENDS.iter()
                    .all(|end| !allows(matcher.allowed().unwrap(), *end))
            );
            take(&mut matcher, "x </t>").unwrap();
            let length = TOKENIZER.encode("x </t>", false).unwrap().len() + 1;
            matcher.give_back(length).unwrap();
            assert_eq!(matcher.allowed().unwrap(), start);
            matcher.take(OPEN).unwrap();
            take(&mut matcher, "</t>").unwrap();
        }
        take(&mut matcher, "42").unwrap();
        assert_eq!(matcher.is_fulfilled(), Ok(true));
    }
}

/// An output without reasoning may be as short as the constraint lets it be.
#[test]
fn an_empty_output_may_end_before_it_reasons() {
    let open = TOKENIZER.id_to_token(1).unwrap();
    let constraint = Constraint {
        after: behind(Some(&open), "</t>").after,
        ..regex("[0-9]*")
    };
    let mut matcher = COMPILER.matcher(&constraint).unwrap();
    assert!(allows(matcher.allowed().unwrap(), ENDS[0]));
    assert_eq!(matcher.is_fulfilled(), Ok(true));
    matcher.take(ENDS[0]).unwrap();
    matcher.give_back(1).unwrap();
    matcher.take(1).unwrap();
    assert_eq!(matcher.is_fulfilled(), Ok(false));
}

/// Models write line breaks behind the mark, as tokens of their own or of the mark's last byte.
/// They are free, up to a bound, and can be given back.
#[test]
fn blanks_may_follow_the_mark() {
    let inside = (0..WIDTH as u32).find_map(|token| {
        let text = std::str::from_utf8(TOKENIZER.token_bytes(token)?).ok()?;
        let (mark, blanks) = text.split_at_checked(text.trim_end().len())?;
        let fits = !mark.is_empty() && !mark.contains(char::is_whitespace) && blanks.len() < 3;
        (fits && blanks.contains('\n')).then(|| (token, mark.to_owned()))
    });
    let (inside, mark) = inside.expect("a token that ends with a line break");
    let constraint = behind(None, &mark);
    for begin in [vec![inside], TOKENIZER.encode(&mark, false).unwrap()] {
        let mut matcher = COMPILER.matcher(&constraint).unwrap();
        let start = matcher.allowed().unwrap().to_vec();
        begin.iter().for_each(|token| {
            assert!(allows(matcher.allowed().unwrap(), *token), "{mark:?}");
            matcher.take(*token).unwrap();
        });
        let behind = matcher.allowed().unwrap().to_vec();
        assert_eq!(matcher.is_fulfilled(), Ok(false));
        take(&mut matcher, "\n\n").unwrap();
        let blanks = TOKENIZER.encode("\n\n", false).unwrap().len();
        assert!(take(&mut matcher, "x").is_err(), "constrained now");
        take(&mut matcher, "42").unwrap();
        assert!(take(&mut matcher, "\n").is_err(), "the answer has begun");
        let digits = TOKENIZER.encode("42", false).unwrap().len();
        matcher.give_back(digits + blanks).unwrap();
        assert_eq!(matcher.allowed().unwrap(), behind);
        matcher.give_back(begin.len()).unwrap();
        assert_eq!(matcher.allowed().unwrap(), start);
        begin.iter().for_each(|token| matcher.take(*token).unwrap());
        let bounded = (0..20).filter(|_| take(&mut matcher, "\n").is_ok()).count();
        assert!((10..=16).contains(&bounded), "{bounded}");
        take(&mut matcher, "7").unwrap();
        assert_eq!(matcher.is_fulfilled(), Ok(true));
    }
}

/// Blanks with which the constrained part may begin are that part's, as soon as they come.
#[test]
fn blanks_of_the_constraint_are_not_free() {
    let constraint = Constraint {
        after: behind(None, "</t>").after,
        ..regex(r"\n[0-9]")
    };
    let mut matcher = COMPILER.matcher(&constraint).unwrap();
    take(&mut matcher, "</t>").unwrap();
    take(&mut matcher, " ").unwrap();
    take(&mut matcher, "\n").unwrap();
    assert!(take(&mut matcher, "\n").is_err());
    take(&mut matcher, "4").unwrap();
    assert_eq!(matcher.is_fulfilled(), Ok(true));
}

/// A mark of several tokens is told from the constrained part as soon as only one of them goes on.
#[test]
fn an_opening_mark_may_have_several_tokens() {
    let constraint = Constraint {
        after: behind(Some("<thinking>"), "</t>").after,
        ..regex("<(thin|[0-9])+")
    };
    check(&constraint).unwrap();
    let start = COMPILER.matcher(&constraint).unwrap();
    let start = { start }.allowed().unwrap().to_vec();
    for (text, rest, ends) in [
        ("<thinking>Hm, <9 </t>", "<7thin", true),
        ("<thinthin", "7", true),
        ("<thin", "9", true),
        ("<thin", "", true),
        ("<th", "", false),
        ("<thinking", "", false),
        ("<thinking>", "", false),
        ("", "<7", true),
    ] {
        let mut matcher = COMPILER.matcher(&constraint).unwrap();
        take(&mut matcher, text).unwrap();
        take(&mut matcher, rest).unwrap();
        assert_eq!(matcher.is_fulfilled(), Ok(ends), "{text}{rest}");
        let allowed = matcher.allowed().unwrap();
        assert!(ENDS.iter().all(|end| allows(allowed, *end) == ends));
        let length = |text| TOKENIZER.encode(text, false).unwrap().len();
        matcher.give_back(length(text) + length(rest)).unwrap();
        assert_eq!(matcher.allowed().unwrap(), start, "{text}{rest}");
    }
    let mut matcher = COMPILER.matcher(&constraint).unwrap();
    take(&mut matcher, "<think").unwrap();
    for other in ["7", "e", "thin"] {
        assert!(take(&mut matcher, other).is_err(), "{other}");
    }
    take(&mut matcher, "ing>").unwrap();
    take(&mut matcher, "free").unwrap();
}

#[test]
fn a_mark_that_cannot_be_written_is_refused() {
    let error = check(&behind(None, "")).unwrap_err().to_string();
    assert_eq!(error, "the mark that ends the reasoning is empty");
    let error = check(&behind(Some(""), "</t>")).unwrap_err().to_string();
    assert_eq!(error, "the mark that begins the reasoning is empty");
}
