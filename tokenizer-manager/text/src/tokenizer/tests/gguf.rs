//! Tokenizers of GGUF files, against llama.cpp.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Tokenizer, demo};

#[derive(serde::Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gguf/tokenizers")
}

/// Code, tabs, other alphabets and spaces: `tests/fixtures/make_gguf_tokens.py`.
#[test]
fn texts_have_the_tokens_of_llama_cpp() {
    let text = std::fs::read(folder().join("tokens.json")).unwrap();
    let files: BTreeMap<String, Vec<Case>> = serde_json::from_slice(&text).unwrap();
    assert_eq!(files.len(), 2);
    for (name, cases) in files {
        let tokenizer = Tokenizer::load(&folder().join(format!("{name}.gguf"))).unwrap();
        assert!(cases.len() > 10);
        for Case { text, ids } in cases {
            assert_eq!(
                tokenizer.encode(&text, false).unwrap(),
                ids,
                "{name}: {text:?}"
            );
            if name == "bytes" {
                assert_eq!(tokenizer.decode(&ids, false), text);
            }
        }
    }
}

/// The file was made of the demo model's folder.
#[test]
fn a_file_has_the_tokenizer_that_it_was_made_of() {
    let (own, folders) = (
        Tokenizer::load(&folder().join("bytes.gguf")).unwrap(),
        demo(),
    );
    assert_eq!(own.vocab_size(), folders.vocab_size());
    for id in 0..folders.id_limit() as u32 {
        assert_eq!(own.token_bytes(id), folders.token_bytes(id), "{id}");
        assert_eq!(own.is_special(id), folders.is_special(id), "{id}");
    }
    assert_eq!(
        own.special_token_id("eos_token"),
        folders.special_token_id("eos_token")
    );
    let text = "<|im_start|>user\nWie groß? 模型\t<|im_end|>";
    for special in [false, true] {
        assert_eq!(
            own.encode(text, special).unwrap(),
            folders.encode(text, special).unwrap()
        );
    }
}

/// Pieces begin a text with the begin token, as the file says.
#[test]
fn a_text_begins_as_the_file_says() {
    let tokenizer = Tokenizer::load(&folder().join("pieces.gguf")).unwrap();
    let [plain, framed] = [false, true].map(|special| tokenizer.encode("a", special).unwrap());
    assert_eq!(framed, [vec![1], plain.clone()].concat());
    assert_eq!(tokenizer.decode(&plain, true), "a");
}

/// Vocabularies of llama.cpp's repository with its own texts and tokens, in the folder
/// `LOCKSTEP_GGUF_VOCABULARIES`. Kinds and patterns that are not served must be refused.
#[test]
#[ignore = "the vocabularies lie outside of the repository"]
fn public_vocabularies_have_the_tokens_of_llama_cpp() {
    let folder = std::env::var("LOCKSTEP_GGUF_VOCABULARIES").expect("a folder");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = |ending: &str| std::fs::read_to_string(format!("{}.{ending}", path.display()));
        let (Ok(texts), Ok(tokens)) = (text("inp"), text("out")) else {
            continue;
        };
        let tokenizer = match Tokenizer::load(&path) {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                println!("refused: {error}");
                assert!(
                    error.to_string().contains("served are gpt2 and llama")
                        || error.to_string().contains("is not known here"),
                    "{error}"
                );
                continue;
            }
        };
        let texts = texts.split("\n__ggml_vocab_test__\n");
        let (mut same, mut others) = (0, 0);
        for (text, line) in texts.zip(tokens.lines()) {
            let ids: Vec<u32> = line
                .split_whitespace()
                .map(|id| id.parse().unwrap())
                .collect();
            let found = tokenizer.encode(text, false).unwrap();
            match found == ids {
                true => same += 1,
                false => {
                    others += 1;
                    println!("{}: {text:?}\n  {found:?}\n  {ids:?}", path.display());
                }
            }
        }
        println!("{}: {same} same, {others} others", path.display());
        assert_eq!(others, 0);
    }
}
