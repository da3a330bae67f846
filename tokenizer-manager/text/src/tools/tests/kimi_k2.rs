use super::super::kimi_k2::FORMAT;
use super::check_text;
use crate::answer::tests::{Answer, Case, check};

#[test]
fn calls_have_the_models_ids() {
    let call = |name: &str, arguments: &str, id: &str| {
        (name.to_owned(), arguments.to_owned(), Some(id.to_owned()))
    };
    for (output, text, calls) in [
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"place\": \"<|tool_call_end|>\"}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            "",
            vec![
                call(
                    "look",
                    "{\"place\": \"<|tool_call_end|>\"}",
                    "functions.look:0",
                ),
                call("ping", "{}", "functions.ping:1"),
            ],
        ),
        (
            "Yes.\n<|tool_calls_section_begin|>\n<|tool_call_begin|> functions.box.open:12 <|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|> So.",
            "Yes.So.",
            vec![call("box.open", "{}", "functions.box.open:12")],
        ),
        (
            "<|tool_call_begin|>ping<|tool_call_argument_begin|>{\"a\"",
            "",
            vec![("ping".to_owned(), "{\"a\"".to_owned(), None)],
        ),
        (
            "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>path=/tmp/x<|tool_call_end|>",
            "",
            vec![call("look", "path=/tmp/x", "functions.look:0")],
        ),
        (
            "<|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{} Here it is.",
            "Here it is.",
            vec![call("ping", "{}", "functions.ping:0")],
        ),
    ] {
        check(&Case {
            tools: Some(&FORMAT),
            output,
            expected: Answer {
                calls,
                ..Answer::new(text, &[])
            },
            ..Case::default()
        });
    }
}

#[test]
fn text() {
    check_text(
        &FORMAT,
        &[
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_begin|>nothing",
            "<|tool_call_begin|>functions.look:0",
            "<|tool_call_begin|>:0<|tool_call_argument_begin|>{}",
            "<|tool_call_end|>",
        ],
    );
}
