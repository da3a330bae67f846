use super::{OutputOptions, OutputText};
use crate::stop::{StopError, StopMatch};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::samples::{demo_dir, one};

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
