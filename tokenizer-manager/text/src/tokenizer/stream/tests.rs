//! Tokenizing word by word gives the ids of `tokenizers`, which takes the text as a
//! whole.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::Tokenizer as HfTokenizer;

use super::super::samples::{self, Sample, byte_level, llama2};
use super::super::{EncodeError, LONG, LONGEST_WHOLE};
use super::Ids;

fn byte_steps(splits: &[Value]) -> Value {
    let last = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                      "use_regex": false});
    let steps = [splits, &[last]].concat();
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

/// Pre-tokenizers and normalizers of served models.
fn pipelines() -> Vec<(&'static str, Value)> {
    let with = |base: fn() -> Value, changes: &[(&str, Value)]| {
        let mut json = base();
        for (key, value) in changes {
            json[*key] = value.clone();
        }
        json
    };
    let qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let llama3 = qwen.replace(r"|\p{N}|", r"|\p{N}{1,3}|");
    let tekken = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let deepseek = byte_steps(&[
        split(r"\p{N}{1,3}"),
        split("[一-龥぀-ゟ゠-ヿ]+"),
        split(
            r"[!-/:-~]?[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    ]);
    let from_the_right = byte_steps(&[split(
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))|(?<=x)y+|\b\w+",
    )]);
    let mut only_matches = split(r"\p{L}+|\p{N}");
    only_matches["behavior"] = "Removed".into();
    only_matches["invert"] = true.into();
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    let spaces = json!({"type": "Digits", "individual_digits": false});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let normalized = |mut json: Value| {
        json["added_tokens"][1]["normalized"] = true.into();
        json
    };
    let marks = |scheme, split| {
        with(
            llama2,
            &[
                ("normalizer", Value::Null),
                ("pre_tokenizer", metaspace(scheme, split)),
            ],
        )
    };
    vec![
        (
            "qwen",
            with(
                byte_level,
                &[
                    ("normalizer", json!({"type": "NFC"})),
                    ("pre_tokenizer", byte_steps(&[split(qwen)])),
                ],
            ),
        ),
        (
            "llama3",
            with(
                byte_level,
                &[("pre_tokenizer", byte_steps(&[split(&llama3)]))],
            ),
        ),
        (
            "tekken",
            with(
                byte_level,
                &[("pre_tokenizer", byte_steps(&[split(tekken)]))],
            ),
        ),
        ("deepseek", with(byte_level, &[("pre_tokenizer", deepseek)])),
        (
            "looking around",
            with(byte_level, &[("pre_tokenizer", from_the_right)]),
        ),
        (
            "only matches",
            with(
                byte_level,
                &[("pre_tokenizer", byte_steps(&[only_matches]))],
            ),
        ),
        (
            "digits",
            with(byte_level, &[("pre_tokenizer", byte_steps(&[digits]))]),
        ),
        (
            "runs of digits",
            with(byte_level, &[("pre_tokenizer", byte_steps(&[spaces]))]),
        ),
        ("normalized tokens", normalized(byte_level())),
        ("normalized marks", normalized(llama2())),
        ("first", marks("first", false)),
        ("always", marks("always", true)),
        ("never", marks("never", true)),
    ]
}

fn oracle(json: &Value) -> HfTokenizer {
    untruncated(&HfTokenizer::from_bytes(serde_json::to_vec(json).unwrap()).unwrap())
}

fn untruncated(oracle: &HfTokenizer) -> HfTokenizer {
    let mut oracle = oracle.clone();
    oracle.with_truncation(None).unwrap();
    oracle
}

fn all() -> &'static [Sample] {
    static ALL: LazyLock<Vec<Sample>> = LazyLock::new(|| {
        let made = pipelines().into_iter().map(|(name, json)| Sample {
            name,
            tokenizer: samples::load(&json),
            oracle: oracle(&json),
        });
        let others = [
            "demo",
            "byte_level",
            "llama2",
            "gemma",
            "metaspace",
            "metaspace_never",
        ];
        let known = others.map(|name| {
            let known = samples::one(name);
            Sample {
                name,
                tokenizer: known.tokenizer.clone(),
                oracle: untruncated(&known.oracle),
            }
        });
        made.chain(known).collect()
    });
    &ALL
}

/// Returns the stream's ids, even for a short text.
fn streamed(sample: &Sample, text: &str, most: usize) -> Result<Vec<u32>, EncodeError> {
    let inner = &*sample.tokenizer.inner;
    let stream = inner.stream.as_ref().expect(sample.name);
    let mut ids = Ids::new(&[], most);
    stream.encode(&inner.tokenizer, text, &mut ids)?;
    Ok(ids.ids)
}

fn any_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[ ]{1,6}",
        "[0-9]{1,9}",
        "[a-zA-Z']{1,6}",
        "[\r\n\t ]{1,5}",
        "[.,;!/<>|_-]{1,4}",
        "\\PC{1,4}",
        "[éà日本あアー한글ßİ\u{301}\u{308}\u{3099}\u{1161}\u{11A8}\u{FEFF}\u{A0}\u{2003}]{1,5}",
        "(▁|▁▁| ▁|hi|a▁b|x▁y|xyy|é▁x|<s>|</s>|<unk>|<[|]end[|]>|<tool call>|<tool▁call>|<[|]im_end[|]>|<0x0A>){1,3}",
    ];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn ids_are_those_of_the_whole(text in any_text()) {
        for sample in all() {
            let whole = sample.oracle.encode_fast(text.as_str(), false).unwrap();
            let name = sample.name;
            prop_assert_eq!(streamed(sample, &text, usize::MAX).unwrap(), whole.get_ids(), "{}: {:?}", name, text);
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20, ..ProptestConfig::with_cases(8) })]

    /// Also if texts are composed in pieces.
    #[test]
    fn long_texts_have_the_ids_of_the_whole(
        parts in proptest::collection::vec(any_text(), 1..6), special: bool,
    ) {
        let text: String = parts.iter().cycle().flat_map(|part| [part.as_str(), "e\u{301} 日\u{3099}"]).take(30_000).collect();
        let text = &text[..text.floor_char_boundary(LONG + 20_000)];
        for sample in ["qwen", "deepseek", "llama2"].map(|name| all().iter().find(|s| s.name == name).unwrap()) {
            let whole = sample.oracle.encode_fast(text, special).unwrap();
            let ids = sample.tokenizer.encode(text, special).unwrap();
            prop_assert!(ids == whole.get_ids(), "{}", sample.name);
        }
    }
}

#[test]
fn a_long_text_is_left_where_it_has_too_many_tokens() {
    let digits = "7".repeat(1 << 20);
    for name in ["demo", "qwen", "llama3", "deepseek", "digits"] {
        let sample = all().iter().find(|sample| sample.name == name).unwrap();
        let limit = 300_000;
        let error = sample.tokenizer.encode_bounded(&digits, false, limit);
        let expected = EncodeError::TooLong {
            at_least: limit + 1,
            limit,
            exact: false,
        };
        assert_eq!(error, Err(expected), "{name}");
    }
}

#[test]
fn what_makes_a_pattern_or_a_model_give_up_is_refused() {
    for sample in all() {
        let bytes = match sample.name {
            "demo" => 16 << 20,
            // This pattern looks ahead to the end from every third digit.
            "looking around" => 32 << 10,
            _ => 512 << 10,
        };
        for text in [" ", "7", "a", "\n", "日"].map(|c| c.repeat(bytes / c.len())) {
            let most = 100_000;
            match sample.tokenizer.encode_bounded(&text, false, most) {
                Err(EncodeError::Failed { message }) => assert!(!message.is_empty()),
                Err(EncodeError::TooLong { at_least, .. }) => assert!(at_least > most),
                Ok(ids) => assert!(ids.len() <= most, "{}", sample.name),
            }
        }
    }
}

#[test]
fn tokenizers_with_other_steps_take_texts_of_moderate_length() {
    let sample = samples::one("wordpiece");
    assert!(sample.tokenizer.inner.stream.is_none());
    let text = "un ".repeat(LONG);
    let whole = sample.oracle.encode_fast(text.as_str(), false).unwrap();
    assert_eq!(
        sample.tokenizer.encode(&text, false).unwrap(),
        whole.get_ids()
    );
    let longer = "un ".repeat(LONGEST_WHOLE);
    let refused = sample.tokenizer.encode(&longer, false);
    assert!(matches!(refused, Err(EncodeError::Failed { .. })));
}
