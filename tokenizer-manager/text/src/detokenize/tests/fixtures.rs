//! Comparison with ids that Hugging Face tokenizers decoded
//! (`tests/fixtures/make_detokenize.py`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::tokenizer::decoder::fallback_byte;
use crate::{IncrementalDetokenizer, Tokenizer, TokenizerConfig};

#[derive(Deserialize)]
struct Case {
    name: String,
    tokenizer: String,
    ids: Vec<u32>,
    text: String,
    text_with_special: String,
    prefixes: Vec<String>,
    source: Option<String>,
}

#[test]
fn ids_decode_as_in_tokenizers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = std::fs::read(root.join("tests/fixtures/detokenize/cases.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_slice(&file).unwrap();
    assert!(cases.len() > 80, "only {} cases", cases.len());
    let mut tokenizers: BTreeMap<&str, Tokenizer> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut compared = 0;
    for case in &cases {
        let tokenizer = tokenizers.entry(&case.tokenizer).or_insert_with(|| {
            let path = root.join(&case.tokenizer);
            let json = std::fs::read(&path).unwrap();
            Tokenizer::from_json(&json, TokenizerConfig::default(), &path).unwrap()
        });
        match compare(case, tokenizer) {
            Ok(count) => compared += count,
            Err(difference) => {
                wrong.push(format!("{} ({}): {difference}", case.name, case.tokenizer));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} cases differ:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
    assert!(compared > 1200, "only {compared} texts were compared");
}

/// Compares a case, and returns the number of texts that had to agree and did.
fn compare(case: &Case, tokenizer: &Tokenizer) -> Result<usize, String> {
    if let Some(source) = &case.source {
        assert_eq!(
            tokenizer.encode(source, false).unwrap(),
            case.ids,
            "{}",
            case.name
        );
    }
    let mut compared = 0;
    let mut check = |ids: &[u32], skip: bool, got: &str, expected: &str| {
        if has_partly_valid_run(tokenizer, ids, skip) {
            return Ok(());
        }
        compared += 1;
        if got == expected {
            Ok(())
        } else {
            Err(format!(
                "{ids:?}\n  got      {got:?}\n  expected {expected:?}"
            ))
        }
    };
    for (skip, expected) in [(true, &case.text), (false, &case.text_with_special)] {
        check(
            &case.ids,
            skip,
            &tokenizer.decode(&case.ids, skip),
            expected,
        )?;
    }
    let mut detokenizer = IncrementalDetokenizer::new(tokenizer.clone(), true);
    let mut text = String::new();
    for (count, expected) in case.prefixes.iter().enumerate() {
        if count > 0 {
            text.push_str(detokenizer.push(case.ids[count - 1]));
        }
        let ended = text.clone() + detokenizer.clone().finish();
        check(&case.ids[..count], true, &ended, expected)?;
    }
    assert_eq!(
        text + detokenizer.finish(),
        tokenizer.decode(&case.ids, true)
    );
    Ok(compared)
}

/// Returns true if some run of byte-fallback tokens is UTF-8 only in part. `tokenizers` replaces
/// every byte of such a run. Here its valid characters stay, because a stream has sent them
/// before the invalid bytes come.
pub(super) fn has_partly_valid_run(tokenizer: &Tokenizer, ids: &[u32], skip: bool) -> bool {
    let mut run = Vec::new();
    let seen = ids
        .iter()
        .filter(|&&id| tokenizer.id_to_token(id).is_some() && !(skip && tokenizer.is_special(id)));
    let bytes = seen.map(|&id| fallback_byte(&tokenizer.id_to_token(id).unwrap()));
    for byte in bytes.chain([None]) {
        match byte {
            Some(byte) => run.push(byte),
            None => {
                let valid: usize = run.utf8_chunks().map(|chunk| chunk.valid().len()).sum();
                if valid > 0 && valid < run.len() {
                    return true;
                }
                run.clear();
            }
        }
    }
    false
}
