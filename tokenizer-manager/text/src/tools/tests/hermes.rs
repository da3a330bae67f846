use super::super::hermes::FORMAT;
use super::{check_all, check_text};

#[test]
fn calls() {
    check_all(
        &FORMAT,
        &[
            (
                "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"Köln\", \"days\": 2}}\n</tool_call>",
                "",
                &[("look", "{\"place\": \"Köln\", \"days\": 2}")],
            ),
            // Text before, two calls, text behind.
            (
                "Let me see.\n<tool_call>{\"name\":\"ping\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"a\"}}\n</tool_call>\nDone. ",
                "Let me see.Done. ",
                &[("ping", "{}"), ("look", "{\"place\": \"a\"}")],
            ),
            // The keys may come in any order, and others between them.
            (
                "<tool_call>{\"arguments\": {\"place\": \"a\"}, \"id\": [1, {\"b\": \"}\"}], \"name\": \"look\"}</tool_call>",
                "",
                &[("look", "{\"place\": \"a\"}")],
            ),
            // One brace too many.
            (
                "<tool_call>{\"name\": \"ping\", \"arguments\": {}}}</tool_call>So",
                "So",
                &[("ping", "{}")],
            ),
            // No arguments.
            (
                "<tool_call>{\"name\": \"ping\"}</tool_call>",
                "",
                &[("ping", "{}")],
            ),
            // No closing mark.
            (
                "<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"a\": 1}}",
                "",
                &[("ping", "{\"a\": 1}")],
            ),
            (
                "<tool_call>{\"name\": \"ping\", \"arguments\": {}}\n<tool_call>{\"name\": \"ping\", \"arguments\": {}}",
                "",
                &[("ping", "{}"), ("ping", "{}")],
            ),
            // Marks, quotes and brackets inside of strings.
            (
                "<tool_call>{\"name\": \"look\", \"arguments\": {\"place\": \"a \\\"</tool_call>\\\" }{ 2>&1\\\\\"}}</tool_call>x",
                "x",
                &[(
                    "look",
                    "{\"place\": \"a \\\"</tool_call>\\\" }{ 2>&1\\\\\"}",
                )],
            ),
            // Arguments stay as the model wrote them, and its names too.
            (
                "<tool_call>{\"name\": \"caf\\u00e9\", \"arguments\":  {\"a\" :1.0e5,\"b\":\"\\u00e9\" }  }</tool_call>",
                "",
                &[("café", "{\"a\" :1.0e5,\"b\":\"\\u00e9\" }")],
            ),
            // An output that ends inside of the arguments has told them that far.
            (
                "<tool_call>{\"name\": \"look\", \"arguments\": {\"place\": \"K",
                "",
                &[("look", "{\"place\": \"K")],
            ),
            // The object is not closed.
            (
                "<tool_call>{\"name\": \"look\", \"arguments\": {\"place\": \"K\"}\n</tool_call>",
                "",
                &[("look", "{\"place\": \"K\"}")],
            ),
        ],
    );
}

#[test]
fn text() {
    check_text(
        &FORMAT,
        &[
            "  plain, with <b>tags</b> and {\"json\": 1}\n",
            "a <tool",
            "a <tool_call",
            "</tool_call> only",
            "<tool_call>",
            "<tool_call>\n{\"name\": \"look\"",
            "<tool_call>\n{\"name\": \"look\", \"arguments\": ",
            "<tool_call>look(1)</tool_call>",
            "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"arguments\": {}}</tool_call> b",
            "<tool_call>{\"name\": \"look\"</tool_call>",
            "<tool_call>{'name': 'look'}</tool_call>",
        ],
    );
}
