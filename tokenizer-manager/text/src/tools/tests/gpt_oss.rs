use super::super::gpt_oss::FORMAT;
use super::{check_all, check_text};
use crate::answer::tests::{Answer, Case, check, tokenizer};
use crate::answer::{AnswerOptions, AnswerParser};
use crate::reasoning::{ReasoningFormat, Turn};
use crate::tools::channels::MARKS;

/// Outputs behind `<|start|>assistant`, each with its reasoning, its text and its calls.
type Row<'a> = (&'a str, &'a str, &'a str, &'a [(&'a str, &'a str)]);

fn check_thoughts(turn: Turn, rows: &[Row<'_>]) {
    for (output, reasoning, text, calls) in rows {
        check(&Case {
            tools: Some(&FORMAT),
            reasoning: Some(("gpt-oss", turn)),
            output,
            expected: Answer {
                reasoning: (*reasoning).to_owned(),
                ..Answer::new(text, calls)
            },
            ..Case::default()
        });
    }
}

const LOOK: &str = "{\"place\": \"K\u{f6}ln\",\n  \"days\":3}";

#[test]
fn channels_are_reasoning_text_and_calls() {
    let call = format!(
        "<|channel|>analysis<|message|>Hm, \n\nwell.\n<|end|><|start|>assistant<|channel|>commentary \
         to=functions.look <|constrain|>json<|message|>{LOOK}<|call|>"
    );
    let preamble = format!(
        "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary \
         to=functions.look<|message|>{LOOK}"
    );
    check_thoughts(
        Turn::Open,
        &[
            (
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>4 2\n<|return|>",
                "Hm.",
                "4 2\n",
                &[],
            ),
            ("<|channel|>final<|message|>42", "", "42", &[]),
            (&call, "Hm, \n\nwell.", "", &[("look", LOOK)]),
            (&preamble, "", "Let me see.", &[("look", LOOK)]),
            // A call without arguments, and two calls.
            (
                "<|channel|>commentary to=functions.ping <|constrain|>json<|message|><|call|>",
                "",
                "",
                &[("ping", "{}")],
            ),
            (
                "<|channel|>commentary to=functions.box.open json<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=functions.ping<|message|>{\"a\": [1]}<|call|>",
                "",
                "",
                &[("box.open", "{}"), ("ping", "{\"a\": [1]}")],
            ),
            // Several thoughts and several texts.
            (
                "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary<|message|>Two.<|end|><|start|>assistant<|channel|>analysis<|message|>Three.<|end|><|start|>assistant<|channel|>final<|message|>Four.",
                "One.\nThree.",
                "Two.\nFour.",
                &[],
            ),
        ],
    );
    check_thoughts(
        Turn::Reasoning,
        &[(
            "So.<|end|><|start|>assistant<|channel|>final<|message|>42",
            "So.",
            "42",
            &[],
        )],
    );
    check_thoughts(Turn::Answer, &[(" and 42<|return|>", "", " and 42", &[])]);
}

/// The receiver may stand behind the role, in the channel of thoughts, or without its namespace.
#[test]
fn receivers_are_found_in_either_place() {
    let call: &[_] = &[("look", "{\"a\": 1}")];
    for header in [
        " to=functions.look<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.look<|channel|>commentary json<|message|>",
        "to=functions.look<|channel|>commentary<|message|>",
        "<|channel|>commentary to=functions.look <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.look<|constrain|>json<|message|>",
        "<|channel|>commentary  to=functions.look code<|message|>",
        "<|channel|>analysis to=functions.look code<|message|>",
        "<|channel|>commentary to=look <|constrain|>json<|message|>",
        "<|channel|>commentary<|channel|>commentary to=functions.look<|message|>",
        "<|channel|>commentary? to=functions.look json<|message|>",
        "<|start|>assistant to=functions.look<|channel|>commentary json<|message|>",
    ] {
        check_thoughts(
            Turn::Open,
            &[(&format!("{header}{{\"a\": 1}}<|call|>"), "", "", call)],
        );
    }
    // Other receivers are none of the request's tools.
    check_thoughts(
        Turn::Open,
        &[
            (
                "<|channel|>commentary to=python code<|message|>print(1)<|call|>",
                "",
                "print(1)",
                &[],
            ),
            (
                "<|channel|>analysis to=browser.search code<|message|>{}<|call|>",
                "{}",
                "",
                &[],
            ),
        ],
    );
}

/// Headers of public reports that ended requests of other servers.
#[test]
fn malformed_headers_are_read_for_what_they_have() {
    check_thoughts(
        Turn::Open,
        &[
            // Words too many, and signs.
            (
                "<|channel|>\u{2013}\u{2013}commentary<|message|>Hi",
                "",
                "Hi",
                &[],
            ),
            ("<|channel|>analysis 2?<|message|>Hm.", "Hm.", "", &[]),
            ("<|channel|>final answer now<|message|>42", "", "42", &[]),
            // The channel twice.
            (
                "<|channel|>analysis<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>42",
                "Hm.",
                "42",
                &[],
            ),
            (
                "<|channel|>commentary to=assistant<|channel|>commentary?<|message|>Hi",
                "",
                "Hi",
                &[],
            ),
            // No channel, no mark of one, no end of a message, no begin of the next.
            ("<|message|>42", "", "42", &[]),
            ("final<|message|>42", "", "42", &[]),
            ("analysis<|message|>Hm.<|end|>42", "Hm.", "42", &[]),
            (
                "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>42",
                "Hm.",
                "42",
                &[],
            ),
            (
                "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>42",
                "Hm.",
                "42",
                &[],
            ),
            (
                "<|channel|>analysis<|message|>Hm.<|end|><|channel|>final<|message|>42<|end|><|end|>",
                "Hm.",
                "42",
                &[],
            ),
            // No form at all.
            ("42 is the answer", "", "42 is the answer", &[]),
            (" toward", "", " toward", &[]),
            ("finally", "", "finally", &[]),
            ("final", "", "final", &[]),
            ("", "", "", &[]),
            // Text behind the JSON of a call.
            (
                "<|channel|>commentary to=functions.ping<|message|>{} Done.",
                "",
                "Done.",
                &[("ping", "{}")],
            ),
            // Arguments that are no JSON come as they are.
            (
                "<|channel|>commentary to=functions.ping<|message|>look it up<|call|>",
                "",
                "",
                &[("ping", "look it up")],
            ),
        ],
    );
    // A header that only names a channel is left out, if its marks are tokens.
    for output in [
        "<|channel|>commentary?commentary?<|end|><|start|>assistant<|channel|>final<|message|>42",
        "<|channel|>??<|start|>assistant<|channel|>final<|message|>42",
    ] {
        check(&Case {
            tools: Some(&FORMAT),
            reasoning: Some(("gpt-oss", Turn::Open)),
            output,
            expected: Answer::new("42", &[]),
            only: Some(true),
        });
    }
    let lost = "<|channel|>I should look<|end|><|start|>assistant<|channel|>final<|message|>42";
    check(&Case {
        tools: Some(&FORMAT),
        reasoning: Some(("gpt-oss", Turn::Open)),
        output: lost,
        expected: Answer::new("I should look\n42", &[]),
        only: Some(true),
    });
}

/// Without a parser of reasoning, thoughts are text.
#[test]
fn thoughts_may_stay_in_the_text() {
    check_all(
        &FORMAT,
        &[(
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.ping<|message|>{}<|call|>",
            "Hm.",
            &[("ping", "{}")],
        )],
    );
    check_text(&FORMAT, &["42", " to", "{\"name\": \"look\"}"]);
}

/// A mark that is no token is a part of a string that it stands in.
#[test]
fn strings_may_spell_marks() {
    check(&Case {
        tools: Some(&FORMAT),
        output: "<|channel|>commentary to=functions.ping<|message|>{\"a\": \"<|end|><|channel|>\"}<|call|>",
        expected: Answer::new("", &[("ping", "{\"a\": \"<|end|><|channel|>\"}")]),
        only: Some(false),
        ..Case::default()
    });
}

/// An output that `max_tokens` ends inside a header shows nothing of it.
#[test]
fn a_header_that_is_cut_shows_nothing() {
    let format = ReasoningFormat::named("gpt-oss").expect("known");
    let tokenizer = tokenizer(&MARKS);
    let options = AnswerOptions {
        reasoning: Some((format, Turn::Open)),
        ..AnswerOptions::default()
    };
    for (output, reasoning) in [
        ("<|channel|>fin", ""),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>",
            "Hm.",
        ),
    ] {
        let mut parser = AnswerParser::new(&tokenizer, &options);
        let mut answer = Answer::default();
        let mut end = 0;
        for id in tokenizer.encode(output, false).expect("tokens") {
            let bytes = tokenizer.token_bytes(id).expect("known");
            let text = std::str::from_utf8(bytes).expect("text");
            end += text.chars().count();
            parser.token(id, end);
            parser.text(text, &mut answer);
        }
        parser.finish(true, &mut answer);
        assert_eq!(answer.text, "");
        assert_eq!(answer.reasoning, reasoning);
        assert_eq!(parser.decided(), end);
    }
}
