use super::super::mistral::FORMAT;
use super::{check_all, check_text};
use crate::answer::tests::{Answer, Case, check};

#[test]
fn lists() {
    check_all(
        &FORMAT,
        &[
            (
                "[TOOL_CALLS][{\"name\": \"look\", \"arguments\": {\"place\": \"a [ARGS] ]\"}}, {\"arguments\": {}, \"name\": \"ping\"}]",
                "",
                &[("look", "{\"place\": \"a [ARGS] ]\"}"), ("ping", "{}")],
            ),
            (
                "Hm. [TOOL_CALLS] [ {\"name\": \"ping\", \"arguments\": {\"a\": [1]}} ]",
                "Hm.",
                &[("ping", "{\"a\": [1]}")],
            ),
        ],
    );
}

#[test]
fn names() {
    check_all(
        &FORMAT,
        &[
            (
                "[TOOL_CALLS]look[ARGS]{\"place\": \"a\"}[TOOL_CALLS]ping[ARGS]{}",
                "",
                &[("look", "{\"place\": \"a\"}"), ("ping", "{}")],
            ),
            ("[TOOL_CALLS]ping{\"a\": 1}", "", &[("ping", "{\"a\": 1}")]),
            ("[TOOL_CALLS]ping[ARGS]", "", &[("ping", "{}")]),
        ],
    );
    check(&Case {
        tools: Some(&FORMAT),
        output: "[TOOL_CALLS]look[CALL_ID]abcdefghi[ARGS]{\"place\": \"a\"}",
        expected: Answer {
            calls: vec![(
                "look".to_owned(),
                "{\"place\": \"a\"}".to_owned(),
                Some("abcdefghi".to_owned()),
            )],
            ..Answer::default()
        },
        ..Case::default()
    });
}

#[test]
fn text() {
    check_text(
        &FORMAT,
        &[
            "[TOOL_CALL] is no mark, [ARGS] is none alone",
            "[TOOL_CALLS]",
            "[TOOL_CALLS]look",
            "[TOOL_CALLS][1, 2]",
            "[TOOL_CALLS][{\"name\": 1}]",
            "[TOOL_CALLS][ARGS]{}",
        ],
    );
}
