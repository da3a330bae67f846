use super::super::{minimax_m2, qwen3_coder};
use super::{check_all, check_text};
use crate::answer::tests::{Answer, Case, check};

#[test]
fn qwen3_coder_calls() {
    check_all(
        &qwen3_coder::FORMAT,
        &[
            (
                "Sure.\n<tool_call>\n<function=look>\n<parameter=place>\n123\n</parameter>\n<parameter=days>\n 4 \n</parameter>\n</function>\n</tool_call>",
                "Sure.",
                &[("look", "{\"place\": \"123\", \"days\": 4}")],
            ),
            // Newlines inside of a value stay, but for one on each side.
            (
                "<tool_call>\n<function=look>\n<parameter=place>\n\na\n\n  b &lt;\n\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
                "",
                &[
                    ("look", "{\"place\": \"\\na\\n\\n  b &lt;\\n\"}"),
                    ("ping", "{}"),
                ],
            ),
            // The opening mark is missing.
            (
                "<function=look>\n<parameter=place>\na\n</parameter>\n</function>\n</tool_call>",
                "",
                &[("look", "{\"place\": \"a\"}")],
            ),
            // A value that has a closing mark in it.
            (
                "<tool_call><function=look><parameter=place>a</parameter> b</parameter></function></tool_call>",
                "",
                &[("look", "{\"place\": \"a</parameter> b\"}")],
            ),
            (
                "<tool_call><function=look><parameter=place>a 2>&1</parameter></function></tool_call>",
                "",
                &[("look", "{\"place\": \"a 2>&1\"}")],
            ),
            // Values that have another type than their schema.
            (
                "<tool_call><function=look><parameter=days>2026-01-15</parameter><parameter=exact>maybe</parameter><parameter=tags>[1,</parameter></function></tool_call>",
                "",
                &[(
                    "look",
                    "{\"days\": \"2026-01-15\", \"exact\": \"maybe\", \"tags\": \"[1,\"}",
                )],
            ),
            // The output ends early.
            (
                "<tool_call><function=look><parameter=place>a</parameter>",
                "",
                &[("look", "{\"place\": \"a\"}")],
            ),
            (
                "<tool_call><function=look><parameter=place>a",
                "",
                &[("look", "{\"place\": \"a")],
            ),
            // The parameter's closing mark is missing.
            (
                "<tool_call><function=look><parameter=place>\na\n</function>\n</tool_call>",
                "",
                &[("look", "{\"place\": \"a\"}")],
            ),
            (
                "<tool_call><function=look><parameter=place>a</function> b</parameter></function></tool_call>",
                "",
                &[("look", "{\"place\": \"a</function> b\"}")],
            ),
            // A tool that the request does not have, between the right marks.
            (
                "<tool_call><function=other><parameter=a>1</parameter></function></tool_call>",
                "",
                &[("other", "{\"a\": 1}")],
            ),
        ],
    );
    check_text(
        &qwen3_coder::FORMAT,
        &[
            "Write <function=name> then.",
            "<tool_call>\n{\"name\": \"look\"}",
            "<tool_call><function=look",
            "<tool_call><function=></function>",
            "a </parameter> b",
        ],
    );
}

#[test]
fn a_block_that_ends_inside_of_a_value_ends_the_call() {
    check(&Case {
        tools: Some(&qwen3_coder::FORMAT),
        output: "<tool_call><function=look><parameter=place>a</tool_call>b",
        expected: Answer::new("b", &[("look", "{\"place\": \"a\"}")]),
        only: Some(true),
        ..Case::default()
    });
}

#[test]
fn minimax_m2_calls() {
    check_all(
        &minimax_m2::FORMAT,
        &[
            (
                "<minimax:tool_call>\n<invoke name=\"look\">\n<parameter name=\"place\">a \"b\"</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"ping\">\n</invoke>\n</minimax:tool_call>",
                "",
                &[
                    ("look", "{\"place\": \"a \\\"b\\\"\", \"days\": 2}"),
                    ("ping", "{}"),
                ],
            ),
            // Tools that the request does not have.
            (
                "<minimax:tool_call><invoke name=\"x\"></invoke>\n<invoke name=\"y\"></invoke></minimax:tool_call>",
                "",
                &[("x", "{}"), ("y", "{}")],
            ),
        ],
    );
    check_text(
        &minimax_m2::FORMAT,
        &["<minimax:tool_call>", "<invoke name=\"nobody\">"],
    );
}
