use super::super::gemma4::FORMAT;
use super::{check_all, check_text};
use crate::answer::tests::{Answer, Case, check};

#[test]
fn objects_become_json() {
    check_all(
        &FORMAT,
        &[
            (
                "Sure.\n<|tool_call>call:look{place:<|\"|>a \"b\"\n<|\"|>,days:3}<tool_call|>",
                "Sure.",
                &[("look", "{\"place\": \"a \\\"b\\\"\\n\", \"days\": 3}")],
            ),
            (
                "<|tool_call>call:ping{}<tool_call|><|tool_call>call:box.open{a:{b:[1,<|\"|>x, }<|\"|>,true],c:{}},d:null}<tool_call|>",
                "",
                &[
                    ("ping", "{}"),
                    (
                        "box.open",
                        "{\"a\": {\"b\": [1, \"x, }\", true], \"c\": {}}, \"d\": null}",
                    ),
                ],
            ),
            // Python's words, other words, and keys between marks.
            (
                "<|tool_call>call:ping{a:None,b:2026-01-15, <|\"|>c d<|\"|> : -1.5}<tool_call|>",
                "",
                &[(
                    "ping",
                    "{\"a\": null, \"b\": \"2026-01-15\", \"c d\": -1.5}",
                )],
            ),
            // The closing mark is missing.
            (
                "<|tool_call>call:ping{a:1}\nDone.",
                "Done.",
                &[("ping", "{\"a\": 1}")],
            ),
        ],
    );
    // A special token would be left out of a string.
    check(&Case {
        tools: Some(&FORMAT),
        output: "<|tool_call>call:ping{\"a\": \"x\\\"\", \"b\": [\"<tool_call|>\"]}\nDone.",
        expected: Answer::new(
            "Done.",
            &[("ping", "{\"a\": \"x\\\"\", \"b\": [\"<tool_call|>\"]}")],
        ),
        ..Case::default()
    });
    check_text(
        &FORMAT,
        &[
            "<|tool_call>",
            "<|tool_call>look{}",
            "<|tool_call>call:{}",
            "a <|tool and <tool_call|> b",
        ],
    );
}

/// Broken objects stay open, so that nobody takes them for whole.
#[test]
fn broken_objects_stay_open() {
    for (output, arguments, text) in [
        ("<|tool_call>call:ping{a:1", "{\"a\": ", ""),
        ("<|tool_call>call:ping{a:<|\"|>x", "{\"a\": \"x", ""),
        ("<|tool_call>call:ping{a:]b", "{\"a\": ", "]b"),
        ("<|tool_call>call:ping{[1]}", "{", "[1]}"),
    ] {
        check(&Case {
            tools: Some(&FORMAT),
            output,
            expected: Answer::new(text, &[("ping", arguments)]),
            ..Case::default()
        });
    }
}
