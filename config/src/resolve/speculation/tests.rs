use lockstep_types::{
    Algorithm, DraftKind, DraftKv, OptionSpec, OptionValues, SpeculationConfig, Verification,
};
use serde_json::json;

use crate::testing::{
    Head, TestAlgorithm, algorithms, folder, head, llama, machine, resolve_line, resolve_model,
    with,
};

/// Resolves a command line. In it `EAGLE`, `EAGLE3`, `DFLASH` and `MODEL` stand for the options
/// that name the algorithm and its draft.
pub(super) fn resolve(line: &str) -> Result<SpeculationConfig, String> {
    let (eagle, eagle3, dflash, model) = (
        head(Head::Eagle, &json!({})),
        head(Head::Eagle3, &json!({})),
        head(Head::Dflash, &json!({})),
        head(Head::Model, &json!({})),
    );
    let words = line.split_whitespace().map(|word| {
        let (name, dir) = match word {
            "EAGLE" => ("eagle", &eagle),
            "EAGLE3" => ("EAGLE3", &eagle3),
            "DFLASH" => ("dflash", &dflash),
            "MODEL" => ("Standalone", &model),
            word => return word.to_owned(),
        };
        let path = dir.path().display();
        format!("--speculative-algorithm {name} --draft-model {path}")
    });
    let words: Vec<_> = words.collect();
    let target = folder(&with(llama(), &json!({"num_hidden_layers": 7})), None);
    resolve_model(&words.join(" "), target.path(), &machine())
        .map(|(engine, _)| engine.speculation)
        .map_err(|error| error.to_string())
}

#[test]
fn names_of_other_engines_for_own_draft_layers_lead_to_nextn() {
    for (name, leads) in [("MTP", true), ("deepseek_mtp", true), ("medusa", false)] {
        let refusal = resolve(&format!("--speculative-algorithm {name}"));
        let refusal = refusal.expect_err("unknown");
        assert!(refusal.contains("no algorithm of that name"), "{refusal}");
        assert_eq!(refusal.contains("NEXTN here"), leads, "{refusal}");
    }
}

#[test]
fn shapes() {
    // (options, steps, branches, tokens)
    for (line, steps, topk, tokens) in [
        ("EAGLE3", 3, 1, 4),
        // A whole block, the known token included.
        ("DFLASH", 5, 1, 6),
        ("DFLASH --speculative-num-steps 2", 2, 1, 3),
        ("DFLASH --speculative-num-draft-tokens 4", 3, 1, 4),
        ("EAGLE --speculative-num-steps 5", 5, 1, 6),
        ("MODEL --speculative-num-draft-tokens 8", 7, 1, 8),
        (
            "EAGLE --speculative-num-steps 64 --speculative-num-draft-tokens 65 \
             --speculative-eagle-topk 1",
            64,
            1,
            65,
        ),
        (
            "EAGLE3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16",
            3,
            4,
            16,
        ),
        ("EAGLE3 --speculative-eagle-topk 4", 3, 4, 13),
        (
            "EAGLE3 --speculative-num-steps 1 --speculative-eagle-topk 8 \
             --speculative-num-draft-tokens 9",
            1,
            8,
            9,
        ),
        (
            "EAGLE3 --speculative-num-steps 64 --speculative-eagle-topk 64",
            64,
            64,
            512,
        ),
        ("--speculative-algorithm WINDOW", 5, 4, 8),
        (
            "--speculative-algorithm window --speculative-num-steps 2",
            2,
            4,
            9,
        ),
        (
            "--speculative-algorithm WINDOW --speculative-eagle-topk 1",
            5,
            1,
            6,
        ),
    ] {
        let found = resolve(line).expect(line);
        assert_eq!(
            (found.num_steps, found.topk, found.num_draft_tokens),
            (steps, topk, tokens),
            "{line}"
        );
        assert_eq!(found.max_speculative_num_draft_tokens, tokens, "{line}");
        assert_eq!(found.verification, Verification::Target);
    }
}

#[test]
fn none_is_none() {
    for line in [
        "",
        "--speculative-algorithm none",
        "--speculative-algorithm None",
    ] {
        assert_eq!(resolve(line), Ok(SpeculationConfig::none()), "{line}");
    }
}

#[test]
fn options_and_what_algorithms_say_arrive() {
    let found = resolve("EAGLE3 --speculative-verification block").expect("good");
    assert_eq!(found.algorithm.as_deref(), Some("EAGLE3"));
    assert_eq!(
        (found.draft_kv, found.verification),
        (DraftKv::Pairs, Verification::Block)
    );
    let draft = found.draft.expect("a head");
    assert!(matches!(draft.kind, DraftKind::Eagle3 { .. }));
    let found = resolve("MODEL --speculative-verification rejection --speculative-eagle-topk 2")
        .expect("good");
    assert_eq!(
        (found.algorithm.as_deref(), found.verification, found.topk),
        (Some("STANDALONE"), Verification::Rejection, 2)
    );
    let options = |line: &str| {
        let found = resolve(&format!("--speculative-algorithm WINDOW {line}")).expect(line);
        serde_json::to_string(&found.options).expect("plain data")
    };
    let (all, small) = (
        r#"{"speculative-window-nodes":1048576,"speculative-window-private":false,"speculative-window-size":4}"#,
        r#"{"speculative-window-nodes":18,"speculative-window-private":true,"speculative-window-size":9}"#,
    );
    assert_eq!(options(""), all);
    let given = "--speculative-window-size 9 --speculative-window-private";
    assert_eq!(options(given), small);
    // Tokens that an algorithm verifies beyond the drafted ones count, too.
    let found = resolve("--speculative-algorithm BLOCKS").expect("good");
    assert_eq!(
        (
            found.num_draft_tokens,
            found.max_speculative_num_draft_tokens
        ),
        (4, 40)
    );
    let reserve = found.reserve();
    assert_eq!(
        (reserve.alloc_len_per_decode(), found.max_commit()),
        (40, 4)
    );
}

/// Command lines that can't be served, and texts in the error.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "--speculative-algorithm MEDUSA",
        &["MEDUSA", "none (nothing", "; EAGLE3: drafts for tests; "],
    ),
    (
        "--speculative-algorithm nextn",
        &[
            "--speculative-algorithm NEXTN",
            "a Llama model",
            "this one has none; ",
            "Glm4MoeForCausalLM",
            "Give another --speculative-algorithm, or none",
        ],
    ),
    (
        "--speculative-num-steps 3",
        &["--speculative-num-steps", "--speculative-algorithm"],
    ),
    (
        "--speculative-algorithm none --speculative-eagle-topk 2",
        &["--speculative-eagle-topk", "--speculative-algorithm none"],
    ),
    (
        "--draft-model d",
        &["--speculative-draft-model-path", "--speculative-algorithm"],
    ),
    (
        "--speculative-verification target",
        &["--speculative-verification", "--speculative-algorithm"],
    ),
    (
        "--speculative-window-nodes 9",
        &["--speculative-window-nodes", "--speculative-algorithm"],
    ),
    (
        "--speculative-algorithm none --speculative-window-private",
        &[
            "--speculative-window-private",
            "--speculative-algorithm none",
        ],
    ),
    (
        "EAGLE3 --speculative-window-private",
        &[
            "--speculative-window-private",
            "EAGLE3",
            "it has no window",
            "WINDOW",
        ],
    ),
    (
        "--speculative-algorithm WINDOW --speculative-window-private --speculative-window-nodes 99",
        &["--speculative-window-nodes", "--speculative-window-private"],
    ),
    (
        "--speculative-algorithm eagle",
        &[
            "--speculative-algorithm EAGLE",
            "--speculative-draft-model-path",
        ],
    ),
    (
        "--speculative-algorithm WINDOW --draft-model d",
        &[
            "--speculative-algorithm WINDOW",
            "--speculative-draft-model-path",
        ],
    ),
    (
        "--speculative-algorithm eagle3 --draft-model /nowhere",
        &["--speculative-draft-model-path /nowhere", "config.json"],
    ),
    (
        "EAGLE --speculative-num-steps 3 --speculative-num-draft-tokens 5",
        &[
            "--speculative-num-steps 3",
            "--speculative-num-draft-tokens 5",
            "tokens 4",
        ],
    ),
    (
        "EAGLE --speculative-num-draft-tokens 1",
        &["--speculative-num-draft-tokens 1", "2 to 65"],
    ),
    (
        "EAGLE --speculative-num-draft-tokens 66",
        &["--speculative-num-draft-tokens 66", "2 to 65"],
    ),
    (
        "EAGLE --speculative-num-steps 65",
        &["--speculative-num-steps 65", "at most 64"],
    ),
    (
        "EAGLE --speculative-eagle-topk 65",
        &["--speculative-eagle-topk 65", "at most 64"],
    ),
    (
        "EAGLE --speculative-eagle-topk 2 --speculative-num-draft-tokens 513",
        &["--speculative-num-draft-tokens 513", "at most 512"],
    ),
    (
        "EAGLE --speculative-eagle-topk 2 --speculative-num-draft-tokens 12",
        &[
            "--speculative-num-draft-tokens 12",
            "--speculative-eagle-topk 2",
            "2 to 11",
        ],
    ),
    (
        "EAGLE --speculative-eagle-topk 2 --speculative-num-draft-tokens 1",
        &["--speculative-num-draft-tokens 1", "2 to 11"],
    ),
    (
        "--speculative-algorithm BLOCKS --speculative-eagle-topk 2",
        &[
            "--speculative-algorithm BLOCKS",
            "--speculative-eagle-topk 2",
        ],
    ),
    (
        "--speculative-algorithm BLOCKS --speculative-num-steps 60",
        &["--speculative-algorithm BLOCKS", "610", "512"],
    ),
    (
        "--speculative-algorithm WINDOW --speculative-verification rejection",
        &[
            "--speculative-verification rejection",
            "--speculative-algorithm WINDOW",
        ],
    ),
    (
        "EAGLE3 --speculative-eagle-topk 2 --speculative-verification block",
        &[
            "--speculative-verification block",
            "--speculative-eagle-topk 2",
        ],
    ),
    (
        "EAGLE3 --speculative-window-nodes 3 --speculative-window-size 3",
        &[
            "--speculative-window-size and",
            "EAGLE3",
            "or give",
            "WINDOW",
        ],
    ),
    (
        "--speculative-algorithm WINDOW --speculative-window-size 65",
        &["--speculative-window-size 65", "at most 64"],
    ),
    (
        "--speculative-algorithm REFUSING",
        &["--speculative-num-steps 3", "is refused"],
    ),
    (
        "--speculative-accept-threshold-acc 0.9",
        &[
            "--speculative-accept-threshold-acc",
            "--speculative-verification",
        ],
    ),
    (
        "--speculative-use-rejection-sampling",
        &[
            "--speculative-use-rejection-sampling",
            "--speculative-verification rejection",
        ],
    ),
];

#[test]
fn what_contradicts_itself_is_refused_with_a_remedy() {
    for (line, names) in REFUSED {
        let error = resolve(line).expect_err(line);
        for name in *names {
            assert!(error.contains(name), "{line}: {name:?} is not in: {error}");
        }
        assert!(error.ends_with('.'), "{line}: {error}");
    }
}

/// Buffers are sized by the widest pass, also where that is one of the draft model.
#[test]
fn the_widest_pass_is_what_counts() {
    let speculation = SpeculationConfig {
        num_draft_tokens: 6,
        ..SpeculationConfig::none()
    };
    for (name, tokens) in [("EAGLE", 6), ("WIDE DRAFTS", 12), ("BLOCKS", 60)] {
        let most = super::most(&speculation, &TestAlgorithm(name));
        assert_eq!(most.expect(name), tokens, "{name}");
    }
}

/// The command line refuses such a value by itself. A program that resolves options of its own
/// may still give one.
#[test]
fn values_out_of_range_are_refused_wherever_they_are_from() {
    let algorithm = TestAlgorithm("WINDOW");
    let OptionSpec::Number(size) = algorithm.options()[0] else {
        panic!("its first option is a number");
    };
    for (value, bound) in [(1, Some("at least 2")), (2, None), (65, Some("at most 64"))] {
        let mut given = OptionValues::default();
        size.set(&mut given, value);
        let error = super::options::resolve(&given, &algorithm, &algorithms()).err();
        let error = error.map(|error| error.to_string());
        assert_eq!(error.is_some(), bound.is_some(), "{value}: {error:?}");
        let says = error.is_none_or(|error| error.contains(bound.unwrap_or_default()));
        assert!(says, "{value}");
    }
}

#[test]
fn the_hash_tells_shapes_and_no_folders() {
    let hash = |line: &str| crate::hash(&resolve_line(line).expect(line).0);
    let with_head = |steps: usize| {
        let dir = head(Head::Eagle, &json!({}));
        let path = dir.path().display();
        hash(&format!(
            "--speculative-algorithm EAGLE --draft-model {path} --speculative-num-steps {steps}"
        ))
    };
    assert_eq!(with_head(2), with_head(2), "another folder, the same head");
    assert_ne!(with_head(2), with_head(3));
    assert_ne!(with_head(2), hash(""));
}

#[test]
fn a_draft_model_that_ends_before_the_context_is_noted() {
    let noted = |line: &str, positions: usize| {
        let mut found = resolve(line).expect(line);
        let draft = found.draft.as_mut().expect("a draft");
        draft.model.max_position_embeddings = positions;
        super::beyond(&found, 512)
    };
    assert_eq!(noted("MODEL", 512), None);
    let note = noted("MODEL", 511).expect("noted");
    assert!(note.contains("511 of 512"), "{note}");
    assert_eq!(noted("EAGLE", 100), None);
}
