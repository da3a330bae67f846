use super::super::glm45::FORMAT;
use super::{check_all, check_text};
use crate::answer::tests::{Answer, Case, check};

#[test]
fn calls() {
    check_all(
        &FORMAT,
        &[
            (
                "<tool_call>look\n<arg_key>place</arg_key>\n<arg_value>5\n\"x\" </arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
                "",
                &[("look", "{\"place\": \"5\\n\\\"x\\\" \", \"days\": 3}")],
            ),
            // Without newlines, and two calls.
            (
                "Ok\n<tool_call>ping</tool_call><tool_call>look<arg_key>tags</arg_key><arg_value>[1, {\"a\": \"b\"}]</arg_value><arg_key>exact</arg_key><arg_value>True</arg_value></tool_call>",
                "Ok",
                &[
                    ("ping", "{}"),
                    ("look", "{\"tags\": [1, {\"a\": \"b\"}], \"exact\": true}"),
                ],
            ),
            // Types decide: a text that is no number, an argument that is no tool's, null.
            (
                "<tool_call>look\n<arg_key>days</arg_key><arg_value>2026-01-15</arg_value><arg_key>other</arg_key><arg_value>{\"a\":1}</arg_value><arg_key>note</arg_key><arg_value>null</arg_value><arg_key>unit</arg_key><arg_value>1</arg_value><arg_key>at</arg_key><arg_value>7</arg_value></tool_call>",
                "",
                &[(
                    "look",
                    "{\"days\": \"2026-01-15\", \"other\": {\"a\":1}, \"note\": null, \"unit\": \"1\", \"at\": 7}",
                )],
            ),
            // The output ends inside of a value.
            (
                "<tool_call>look\n<arg_key>place</arg_key><arg_value>Kö",
                "",
                &[("look", "{\"place\": \"Kö")],
            ),
            (
                "<tool_call>look\n<arg_key>days</arg_key><arg_value>12",
                "",
                &[("look", "{\"days\": \"12")],
            ),
        ],
    );
}

#[test]
fn a_forgotten_mark_is_found_by_the_next_token() {
    check(&Case {
        tools: Some(&FORMAT),
        output: "<tool_call>look\n<arg_key>place</arg_key><arg_value>a</tool_call>b",
        expected: Answer::new("", &[("look", "{\"place\": \"a</tool_call>b")]),
        only: Some(false),
        ..Case::default()
    });
    check(&Case {
        tools: Some(&FORMAT),
        output: "<tool_call>look\n<arg_key>place</arg_key><arg_value>a</tool_call>b",
        expected: Answer::new("b", &[("look", "{\"place\": \"a\"}")]),
        only: Some(true),
        ..Case::default()
    });
}

#[test]
fn text() {
    check_text(
        &FORMAT,
        &[
            "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}",
            "<tool_call> is the mark\n",
            "<tool_call>",
            "<tool_call></tool_call>",
            "<tool_call><arg_value>",
            "<tool_call>look",
            "a <arg_key> b",
        ],
    );
}
