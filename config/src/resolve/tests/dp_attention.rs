//! Data-parallel attention.

use std::fs;
use std::path::Path;

use lockstep_adaptive::AdaptiveConfig;
use lockstep_types::{ConfigError, DeviceKind, EngineConfig, Footprint as _};
use serde_json::{Value, json};

use crate::Hardware;
use crate::testing::{
    Head, Plain, folder, head, llama, machine, parameters, resolve_line, resolve_model, with,
};

const DP: &str = "--enable-dp-attention --dp-size";

fn engine(line: &str) -> EngineConfig {
    resolve_line(line).expect(line).0
}

/// Resolves a command line for a model with 6 query heads.
fn of_six_heads(line: &str) -> Result<EngineConfig, ConfigError> {
    let shape = json!({"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48});
    let model = folder(&with(llama(), &shape), None);
    resolve_model(line, model.path(), &machine()).map(|resolved| resolved.0)
}

#[test]
fn ranks_form_dp_ranks() {
    // (options, ranks, DP ranks, ranks of each, leads)
    for (line, tp_size, dp_size, attn_tp_size, leads) in [
        (format!("--tp 4 {DP} 2"), 4, 2, 2, &[0, 2][..]),
        (format!("--tp 4 {DP} 4"), 4, 4, 1, &[0, 1, 2, 3]),
        (
            "--tp 2 --dp 2 --enable-dp-attention".into(),
            2,
            2,
            1,
            &[0, 1],
        ),
        ("--tp 2 --data-parallel-size 1".into(), 2, 1, 2, &[0]),
        ("--tp 2".into(), 2, 1, 2, &[0]),
    ] {
        let engine = engine(&line);
        let (parallel, shape) = (&engine.parallel, engine.shape());
        assert_eq!(
            (parallel.tp_size, parallel.dp_size, parallel.attn_tp_size()),
            (tp_size, dp_size, attn_tp_size),
            "{line}"
        );
        assert_eq!(
            (shape.dp_size, shape.attn_tp_size()),
            (dp_size, attn_tp_size)
        );
        let led = (0..tp_size).filter(|rank| parallel.leads(*rank));
        assert_eq!(led.collect::<Vec<_>>(), leads, "{line}");
        assert!((0..tp_size).all(|rank| parallel.leads(rank) == shape.leads(rank)));
    }
}

#[test]
fn heads_are_split_within_a_dp_rank() {
    assert!(of_six_heads("--tp 4").is_err());
    let engine = of_six_heads(&format!("--tp 4 {DP} 2")).expect("three heads on each rank");
    assert_eq!(engine.parallel.attn_tp_size(), 2);
    of_six_heads(&format!("--tp 4 {DP} 4")).expect("all heads on each rank");
}

/// Options that can't be served, and texts in the error.
#[test]
fn what_is_no_dp_attention_is_refused_with_a_remedy() {
    let table: &[(String, &[&str])] = &[
        (
            "--tp 2 --dp-size 2".into(),
            &[
                "--dp-size 2",
                "no --enable-dp-attention",
                "2 servers",
                "gateway",
            ],
        ),
        (
            "--tp 4 --enable-dp-attention".into(),
            &[
                "--enable-dp-attention",
                "no --dp-size",
                "Leave",
                "here: 2, 4.",
            ],
        ),
        (
            format!("--tp 2 {DP} 1"),
            &["--enable-dp-attention", "--dp-size 1", "here: 2."],
        ),
        (
            format!("{DP} 2"),
            &[
                "--dp-size 2",
                "--tp-size 1",
                "--dp-size 2 with --tp-size 2.",
            ],
        ),
        (
            format!("--tp 4 {DP} 3"),
            &[
                "--dp-size 3",
                "--tp-size 4",
                "that 3 divides",
                "here: 2, 4.",
            ],
        ),
        (
            format!("--tp 32 {DP} 2"),
            &[
                "--tp-size 32",
                "8 attention heads",
                "the 16 of a DP rank",
                "--dp-size 2: 2, 4, 8, 16.",
            ],
        ),
    ];
    for (line, names) in table {
        let error = resolve_line(line).expect_err(line).to_string();
        for name in *names {
            assert!(error.contains(name), "{line}: {name:?} is not in: {error}");
        }
    }
    let error = of_six_heads(&format!("--tp 4 {DP} 3"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("here: 2, 4."), "{error}");
}

/// Layers of one model may have other heads, so errors name those that do not divide.
#[test]
fn heads_of_the_layers_that_do_not_divide_are_named() {
    let fixture = "../tests/fixtures/architectures/granite_hybrid_moe/config.json";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(fixture);
    let hybrid = fs::read_to_string(path).expect("a fixture");
    let hybrid: Value = serde_json::from_str(&hybrid).expect("JSON");
    // 8 heads of Mamba-2.
    for (heads, line, named) in [
        (4, "--tp 3", "8 Mamba-2 heads and 4 attention heads cannot"),
        (4, "--tp 8", "the model's 4 attention heads cannot"),
        (16, "--tp 16", "the model's 8 Mamba-2 heads cannot"),
    ] {
        let model = folder(
            &with(hybrid.clone(), &json!({"num_attention_heads": heads})),
            None,
        );
        let error = resolve_model(line, model.path(), &machine()).expect_err(line);
        let (error, most) = (
            error.to_string(),
            if heads == 4 {
                "1, 2, 4."
            } else {
                "1, 2, 4, 8."
            },
        );
        for named in [named, most] {
            assert!(
                error.contains(named),
                "{line}: {named:?} is not in: {error}"
            );
        }
    }
}

/// A GPU that was not asked for is left alone.
#[test]
fn a_device_that_is_chosen_is_the_processor() {
    let engine = engine(&format!("--device auto --tp 2 {DP} 2"));
    assert_eq!(engine.device.kind, DeviceKind::Cpu);
}

#[test]
fn nodes_may_part_a_dp_rank() {
    let nodes = "--nnodes 2 --dist-init-addr a:1 --dist-secret 0123456789abcdef";
    for (tp_size, dp_size) in [(2, 2), (4, 2), (6, 3)] {
        let engine = engine(&format!("{nodes} --tp {tp_size} {DP} {dp_size}"));
        assert_eq!(engine.ranks_per_node(), tp_size / 2);
    }
}

/// Running requests and chunks are shared out; pages are each DP rank's own.
#[test]
fn every_dp_rank_has_its_share_of_a_step() {
    let line = "--tp 4 --max-running-requests 9 --chunked-prefill-size 101";
    let whole = engine(line);
    let shared = engine(&format!("{line} {DP} 4"));
    assert_eq!(shared.schedule, whole.schedule, "what was asked for");
    let (of_all, of_each) = (whole.step_limits(), shared.step_limits());
    assert_eq!((of_all.requests, of_each.requests), (9, 2));
    assert_eq!((of_all.tokens, of_each.tokens), (101 + 9, 25 + 2));
    // 512 tokens and two in flight are 33 pages each.
    assert_eq!(whole.kv.num_pages, 9 * 33 + 1);
    assert_eq!(shared.kv.num_pages, 2 * 33 + 1);
}

/// With little memory: each rank holds its DP rank's tokens for its own heads. With as many DP
/// ranks as ranks, every rank holds all heads of a token.
#[test]
fn pages_are_counted_by_what_all_ranks_of_a_node_hold() {
    let model = folder(&llama(), None);
    let short = Hardware {
        total_memory: 4 << 20,
        available_memory: 4 << 20,
        ..machine()
    };
    let pages = |rest: &str| {
        let line = format!("--tp 4 --max-running-requests 64 --chunked-prefill-size 16 {rest}");
        let line = format!("{line} --mem-fraction-static 1");
        let (engine, _) = resolve_model(&line, model.path(), &short).expect(rest);
        engine.kv.num_pages - 1
    };
    let (one, two, four) = (
        pages(""),
        pages(&format!("{DP} 2")),
        pages(&format!("{DP} 4")),
    );
    // With two DP ranks of two ranks, each rank holds two of four key/value heads; with four DP
    // ranks, each rank holds all four. Smaller batches leave a little more to the caches.
    assert!(two >= one / 2 && two < one, "{one} {two}");
    assert!(four >= one / 4 && four < two, "{one} {four}");
}

/// The lead of every DP rank drafts, and the draft model is charged there.
#[test]
fn drafts_are_charged_on_every_lead() {
    let model = folder(&llama(), None);
    let dir = head(Head::Model, &json!({"intermediate_size": 100_000}));
    let draft = format!(
        "--speculative-algorithm STANDALONE --draft-model {}",
        dir.path().display()
    );
    let window = "--speculative-algorithm WINDOW --speculative-window-nodes 1000000".to_owned();
    // (options, bytes of each drafter): a model in two bytes per parameter, or 100 bytes for
    // each node.
    let small = lockstep_model_folder::load(dir.path()).expect("a model");
    let of_model = 2 * parameters(&small) as u64;
    let least = |options: &str| {
        let fits = |bytes: u64| {
            let machine = Hardware {
                total_memory: bytes,
                available_memory: bytes,
                ..machine()
            };
            let line = format!(
                "--tp 4 {options} --mem-fraction-static 1 --max-running-requests 4 \
                 --chunked-prefill-size 16 --max-total-tokens 64"
            );
            resolve_model(&line, model.path(), &machine).is_ok()
        };
        let (mut no, mut yes) = (0, 8 << 30);
        while yes - no > 1 {
            let middle = (no + yes) / 2;
            *if fits(middle) { &mut yes } else { &mut no } = middle;
        }
        yes
    };
    for (drafts, bytes) in [(draft, of_model), (window, 100_000_000)] {
        let added = |dp: &str| {
            let with_drafts = least(&format!("{dp} {drafts} --speculative-adaptive=false"));
            with_drafts - least(dp)
        };
        // Verified tokens and the drafts' caches take far less than a drafter.
        for (dp, drafters) in [
            ("".to_owned(), 1),
            (format!("{DP} 2"), 2),
            (format!("{DP} 4"), 4),
        ] {
            let added = added(&dp);
            let expected = drafters * bytes..drafters * bytes + bytes / 2;
            assert!(
                expected.contains(&added),
                "{dp} {drafts}: {added} of {bytes}"
            );
        }
    }
}

/// The depth adapts by default.
#[test]
fn depths_adapt_by_default() {
    // (options, adapts without DP attention, with it)
    for (line, plain, with_dp) in [
        ("--speculative-algorithm WINDOW", false, true),
        (
            "--speculative-algorithm WINDOW --speculative-num-steps 2",
            false,
            true,
        ),
        (
            "--speculative-algorithm WINDOW --speculative-adaptive",
            true,
            true,
        ),
        (
            "--speculative-algorithm WINDOW --speculative-adaptive=true",
            true,
            true,
        ),
        (
            "--speculative-algorithm WINDOW --speculative-adaptive=false",
            false,
            false,
        ),
        (
            "--speculative-algorithm WINDOW --speculative-adaptive=off",
            false,
            false,
        ),
        ("--speculative-algorithm TEXTS", false, false),
        ("--speculative-algorithm none", false, false),
        ("", false, false),
    ] {
        let adapts = |line: &str| engine(line).speculation.adaptive.is_some();
        assert_eq!(adapts(line), plain, "{line}");
        assert_eq!(adapts(&format!("--tp 2 {DP} 2 {line}")), with_dp, "{line}");
    }
    let adaptive = engine(&format!("--tp 2 {DP} 2 --speculative-algorithm WINDOW"));
    let adaptive = adaptive.speculation.adaptive.expect("it adapts");
    assert_eq!(
        (adaptive.policy.as_str(), adaptive.initial_depth),
        ("goodput", 5)
    );
}

#[test]
fn depths_that_cannot_adapt_by_default_say_how_to_go_on() {
    let dp = format!("--tp 2 {DP} 2 --speculative-algorithm WINDOW");
    let deep = format!("{dp} --speculative-num-steps 20");
    let error = resolve_line(&deep).unwrap_err().to_string();
    for name in [
        "--enable-dp-attention",
        "20",
        "at most 16",
        "--speculative-adaptive=false",
    ] {
        assert!(error.contains(name), "{name:?} is not in: {error}");
    }
    let fixed = engine(&format!("{deep} --speculative-adaptive=false"));
    assert_eq!(fixed.speculation.num_steps, 20);
    // A file for an adaptation that is turned off.
    let file = format!("{dp} --speculative-adaptive=false --speculative-adaptive-config f");
    let error = resolve_line(&file).unwrap_err().to_string();
    assert!(error.contains("--speculative-adaptive=false"), "{error}");
    // With adaptation on by default, the file is read.
    let error = resolve_line(&format!("{dp} --speculative-adaptive-config /nowhere"));
    assert!(error.unwrap_err().to_string().contains("/nowhere"));
}

#[test]
fn what_dp_ranks_share_of_a_pass_follows_from_the_ranks_of_one() {
    for (line, ranks) in [
        (format!("--tp 4 {DP} 4"), 1),
        (format!("--tp 4 {DP} 2"), 2),
        (format!("--tp 16 {DP} 2"), 8),
        ("--tp 8 --speculative-adaptive".into(), 8),
    ] {
        let engine = engine(&format!("{line} --speculative-algorithm WINDOW"));
        let adaptive = engine.speculation.adaptive.clone().expect("it adapts");
        let part = Plain.shared_part(&engine.model, ranks);
        assert_eq!(adaptive.shared_part, part, "{line}");
        // Ranks with another part would decide otherwise.
        let mut other = engine.clone();
        other.speculation.adaptive = Some(AdaptiveConfig {
            shared_part: part + 1,
            ..adaptive
        });
        assert_ne!(crate::hash(&engine), crate::hash(&other));
    }
}

#[test]
fn the_hash_tells_dp_ranks() {
    let hash = |line: &str| crate::hash(&engine(line));
    let one = hash("--tp 4 --max-total-tokens 1024");
    let two = hash(&format!("--tp 4 --max-total-tokens 1024 {DP} 2"));
    let four = hash(&format!("--tp 4 --max-total-tokens 1024 {DP} 4"));
    assert!(one != two && two != four && one != four);
    assert_eq!(one, hash("--tp 4 --max-total-tokens 1024 --dp-size 1"));
}

/// A given option is kept, or refused.
#[test]
fn every_dp_rank_runs_a_request() {
    let line = format!("--tp 4 {DP} 4 --max-running-requests 3");
    let error = resolve_line(&line).unwrap_err().to_string();
    for part in ["--max-running-requests 3", "--dp-size 4", "4 or more"] {
        assert!(error.contains(part), "{error}");
    }
    let engine = engine(&format!("--tp 4 {DP} 4 --max-running-requests 4"));
    assert_eq!(engine.schedule.max_running_requests, 4);
}
