mod fixtures;

use proptest::prelude::*;

use fixtures::has_partly_valid_run;

use super::IncrementalDetokenizer;
use crate::Tokenizer;
use crate::tokenizer::samples::{Sample, all, one};

fn ids(sample: &Sample, tokens: &[&str]) -> Vec<u32> {
    tokens
        .iter()
        .map(|token| sample.tokenizer.token_to_id(token).unwrap())
        .collect()
}

fn pieces(
    sample: &Sample,
    skip_special_tokens: bool,
    prompt: &[&str],
    tokens: &[&str],
) -> Vec<String> {
    let prompt = ids(sample, prompt);
    let mut detokenizer = IncrementalDetokenizer::after_prompt(
        sample.tokenizer.clone(),
        skip_special_tokens,
        &prompt,
    );
    let mut pieces: Vec<String> = ids(sample, tokens)
        .into_iter()
        .map(|id| detokenizer.push(id).to_owned())
        .collect();
    pieces.push(detokenizer.finish().to_owned());
    pieces
}

#[test]
fn a_split_character_comes_whole() {
    let sample = one("llama2");
    assert_eq!(
        pieces(
            sample,
            true,
            &[],
            &["▁hi", "<0xE6>", "<0x97>", "<0xA5>", "<0x0A>"]
        ),
        ["hi", "", "", "日", "\n", ""]
    );
    let sample = one("byte_level");
    assert_eq!(
        pieces(sample, true, &[], &["Ġth", "ðŁĺ", "Ģ", "Ã", "©"]),
        [" th", "", "😀", "", "é", ""]
    );
}

#[test]
fn a_broken_character_is_replaced_once_it_is_broken() {
    let sample = one("byte_level");
    assert_eq!(
        pieces(sample, true, &[], &["ðŁĺ", "a", "Ã"]),
        ["", "\u{FFFD}a", "", "\u{FFFD}"]
    );
    let sample = one("llama2");
    let tokens = ["<0x61>", "<0xE6>", "<0x97>", "a", "<0xE6>"];
    assert_eq!(
        pieces(sample, true, &[], &tokens),
        ["a", "", "", "\u{FFFD}\u{FFFD}a", "", "\u{FFFD}"]
    );
}

#[test]
fn the_first_space_depends_on_what_is_before() {
    for name in ["llama2", "metaspace"] {
        let sample = one(name);
        assert_eq!(
            pieces(sample, true, &[], &["▁hi", "▁hi"]),
            ["hi", " hi", ""],
            "{name}"
        );
        assert_eq!(
            pieces(sample, true, &["▁a"], &["▁hi"]),
            [" hi", ""],
            "{name}"
        );
        assert_eq!(
            pieces(sample, true, &[], &["<s>", "▁hi"]),
            ["", "hi", ""],
            "{name}"
        );
        assert_eq!(
            pieces(sample, false, &[], &["<s>", "▁hi"]),
            ["<s>", " hi", ""],
            "{name}"
        );
        assert_eq!(
            pieces(sample, true, &["<s>"], &["▁hi"]),
            ["hi", ""],
            "{name}"
        );
    }
    assert_eq!(pieces(one("gemma"), true, &[], &["▁hi"]), [" hi", ""]);
    assert_eq!(
        pieces(one("metaspace_never"), true, &[], &["▁hi"]),
        [" hi", ""]
    );
    assert_eq!(
        pieces(one("llama2"), true, &[], &["▁▁", "▁"]),
        [" ", " ", ""]
    );
    assert_eq!(
        pieces(one("wordpiece"), true, &[], &["un", "##able", "."]),
        ["un", "able", ".", ""]
    );
}

#[test]
fn a_prompt_may_end_inside_a_character() {
    let sample = one("byte_level");
    assert_eq!(pieces(sample, true, &["ðŁĺ"], &["Ģ"]), ["😀", ""]);
}

#[test]
fn unknown_ids_are_left_out() {
    let sample = one("no_decoder");
    let mut detokenizer = IncrementalDetokenizer::new(sample.tokenizer.clone(), true);
    assert_eq!(
        detokenizer.push_all(&[1, 3, 4, 2, u32::MAX, 5]),
        "one two three"
    );
    assert_eq!(sample.tokenizer.decode(&[3, 9], true), "");
}

/// Ids among which bytes and special tokens are frequent; in a whole vocabulary they are rare.
fn any_ids() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(prop_oneof![0u32..4100, 0u32..300, 200u32..280], 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn pieces_joined_are_the_decoded_whole(ids in any_ids(), skip: bool, cut in 0usize..60) {
        for Sample { name, tokenizer, oracle } in all() {
            let mut detokenizer = IncrementalDetokenizer::new(tokenizer.clone(), skip);
            let mut joined: String = ids.iter().map(|&id| detokenizer.push(id).to_owned()).collect();
            joined.push_str(detokenizer.finish());
            prop_assert_eq!(&joined, &tokenizer.decode(&ids, skip), "{}", name);

            let (prompt, output) = ids.split_at(cut.min(ids.len()));
            let mut whole = IncrementalDetokenizer::new(tokenizer.clone(), skip);
            let mut text = whole.push_all(prompt).to_owned();
            let mut rest = IncrementalDetokenizer::after_prompt(tokenizer.clone(), skip, prompt);
            text.push_str(rest.push_all(output));
            text.push_str(rest.finish());
            prop_assert_eq!(&joined, &text, "{}", name);

            let expected = oracle.decode(&ids, skip).unwrap();
            if !has_partly_valid_run(tokenizer, &ids, skip) {
                prop_assert_eq!(&joined, &expected, "{}", name);
            }
            if *name == "gemma" {
                prop_assert_eq!(&joined, &replaced_bytewise(tokenizer, &ids, skip));
            }
        }
    }
}

/// Returns the bytes of all tokens as text, with a replacement character for each byte that is
/// not UTF-8.
fn replaced_bytewise(tokenizer: &Tokenizer, ids: &[u32], skip: bool) -> String {
    let kept = ids
        .iter()
        .filter(|&&id| !(skip && tokenizer.is_special(id)));
    let bytes: Vec<u8> = kept
        .flat_map(|&id| tokenizer.token_bytes(id).unwrap_or_default())
        .copied()
        .collect();
    let chunks = bytes.utf8_chunks();
    chunks
        .map(|chunk| chunk.valid().to_owned() + &"\u{FFFD}".repeat(chunk.invalid().len()))
        .collect()
}
