//! Structural tags with a vocabulary of 128k tokens.

use std::{
    path::Path,
    sync::{Arc, LazyLock},
    time::Instant,
};

use lockstep_constraint::{Checker, Compiler, Matcher, Vocabulary};
use lockstep_sampling::{TokenConstraint as _, allows};
use lockstep_text::{Tokenizer, TokenizerConfig};
use lockstep_types::constraint::Constraint;
use serde_json::{Value, json};

use crate::support::{ENDS, byte, tag};

/// Width of the logits, as Llama 3 has it.
const WIDTH: u32 = 128_256;
/// Every such token is looked at at each place.
const EVERY: usize = 12_007;
/// Tokens of the demo model.
const OWN: u32 = 4096;

/// Returns the word of a token that the demo model does not have: letters of some alphabet, blanks,
/// digits, or signs that end one part of JSON and begin the next.
fn word(id: u32) -> String {
    let mut mixed = id.wrapping_mul(0x9e37_79b9);
    let mut roll = |sides: u32| {
        mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca6b);
        mixed = mixed.wrapping_add(id) ^ (mixed >> 13);
        mixed % sides
    };
    let (alphabet, least): (&[u8], u32) = match roll(20) {
        0 => (b"0123456789", 1),
        1 => (b"{}[]\",:", 1),
        2 => (b"<>/|=_-", 1),
        3 => (b" \n\t", 2),
        4 => (b"\"}>,: a0<t", 2),
        5 | 6 => (b"\xe4\xb8\xad\xe6\x96\x87\xc3\xa4", 2),
        7..14 => (b"abcdefghijklmnopqrstuvwxyz", 2),
        _ => (b"etaoinshrdlu", 3),
    };
    let length = least + roll(6);
    let mut bytes = Vec::new();
    if roll(3) == 0 {
        bytes.push(b' ');
    }
    bytes.extend((0..length).map(|_| alphabet[roll(alphabet.len() as u32) as usize]));
    bytes.into_iter().map(shown).collect()
}

/// Returns the character by which a byte-level tokenizer shows a byte.
fn shown(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        0..=b' ' => char::from_u32(0x100 + u32::from(byte)).unwrap(),
        0x7f..=0xa0 => char::from_u32(0x121 + u32::from(byte - 0x7f)).unwrap(),
        0xad => '\u{143}',
    }
}

/// A tokenizer of 128k tokens, some of which are equal: those have no bytes.
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/lockstep-demo-7m");
    let bytes = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&bytes).unwrap();
    let words = json["model"]["vocab"].as_object_mut().unwrap();
    for id in OWN..WIDTH {
        words.entry(word(id)).or_insert_with(|| id.into());
    }
    assert!(words.len() > 100_000, "{} words", words.len());
    let json = serde_json::to_vec(&json).unwrap();
    Tokenizer::from_json(&json, TokenizerConfig::default(), Path::new("t.json")).unwrap()
});

fn vocabulary() -> Vocabulary {
    Vocabulary::new(&TOKENIZER, WIDTH as usize, &ENDS).unwrap()
}

/// Tools as clients of SGLang send them: free text, and calls with arguments.
fn calls(tools: usize) -> Value {
    let tags = (0..tools).map(|at| {
        let schema = json!({"type": "object", "properties": {
            "place": {"type": "string", "maxLength": 80},
            "at": {"type": "string", "format": "date-time"},
            "kind": {"enum": ["near", "far", format!("kind {at}")]},
            "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": at}},
        }, "required": ["place", "kind"], "additionalProperties": false});
        json!({"begin": format!("<function=tool_{at}>"), "end": "</function>",
            "content": {"type": "json_schema", "json_schema": schema}})
    });
    json!({"type": "triggered_tags", "triggers": ["<function="],
        "tags": tags.collect::<Vec<_>>(), "excludes": ["<think>", "</think>"]})
}

/// Structural tags of several kinds, each with the begin of an answer.
fn tags() -> Vec<(Constraint, &'static str)> {
    let thought = json!({"type": "tag", "begin": "<think>", "content": {"type": "any_text"},
        "end": "</think>"});
    let separated: Vec<_> = (0..64)
        .map(|at| {
            json!({"type": "tag", "begin": format!("[{at}]"), "end": ["[/]", "\n\n"],
            "content": {"type": "regex", "pattern": "[a-z ]{1,60}"}})
        })
        .collect();
    vec![
        (
            tag(&calls(4)),
            "I look. <function=tool_2>{\"place\": \"a b\", \"at\": \"2024-02-29T10:11:12Z\", \
             \"kind\": \"kind 2\", \"days\": [1, 2]}</function> So.",
        ),
        (
            tag(&json!({"type": "sequence", "elements": [thought, calls(64)]})),
            "<think>Hm, <b> it</think>\n<function=tool_63>{\"place\": \"東京\", \"kind\": \"far\"}</function>",
        ),
        (
            tag(
                &json!({"type": "tags_with_separator", "tags": separated, "separator": ", ",
                "at_least_one": true}),
            ),
            "[7]some words here[/], [63]more of them\n\n, [0]a[/]",
        ),
        (
            tag(&json!({"type": "sequence", "elements": [
                {"type": "any_text", "excludes": ["```"], "max_chars": 200},
                {"type": "tag", "begin": "```json\n", "end": "\n```", "content": {"type": "grammar",
                    "grammar": "root ::= \"[\" (root (\", \" root)*)? \"]\" | [0-9]+"}}]})),
            "Here:\n```json\n[1, [22, []]]\n```",
        ),
    ]
}

/// Returns true if the bytes of a token are allowed one after the other.
fn is_spelled(matcher: &mut Matcher, token: u32) -> bool {
    let bytes = TOKENIZER.token_bytes(token).unwrap_or_default();
    let mut taken = 0;
    for one in bytes {
        let one = byte(*one);
        if !allows(matcher.allowed().unwrap(), one) {
            break;
        }
        matcher.take(one).unwrap();
        taken += 1;
    }
    matcher.give_back(taken).unwrap();
    taken == bytes.len()
}

/// A token is allowed where its bytes are, each by itself.
#[test]
fn masks_of_a_large_vocabulary_are_those_of_its_bytes() {
    let compiler = Compiler::new(Arc::new(vocabulary()));
    for (at, (constraint, answer)) in tags().iter().enumerate() {
        let mut matcher = compiler.matcher(constraint).unwrap();
        let mut seen = [0, 0];
        for (place, one) in answer.bytes().enumerate() {
            let allowed = matcher.allowed().unwrap().to_vec();
            // Other tokens at each place, so that all places together see most.
            let first = (place * 1237 + at) % EVERY;
            for token in (first as u32..WIDTH).step_by(EVERY) {
                let has_bytes = TOKENIZER
                    .token_bytes(token)
                    .is_some_and(|word| !word.is_empty());
                if !has_bytes || TOKENIZER.is_special(token) || ENDS.contains(&token) {
                    continue;
                }
                let expected = is_spelled(&mut matcher, token);
                let text = TOKENIZER.token_text(token);
                assert_eq!(
                    allows(&allowed, token),
                    expected,
                    "{text:?} at {place} of {answer}"
                );
                seen[usize::from(expected)] += 1;
            }
            matcher.take(byte(one)).unwrap();
        }
        assert!(matcher.is_fulfilled().unwrap(), "{answer}");
        assert!(seen.iter().all(|count| *count > 30), "{seen:?} of {answer}");
    }
}

/// The gate of requests lets tags through with many tools too: they are compiled and followed in
/// its time. Prints the times.
#[tokio::test]
#[ignore = "measures"]
async fn the_gate_lets_tags_of_a_large_vocabulary_through() {
    let begun = Instant::now();
    let compiler = Compiler::new(Arc::new(vocabulary()));
    println!("vocabulary: {:?}", begun.elapsed());
    let checker = Checker::new(|| Ok(vocabulary()));
    let many = (tag(&calls(160)), "");
    for (constraint, answer) in tags().into_iter().chain([many]) {
        let constraint = Arc::new(constraint);
        let checked = checker.check(constraint.clone()).await;
        assert_eq!(checked.result, Ok(()), "{answer}");
        let begun = Instant::now();
        let mut matcher = compiler.matcher(&constraint).unwrap();
        let compiled = begun.elapsed();
        let mut masks = Vec::new();
        for one in answer.bytes() {
            let begun = Instant::now();
            matcher.allowed().unwrap();
            masks.push(begun.elapsed());
            matcher.take(byte(one)).unwrap();
        }
        masks.sort();
        println!(
            "{} bytes of JSON: checked {:?}, compiled {compiled:?}, masks {:?} p50, {:?} longest",
            constraint.text.len(),
            checked.compiled,
            masks.get(masks.len() / 2),
            masks.last()
        );
    }
}
