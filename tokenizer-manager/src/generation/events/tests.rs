use std::path::Path;

use lockstep_text::{
    AnswerOptions, Calls, OutputOptions, ReasoningFormat, Tokenizer, ToolFormat, ToolSchemas, Turn,
};

use super::*;
use crate::generation::{CallDelta, Delta};

/// One output, and the reason why the scheduler ends it.
struct Case<'a> {
    name: &'static str,
    text: &'a str,
    stops: &'a [&'a str],
    include_stop: bool,
    /// True if the output's last token is an end token.
    ends_by_token: bool,
    /// The expected text.
    shown: &'a str,
}

const CASES: [Case<'static>; 5] = [
    Case {
        name: "length",
        text: "Grüße, 日本 🎉!",
        stops: &[],
        include_stop: false,
        ends_by_token: false,
        shown: "Grüße, 日本 🎉!",
    },
    Case {
        name: "end token",
        text: "Grüße 🎉!",
        stops: &["never"],
        include_stop: false,
        ends_by_token: true,
        shown: "Grüße 🎉",
    },
    Case {
        name: "end token shown",
        text: "Grüße 🎉!",
        stops: &[],
        include_stop: true,
        ends_by_token: true,
        shown: "Grüße 🎉!",
    },
    Case {
        name: "stop string",
        text: "one two 🎉 END more",
        stops: &["more is", "EN"],
        include_stop: false,
        ends_by_token: false,
        shown: "one two 🎉 ",
    },
    Case {
        name: "stop string shown",
        text: "one two ENDING",
        stops: &["EN"],
        include_stop: true,
        ends_by_token: false,
        shown: "one two EN",
    },
];

impl Case<'_> {
    /// Joins the events of tokens that arrive in these steps.
    fn run(&self, tokenizer: &Tokenizer, answer: &AnswerOptions, steps: &[&[u32]]) -> Vec<Event> {
        let stops: Arc<[String]> = self.stops.iter().map(|stop| (*stop).to_owned()).collect();
        let options = OutputOptions {
            stops: &stops,
            include_stop_str_in_output: self.include_stop,
            ..OutputOptions::default()
        };
        let text = OutputText::new(tokenizer.clone(), options).expect("stop strings");
        let parts = Parts::new(tokenizer, answer);
        let mut filters = FilterChain::new(text, parts, 7, (stops, self.include_stop));
        let mut joined = Delta::default();
        for (at, ids) in steps.iter().enumerate() {
            let finish = (at + 1 == steps.len()).then(|| self.finish(ids));
            let logprobs = ids.iter().map(|id| TokenLogprob {
                token_id: *id,
                ..TokenLogprob::default()
            });
            let stopped = filters.push(ids.to_vec(), logprobs.collect(), finish.as_ref());
            joined.append(Delta {
                events: filters.events(finish).expect("no error"),
                ..Delta::default()
            });
            if stopped {
                break;
            }
        }
        joined.events
    }

    fn finish(&self, last: &[u32]) -> Finish {
        let matched_token = last.last().copied().filter(|_| self.ends_by_token);
        let reason = match self.ends_by_token {
            true => FinishReason::Stop,
            false => FinishReason::Length,
        };
        Finish {
            outcome: Ok(reason),
            matched_token,
            usage: Usage::default(),
            speculation: None,
        }
    }
}

fn tokenizer() -> Tokenizer {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/lockstep-demo-7m");
    Tokenizer::load(Path::new(folder)).expect("a tokenizer")
}

/// Returns `ids` cut behind each position whose bit is set in `cuts`.
fn cut(ids: &[u32], cuts: u32) -> Vec<&[u32]> {
    let mut steps = Vec::new();
    let mut from = 0;
    for to in 1..ids.len() {
        if cuts >> ((to - 1) % 24) & 1 == 1 {
            steps.push(&ids[from..to]);
            from = to;
        }
    }
    steps.push(&ids[from..]);
    steps
}

/// Checks that the joined events are the same however the tokens arrive. Returns them with the
/// tokens.
fn uncut(case: &Case<'_>, answer: &AnswerOptions) -> (Vec<u32>, Vec<Event>) {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode(case.text, false).expect("tokens");
    let whole = case.run(&tokenizer, answer, &[&ids]);
    // Every way to cut a short output, and many ways to cut a long one.
    let ways = 1_u32 << (ids.len() - 1).min(12);
    for way in 1..ways {
        let cuts = way | way << 11;
        let cut = case.run(&tokenizer, answer, &cut(&ids, cuts));
        assert_eq!(cut, whole, "{}, cut {cuts:b}", case.name);
    }
    (ids, whole)
}

#[test]
fn events_do_not_depend_on_how_tokens_arrive() {
    for case in CASES {
        let (ids, whole) = uncut(&case, &AnswerOptions::default());
        let [Event::Text(text), Event::End(end)] = &whole[..] else {
            panic!("{}: {whole:?}", case.name);
        };
        assert_eq!(text.text, case.shown, "{}", case.name);
        let shown = text.tokens.iter().map(|token| token.id);
        assert!(ids.starts_with(&shown.collect::<Vec<_>>()), "{}", case.name);
        assert!(end.usage.completion_tokens as usize >= text.tokens.len());
    }
}

#[test]
fn parts_do_not_depend_on_how_tokens_arrive() {
    let answer = AnswerOptions {
        reasoning: ReasoningFormat::named("qwen3").map(|format| (format, Turn::Open)),
        calls: Calls::Parsed(
            ToolFormat::named("hermes").expect("known"),
            Arc::new(ToolSchemas::default()),
        ),
        skip_special_tokens: true,
    };
    let case = Case {
        name: "parts",
        text: "<think>Hm 🎉</think> Ok <b>\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n\
               </tool_call> <tool_call>{\"name\": \"g\"}</tool_call> End",
        stops: &["never", "</never>"],
        include_stop: false,
        ends_by_token: true,
        shown: "Ok <b>En",
    };
    let (ids, whole) = uncut(&case, &answer);
    let [
        Event::Reasoning(reasoning),
        Event::Text(text),
        Event::ToolCall(first),
        Event::ToolCall(second),
        rest @ ..,
    ] = &whole[..]
    else {
        panic!("{whole:?}");
    };
    let [Event::Text(more), Event::End(end)] = rest else {
        panic!("{rest:?}");
    };
    assert_eq!(reasoning.text, "Hm 🎉");
    assert!(
        case.shown.starts_with(&text.text) && text.text == "Ok <b>",
        "{text:?}"
    );
    let name = |call: &CallDelta| call.begin.as_ref().map(|begin| begin.name.clone());
    assert_eq!((name(first), first.index), (Some("f".to_owned()), 0));
    assert_eq!(first.arguments, "{\"a\": 1}");
    assert_eq!((name(second), second.index), (Some("g".to_owned()), 1));
    assert_eq!(second.arguments, "{}");
    // The last token, which ends the output, does not show.
    assert!(" End".contains(&more.text), "{more:?}");
    let counted = end.reasoning_tokens.expect("counted") as usize;
    assert!(counted > 1 && counted < ids.len(), "{counted}");
    let tokens = whole.iter().flat_map(Event::tokens).map(|token| token.id);
    assert_eq!(tokens.collect::<Vec<_>>(), ids, "each token once, in order");
}

/// Stop strings count in the answer alone, and one that cuts a call is named as such. Tokens
/// of marks show once, whether a text follows them or not.
#[test]
fn stop_strings_count_in_the_answer() {
    let answer = AnswerOptions {
        reasoning: ReasoningFormat::named("qwen3").map(|format| (format, Turn::Reasoning)),
        calls: Calls::Parsed(
            ToolFormat::named("hermes").expect("known"),
            Arc::new(ToolSchemas::default()),
        ),
        skip_special_tokens: true,
    };
    let call = "<tool_call>{\"name\": \"g\", \"arguments\": {\"a\": \"";
    for (text, stops, content, cuts_call) in [
        (
            "Q: why</think>\n\nSo Q: no",
            &["Q:", "\n\n"][..],
            "So ",
            false,
        ),
        ("Q:</think>Q: no", &["Q:"], "", false),
        ("Q</think>: no", &["Q:"], ": no", false),
        (
            &format!("Hm</think>{call}Q: no\"}}}}</tool_call>"),
            &["Q:"],
            "",
            true,
        ),
        (
            &format!("Hm</think>{call}\"}}}}</tool_call>\nQ: no"),
            &["\nQ:"],
            "",
            false,
        ),
    ] {
        let case = Case {
            name: "stops",
            text,
            stops,
            include_stop: false,
            ends_by_token: false,
            shown: content,
        };
        let (ids, whole) = uncut(&case, &answer);
        let texts = whole.iter().filter_map(|event| match event {
            Event::Text(text) => Some(&*text.text),
            _ => None,
        });
        assert_eq!(texts.collect::<String>(), content, "{text}");
        let Some(Event::End(end)) = whole.last() else {
            panic!("{whole:?}");
        };
        assert_eq!(end.cuts_call, cuts_call, "{text}");
        // All tokens but those of the stop string.
        let tokens = whole.iter().flat_map(Event::tokens).map(|token| token.id);
        let tokens: Vec<_> = tokens.collect();
        assert!(ids.starts_with(&tokens), "{text}");
        let tokenizer = tokenizer();
        let shown = tokenizer.decode(&tokens, false);
        let stop = stops
            .iter()
            .find(|stop| text.rfind(**stop) > text.find("</think>"));
        let upto = stop.and_then(|stop| text.rfind(stop)).unwrap_or(text.len());
        assert!(shown.len() + 3 > upto, "{text}: {shown}");
    }
}

/// The text of a token is never held back while the token already shows.
#[test]
fn tokens_wait_for_their_text() {
    let answer = AnswerOptions {
        calls: Calls::Parsed(
            ToolFormat::named("hermes").expect("known"),
            Arc::new(ToolSchemas::default()),
        ),
        ..AnswerOptions::default()
    };
    let tokenizer = tokenizer();
    let text = OutputText::new(tokenizer.clone(), OutputOptions::default()).expect("no stops");
    let parts = Parts::new(&tokenizer, &answer);
    let mut filters = FilterChain::new(text, parts, 7, (Arc::default(), false));
    let mut shown = Vec::new();
    for character in ["<", "<", "\n", "a"] {
        let ids = tokenizer.encode(character, false).expect("tokens");
        filters.push(ids, Vec::new(), None);
        let events = filters.events(None).expect("no error");
        let [Event::Text(text)] = &events[..] else {
            panic!("{events:?}");
        };
        shown.push((text.text.clone(), text.tokens.len()));
    }
    let expected = [("", 0), ("<", 1), ("<", 1), ("\na", 2)];
    assert_eq!(
        shown,
        expected.map(|(text, tokens)| (text.to_owned(), tokens))
    );
}
