//! Outputs that try to make a parser hold much or take long.

use std::sync::Arc;

use super::tools;
use crate::answer::tests::{Answer, plain};
use crate::answer::{AnswerOptions, AnswerParser, Calls};
use crate::tools::{MOST_HELD, TOOL_FORMATS, ToolFormat, ToolSchemas};

fn parse(format: &'static ToolFormat, output: &str) -> (Answer, usize) {
    let options = AnswerOptions {
        calls: Calls::Parsed(format, Arc::new(ToolSchemas::new(&tools()))),
        ..AnswerOptions::default()
    };
    let mut parser = AnswerParser::new(&plain(), &options);
    let mut answer = Answer::default();
    let (mut fed, mut most) = (0, 0);
    for c in output.chars() {
        parser.text(c.encode_utf8(&mut [0; 4]), &mut answer);
        fed += 1;
        most = most.max(fed - parser.decided());
    }
    parser.finish(false, &mut answer);
    (answer, most)
}

#[test]
fn what_is_held_back_is_bounded() {
    let long = "x".repeat(MOST_HELD + 1000);
    let blank = " ".repeat(MOST_HELD + 1000);
    for format in TOOL_FORMATS {
        let mark = format.marks[0];
        for output in [
            format!("{mark}{long}"),
            format!("{mark}{blank}"),
            format!("{mark}{{\"{long}"),
            format!("{mark}{{\"name\": \"{long}"),
            format!("{mark}{{\"arguments\": {{\"a\": \"{long}"),
            format!("{mark}[{blank}"),
            format!("[{blank}"),
            format!("[{long}"),
            format!("a{blank}"),
            mark.repeat(2000),
        ] {
            let (answer, most) = parse(format, &output);
            let names = &format.names;
            assert!(most <= MOST_HELD + 512, "{names:?} held {most}");
            assert!(
                answer.calls.is_empty(),
                "{names:?} {:?}",
                answer.calls.len()
            );
            // Nothing is lost or written twice. Blanks beside a mark may be dropped.
            let letters = |text: &str| text.replace(' ', "");
            assert_eq!(letters(&answer.text), letters(&output), "{names:?}");
        }
    }
}

#[test]
fn arguments_of_megabytes_pass() {
    let value = "\\\"<tool_call>{[".repeat(50_000);
    let format = ToolFormat::named("hermes").expect("known");
    let arguments = format!("{{\"place\": \"{value}\"}}");
    let output =
        format!("<tool_call>{{\"name\": \"look\", \"arguments\": {arguments}}}</tool_call>");
    let (answer, most) = parse(format, &output);
    assert_eq!(answer.calls.len(), 1);
    assert!(answer.calls[0].1 == arguments, "byte for byte");
    assert!(most < 1000, "{most}");
}

#[test]
fn a_long_value_of_another_type_becomes_a_string() {
    let value = "7".repeat(2 * MOST_HELD);
    let format = ToolFormat::named("glm45").expect("known");
    let output = format!(
        "<tool_call>look\n<arg_key>days</arg_key><arg_value>{value}</arg_value></tool_call>"
    );
    let (answer, _) = parse(format, &output);
    assert!(answer.calls[0].1 == format!("{{\"days\": \"{value}\"}}"));
}

#[test]
fn deep_nesting_is_only_counted() {
    let deep = "[".repeat(50_000);
    let python = ToolFormat::named("pythonic").expect("known");
    let (answer, _) = parse(python, &format!("[ping(a={deep}"));
    assert_eq!(answer.calls.len(), 1);
    let hermes = ToolFormat::named("hermes").expect("known");
    let output = format!("<tool_call>{{\"name\": \"ping\", \"arguments\": {deep}");
    let (answer, _) = parse(hermes, &output);
    assert_eq!(answer.calls[0].1, deep);
}
