//! Bounds on regular expressions.

use regex_syntax::ast::{Ast, RepetitionKind, RepetitionRange, parse::ParserBuilder};

/// Most repetitions by number, those inside others multiplied.
const MOST_REPETITIONS: u64 = 4096;
/// Deepest nesting.
const MOST_NESTING: u32 = 100;

/// Checks the syntax of an expression and the numbers of its repetitions.
///
/// # Errors
/// The fault.
pub(crate) fn regex(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() {
        return Err("the regular expression is empty".to_owned());
    }
    let mut parser = ParserBuilder::new().nest_limit(MOST_NESTING).build();
    let ast = parser.parse(pattern).map_err(|error| {
        let at = error.span().start.offset;
        format!(
            "the regular expression is wrong at byte {at}: {}",
            error.kind()
        )
    })?;
    let repetitions = repetitions(&ast);
    if repetitions > MOST_REPETITIONS {
        return Err(format!(
            "the regular expression repeats {repetitions} times, nested repetitions multiplied; \
             the limit is {MOST_REPETITIONS}"
        ));
    }
    Ok(())
}

/// Returns an expression without anchors at its ends: a constraint is matched as a whole.
pub(crate) fn whole(pattern: &str) -> &str {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let Some(open) = pattern.strip_suffix('$') else {
        return pattern;
    };
    let escapes = open.bytes().rev().take_while(|byte| *byte == b'\\').count();
    if escapes % 2 == 0 { open } else { pattern }
}

/// Returns the largest product of nested repetitions by number.
fn repetitions(ast: &Ast) -> u64 {
    match ast {
        Ast::Repetition(repetition) => {
            let times = match &repetition.op.kind {
                RepetitionKind::Range(
                    RepetitionRange::Exactly(times)
                    | RepetitionRange::AtLeast(times)
                    | RepetitionRange::Bounded(_, times),
                ) => u64::from(*times),
                _ => 1,
            };
            repetitions(&repetition.ast).saturating_mul(times.max(1))
        }
        Ast::Group(group) => repetitions(&group.ast),
        Ast::Alternation(alternation) => most(&alternation.asts),
        Ast::Concat(concat) => most(&concat.asts),
        _ => 1,
    }
}

fn most(asts: &[Ast]) -> u64 {
    asts.iter().map(repetitions).max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_repetitions_multiply() {
        for (pattern, good) in [
            ("(a|aa)+b", true),
            ("a{4096}", true),
            ("a{4097}", false),
            ("a{4097,}", false),
            ("(a{64}){64}", true),
            ("x|((a{0,100}){0,100}){0,100}", false),
            ("foo**", true),
            ("(foo", false),
            ("a{2,1}", false),
        ] {
            assert_eq!(regex(pattern).is_ok(), good, "{pattern}");
        }
        let deep = "(".repeat(200) + &")".repeat(200);
        assert!(regex(&deep).is_err());
    }

    #[test]
    fn anchors_at_the_ends_mean_nothing() {
        for (pattern, left) in [
            ("^a$", "a"),
            ("a", "a"),
            (r"a\$", r"a\$"),
            (r"a\\$", r"a\\"),
            ("^", ""),
        ] {
            assert_eq!(whole(pattern), left);
        }
    }
}
