//! Engines that draft.

use lockstep_types::EngineConfig;
use proptest::prelude::*;
use serde_json::json;

use crate::testing::{Head, folder, head, llama, machine, resolve_line, resolve_model, with};

/// Options for a kind of draft, and the folder that they name.
fn line(kind: Head, rest: &str) -> (String, tempfile::TempDir) {
    let dir = head(
        kind,
        &json!({"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}),
    );
    let name = match kind {
        Head::Model => "STANDALONE",
        Head::Eagle => "EAGLE",
        Head::Eagle3 => "EAGLE3",
        Head::Dflash => "DFLASH",
    };
    let path = dir.path().display();
    let line = format!("--speculative-algorithm {name} --draft-model {path} {rest}");
    (line, dir)
}

fn resolved(kind: Head, rest: &str) -> EngineConfig {
    let target = folder(&with(llama(), &json!({"num_hidden_layers": 3})), None);
    let (line, _dir) = line(kind, rest);
    resolve_model(&line, target.path(), &machine())
        .expect("fits")
        .0
}

#[test]
fn the_reserve_is_what_a_step_may_write_and_an_unseen_one_may_commit() {
    // (options, slots of a step, largest commit, reserve with overlap)
    for (rest, slots, commit, reserve) in [
        ("--speculative-num-steps 3", 4, 4, 8),
        (
            "--speculative-eagle-topk 4 --speculative-num-draft-tokens 16",
            16,
            4,
            20,
        ),
        // More nodes are drafted than verified.
        (
            "--speculative-eagle-topk 4 --speculative-num-draft-tokens 6",
            12,
            4,
            16,
        ),
        (
            "--speculative-eagle-topk 4 --speculative-num-draft-tokens 2",
            12,
            2,
            14,
        ),
    ] {
        let engine = resolved(Head::Eagle, rest);
        let found = &engine.speculation;
        assert_eq!(
            (
                found.reserve().alloc_len_per_decode(),
                found.max_commit(),
                found.reserve().alloc_reserve_per_decode(true)
            ),
            (slots, commit, reserve),
            "{rest}"
        );
        assert_eq!(
            found.reserve().alloc_reserve_per_decode(false),
            slots,
            "{rest}"
        );
    }
    let none = resolve_line("").expect("fits").0.speculation;
    let none = |overlap| none.reserve().alloc_reserve_per_decode(overlap);
    assert_eq!((none(false), none(true)), (1, 2));
}

#[test]
fn what_an_algorithm_keeps_is_charged_where_it_drafts() {
    let resolve = |capacity: u64, rest: &str| {
        let line =
            format!("--speculative-algorithm WINDOW --speculative-window-nodes {capacity} {rest}");
        resolve_line(&line).map_err(|error| error.to_string())
    };
    resolve(1 << 20, "").expect("100 MB of 8 GiB");
    let error = resolve(1 << 27, "").expect_err("13 GB of 8 GiB");
    assert!(error.contains("12.50 GiB of it for drafts"), "{error}");
    let second = "--nnodes 2 --tp-size 2 --node-rank 1 --dist-init-addr a:1 \
                  --dist-secret 0123456789abcdef";
    resolve(1 << 27, second).expect("drafts are on node 0");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any shape, the longest text and its reserve fit into the cache, and the cache is not
    /// more than all requests can use.
    #[test]
    fn the_context_leaves_room_for_the_reserve(
        steps in 1_usize..9,
        topk in 1_usize..5,
        page in 1_usize..70,
        requests in 1_usize..9,
        total in proptest::option::of(1_usize..3000),
        overlap: bool,
    ) {
        let mut rest = format!(
            "--speculative-num-steps {steps} --speculative-eagle-topk {topk} --page-size {page} \
             --max-running-requests {requests}"
        );
        if let Some(total) = total {
            rest += &format!(" --max-total-tokens {total}");
        }
        if !overlap {
            rest += " --disable-overlap-schedule";
        }
        let (line, _dir) = line(Head::Eagle, &rest);
        match (resolve_line(&line), total) {
            (Ok((engine, _)), _) => {
                let reserve = engine.speculation.reserve().alloc_reserve_per_decode(overlap) as usize;
                let context = engine.server.context_length;
                prop_assert!(context + reserve <= engine.kv_tokens());
                let longest = (512 + reserve).next_multiple_of(page);
                prop_assert!(total.is_some() || engine.kv_tokens() == longest * requests);
                prop_assert!(context == 512 || context + reserve == engine.kv_tokens());
            }
            // The cache holds no token beside the reserve: all nodes, and the longest path.
            (Err(_), Some(total)) => {
                let nodes = (steps * topk).max(1 + steps * topk);
                let lag = if overlap { steps + 1 } else { 0 };
                prop_assert!(total / page * page <= nodes + lag);
            }
            (Err(error), None) => prop_assert!(false, "{error}"),
        }
    }
}
