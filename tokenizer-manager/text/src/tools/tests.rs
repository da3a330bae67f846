//! Tables of outputs for each format of calls.

mod deepseek;
mod deepseek_dsml;
mod gemma4;
mod glm45;
mod gpt_oss;
mod hermes;
mod hostile;
mod kimi_k2;
mod llama3_function;
mod llama3_json;
mod mistral;
mod pythonic;
mod tagged;

use serde_json::{Value, json};

use super::{TOOL_FORMATS, ToolFormat};
use crate::answer::tests::{Answer, Case, check};

/// Tools of the tests.
pub(crate) fn tools() -> Vec<Value> {
    let tool = |name: &str, properties: Value| {
        let parameters = json!({"type": "object", "properties": properties});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    vec![
        tool(
            "look",
            json!({
                "place": {"type": "string"}, "days": {"type": "integer"},
                "exact": {"type": "boolean"}, "tags": {"type": "array"},
                "note": {"type": ["string", "null"]}, "unit": {"enum": ["1", "2"]},
                "at": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            }),
        ),
        tool("ping", json!({})),
        json!({"type": "function", "function": {"name": "box.open"}}),
    ]
}

/// An output, and the expected text and calls, each with its name and its arguments.
type Row<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

/// Checks outputs, each with the expected text and calls, cut in many ways, with marks that are
/// text and with marks that are tokens.
fn check_all(format: &'static ToolFormat, cases: &[Row<'_>]) {
    for (output, text, calls) in cases {
        check(&Case {
            tools: Some(format),
            output,
            expected: Answer::new(text, calls),
            ..Case::default()
        });
    }
}

/// Checks outputs that are no calls: they are text, whole. A mark that is a special token would be
/// left out, as from any text.
fn check_text(format: &'static ToolFormat, outputs: &[&str]) {
    for output in outputs {
        check(&Case {
            tools: Some(format),
            output,
            expected: Answer::new(output, &[]),
            only: Some(false),
            ..Case::default()
        });
    }
}

#[test]
fn names_are_unique_and_no_mark_contains_another() {
    let mut names: Vec<_> = TOOL_FORMATS
        .iter()
        .flat_map(|format| format.names)
        .collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    for format in TOOL_FORMATS {
        assert!(format.openings > 0 && format.openings <= format.marks.len());
        for mark in format.marks {
            let others = format.marks.iter().filter(|other| *other != mark);
            let inside = others.filter(|other| other.contains(mark)).count();
            assert_eq!(inside, 0, "{mark} of {:?}", format.names);
        }
    }
}

#[test]
fn a_template_shows_its_format() {
    let templates = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/chat_templates/templates"
    );
    for (file, name) in [
        ("qwen2_5", Some("qwen25")),
        ("qwen3", Some("qwen25")),
        ("mistral_tools", Some("mistral")),
        ("llama3_tools", Some("llama3")),
        ("gemma", None),
    ] {
        let path = format!("{templates}/{file}.jinja");
        let source = std::fs::read_to_string(&path).expect(&path);
        let format = ToolFormat::of_template(&source);
        assert_eq!(format.map(|format| format.names[0]), name, "{file}");
    }
    for (source, name) in [
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("<minimax:tool_call> <invoke name=", "minimax-m2"),
        ("<｜tool▁call▁begin｜>function … ```json", "deepseekv3"),
        ("<｜tool▁call▁begin｜>", "deepseekv31"),
        ("<tool_call> <arg_key>", "glm45"),
        ("<tool_call> <function= <parameter=", "qwen3_coder"),
        ("'<' ~ '｜DSML｜' ~ 'function_calls>'", "deepseekv32"),
        ("<｜DSML｜tool_calls>", "deepseekv4"),
        ("{{ '<|tool_call>call:' + name }}", "gemma4"),
        (
            "functions.look<|channel|>commentary json<|message|>",
            "gpt-oss",
        ),
        (
            "<|start_header_id|> <function=example>{} <|python_tag|>",
            "llama3_function",
        ),
        ("<|python_start|>", "pythonic"),
        ("<|python_tag|>", "llama3"),
    ] {
        let format = ToolFormat::of_template(source).expect(source);
        assert_eq!(format.names[0], name, "{source}");
        assert!(std::ptr::eq(ToolFormat::named(name).expect(name), format));
    }
}
