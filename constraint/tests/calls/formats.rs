//! Calls as models write them, and what is none.

use lockstep_constraint::{Cancel, expression};
use lockstep_sampling::{TokenConstraint as _, allows};
use lockstep_text::{Beside, ToolFormat, channel_answer};
use lockstep_types::constraint::{Constraint, ConstraintKind, Reasoning};
use serde_json::json;

use crate::support::{Model, Tool, grammar, model};

fn tools() -> Vec<Tool> {
    let schema = json!({
        "type": "object",
        "properties": {"place": {"type": "string"}, "days": {"type": "integer", "maximum": 9}},
        "required": ["place"], "additionalProperties": false,
    });
    let look = Tool {
        name: "look".to_owned(),
        schema: Some(schema),
        strict: true,
        loose: false,
    };
    let ping = Tool {
        name: "ping".to_owned(),
        schema: None,
        strict: false,
        loose: false,
    };
    vec![look, ping]
}

/// A call of `look` with a place and days, the same with wrong arguments, and two calls.
const ROWS: &[(&str, &str, &str, &str)] = &[
    (
        "qwen25",
        "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"x\", \"days\": 2}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"x\", \"days\": 20}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"x\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"a\": []}}\n</tool_call>",
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=look>\n<parameter=place>\nx < y\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=look>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=ping>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n<parameter=a>\n[1]\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "minimax-m2",
        "<minimax:tool_call>\n<invoke name=\"look\">\n<parameter name=\"place\">x</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n</minimax:tool_call>",
        "<minimax:tool_call>\n<invoke name=\"look\">\n<parameter name=\"place\">x</parameter>\n<parameter name=\"days\">two</parameter>\n</invoke>\n</minimax:tool_call>",
        "<minimax:tool_call>\n<invoke name=\"ping\">\n</invoke>\n<invoke name=\"ping\">\n</invoke>\n</minimax:tool_call>",
    ),
    (
        "glm45",
        "<tool_call>look\n<arg_key>place</arg_key>\n<arg_value>x</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        "<tool_call>look<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
        "<tool_call>ping</tool_call><tool_call>look<arg_key>place</arg_key><arg_value>x</arg_value></tool_call>",
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"place\": \"x\", \"days\": 2}<|tool_call_end|><|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"place\": 1}<|tool_call_end|><|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "deepseekv3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{\"place\": \"x\", \"days\": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{\"x\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseekv31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{\"place\": \"x\", \"days\": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseekv32",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"look\">\n<｜DSML｜parameter name=\"place\" string=\"true\">5</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"look\">\n<｜DSML｜parameter name=\"place\" string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"ping\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"ping\">\n<｜DSML｜parameter name=\"a\" string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    (
        "deepseekv4",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n<｜DSML｜parameter name=\"place\" string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"ping\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"ping\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    (
        "gemma4",
        "<|tool_call>call:look{place:<|\"|>x < \"y\"<|\"|>,days:2}<tool_call|>",
        "<|tool_call>call:look{place:x,days:2}<tool_call|>",
        "<|tool_call>call:ping{a:[\"x\",1]}<tool_call|><|tool_call>call:look{place:<|\"|>x<|\"|>}<tool_call|>",
    ),
    (
        "gpt-oss",
        "<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"place\": \"x\", \"days\": 2}",
        "<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"days\": 2}",
        "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"place\": \"x\"}",
    ),
    (
        "llama3_function",
        "<function=look>{\"place\": \"x\", \"days\": 2}</function>",
        "<function=look>{\"days\": 2}</function>",
        "<function=ping>{}</function><function=look>{\"place\": \"x\"}</function>",
    ),
    (
        "llama3",
        "{\"name\": \"look\", \"parameters\": {\"place\": \"x\", \"days\": 2}}",
        "{\"name\": \"look\", \"parameters\": {\"days\": 2}}",
        "{\"name\": \"ping\", \"parameters\": {}}; {\"name\": \"ping\", \"parameters\": {}}",
    ),
    (
        "pythonic",
        "[look(place=\"x\", days=2)]",
        "[look(days=2)]",
        "[ping(), look(place=\"x\"), ping(a=[1], b=null)]",
    ),
];

/// Checks texts, each with whether the grammar of several calls and that of one allow it.
fn judge(model: &Model, (many, single): (&str, &str), cases: &[(&str, bool, bool)]) {
    for (text, by_many, by_single) in cases {
        for (grammar, expected) in [(many, by_many), (single, by_single)] {
            assert_eq!(
                model.accepts(grammar, text),
                *expected,
                "{text:?} {grammar}"
            );
        }
    }
}

#[test]
fn calls_of_every_format_are_held_to_tools_and_schemas() {
    for (name, one, wrong, two) in ROWS {
        let format = ToolFormat::named(name).unwrap();
        for as_tokens in [false, true] {
            let model = model(format, as_tokens);
            let made =
                |several| grammar(format, &model, &tools(), Beside::Nothing, several).unwrap();
            let (many, single) = (made(true), made(false));
            judge(
                &model,
                (&many, &single),
                &[
                    (*one, true, true),
                    (*two, true, false),
                    (*wrong, false, false),
                    (&*one.replace("look", "hook"), false, false),
                    ("hello", false, false),
                    ("", false, false),
                    (&*format!("{one}hello"), false, false),
                ],
            );
        }
    }
}

#[test]
fn text_around_calls_is_free_and_has_no_mark() {
    for (name, one, wrong, two) in ROWS {
        let format = ToolFormat::named(name).unwrap();
        if *name == "gpt-oss" {
            continue;
        }
        for as_tokens in [false, true] {
            let model = model(format, as_tokens);
            let made = |several| grammar(format, &model, &tools(), Beside::Text, several);
            if ["llama3", "pythonic"].contains(name) {
                let error = made(true).unwrap_err().to_string();
                assert!(error.contains("begin with no mark"), "{error}");
                continue;
            }
            let (many, single) = (made(true).unwrap(), made(false).unwrap());
            let later = format!("Let me see. <b> {one} and {one}\nDone.");
            judge(
                &model,
                (&many, &single),
                &[
                    (*one, true, true),
                    (*two, true, false),
                    (*wrong, false, false),
                    ("hello <tool", true, true),
                    ("", true, true),
                    (&*format!("Hm.\n{one}"), true, true),
                    (&*later, true, false),
                    (&*format!("Hm. {}", format.marks()[0]), false, false),
                ],
            );
        }
    }
}

/// In channels, text has a header too, and stands before calls or instead of them.
#[test]
fn text_of_channels_has_a_channel_of_its_own() {
    let format = ToolFormat::named("gpt-oss").unwrap();
    let call = "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}";
    let comment = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant";
    let last = "<|channel|>final<|message|>42 <b>";
    for as_tokens in [false, true] {
        let model = model(format, as_tokens);
        let made = |beside| grammar(format, &model, &tools(), beside, false).unwrap();
        let (text, answer) = (
            made(Beside::Text),
            made(Beside::Answer("%json {\"type\": \"integer\"}")),
        );
        let number = "<|channel|>final <|constrain|>json<|message|>42";
        for (output, as_text, as_answer) in [
            (call, true, true),
            (last, true, false),
            ("<|channel|>final<|message|>42", true, true),
            (number, true, true),
            (&format!("<|start|>assistant{number}"), true, true),
            (&format!("{comment}{comment}{call}"), true, false),
            (&format!("{comment}{last}"), true, false),
            (comment, false, false),
            ("42", false, false),
            (&format!("{last}<|end|>"), false, false),
            (&format!("{last}<|start|>assistant{call}"), false, false),
            (&call.replace("ping", "pong"), false, false),
            ("<|channel|>analysis<|message|>Hm.", false, false),
        ] {
            assert_eq!(model.accepts(&text, output), as_text, "{output} {text}");
            assert_eq!(
                model.accepts(&answer, output),
                as_answer,
                "{output} {answer}"
            );
        }
    }
}

/// A constrained answer begins in its channel, behind a thought or without one. All of its marks
/// begin with the same token as the thought's.
#[test]
fn an_answer_in_a_channel_may_follow_a_thought() {
    let format = ToolFormat::named("gpt-oss").unwrap();
    let thought = "<|channel|>analysis<|message|>Hm, [7].<|end|>";
    let answer = "<|channel|>final<|message|>42";
    for as_tokens in [false, true] {
        let model = model(format, as_tokens);
        let grammar = channel_answer(&model.tokenizer, "/[0-9]+/").unwrap();
        let constraint = Constraint {
            after: Some(Reasoning {
                again: true,
                limit: Some(40),
                ..Reasoning::new(Some("<|channel|>analysis<|message|>"), "<|end|>")
            }),
            ..Constraint::new(ConstraintKind::Lark, grammar)
        };
        model
            .compiler
            .check(&constraint, &Cancel::default())
            .unwrap();
        for (output, accepted) in [
            (answer.to_owned(), true),
            (format!("{thought}<|start|>assistant{answer}"), true),
            (format!("{thought}\n{answer}"), true),
            (thought.to_owned(), false),
            ("<|channel|>".to_owned(), false),
            (format!("{thought}{thought}"), false),
            (format!("{answer} or so"), false),
            ("<|channel|>commentary<|message|>".to_owned(), false),
            ("42".to_owned(), false),
        ] {
            let mut matcher = model.compiler.matcher(&constraint).unwrap();
            let start = matcher.allowed().unwrap().to_vec();
            let ids = model.tokenizer.encode(&output, false).unwrap();
            let taken = ids.iter().take_while(|id| {
                let allowed = allows(matcher.allowed().unwrap(), **id);
                assert_eq!(matcher.take(**id).is_ok(), allowed, "{output}");
                allowed
            });
            let taken = taken.count();
            let whole = taken == ids.len() && matcher.is_fulfilled().unwrap();
            assert_eq!(whole, accepted, "{output} {as_tokens}");
            matcher.give_back(taken).unwrap();
            assert_eq!(matcher.allowed().unwrap(), start);
        }
    }
}

/// A client's own grammar is a part of the answer's, with rules of its own.
#[test]
fn an_answer_may_be_a_grammar_of_its_own() {
    let format = ToolFormat::named("gpt-oss").unwrap();
    let balanced = "start: \"(\" start? T0? \")\" // }\nT0: /[ab]{2}/\n%ignore / +/ # }";
    let own = expression(ConstraintKind::Lark, balanced).unwrap();
    let call = "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}";
    for as_tokens in [false, true] {
        let model = model(format, as_tokens);
        let alone = channel_answer(&model.tokenizer, &own).unwrap();
        let beside = grammar(format, &model, &tools(), Beside::Answer(&own), false).unwrap();
        for (answer, good) in [
            ("()", true),
            ("((ab) )", true),
            ("(( ( ) ba))", true),
            ("(", false),
            ("())", false),
            ("(abab)", false),
            ("T0", false),
        ] {
            let output = format!("<|channel|>final<|message|>{answer}");
            assert_eq!(model.accepts(&alone, &output), good, "{output} {alone}");
            assert_eq!(model.accepts(&beside, &output), good, "{output} {beside}");
            assert_eq!(model.accepts(balanced, answer), good, "{answer}");
        }
        assert!(model.accepts(&beside, call));
        assert!(!model.accepts(&alone, call));
    }
}

/// Mistral's two forms: the vocabulary shows which one the model knows.
#[test]
fn mistral_writes_as_its_vocabulary_shows() {
    let format = ToolFormat::named("mistral").unwrap();
    let arguments = "{\"place\": \"x\", \"days\": 2}";
    let old = format!("[TOOL_CALLS][{{\"name\": \"look\", \"arguments\": {arguments}}}]");
    let new = format!("[TOOL_CALLS]look[ARGS]{arguments}");
    for (as_tokens, good, bad) in [(false, &old, &new), (true, &new, &old)] {
        let model = model(format, as_tokens);
        let grammar = grammar(format, &model, &tools(), Beside::Nothing, true).unwrap();
        assert!(model.accepts(&grammar, good), "{grammar}");
        assert!(!model.accepts(&grammar, bad), "{grammar}");
    }
    let model = model(format, true);
    let grammar = grammar(format, &model, &tools(), Beside::Nothing, true).unwrap();
    assert!(model.accepts(&grammar, &format!("{new}{new}")));
}

/// A mark that is a token is that token alone: the parser would not know it by its letters.
#[test]
fn marks_that_are_tokens_are_not_spelled() {
    let format = ToolFormat::named("qwen25").unwrap();
    let model = model(format, true);
    for beside in [Beside::Nothing, Beside::Text] {
        let grammar = grammar(format, &model, &tools(), beside, true).unwrap();
        let mut matcher = model.matcher(&grammar).unwrap();
        let spelled: Vec<u32> = "<tool_call>".bytes().flat_map(|b| model.byte(b)).collect();
        let taken = spelled
            .iter()
            .take_while(|id| lockstep_sampling::TokenConstraint::take(&mut matcher, **id).is_ok());
        assert!(taken.count() < spelled.len(), "{grammar}");
    }
}
