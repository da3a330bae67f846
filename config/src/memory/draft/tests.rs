use lockstep_types::{DraftModel, EngineConfig, ModelConfig};
use proptest::prelude::*;
use serde_json::json;

use super::{Sizing, Tables, Weights, activation_bytes, draft_memory, weights};
use crate::testing::{Head, folder, head, llama, machine, resolve_line, resolve_model, with};

/// The small Llama with seven layers, with a head of its own or a tied one.
fn target(tied: bool) -> ModelConfig {
    let changes = json!({"num_hidden_layers": 7, "tie_word_embeddings": tied});
    lockstep_model_folder::load(folder(&with(llama(), &changes), None).path())
        .expect("a served model")
}

fn draft(kind: Head) -> DraftModel {
    let dir = head(kind, &json!({}));
    let load = match kind {
        Head::Model => lockstep_model_folder::draft::whole_model,
        Head::Eagle => lockstep_model_folder::draft::eagle,
        Head::Eagle3 => lockstep_model_folder::draft::eagle3,
    };
    load(dir.path(), &target(true)).expect("a draft that fits")
}

#[test]
fn weights_of_drafts() {
    let count = |kind, tp_size, tied| {
        let target = &target(tied);
        weights(&draft(kind), &Tables { tp_size, target })
    };
    // A layer of 64 with 8 heads and 4 of keys and values, 8 wide; 96 in the MLP.
    let (qkv, output, mlp, table) = (64 * 16 * 8, 64 * 64, 3 * 64 * 96, 100 * 64);
    let eagle = 2 * 64 * 64 + 64 + qkv + output + mlp + 64;
    let eagle3 = 3 * 64 * 64 + 2 * qkv + output + mlp + 4 * 64;
    for (kind, tp_size, tied, projections, tables) in [
        (Head::Eagle, 1, true, eagle, 0),
        (Head::Eagle, 1, false, eagle, 0),
        (Head::Eagle, 2, true, eagle, table),
        (Head::Eagle, 2, false, eagle, 2 * table),
        (Head::Eagle3, 1, false, eagle3, 50 * 64),
        (Head::Eagle3, 4, true, eagle3, 50 * 64 + table),
        (Head::Eagle3, 4, false, eagle3, 50 * 64 + table),
    ] {
        let expected = Weights {
            projections,
            tables,
        };
        assert_eq!(
            count(kind, tp_size, tied),
            expected,
            "{kind:?} {tp_size} {tied}"
        );
    }
    // Tables of its own.
    let mut other = draft(Head::Eagle3);
    (other.own_embedding, other.own_head) = (true, false);
    let target_of = |tp_size, tied| {
        let target = &target(tied);
        weights(&other, &Tables { tp_size, target }).tables
    };
    assert_eq!(target_of(1, false), table);
    assert_eq!(target_of(2, false), 3 * table);
    assert_eq!(target_of(2, true), 2 * table);
    let Weights {
        projections,
        tables,
    } = count(Head::Model, 2, false);
    assert_eq!(projections + tables, draft(Head::Model).model.parameters());
    assert_eq!(tables, 100 * 32);
}

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
fn memory_of_drafts() {
    for (kind, rest, of_weight, of_token) in [
        // A key and a value for each of 4 heads, 8 wide.
        (Head::Eagle, "", 2, 2 * 4 * 8 * 2),
        (Head::Eagle3, "--dtype float32", 4, 2 * 4 * 8 * 4),
        (Head::Model, "--kv-cache-dtype int8", 2, 2 * 4 * (4 + 4)),
    ] {
        let engine = resolved(kind, rest);
        let target = &engine.model;
        let count = weights(&draft(kind), &Tables { tp_size: 1, target });
        let memory = draft_memory(&engine).expect("a draft");
        let values = count.projections + count.tables;
        assert_eq!(memory.weights, of_weight * values as u64, "{kind:?}");
        let tokens = (engine.kv.num_pages * engine.kv.page_size) as u64;
        assert_eq!(memory.kv, tokens * of_token, "{kind:?}");
    }
    assert_eq!(draft_memory(&resolve_line("").expect("fits").0), None);
}

/// A tree of many nodes of which few are verified takes more than a chain.
#[test]
fn activations_grow_with_the_nodes_that_are_drafted() {
    let bytes = |topk: usize| {
        let rest = format!(
            "--speculative-num-steps 8 --speculative-eagle-topk {topk} \
             --speculative-num-draft-tokens 9 --max-running-requests 64 --chunked-prefill-size 64"
        );
        let engine = resolved(Head::Eagle, &rest);
        let sizing = Sizing {
            dtype: engine.dtype,
            quantization: engine.quantization,
            kv_dtype: engine.kv.dtype,
            tp_size: 1,
            nnodes: 1,
            node_rank: 0,
            page_size: engine.kv.page_size,
            radix_cache: true,
            step: engine.step_limits(),
            overlap: true,
            speculation: engine.speculation,
            drafter_bytes: 0,
            context_length: None,
            max_total_tokens: None,
            mem_fraction_static: 0.5,
        };
        activation_bytes(&engine.model, &sizing)
    };
    // Rows of the draft's pass: 64 + 64 · 9 + 2 · 64, or 64 · (1 + 8 · topk).
    let (chain, tree) = (bytes(1), bytes(16));
    assert!(tree > 10 * chain, "{tree} {chain}");
    assert!(tree < 25 * chain, "{tree} {chain}");
}

#[test]
fn the_reserve_is_what_a_step_may_write_and_an_unseen_one_may_commit() {
    // (options, slots of a step, committed at the most, reserve with overlap)
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

    /// Whatever the shape: the longest text and its reserve fit into the cache,
    /// and the cache is not more than all requests can use.
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
            // Not one token beside the reserve: all nodes, and the longest path.
            (Err(_), Some(total)) => {
                let nodes = (steps * topk).max(1 + steps * topk);
                let lag = if overlap { steps + 1 } else { 0 };
                prop_assert!(total / page * page <= nodes + lag);
            }
            (Err(error), None) => prop_assert!(false, "{error}"),
        }
    }
}
