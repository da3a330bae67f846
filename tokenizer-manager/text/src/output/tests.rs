use proptest::prelude::*;

use super::{OutputOptions, OutputText};
use crate::IncrementalDetokenizer;
use crate::stop::{StopError, StopMatch};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::samples::{all, demo_dir, one};

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

#[test]
fn tokens_become_text_until_a_stop_string() {
    let tokenizer = Tokenizer::load(demo_dir()).unwrap();
    let ids = tokenizer.encode("one two three four", false).unwrap();
    let stops = strings(&["three"]);
    let mut output = OutputText::new(
        tokenizer.clone(),
        OutputOptions {
            stops: &stops,
            ..Default::default()
        },
    )
    .unwrap();
    let mut text = String::new();
    let mut stop = None;
    for &id in &ids {
        let token = output.push(id);
        text.push_str(token.text);
        stop = stop.or(token.stop);
    }
    assert_eq!(
        (text.as_str(), stop),
        ("one two ", Some(StopMatch { index: 0 }))
    );
    assert!(
        tokenizer
            .decode(&ids[..output.tokens()], true)
            .contains("three")
    );
    assert!(
        !tokenizer
            .decode(&ids[..output.tokens() - 1], true)
            .contains("three")
    );
    assert_eq!(output.finish(), "");
    assert_eq!(output.stop(), Some(StopMatch { index: 0 }));
}

#[test]
fn offsets_count_characters_of_the_text() {
    let sample = one("byte_level");
    let tokens = ["Ġth", "ðŁĺ", "Ģ", "<|end|>", "a"]
        .map(|token| sample.tokenizer.token_to_id(token).unwrap());
    for (skip, expected) in [(true, [0, 3, 3, 4, 4]), (false, [0, 3, 3, 4, 11])] {
        let options = OutputOptions {
            skip_special_tokens: skip,
            ..Default::default()
        };
        let mut output = OutputText::new(sample.tokenizer.clone(), options).unwrap();
        assert_eq!(tokens.map(|id| output.push(id).text_offset), expected);
    }
}

#[test]
fn stop_strings_wait_for_min_tokens() {
    let sample = one("byte_level");
    let a = sample.tokenizer.token_to_id("a").unwrap();
    let stops = strings(&["a"]);
    let options = OutputOptions {
        stops: &stops,
        min_tokens: 3,
        ..Default::default()
    };
    let mut output = OutputText::new(sample.tokenizer.clone(), options).unwrap();
    assert_eq!([output.push(a).stop, output.push(a).stop], [None, None]);
    assert_eq!(output.push(a).stop, Some(StopMatch { index: 0 }));
    assert_eq!(output.push(a).text, "");
    assert_eq!(output.tokens(), 3);
}

#[test]
fn the_end_gives_out_what_was_held_back() {
    let sample = one("byte_level");
    let ids = ["a", "b", "ðŁĺ"].map(|token| sample.tokenizer.token_to_id(token).unwrap());
    let stops = strings(&["bc"]);
    let mut output = OutputText::new(
        sample.tokenizer.clone(),
        OutputOptions {
            stops: &stops,
            ..Default::default()
        },
    )
    .unwrap();
    assert_eq!(ids.map(|id| output.push(id).text.to_owned()), ["a", "", ""]);
    assert_eq!(output.finish(), "b\u{FFFD}");
    let empty = strings(&[""]);
    let options = OutputOptions {
        stops: &empty,
        ..Default::default()
    };
    assert_eq!(
        OutputText::new(sample.tokenizer.clone(), options).unwrap_err(),
        StopError::Empty
    );
}

#[test]
fn the_prompt_is_context_only() {
    let sample = one("llama2");
    let hi = sample.tokenizer.token_to_id("▁hi").unwrap();
    let options = OutputOptions {
        prompt: &[hi],
        ..Default::default()
    };
    let mut output = OutputText::new(sample.tokenizer.clone(), options).unwrap();
    let token = output.push(hi);
    assert_eq!((token.text, token.text_offset), (" hi", 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Compares with the definition: after each token, the text that is complete so far is
    /// searched as a whole.
    #[test]
    fn output_agrees_with_searching_the_decoded_text(
        ids in proptest::collection::vec(prop_oneof![0u32..300, 0u32..4096], 0..40),
        stops in proptest::collection::vec("[a-e ]{1,2}", 0..3),
        skip_special_tokens: bool,
    ) {
        for sample in all().iter().filter(|s| ["demo", "llama2"].contains(&s.name)) {
            let options = OutputOptions { stops: &stops, skip_special_tokens, ..Default::default() };
            let mut output = OutputText::new(sample.tokenizer.clone(), options).unwrap();
            let mut whole = IncrementalDetokenizer::new(sample.tokenizer.clone(), skip_special_tokens);
            let (mut text, mut shown) = (String::new(), String::new());
            let mut expected = None;
            for (count, &id) in ids.iter().enumerate() {
                let offset = text.chars().count();
                text.push_str(whole.push(id));
                let found = stops.iter().enumerate().filter_map(|(i, stop)| Some((text.find(stop)?, i)));
                let found = found.min();
                let token = output.push(id);
                shown.push_str(token.text);
                prop_assert_eq!(token.text_offset, offset);
                prop_assert_eq!(token.stop.map(|stop| stop.index), found.map(|(_, index)| index));
                if let Some((start, _)) = found {
                    expected = Some(text[..start].to_owned());
                    prop_assert_eq!(output.tokens(), count + 1);
                    break;
                }
                prop_assert!(text.starts_with(&shown));
            }
            shown.push_str(output.finish());
            let expected = expected.unwrap_or_else(|| sample.tokenizer.decode(&ids, skip_special_tokens));
            prop_assert_eq!(shown, expected);
        }
    }
}
