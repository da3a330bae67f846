use lockstep_adaptive::{AdaptiveConfig, BatchSlot, Tier};
use lockstep_types::{SpeculationConfig, StepLimits};

use super::super::tests::resolve;
use crate::testing::resolve_line;

/// Resolves with a file of this content. The line names the file as `FILE`.
fn with_file(line: &str, json: &str) -> Result<SpeculationConfig, String> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), json).expect("written");
    let path = file.path().display().to_string();
    resolve(&line.replace("FILE", &format!("--speculative-adaptive-config {path}")))
        .map_err(|error| error.replace(&path, "FILE"))
}

const ON: &str = "--speculative-adaptive FILE";

fn adaptive(line: &str, json: &str) -> AdaptiveConfig {
    let found = with_file(line, json).expect(line);
    found.adaptive.expect("it adapts")
}

fn depths(tiers: &[Tier]) -> Vec<u32> {
    tiers.iter().map(|tier| tier.depth).collect()
}

#[test]
fn without_a_file_goodput_chooses_up_to_the_larger_depth() {
    // (options, initial, depths)
    for (line, initial, expected) in [
        ("EAGLE3", 3, &[0, 1, 2, 3][..]),
        ("EAGLE3 --speculative-num-steps 1", 1, &[0, 1, 2, 3]),
        ("MODEL --speculative-num-steps 4", 4, &[0, 1, 2, 3, 4]),
        ("EAGLE --speculative-num-steps 7", 7, &[0, 1, 2, 3, 5, 7]),
        (
            "EAGLE --speculative-num-steps 16",
            16,
            &[0, 1, 2, 3, 5, 7, 16],
        ),
    ] {
        let found = resolve(&format!("{line} --speculative-adaptive")).expect(line);
        let adaptive = found.adaptive.as_ref().expect("it adapts");
        assert_eq!(adaptive.policy, "goodput");
        assert_eq!(
            (adaptive.initial_depth, depths(&adaptive.tiers).as_slice()),
            (initial, expected),
            "{line}"
        );
        assert_eq!(adaptive.slots, [BatchSlot::new(1, expected.to_vec())]);
        assert_eq!(found.initial_depth(), initial);
        let deepest = *expected.last().expect("some") as usize;
        assert_eq!(
            (found.num_steps, found.num_draft_tokens),
            (deepest, deepest + 1),
            "{line}"
        );
    }
    let fixed = resolve("EAGLE").expect("good");
    assert_eq!((fixed.adaptive, fixed.pause_window), (None, 0));
    let adapts = resolve("EAGLE --speculative-adaptive").expect("good");
    assert_eq!(adapts.pause_window, 9, "as the algorithm says");
}

#[test]
fn the_nearest_candidate_is_the_first_depth() {
    for (json, steps, initial) in [
        (r#"{"candidate_steps": [1, 3, 7]}"#, 2, 3),
        (r#"{"candidate_steps": [1, 3, 7]}"#, 5, 7),
        (r#"{"candidate_steps": [1, 3, 7]}"#, 4, 3),
        (r#"{"candidate_steps": [1, 3, 7]}"#, 64, 7),
        (r#"{"candidate_steps": [2, 4]}"#, 1, 2),
        // The candidates of the smallest batches count, whatever larger ones have.
        (
            r#"{"8": {"candidate_steps": [0, 5]}, "2": {"candidate_steps": [4, 7]}}"#,
            5,
            4,
        ),
    ] {
        let line = format!("EAGLE --speculative-num-steps {steps} {ON}");
        assert_eq!(
            adaptive(&line, json).initial_depth,
            initial,
            "{json} {steps}"
        );
    }
}

#[test]
fn what_a_batch_size_says_goes_before_what_is_said_for_all() {
    let found = adaptive(
        &format!("EAGLE3 {ON}"),
        r#"{"strategy": "ema", "up_hysteresis": 0.5, "warmup_batches": 3,
            "8": {"candidate_steps": [0, 2], "up_hysteresis": -0.1, "ceiling_coeff": 1.2},
            "4": {"candidate_steps": [3, 1], "down_hysteresis": 0}}"#,
    );
    let slot = |from, depths: &[u32], up_hysteresis, down_hysteresis, ceiling_coeff| BatchSlot {
        from,
        depths: depths.to_vec(),
        up_hysteresis,
        down_hysteresis,
        ceiling_coeff,
    };
    assert_eq!(
        found.slots,
        [
            slot(1, &[1, 3], 500_000, 0, 0),
            slot(8, &[0, 2], -100_000, -250_000, 1_200_000),
        ]
    );
    assert_eq!(depths(&found.tiers), [0, 1, 2, 3]);
    assert_eq!(
        (found.ema_alpha, found.update_interval, found.warmup_batches),
        (200_000, 5, 3)
    );
}

#[test]
fn a_policys_own_table_stands_where_the_file_names_no_candidates() {
    let found = adaptive(
        &format!("EAGLE3 {ON}"),
        r#"{"strategy": "ema", "up_hysteresis": 0.5}"#,
    );
    let slots: Vec<_> = found
        .slots
        .iter()
        .map(|slot| {
            (
                slot.from,
                slot.depths.len(),
                slot.up_hysteresis,
                slot.down_hysteresis,
            )
        })
        .collect();
    assert_eq!(
        slots,
        [
            (1, 2, 500_000, -250_000),
            (8, 3, 500_000, 0),
            (32, 2, 500_000, 0),
            (64, 1, 500_000, 0),
        ]
    );
}

#[test]
fn a_file_without_a_name_is_sglangs_where_only_that_obeys_it() {
    for (json, policy) in [
        ("{}", "goodput"),
        (r#"{"candidate_steps": [1, 3, 7]}"#, "goodput"),
        (r#"{"1": {"candidate_steps": [1, 3, 7]}}"#, "goodput"),
        (r#"{"candidate_steps": [1, 3], "ema_alpha": 0.2}"#, "ema"),
        (
            r#"{"1": {"candidate_steps": [1], "up_hysteresis": 0}}"#,
            "ema",
        ),
        (r#"{"strategy": "static"}"#, "static"),
        (
            r#"{"strategy": "users", "ema_alpha": 1, "window_size": 3}"#,
            "users",
        ),
        (
            r#"{"strategy": "throughput_aware", "candidate_steps": [1]}"#,
            "throughput_aware",
        ),
    ] {
        assert_eq!(
            adaptive(&format!("EAGLE3 {ON}"), json).policy,
            policy,
            "{json}"
        );
    }
}

#[test]
fn numbers_of_a_batch_size_count_for_all_where_they_agree() {
    let line = format!("EAGLE3 {ON}");
    let found = adaptive(
        &line,
        r#"{"1": {"candidate_steps": [1, 3], "ema_alpha": 1.0, "warmup_batches": 1,
                  "update_interval": 1, "up_hysteresis": 0.0}}"#,
    );
    assert_eq!(
        (found.ema_alpha, found.warmup_batches, found.update_interval),
        (1_000_000, 1, 1)
    );
    let differ = r#"{"ema_alpha": 0.3, "1": {"candidate_steps": [1], "ema_alpha": 0.5},
                     "8": {"candidate_steps": [1]}}"#;
    let error = with_file(&line, differ).expect_err("they differ");
    assert!(error.contains("\"ema_alpha\" differs"), "{error}");
}

#[test]
fn trees_have_as_many_nodes_per_step_at_every_depth() {
    let found = |tokens: usize, file: &str| {
        let line = format!(
            "EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 4 \
             --speculative-num-draft-tokens {tokens} {ON}"
        );
        let found = with_file(&line, file).expect(file);
        let tiers = &found.adaptive.as_ref().expect("it adapts").tiers;
        let tiers: Vec<_> = tiers.iter().map(|tier| (tier.depth, tier.tokens)).collect();
        let shape = [found.num_steps, found.topk, found.num_draft_tokens];
        assert_eq!(found.max_speculative_num_draft_tokens, shape[2]);
        assert_eq!(found.reserve().fault(), None);
        (shape, tiers)
    };
    assert_eq!(
        found(16, r#"{"candidate_steps": [0, 1, 3, 7]}"#),
        ([7, 4, 36], vec![(0, 1), (1, 5), (3, 16), (7, 36)])
    );
    // A tree of one step has no more nodes than branches.
    assert_eq!(
        found(37, r#"{"candidate_steps": [1, 2, 3]}"#),
        ([3, 4, 37], vec![(1, 5), (2, 21), (3, 37)])
    );
    assert_eq!(
        found(4, r#"{"candidate_steps": [1, 2]}"#),
        ([2, 4, 3], vec![(1, 2), (2, 3)])
    );
}

#[test]
fn a_tier_is_as_wide_as_the_algorithm_verifies() {
    let found = resolve("--speculative-algorithm BLOCKS --speculative-adaptive").expect("good");
    let tiers = found.adaptive.expect("it adapts").tiers;
    let tokens: Vec<_> = tiers.iter().map(|tier| tier.tokens).collect();
    assert_eq!(tokens, [10, 20, 30, 40]);
    assert_eq!(found.max_speculative_num_draft_tokens, 40);
}

/// The size that is too small for some tier, if any.
fn too_small(found: &SpeculationConfig, limits: &StepLimits) -> Option<&'static str> {
    let adaptive = found.adaptive.as_ref().expect("it adapts");
    let reserve = found.reserve();
    adaptive.tiers.iter().find_map(|tier| {
        let (depth, tokens) = (tier.depth as usize, tier.tokens as usize);
        let written = (depth * found.topk).max(tokens);
        let commits = (depth + 1).min(tokens);
        let sizes = [
            (
                "cells of a step",
                reserve.alloc_len_per_decode() as usize,
                written,
            ),
            ("committed tokens", found.max_commit(), commits),
            (
                "verified tokens",
                found.max_speculative_num_draft_tokens,
                tokens,
            ),
            ("the batch", limits.tokens, limits.requests * tokens),
            (
                "a drafter's nodes",
                limits.draft_nodes,
                depth * found.topk + 1,
            ),
            (
                "a row of the page table",
                limits.positions,
                512 + written + commits,
            ),
        ];
        let small = sizes.into_iter().find(|(_, have, need)| have < need);
        small.map(|(what, ..)| what)
    })
}

#[test]
fn everything_is_sized_by_the_deepest_tier_and_not_by_the_first() {
    for shape in [
        "",
        "--speculative-eagle-topk 2",
        "--speculative-eagle-topk 4",
    ] {
        let line = format!("EAGLE3 --speculative-num-steps 1 {shape} {ON}");
        let json = r#"{"candidate_steps": [0, 1, 3, 7]}"#;
        let mut found = with_file(&line, json).expect("good");
        let schedule = resolve_line("").expect("good").0.schedule;
        let limits = |found: &SpeculationConfig| StepLimits::new(&schedule, found, 512);
        assert_eq!(too_small(&found, &limits(&found)), None, "{shape}");
        // The mistake of sgl-project/sglang#26354.
        found.size_by_first_tier();
        assert!(too_small(&found, &limits(&found)).is_some(), "{shape}");
    }
}

/// Command lines and files that can't be served, and texts in the error.
const REFUSED: &[(&str, &str, &[&str])] = &[
    (
        "EAGLE3 FILE",
        "{}",
        &[
            "--speculative-adaptive-config",
            "--speculative-adaptive",
            "leave the file out",
        ],
    ),
    (
        "--speculative-adaptive",
        "{}",
        &["--speculative-adaptive and", "--speculative-algorithm"],
    ),
    (
        "--speculative-algorithm none FILE",
        "{}",
        &[
            "--speculative-adaptive-config",
            "--speculative-algorithm none",
        ],
    ),
    (
        "--speculative-algorithm TEXTS --speculative-adaptive",
        "{}",
        &[
            "--speculative-algorithm TEXTS",
            "--speculative-adaptive",
            "EAGLE3",
        ],
    ),
    (
        "EAGLE3 --speculative-adaptive --speculative-num-steps 17",
        "{}",
        &[
            "--speculative-adaptive",
            "--speculative-num-steps 17",
            "at most 16",
        ],
    ),
    (
        "EAGLE3 --speculative-adaptive --speculative-adaptive-config /nowhere/a.json",
        "{}",
        &[
            "--speculative-adaptive-config /nowhere/a.json",
            "No such file",
        ],
    ),
    (
        "EAGLE3 ON",
        "{",
        &["--speculative-adaptive-config FILE", "line 1"],
    ),
    (
        "EAGLE3 ON",
        r#"{"strategy": "best"}"#,
        &[
            "\"best\"",
            "static: the initial depth",
            "goodput: the most tokens per second",
        ],
    ),
    (
        "EAGLE3 ON",
        r#"{"candidate_steps": [17]}"#,
        &["17", "at most 16", "candidate_steps"],
    ),
    (
        "EAGLE3 ON",
        r#"{"candidate_steps": [0]}"#,
        &["above 0", "--speculative-algorithm"],
    ),
    (
        "EAGLE3 ON",
        r#"{"strategy": "goodput", "ema_alpha": 0.2}"#,
        &["\"ema_alpha\"", "\"goodput\"", "ema, users"],
    ),
    (
        "EAGLE3 ON",
        r#"{"ema_alpha": 0.2, "window_size": 3}"#,
        &["\"window_size\"", "\"ema\"", "throughput_aware"],
    ),
    (
        "EAGLE3 ON",
        r#"{"strategy": "throughput_aware", "candidate_steps": [0, 1]}"#,
        &["FILE", "Leave 0 out"],
    ),
    (
        "EAGLE3 --speculative-eagle-topk 8 --speculative-num-draft-tokens 137 ON",
        r#"{"candidate_steps": [16]}"#,
        &["--speculative-num-draft-tokens 137", "depth 16", "512"],
    ),
    (
        "EAGLE3 --speculative-num-steps 3 --speculative-num-draft-tokens 8 ON",
        r#"{"candidate_steps": [7]}"#,
        &[
            "--speculative-num-steps 3",
            "--speculative-num-draft-tokens 8",
        ],
    ),
];

#[test]
fn what_can_not_adapt_is_refused_with_a_remedy() {
    for (line, json, names) in REFUSED {
        let error = with_file(&line.replace("ON", ON), json).expect_err(line);
        for name in *names {
            assert!(
                error.contains(name),
                "{line} {json}: {name:?} is not in: {error}"
            );
        }
        assert!(error.ends_with('.'), "{line} {json}: {error}");
    }
}

#[test]
fn drafts_leave_room_for_a_text() {
    let resolve = |context: usize| {
        resolve_line(&format!(
            "--speculative-algorithm WINDOW --speculative-eagle-topk 1 \
             --speculative-num-steps 7 --speculative-adaptive --context-length {context}"
        ))
    };
    assert!(resolve(10).is_ok());
    let error = resolve(9).expect_err("too short").to_string();
    for name in [
        "--speculative-adaptive",
        "length of 9",
        "depth 7",
        "candidate_steps",
    ] {
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn the_hash_tells_policies_and_tiers() {
    let line = "--speculative-algorithm WINDOW --speculative-eagle-topk 1";
    let lines = [
        line.to_owned(),
        format!("{line} --speculative-adaptive"),
        format!("{line} --speculative-adaptive --speculative-num-steps 6"),
    ];
    let mut hashes = lines.map(|line| crate::hash(&resolve_line(&line).expect("good").0));
    hashes.sort();
    assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn the_documented_files_are_good_and_all_keys_are_documented() {
    let text = include_str!("../../../../../docs/adaptive.md");
    let files = text.split("```json\n").skip(1);
    let files: Vec<_> = files.filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(files.len(), 2);
    for json in files {
        adaptive(&format!("EAGLE3 --speculative-num-steps 7 {ON}"), json);
    }
    for key in super::file::OF_A_SLOT {
        assert!(text.contains(&format!("| `{key}` | both |")), "{key}");
    }
    for policy in lockstep_adaptive::Policies::builtin().iter() {
        let name = policy.name();
        assert!(text.contains(&format!("\n| `{name}` |")), "{name}");
    }
}
