//! Outputs as text and as tokens, cut in many ways.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use proptest::prelude::*;
use serde_json::json;

use super::{AnswerFormat, AnswerOptions, AnswerParser, Calls, Sink};
use crate::reasoning::{REASONING_FORMATS, ReasoningFormat, Turn};
use crate::tools::channels::MARKS;
use crate::tools::tests::tools;
use crate::tools::{TOOL_FORMATS, ToolFormat, ToolSchemas};
use crate::{OutputOptions, OutputText, Tokenizer, TokenizerConfig};

/// The joined parts of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub text: String,
    pub reasoning: String,
    /// Name, arguments and id of each call.
    pub calls: Vec<(String, String, Option<String>)>,
}

impl Answer {
    pub fn new(text: &str, calls: &[(&str, &str)]) -> Self {
        let call = |(name, arguments): &(&str, &str)| ((*name).into(), (*arguments).into(), None);
        Self {
            text: text.to_owned(),
            calls: calls.iter().map(call).collect(),
            ..Self::default()
        }
    }
}

impl Sink for Answer {
    fn text(&mut self, text: &str) {
        assert!(!text.is_empty());
        self.text.push_str(text);
    }

    fn reasoning(&mut self, text: &str) {
        assert!(!text.is_empty());
        self.reasoning.push_str(text);
    }

    fn call(&mut self, name: &str, id: Option<&str>) {
        assert!(!name.is_empty());
        let id = id.map(str::to_owned);
        self.calls.push((name.to_owned(), String::new(), id));
    }

    fn arguments(&mut self, text: &str) {
        assert!(!text.is_empty());
        self.calls.last_mut().expect("a call").1.push_str(text);
    }
}

/// An output, and the expected answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Case<'a> {
    pub tools: Option<&'static ToolFormat>,
    pub reasoning: Option<(&'static str, Turn)>,
    pub output: &'a str,
    pub expected: Answer,
    /// True if the case holds only with marks that are tokens, or only with marks that are text.
    pub only: Option<bool>,
}

impl Case<'_> {
    fn options(&self) -> AnswerOptions {
        let named = |name| ReasoningFormat::named(name).expect(name);
        let schemas = || Arc::new(ToolSchemas::new(&tools()));
        AnswerOptions {
            reasoning: self.reasoning.map(|(name, turn)| (named(name), turn)),
            calls: match self.tools {
                None => Calls::Text,
                Some(format) => Calls::Parsed(format, schemas()),
            },
            skip_special_tokens: true,
        }
    }
}

/// Checks a case, with the text cut at single places and at all places.
pub(crate) fn check(case: &Case<'_>) {
    let ways = [false, true].into_iter();
    for as_tokens in ways.filter(|way| case.only.is_none_or(|only| only == *way)) {
        let marks = case.marks(as_tokens);
        let tokenizer = tokenizer(&marks);
        let ids = tokenizer.encode(case.output, false).expect("tokens");
        let run = |cuts: &[usize]| run(&tokenizer, &case.options(), &ids, cuts);
        assert_eq!(run(&[]), case.expected, "{as_tokens} {:?}", case.output);
        let chars = case.output.chars().count();
        let step = chars / 40 + 1;
        for cut in (0..chars).step_by(step) {
            assert_eq!(run(&[cut]), case.expected, "{cut} {:?}", case.output);
        }
        let all: Vec<usize> = (0..chars).collect();
        assert_eq!(run(&all), case.expected, "{:?}", case.output);
    }
}

impl Case<'_> {
    fn marks(&self, as_tokens: bool) -> Vec<&'static str> {
        let tools = self.tools.iter().flat_map(|format| format.marks).copied();
        let reasoning = self.reasoning.iter().flat_map(|(name, _)| {
            let format = ReasoningFormat::named(name).expect(name);
            marks_of(format)
        });
        let mut marks: Vec<_> = tools.chain(reasoning).filter(|_| as_tokens).collect();
        let mut known = BTreeSet::new();
        marks.retain(|mark| known.insert(*mark));
        marks
    }
}

/// Returns the marks of reasoning that may be tokens.
fn marks_of(format: &ReasoningFormat) -> Vec<&'static str> {
    match format.channels {
        true => MARKS.to_vec(),
        false => format.marks.to_vec(),
    }
}

/// Returns the tokenizer of the demo model, with these marks as tokens. Every second one is
/// special.
pub(crate) fn tokenizer(marks: &[&'static str]) -> Tokenizer {
    static MADE: Mutex<BTreeMap<Vec<&str>, Tokenizer>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = made.entry(marks.to_vec());
    known.or_insert_with(|| made_tokenizer(marks)).clone()
}

fn made_tokenizer(marks: &[&str]) -> Tokenizer {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lockstep-demo-7m");
    let json = std::fs::read(Path::new(folder).join("tokenizer.json")).expect("a tokenizer");
    let mut json: serde_json::Value = serde_json::from_slice(&json).expect("json");
    let added = json["added_tokens"].as_array_mut().expect("a list");
    for (at, mark) in marks.iter().enumerate() {
        added.push(json!({
            "id": 5000 + at, "content": mark, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": at % 2 == 0,
        }));
    }
    let json = serde_json::to_vec(&json).expect("json");
    Tokenizer::from_json(&json, TokenizerConfig::default(), Path::new("t.json")).expect("valid")
}

/// Parses tokens. Their text is cut behind these numbers of characters, besides between tokens.
fn run(tokenizer: &Tokenizer, options: &AnswerOptions, ids: &[u32], cuts: &[usize]) -> Answer {
    let mut parser = AnswerParser::new(tokenizer, options);
    let shown = parser.special_marks(tokenizer);
    let mut text = OutputText::new(
        tokenizer.clone(),
        OutputOptions {
            shown_special_tokens: &shown,
            ..OutputOptions::default()
        },
    )
    .expect("no stop strings");
    let mut answer = Answer::default();
    let mut fed = 0;
    let mut feed = |parser: &mut AnswerParser, piece: &str, answer: &mut Answer| {
        let mut from = 0;
        for (at, _) in piece.char_indices() {
            if at > 0 && cuts.contains(&fed) {
                parser.text(&piece[from..at], answer);
                from = at;
            }
            fed += 1;
        }
        parser.text(&piece[from..], answer);
        assert!(parser.decided() <= fed);
    };
    for id in ids {
        let token = text.push(*id);
        parser.token(*id, token.text_end);
        feed(&mut parser, token.text, &mut answer);
    }
    feed(&mut parser, text.finish(), &mut answer);
    parser.finish(false, &mut answer);
    answer
}

#[test]
fn without_formats_everything_is_text() {
    let case = Case {
        output: " <think>a</think>\n<tool_call>{} ",
        expected: Answer::new(" <think>a</think>\n<tool_call>{} ", &[]),
        ..Case::default()
    };
    assert!(case.options().is_plain());
    check(&case);
}

#[test]
fn reasoning_may_precede_calls_and_be_ended_by_one() {
    let hermes = ToolFormat::named("hermes");
    let call =
        "<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"a\": \"<think>\"}}\n</tool_call>";
    let expected = Answer {
        reasoning: "Hm.".to_owned(),
        ..Answer::new("", &[("ping", "{\"a\": \"<think>\"}")])
    };
    let reasoned = format!("Hm.\n</think>\n\n{call}");
    let forgotten = format!("Hm.\n{call}");
    for (output, only) in [(&reasoned, Some(false)), (&forgotten, Some(true))] {
        let mut expected = expected.clone();
        // A special token inside of arguments is left out of them like anywhere else.
        if only == Some(true) {
            expected.calls[0].1 = "{\"a\": \"\"}".to_owned();
        }
        check(&Case {
            tools: hermes,
            reasoning: Some(("qwen3", Turn::Reasoning)),
            output,
            expected,
            only,
        });
    }
    // A mark that is mere text may be what the reasoning is about.
    check(&Case {
        tools: hermes,
        reasoning: Some(("qwen3", Turn::Reasoning)),
        output: "So <tool_call>?\n</think>\n\nNo.",
        expected: Answer {
            reasoning: "So <tool_call>?".to_owned(),
            ..Answer::new("No.", &[])
        },
        only: Some(false),
    });
}

/// A call's token in the reasoning may only be mentioned there.
#[test]
fn a_call_in_the_reasoning_is_tried() {
    let call =
        "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": \"x</think>y\"}}</tool_call>";
    let called = [("ping", "{\"a\": \"x</think>y\"}")];
    for (output, reasoning, text, calls) in [
        (
            "I use <tool_call> here.</think>Hello",
            "I use  here.",
            "Hello",
            &called[..0],
        ),
        ("I use <tool_call></think>\n\nHello", "I use", "Hello", &[]),
        ("I use <tool_call> {\"a\"", "I use  {\"a\"", "", &[]),
        (
            &format!("Hm. {call} more</think>So"),
            "Hm.",
            "moreSo",
            &called,
        ),
        (
            &format!("Hm. {call}\n</think>\nSo </think>"),
            "Hm.",
            "So </think>",
            &called,
        ),
    ] {
        check(&Case {
            tools: ToolFormat::named("hermes"),
            reasoning: Some(("qwen3", Turn::Reasoning)),
            output,
            expected: Answer {
                reasoning: reasoning.to_owned(),
                ..Answer::new(text, calls)
            },
            only: Some(true),
        });
    }
}

/// A call that is cut stays open, so that nobody takes it for whole.
#[test]
fn a_cut_call_stays_open() {
    for (format, output, arguments) in [
        (
            "qwen3_coder",
            "<tool_call><function=look><parameter=place>a</parameter>",
            "{\"place\": \"a\"",
        ),
        (
            "qwen3_coder",
            "<tool_call><function=look><parameter=place>a</parameter>\n",
            "{\"place\": \"a\"",
        ),
        ("qwen3_coder", "<tool_call><function=ping>\n", "{"),
        ("glm45", "<tool_call>ping\n", "{"),
        (
            "kimi_k2",
            "<|tool_call_begin|>ping:0<|tool_call_argument_begin|>",
            "",
        ),
        ("mistral", "[TOOL_CALLS]ping[ARGS]", ""),
        (
            "deepseek_v31",
            "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>",
            "",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"ping\", \"arguments\": {",
            "{",
        ),
        ("pythonic", "[ping(a=1", "{\"a\": "),
        (
            "gpt-oss",
            "<|channel|>commentary to=functions.ping<|message|>",
            "",
        ),
    ] {
        let case = Case {
            tools: ToolFormat::named(format),
            output,
            ..Case::default()
        };
        let mut parser = AnswerParser::new(&plain(), &case.options());
        let mut answer = Answer::default();
        parser.text(output, &mut answer);
        assert!(parser.is_in_call(), "{output}");
        parser.finish(true, &mut answer);
        assert_eq!(answer.calls.len(), 1, "{output}");
        assert_eq!(answer.calls[0].1, arguments, "{output}");
        assert_eq!(parser.decided(), output.chars().count(), "{output}");
    }
}

#[test]
fn forbidden_calls_are_text_without_their_tokens() {
    let format = ToolFormat::named("hermes").expect("known");
    let tokenizer = tokenizer(format.marks);
    let options = AnswerOptions {
        calls: Calls::Muted(format),
        ..AnswerOptions::default()
    };
    let ids = tokenizer
        .encode("a <tool_call>{}</tool_call> b", false)
        .expect("tokens");
    assert_eq!(
        run(&tokenizer, &options, &ids, &[]),
        Answer::new("a {} b", &[])
    );
}

#[test]
fn names_choose_formats() {
    let tokenizer = tokenizer(&["</think>"]);
    let named = |tools: &str, reasoning: &str, template: &str| {
        let format = AnswerFormat::named(tools, reasoning, template, &tokenizer).expect("known");
        let tools = format.tools.map(|format| format.names[0]);
        (tools, format.reasoning.map(|format| format.names[0]))
    };
    assert_eq!(named("auto", "auto", ""), (None, Some("qwen3")));
    assert_eq!(named("auto", "none", "<tool_call>"), (Some("qwen25"), None));
    assert_eq!(
        named("none", "auto", "<tool_call>[THINK][/THINK]"),
        (None, Some("qwen3"))
    );
    assert_eq!(
        named("deepseek_v3", "mistral", ""),
        (Some("deepseekv3"), Some("mistral"))
    );
    for error in [
        AnswerFormat::check_tool_parser("qwen9"),
        AnswerFormat::check_reasoning_parser("qwen9"),
    ] {
        let error = error.expect_err("unknown").to_string();
        assert!(
            error.contains("\"qwen9\"") && error.contains("auto, none, "),
            "{error}"
        );
    }
}

#[test]
fn the_documentation_lists_every_parser() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/http.md");
    let text = std::fs::read_to_string(path).expect("docs/http.md");
    let (_, section) = text
        .split_once("## Reasoning and tool calls")
        .expect("a section");
    let tools = TOOL_FORMATS.iter().map(|format| format.names);
    let reasoning = REASONING_FORMATS.iter().map(|format| format.names);
    for names in tools.chain(reasoning) {
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        let row = format!("| {} |", names.join(", "));
        assert!(section.contains(&row), "docs/http.md has no row {row}");
    }
}

/// Returns pieces of the format's marks and of what may stand between them.
fn pieces(format: &'static ToolFormat) -> impl Strategy<Value = String> {
    let mut pieces: Vec<String> = format.marks.iter().map(|mark| (*mark).to_owned()).collect();
    // Begins of marks.
    pieces.extend(format.marks.iter().map(|mark| {
        let half = mark.chars().count() / 2;
        mark.chars().take(half + 1).collect::<String>()
    }));
    let others = [
        "look",
        "ping",
        ">",
        "\n",
        " ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ":",
        ",",
        "(",
        ")",
        "=",
        "'",
        "\"name\": \"look\"",
        "\"arguments\": {",
        "place",
        "5",
        "True",
        "```json\n",
        "é",
        "function",
        "functions.look:0",
        "<think>",
        "</think>",
        "<|channel>",
        "thought",
        "<channel|>",
        "<|channel|>",
        "analysis",
        "commentary to=functions.look ",
        "final",
        "<|message|>",
        "<|end|>",
        "<|start|>assistant",
        "<",
        "=\"look\"",
    ];
    pieces.extend(others.map(str::to_owned));
    prop::collection::vec(prop::sample::select(pieces), 0..24).prop_map(|pieces| pieces.concat())
}

/// Returns formats of reasoning that are read in different ways, and how an output may begin.
fn thoughts() -> impl Strategy<Value = (&'static ReasoningFormat, Turn)> {
    let names = prop::sample::select(vec!["qwen3", "gemma4", "gpt-oss"]);
    let turns = prop::sample::select(vec![Turn::Open, Turn::Answer, Turn::Reasoning]);
    let named = |name| ReasoningFormat::named(name).expect("known");
    (names, turns).prop_map(move |(name, turn)| (named(name), turn))
}

/// Returns outputs of any format, well and ill formed.
fn outputs() -> impl Strategy<Value = (&'static ToolFormat, String)> {
    (0..TOOL_FORMATS.len()).prop_flat_map(|at| {
        let format = TOOL_FORMATS[at];
        pieces(format).prop_map(move |output| (format, output))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// No output makes a parser panic, and its parts do not depend on cuts.
    #[test]
    fn answers_do_not_depend_on_cuts(
        (format, output) in outputs(),
        cuts in prop::collection::vec(0_usize..120, 0..12),
        reasoning in thoughts(),
    ) {
        let options = AnswerOptions {
            reasoning: Some(reasoning),
            calls: Calls::Parsed(format, Arc::new(ToolSchemas::new(&tools()))),
            skip_special_tokens: true,
        };
        let tokenizer = plain();
        let parse = |cuts: &[usize]| {
            let mut parser = AnswerParser::new(&tokenizer, &options);
            let mut answer = Answer::default();
            let mut piece = String::new();
            for (at, c) in output.chars().enumerate() {
                piece.push(c);
                if cuts.contains(&at) {
                    parser.text(&std::mem::take(&mut piece), &mut answer);
                }
            }
            parser.text(&piece, &mut answer);
            assert!(parser.decided() <= output.chars().count());
            parser.finish(false, &mut answer);
            answer
        };
        let whole = parse(&[]);
        prop_assert_eq!(&parse(&cuts), &whole);
        let all: Vec<usize> = (0..output.chars().count()).collect();
        prop_assert_eq!(&parse(&all), &whole);
    }

    /// Without a mark or a begin of a call, an output is its own text.
    #[test]
    fn prose_is_text(output in "[a-zA-Z .,\n]{0,80}") {
        for format in TOOL_FORMATS {
            let options = AnswerOptions {
                reasoning: None,
                calls: Calls::Parsed(format, Arc::new(ToolSchemas::new(&tools()))),
                skip_special_tokens: true,
            };
            let mut parser = AnswerParser::new(&plain(), &options);
            let mut answer = Answer::default();
            parser.text(&output, &mut answer);
            parser.finish(false, &mut answer);
            prop_assert_eq!(&answer.text, &output);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Answers whose marks are tokens do not depend on cuts, and lose nothing of what is no call.
    #[test]
    fn answers_of_tokens_do_not_depend_on_cuts(
        (format, output) in outputs(),
        cuts in prop::collection::vec(0_usize..120, 0..12),
        reasoning in thoughts(),
    ) {
        let options = AnswerOptions {
            reasoning: Some(reasoning),
            calls: Calls::Parsed(format, Arc::new(ToolSchemas::new(&tools()))),
            skip_special_tokens: false,
        };
        let mut marks = [format.marks, &marks_of(reasoning.0)].concat();
        let mut known = BTreeSet::new();
        marks.retain(|mark| known.insert(*mark));
        let tokenizer = tokenizer(&marks);
        let ids = tokenizer.encode(&output, false).expect("tokens");
        let whole = run(&tokenizer, &options, &ids, &[]);
        prop_assert_eq!(&run(&tokenizer, &options, &ids, &cuts), &whole);
        // Words of headers and labels are no text.
        let has_words = reasoning.0.names[0] != "qwen3" || format.names[0] == "gpt-oss";
        if whole.calls.is_empty() && !has_words {
            let letters = |text: &str| {
                let text = marks.iter().fold(text.to_owned(), |text, mark| text.replace(mark, ""));
                text.replace(char::is_whitespace, "")
            };
            let shown = format!("{}{}", letters(&whole.reasoning), letters(&whole.text));
            prop_assert_eq!(shown, letters(&output));
        }
    }
}

/// Returns the demo model's tokenizer, which knows no mark.
pub(crate) fn plain() -> Tokenizer {
    tokenizer(&[])
}
