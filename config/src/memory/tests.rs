use lockstep_types::{
    Dtype, KvCacheDtype, ModelConfig, Quantization, SpeculationConfig, StepLimits,
};
use proptest::prelude::*;

use super::{Sizing, activation_bytes, kv_bytes_per_token, size, weight_bytes};
use crate::Hardware;
use crate::testing::{folder, llama, machine, resolve_line, resolve_model, with};

fn model() -> ModelConfig {
    lockstep_model_folder::load(folder(&llama(), None).path()).expect("a served model")
}

/// Of texts as long as the model's, or of prompts cut into chunks.
fn step(requests: usize, chunk: Option<usize>) -> StepLimits {
    StepLimits {
        requests,
        tokens: chunk.unwrap_or(100_000) + requests,
        positions: 512,
        max_commit: 1,
        draft_nodes: 1,
    }
}

fn sizing() -> Sizing {
    Sizing {
        dtype: Dtype::Bfloat16,
        quantization: Quantization::None,
        kv_dtype: KvCacheDtype::Bfloat16,
        tp_size: 1,
        nnodes: 1,
        node_rank: 0,
        page_size: 16,
        radix_cache: true,
        step: step(64, Some(512)),
        overlap: true,
        speculation: SpeculationConfig::none(),
        drafter_bytes: 0,
        context_length: None,
        max_total_tokens: None,
        mem_fraction_static: 0.85,
    }
}

#[test]
fn bytes_of_a_token_and_of_the_weights() {
    // 2 (K and V) × 2 layers × 4 heads × 8 wide × 2 bytes.
    assert_eq!(kv_bytes_per_token(&model(), &sizing()), 256);
    // Over two nodes each holds half.
    let halves = Sizing {
        tp_size: 2,
        nnodes: 2,
        ..sizing()
    };
    assert_eq!(kv_bytes_per_token(&model(), &halves), 128);
    // Eight ranks share four key/value heads: each is held twice.
    let replicated = Sizing {
        tp_size: 8,
        ..sizing()
    };
    assert_eq!(kv_bytes_per_token(&model(), &replicated), 512);
    let wide = Sizing {
        dtype: Dtype::Float32,
        ..sizing()
    };
    assert_eq!(
        weight_bytes(&model(), &wide),
        2 * weight_bytes(&model(), &sizing())
    );
}

#[test]
fn bytes_of_rounded_weights_and_caches() {
    let bytes = |quantization| {
        let sizing = Sizing {
            quantization,
            ..sizing()
        };
        weight_bytes(&model(), &sizing)
    };
    // The table of tokens is tied and counts once: 100 × 64.
    let (table, all) = (6_400, model().parameters() as u64);
    assert_eq!(bytes(Quantization::None), 2 * all);
    // One byte, and two for every 128 weights.
    assert!(bytes(Quantization::Int8).abs_diff(all + all / 64) <= 2);
    // Half a byte, and four for every 128 weights; the table as above.
    let int4 = (all - table) * 17 / 32 + table + table / 64;
    assert!(bytes(Quantization::Int4).abs_diff(int4) <= 2);
    for (kv_dtype, expected) in [
        (KvCacheDtype::Float32, 512),
        (KvCacheDtype::Bfloat16, 256),
        // Of 8 wide heads, with a scale of four bytes each.
        (KvCacheDtype::Int8, 2 * 2 * 4 * 12),
    ] {
        let sizing = Sizing {
            kv_dtype,
            ..sizing()
        };
        assert_eq!(kv_bytes_per_token(&model(), &sizing), expected);
    }
}

#[test]
fn kv_heads_of_a_rank() {
    // (heads, key/value heads, ranks, held by each)
    for (heads, kv, ranks, held) in [
        (32, 8, 1, 8),
        (32, 8, 4, 2),
        (32, 8, 16, 1),
        (32, 32, 4, 8),
        (12, 4, 6, 2),
        (6, 3, 2, 3),
    ] {
        let model = ModelConfig {
            num_heads: heads,
            num_kv_heads: kv,
            ..model()
        };
        assert_eq!(model.kv_heads_per_rank(ranks), held, "{heads} {kv} {ranks}");
    }
}

#[test]
fn with_memory_to_spare_all_running_requests_fit() {
    let (engine, _) = resolve_line("--max-running-requests 4").expect("fits");
    // 512 tokens and two in flight are 33 pages each; page 0 is kept.
    assert_eq!(engine.kv.num_pages, 4 * 33 + 1);
    assert_eq!(engine.kv_tokens(), 4 * 33 * 16);
    assert_eq!(engine.server.context_length, 512);
}

#[test]
fn a_given_cache_is_taken_in_whole_pages() {
    let (engine, _) = resolve_line("--max-total-tokens 1030").expect("fits");
    assert_eq!(engine.kv_tokens(), 1024);
}

#[test]
fn short_memory_shortens_the_context_unless_one_is_asked_for() {
    let model = folder(&llama(), None);
    // Room for weights (about 200 KB), activations and some 150 tokens.
    let tiny = Hardware {
        total_memory: 300_000,
        available_memory: 300_000,
        ..machine()
    };
    const SMALL: &str = "--chunked-prefill-size 16 --max-running-requests 1";
    let (engine, _) = resolve_model(SMALL, model.path(), &tiny).expect("fits");
    assert!((16..512).contains(&engine.server.context_length));
    assert_eq!(engine.server.context_length + 2, engine.kv_tokens());
    let line = format!("{SMALL} --context-length 500");
    let error = resolve_model(&line, model.path(), &tiny).expect_err("too long");
    assert!(
        error.to_string().contains("--context-length 500"),
        "{error}"
    );
    assert!(
        error.to_string().contains("--mem-fraction-static"),
        "{error}"
    );
}

#[test]
fn what_does_not_fit_says_what_would() {
    let model = folder(&llama(), None);
    let none = Hardware {
        available_memory: 1000,
        ..machine()
    };
    let error = resolve_model("", model.path(), &none)
        .expect_err("no memory")
        .to_string();
    assert!(
        error.contains("not enough memory: the weights take"),
        "{error}"
    );
    let error = resolve_line("--max-total-tokens 1000000000")
        .expect_err("too large")
        .to_string();
    assert!(error.contains("--max-total-tokens"), "{error}");
    let fits: usize = error
        .split("Give --max-total-tokens ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .and_then(|number| number.parse().ok())
        .expect("the remedy names a number");
    resolve_line(&format!("--max-total-tokens {fits}")).expect("the remedy works");
}

#[test]
fn nodes_derive_nothing_from_their_memory() {
    let line = "--nnodes 2 --tp-size 2 --dist-init-addr a:1 --dist-secret 0123456789abcdef";
    let model = folder(&llama(), None);
    let small = Hardware {
        available_memory: 7 << 30,
        ..machine()
    };
    let (one, _) = resolve_model(line, model.path(), &machine()).expect("fits");
    let (other, _) = resolve_model(line, model.path(), &small).expect("fits");
    assert_eq!(one.kv, other.kv);
    let tiny = Hardware {
        total_memory: 3_000_000,
        available_memory: 3_000_000,
        ..machine()
    };
    let error = resolve_model(line, model.path(), &tiny)
        .expect_err("must be said")
        .to_string();
    assert!(
        error.contains("--nnodes 2") && error.contains("--max-total-tokens"),
        "{error}"
    );
}

proptest! {
    /// Whatever comes out fits into the memory, holds the context, and is not
    /// more than all running requests can use.
    #[test]
    fn a_sized_cache_fits_and_is_useful(
        available in 0_u64..(1 << 24),
        page_size in 1_usize..70,
        tp_log in 0_u32..4,
        max_running_requests in 1_usize..200,
        context_length in proptest::option::of(1_usize..512),
        max_total_tokens in proptest::option::of(1_usize..100_000),
        mem_fraction_static in 0.05_f64..1.0,
    ) {
        let sizing = Sizing {
            tp_size: 1 << tp_log, page_size, step: step(max_running_requests, Some(512)), context_length,
            max_total_tokens, mem_fraction_static, ..sizing()
        };
        let machine = Hardware { total_memory: 1 << 24, available_memory: available, ..machine() };
        let model = model_once();
        if let Ok(sized) = size(model, &sizing, &machine) {
            let (kv, context) = sized.value;
            let tokens = (kv.num_pages - 1) * kv.page_size;
            let bytes = tokens as u64 * kv_bytes_per_token(model, &sizing)
                + weight_bytes(model, &sizing)
                + activation_bytes(model, &sizing);
            prop_assert!(bytes <= available);
            prop_assert!(context >= 1 && context + 2 <= tokens);
            prop_assert!(context <= context_length.unwrap_or(512));
            prop_assert!(max_total_tokens.is_none_or(|most| tokens <= most));
            if max_total_tokens.is_none() {
                prop_assert!(tokens <= (context_length.unwrap_or(512) + 2 + page_size) * max_running_requests);
            }
            if context_length.is_some() {
                prop_assert_eq!(Some(context), context_length);
            }
        }
    }
}

#[test]
fn whole_prompts_leave_room_for_their_activations() {
    let whole = Sizing {
        step: step(64, None),
        ..sizing()
    };
    let bytes = |sizing: &Sizing| activation_bytes(model_once(), sizing);
    // Floats of a token: 3 × 64, (3 × 8 + 2 × 4) × 8, 3 × 96, and 2 × 100 logits.
    assert_eq!(bytes(&sizing()), (512 + 64) * 4 * (192 + 256 + 288 + 200));
    assert!(bytes(&whole) > 100 * bytes(&sizing()));
}

/// Several whole prompts may run in one step, up to `--max-prefill-tokens`.
#[test]
fn steps_of_several_whole_prompts_are_charged() {
    let model = folder(&llama(), None);
    let small = Hardware {
        total_memory: 32 << 20,
        available_memory: 32 << 20,
        ..machine()
    };
    let tokens = |prefill: usize| {
        let line = format!(
            "--chunked-prefill-size -1 --max-prefill-tokens {prefill} --mem-fraction-static 1 \
             --max-running-requests 1000"
        );
        let (engine, _) = resolve_model(&line, model.path(), &small).expect("fits");
        engine.kv_tokens()
    };
    // Floats of a token as above, and bytes of keys and values.
    let taken = (4096 - 512) * 4 * (192 + 256 + 288) / 256;
    assert!(tokens(512) >= tokens(4096) + taken);
}

fn model_once() -> &'static ModelConfig {
    static MODEL: std::sync::OnceLock<ModelConfig> = std::sync::OnceLock::new();
    MODEL.get_or_init(model)
}

#[test]
fn huge_models_do_not_overflow() {
    let huge = with(
        llama(),
        &serde_json::json!({"num_hidden_layers": 1_000_000, "vocab_size": 2_000_000_000}),
    );
    let error = resolve_model("", folder(&huge, None).path(), &machine()).expect_err("too large");
    assert!(error.to_string().contains("not enough memory"), "{error}");
}
