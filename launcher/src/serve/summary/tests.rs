use std::num::NonZeroUsize;

use lockstep_config::ServeArgs;
use lockstep_config::args::VerificationArg;
use lockstep_traces::Destination;
use lockstep_types::{
    DeviceKind, GatedDeltaNames, GatedDeltaSpec, LatentAttentionNames, LatentAttentionSpec, Mixer,
    NodeConfig, RopeConfig, SpeculationConfig, TlsFiles, TraceConfig,
};

use super::{
    curl, dp_ranks, exchange, experts, grouped, kv_cache, on_each, reachable, rounded, speculation,
    traces,
};
use crate::settings::tests::{config_file, config_of};

#[test]
fn the_curl_line_is_a_request_that_parses() {
    let mut engine = config_file().engine;
    engine.server.host = "0.0.0.0".into();
    engine.server.port = 9000;
    let node = |key: Option<&str>, tls| NodeConfig {
        api_key: key.map(str::to_owned),
        tls,
        ..NodeConfig::default()
    };
    let line = curl(&engine, &node(Some("k"), None));
    assert!(
        line.contains("http://127.0.0.1:9000/v1/chat/completions"),
        "{line}"
    );
    assert!(
        line.contains("Authorization: Bearer $LOCKSTEP_API_KEY"),
        "{line}"
    );
    let body = line
        .split("-d '")
        .nth(1)
        .and_then(|rest| rest.strip_suffix('\''))
        .expect("a body");
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body["model"], engine.server.served_model_name);
    assert!(!line.contains("--cacert"), "{line}");
    let mut files = TlsFiles {
        certificate: "server.pem".into(),
        key: "server.key".into(),
        client_roots: None,
    };
    let line = curl(&engine, &node(None, Some(files.clone())));
    assert!(line.contains("curl -N --cacert ROOT.pem https"), "{line}");
    assert!(line.contains("https://127.0.0.1:9000/"), "{line}");
    assert!(!line.contains("Authorization"));
    files.client_roots = Some("clients.pem".into());
    let line = curl(&engine, &node(None, Some(files)));
    assert!(line.contains("--cert CLIENT.pem"), "{line}");
}

#[test]
fn where_traces_go_is_told() {
    for (sample_ppm, expected) in [
        (1_000_000, "of all requests, to http://c:4317"),
        (0, "of requests whose callers trace them, to http://c:4317"),
        (2_500, "of 0.25% of the requests, to http://c:4317"),
    ] {
        let config = TraceConfig {
            endpoint: Some("http://u:p@c:4317".to_owned()),
            sample_ppm: Some(sample_ppm),
        };
        let to = Destination::of(&config).expect("good");
        assert_eq!(traces(&to), expected);
    }
}

#[test]
fn numbers_and_addresses_for_people() {
    assert_eq!(
        [grouped(7), grouped(999), grouped(1000), grouped(1_234_567)],
        ["7", "999", "1,000", "1,234,567"]
    );
    assert_eq!(
        [rounded(7_900_000), rounded(1_235_814_400)],
        ["7.9 million", "1.24 billion"]
    );
    assert_eq!(
        ["127.0.0.1", "::", "::1", "example.org"].map(reachable),
        ["127.0.0.1", "[::1]", "[::1]", "example.org"]
    );
}

/// Caches of layers with windows are smaller, as far as the others are large.
#[test]
fn caches_are_told_by_kind() {
    let mut engine = config_file().engine;
    engine.kv.num_pages = 100_001;
    engine.kv.page_size = 16;
    assert_eq!(kv_cache(&engine), "1,600,000 tokens in pages of 16");
    engine.model.layers[0].attention_mut().unwrap().window = NonZeroUsize::new(512);
    engine.schedule.max_running_requests = 10;
    engine.schedule.chunked_prefill_size = Some(160);
    engine.speculation = SpeculationConfig::none();
    let kept = (10 * (33 + 4) + 2 * 10 + 10 * 33) * 16;
    let told = format!(
        "1,600,000 tokens in pages of 16, {} of layers with windows",
        grouped(kept)
    );
    assert_eq!(kv_cache(&engine), told);
    engine.kv.num_pages = 5;
    let told = "64 tokens in pages of 16, 64 of layers with windows";
    assert_eq!(kv_cache(&engine), told);
}

/// A model with recurrent layers has states beside the cache of tokens.
#[test]
fn recurrent_states_are_told() {
    let mut engine = config_file().engine;
    engine.kv.num_pages = 100_001;
    engine.kv.page_size = 16;
    engine.kv.states = 1234;
    engine.model.layers[1].mixer = Mixer::GatedDelta(GatedDeltaSpec {
        key_heads: 16,
        value_heads: 32,
        key_dim: 128,
        value_dim: 128,
        taps: 4,
        names: GatedDeltaNames::default(),
    });
    let told = "1,600,000 tokens in pages of 16, 1,234 recurrent states of 2.2 MB";
    assert_eq!(kv_cache(&engine), told);
}

/// Ranks that split the heads of latent attention have the same caches.
#[test]
fn the_way_out_of_equal_caches_is_told() {
    let mut engine = config_file().engine;
    engine.kv.num_pages = 101;
    engine.kv.page_size = 10;
    let plain = "1,000 tokens in pages of 10";
    engine.parallel.tp_size = 4;
    assert_eq!(kv_cache(&engine), plain);
    for layer in &mut engine.model.layers {
        layer.mixer = Mixer::LatentAttention(LatentAttentionSpec {
            heads: 8,
            nope: 16,
            rotated: 8,
            latent: 32,
            value: 16,
            query_latent: None,
            scale: 1.0,
            rope: RopeConfig::plain(10_000.0),
            interleaved: true,
            bias: false,
            norm_eps: 1e-6,
            names: LatentAttentionNames::default(),
        });
    }
    let told = format!(
        "{plain}, the same latents on 4 ranks (--enable-dp-attention --dp-size 4 gives each its \
         own: up to 4,000 tokens in all)"
    );
    assert_eq!(kv_cache(&engine), told);
    engine.parallel.dp_size = 4;
    assert_eq!(
        kv_cache(&engine),
        "1,000 tokens on each DP rank in pages of 10"
    );
}

#[test]
fn dp_ranks_are_told_in_plain_words() {
    let mut engine = config_file().engine;
    assert_eq!((dp_ranks(&engine), on_each(&engine)), (None, ""));
    engine.schedule.max_running_requests = 9;
    for (tp_size, dp_size, expected) in [
        (
            4,
            2,
            "2 of 2 ranks, each with its own requests (at most 4), KV cache and drafts",
        ),
        (
            3,
            3,
            "3 of 1 rank, each with its own requests (at most 3), KV cache and drafts",
        ),
    ] {
        (engine.parallel.tp_size, engine.parallel.dp_size) = (tp_size, dp_size);
        let told = dp_ranks(&engine).expect("several");
        assert!(told.starts_with(expected), "{told}");
        assert_eq!(on_each(&engine), " on each DP rank");
    }
}

#[test]
fn experts_of_their_own_are_told() {
    let mut engine = config_file().engine;
    assert_eq!(experts(&engine), None);
    (engine.parallel.tp_size, engine.parallel.ep_size) = (4, 2);
    let told = experts(&engine).expect("several");
    assert_eq!(told, "2 groups of 2 ranks, each with experts of its own");
}

#[test]
fn the_way_of_data_between_gpus_is_told() {
    let mut engine = config_file().engine;
    engine.parallel.tp_size = 4;
    assert_eq!(
        exchange(&engine, None),
        None,
        "cores read each other's memory"
    );
    engine.device.kind = DeviceKind::Cuda;
    for (ranks, nnodes, gpu_id_step, expected) in [
        (1, 1, 1, None),
        (
            4,
            1,
            1,
            Some("data of the 4 ranks passes through the host's memory"),
        ),
        (
            4,
            2,
            0,
            Some("data of the 4 ranks passes through the host's memory; each GPU has 2 of them"),
        ),
    ] {
        (engine.parallel.tp_size, engine.parallel.nnodes) = (ranks, nnodes);
        engine.device.gpu_id_step = gpu_id_step;
        assert_eq!(exchange(&engine, None).as_deref(), expected);
    }
    let words = "cuda 0 NVIDIA H100, sm_90, bf16, NCCL 2.28.3 between 4 ranks";
    let expected = "data goes from GPU to GPU by NCCL 2.28.3 between 4 ranks";
    assert_eq!(exchange(&engine, Some(words)).as_deref(), Some(expected));
}

#[test]
fn drafts_and_what_they_take_are_told() {
    assert_eq!(speculation(&config_file().engine), None);
    let asked = |algorithm: &str, change: &dyn Fn(&mut ServeArgs)| {
        let mut args = ServeArgs::default();
        args.memory.max_total_tokens = Some(1600);
        args.speculation.speculative_algorithm = Some(algorithm.into());
        change(&mut args);
        speculation(&config_of(args).engine).expect("it speculates")
    };
    assert_eq!(
        asked("EAGLE3", &|args| args.model.context_length = Some(100)),
        "EAGLE3, 0 to 3 steps, chosen by goodput, 3 at first, \
         draft weights 3.4 MB, draft KV cache 1.7 MB"
    );
    let tree = asked("eagle3", &|args| {
        args.speculation.speculative_eagle_topk = Some(4);
        args.speculation.speculative_num_draft_tokens = Some(16);
        args.speculation.speculative_verification = Some(VerificationArg::Rejection);
    });
    assert!(
        tree.starts_with(
            "EAGLE3, 3 steps of 4 branches, 16 tokens verified, rejection verification, draft"
        ),
        "{tree}"
    );
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), r#"{"strategy": "static"}"#).expect("written");
    let adaptive = asked("NGRAM", &|args| {
        args.speculation.speculative_adaptive = Some(true);
        args.speculation.speculative_adaptive_config = Some(file.path().to_owned());
        args.speculation.speculative_num_steps = Some(2);
        args.speculation.speculative_eagle_topk = Some(2);
    });
    assert_eq!(
        adaptive,
        "NGRAM, 0, 1, 2, 3, 5 or 7 steps of 2 branches, at most 15 tokens verified, \
         chosen by static, 2 at first"
    );
    let none = asked("NGRAM", &|args| {
        args.speculation.speculative_num_steps = Some(1);
    });
    assert_eq!(none, "NGRAM, 1 step");
}
