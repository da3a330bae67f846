use std::path::Path;

use lockstep_files::MOST_WEIGHT_FILES;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::PIECE;
use crate::Described;
use crate::testing::{folder, llama, with, write};

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A tensor: name, type, columns and bytes of its numbers.
type Tensor<'a> = (&'a str, &'a str, usize, &'a [u8]);

/// A file of tensors.
fn safetensors(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    for (name, dtype, cols, bytes) in tensors {
        let begin = data.len();
        data.extend(*bytes);
        let place = json!({"dtype": dtype, "shape": [bytes.len() / 2 / cols, cols],
                           "data_offsets": [begin, data.len()]});
        header.insert((*name).to_owned(), place);
    }
    let text = Value::from(header).to_string();
    let length = (text.len() as u64).to_le_bytes();
    [&length, text.as_bytes(), &data].concat()
}

fn model(tied: bool, files: &[(&str, Vec<u8>)]) -> TempDir {
    let dir = folder(&with(llama(), &json!({"tie_word_embeddings": tied})), None);
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).expect("written");
    }
    dir
}

/// Returns true if the head is tied to the embedding, and true if there is a note about it.
fn read(dir: &Path) -> (bool, bool) {
    let described = Described::of(dir).expect("a model");
    let described = described.with_weights().expect("readable");
    let told = match &described.notes[..] {
        [] => false,
        [note] => note.contains(HEAD) && note.contains("`tie_word_embeddings`"),
        more => panic!("{more:?}"),
    };
    let model = crate::load(dir).expect("a model");
    assert_eq!(model, described.model);
    (model.tie_word_embeddings, told)
}

#[test]
fn a_stored_head_is_the_embedding_only_where_they_are_equal() {
    // Longer than the bytes compared at once, and different at either end.
    let table: Vec<u8> = (0..2 * PIECE as usize + 8)
        .map(|at| (at / 7) as u8)
        .collect();
    let changed = |at: usize| {
        let mut other = table.clone();
        other[at] ^= 1;
        other
    };
    let (first, last) = (changed(0), changed(table.len() - 1));
    let embedding = (EMBEDDING, "BF16", 1, &table[..]);
    let head = |dtype, cols, bytes| (HEAD, dtype, cols, bytes);
    for (heads, tied) in [
        (vec![], true),
        (vec![head("BF16", 1, &table[..])], true),
        (vec![head("BF16", 1, &first)], false),
        (vec![head("BF16", 1, &last)], false),
        (vec![head("BF16", 1, &table[2..])], false),
        (vec![head("F16", 1, &table)], false),
        (vec![head("BF16", 2, &table)], false),
    ] {
        let tensors = [vec![embedding], heads].concat();
        let dir = model(true, &[("model.safetensors", safetensors(&tensors))]);
        assert_eq!(read(dir.path()), (tied, !tied), "{}", tensors.len());
        let dir = model(false, &[("model.safetensors", safetensors(&tensors))]);
        assert_eq!(read(dir.path()), (false, false), "as it says itself");
    }
}

#[test]
fn tables_may_be_in_files_of_their_own() {
    let (embedding, head) = ([1, 2, 3, 4], [1, 2, 3, 5]);
    let one = safetensors(&[(EMBEDDING, "BF16", 1, &embedding)]);
    for (head, tied) in [(embedding, true), (head, false)] {
        let other = safetensors(&[(HEAD, "BF16", 1, &head)]);
        let dir = model(
            true,
            &[("a.safetensors", one.clone()), ("b.safetensors", other)],
        );
        // An index may name fewer tensors than its files have.
        let map = json!({EMBEDDING: "a.safetensors", "model.norm.weight": "b.safetensors"});
        let index = json!({"weight_map": map});
        write(dir.path(), "model.safetensors.index.json", &index);
        assert_eq!(read(dir.path()), (tied, !tied));
    }
}

/// All are open at a time: an index may not use up the process's descriptors.
#[test]
fn no_more_files_are_opened_than_weights_may_have() {
    let none = safetensors(&[]);
    let name = |at: usize| format!("{at:03}.safetensors");
    let dir = model(true, &[]);
    let mut map = Map::new();
    for at in 0..=MOST_WEIGHT_FILES {
        std::fs::write(dir.path().join(name(at)), &none).expect("written");
        map.insert(format!("model.{at}.weight"), json!(name(at)));
    }
    let index = json!({"weight_map": map});
    write(dir.path(), "model.safetensors.index.json", &index);
    for (at, (tensor, bytes)) in [(EMBEDDING, [1, 2]), (HEAD, [1, 3])].iter().enumerate() {
        let file = safetensors(&[(*tensor, "BF16", 1, bytes)]);
        std::fs::write(dir.path().join(name(at)), file).expect("written");
    }
    assert_eq!(read(dir.path()), (true, false), "nobody has looked");
}

/// The code that loads the weights reports the damage; until then `config.json` holds.
#[test]
fn damaged_weights_change_nothing() {
    let bytes = [7; 8];
    let tensors = [
        (EMBEDDING, "BF16", 1, &bytes[..]),
        (HEAD, "BF16", 1, &[8; 8]),
    ];
    let good = safetensors(&tensors);
    let huge = [u64::MAX.to_le_bytes().to_vec(), good[8..].to_vec()].concat();
    let text = String::from_utf8_lossy(&good[8..good.len() - 16]).into_owned();
    let offsets = |wrong: &str| {
        let header = text.replace("[8,16]", wrong);
        assert_ne!(header, text);
        let length = (header.len() as u64).to_le_bytes();
        [&length, header.as_bytes(), &good[good.len() - 16..]].concat()
    };
    for damaged in [
        Vec::new(),
        good[..20].to_vec(),
        good[..good.len() - 1].to_vec(),
        huge,
        offsets("[16,8]"),
        offsets("[8,18446744073709551615]"),
        offsets("[8]"),
    ] {
        let dir = model(true, &[("model.safetensors", damaged)]);
        assert_eq!(read(dir.path()), (true, false));
    }
    assert_eq!(
        read(model(true, &[("model.safetensors", good)]).path()),
        (false, true)
    );
}
