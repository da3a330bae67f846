use std::path::Path;

use lockstep_text::{OutputOptions, Tokenizer};

use super::*;
use crate::generation::Delta;

/// One output, and the reason why the scheduler ends it.
struct Case {
    name: &'static str,
    text: &'static str,
    stops: &'static [&'static str],
    include_stop: bool,
    /// True if the output's last token is an end token.
    ends_by_token: bool,
    /// The expected text.
    shown: &'static str,
}

const CASES: [Case; 5] = [
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

impl Case {
    /// Joins the events of tokens that arrive in these steps.
    fn run(&self, tokenizer: &Tokenizer, steps: &[&[u32]]) -> Vec<Event> {
        let stops: Arc<[String]> = self.stops.iter().map(|stop| (*stop).to_owned()).collect();
        let options = OutputOptions {
            stops: &stops,
            include_stop_str_in_output: self.include_stop,
            ..OutputOptions::default()
        };
        let text = OutputText::new(tokenizer.clone(), options).expect("stop strings");
        let mut filters = FilterChain::new(text, 7, stops, self.include_stop);
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

/// Returns `ids` cut behind each position whose bit is set in `cuts`.
fn cut(ids: &[u32], cuts: u32) -> Vec<&[u32]> {
    let mut steps = Vec::new();
    let mut from = 0;
    for to in 1..ids.len() {
        if cuts >> (to - 1) & 1 == 1 {
            steps.push(&ids[from..to]);
            from = to;
        }
    }
    steps.push(&ids[from..]);
    steps
}

#[test]
fn events_do_not_depend_on_how_tokens_arrive() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/lockstep-demo-7m");
    let tokenizer = Tokenizer::load(Path::new(folder)).expect("a tokenizer");
    for case in CASES {
        let ids = tokenizer.encode(case.text, false).expect("tokens");
        let whole = case.run(&tokenizer, &[&ids]);
        let [Event::Text(text), Event::End(end)] = &whole[..] else {
            panic!("{}: {whole:?}", case.name);
        };
        assert_eq!(text.text, case.shown, "{}", case.name);
        let shown = text.tokens.iter().map(|token| token.id);
        assert!(ids.starts_with(&shown.collect::<Vec<_>>()), "{}", case.name);
        assert!(end.usage.completion_tokens as usize >= text.tokens.len());
        // Every way to cut a short output, and many ways to cut a long one.
        let ways = 1_u32 << (ids.len() - 1).min(12);
        for way in 1..ways {
            let cuts = way | way << 11;
            let cut = case.run(&tokenizer, &cut(&ids, cuts));
            assert_eq!(cut, whole, "{}, cut {cuts:b}", case.name);
        }
    }
}
