//! The draft layer of a model's own.

use std::path::Path;

use crate::{
    resolve,
    testing::{Program, algorithms, machine},
};

/// A model with a draft layer is noted until an algorithm is chosen.
#[test]
fn a_draft_layer_is_noted_until_an_algorithm_is_chosen() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/nextn/qwen3_5");
    for (line, noted) in [
        ("", true),
        ("--speculative-algorithm NEXTN", false),
        ("--speculative-algorithm none", false),
    ] {
        let words = ["lockstep", "--device", "cpu"].into_iter();
        let words = words.chain(line.split_whitespace());
        let mut args = Program::parse_words(words).expect("parses").args;
        args.model.model_path = Some(model.clone());
        let notes = resolve(&args, &machine(), &algorithms(), &crate::testing::Plain)
            .expect("good")
            .notes;
        let said = notes
            .iter()
            .any(|note| note.contains("NEXTN drafts with it"));
        assert_eq!(said, noted, "{line}: {notes:?}");
    }
}
