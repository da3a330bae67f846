use lockstep_types::{
    ConfigError, Dtype, KvCacheDtype, Quantization, SchedulePolicy, TimeoutConfig,
};

use crate::testing::{Program, algorithms, machine, resolve_line};
use crate::{ConfigFile, resolve};

#[test]
fn defaults() {
    let (engine, node) = resolve_line("").expect("good");
    assert_eq!(engine.dtype, Dtype::Bfloat16);
    assert_eq!(
        (engine.parallel.tp_size, engine.parallel.threads_per_rank),
        (1, 2)
    );
    assert_eq!(
        (engine.server.host.as_str(), engine.server.port),
        ("127.0.0.1", 8000)
    );
    assert_eq!(engine.server.grpc_port, Some(8001));
    assert_eq!(engine.server.sglang_grpc_port, None);
    assert!(!engine.server.api_key_required);
    assert_eq!(engine.kv.page_size, 16);
    assert_eq!(engine.schedule.chunked_prefill_size, Some(512));
    assert_eq!(engine.schedule.policy, SchedulePolicy::Fcfs);
    assert!(engine.schedule.overlap && engine.kv.radix_cache && !engine.schedule.priorities);
    assert_eq!(engine.speculation.max_speculative_num_draft_tokens, 0);
    assert_eq!((node.log.as_str(), node.log_json), ("info", false));
}

#[test]
fn options_arrive() {
    let (engine, node) = resolve_line(
        "--tp 2 --threads-per-rank 3 --dtype float32 --page-size 64 --port 9000 --grpc-port 0 \
         --sglang-grpc-port 9005 --served-model-name m --api-key k --chunked-prefill-size -1 \
         --schedule-policy lpm --enable-priority-scheduling --disable-overlap-schedule \
         --context-length 100 --request-timeout 7 --queue-timeout 8 --watchdog-timeout 9 \
         --health-timeout 10 --drain-delay 14 --drain-timeout 11 --startup-timeout 12 --weight-update-timeout 13 --max-stop-strings 9 \
         --log-level debug --log-json --weight-cache /w --max-queued-requests 5 --tokenizer-managers 2",
    )
    .expect("good");
    let (parallel, server, schedule) = (&engine.parallel, &engine.server, &engine.schedule);
    assert_eq!((parallel.tp_size, parallel.threads_per_rank), (2, 3));
    assert_eq!(parallel.tokenizer_managers, 2);
    assert_eq!((engine.dtype, engine.kv.page_size), (Dtype::Float32, 64));
    assert_eq!((server.port, server.grpc_port), (9000, None));
    assert_eq!(server.sglang_grpc_port, Some(9005));
    assert_eq!(
        (server.served_model_name.as_str(), server.context_length),
        ("m", 100)
    );
    assert_eq!(
        (server.api_key_required, node.api_key.as_deref()),
        (true, Some("k"))
    );
    assert_eq!(server.limits.request.stops, 9);
    assert_eq!(
        (schedule.chunked_prefill_size, schedule.max_prefill_tokens),
        (None, 100)
    );
    assert_eq!(
        (schedule.policy, schedule.max_queued_requests),
        (SchedulePolicy::Lpm, 5)
    );
    assert!(schedule.priorities && !schedule.overlap);
    let times = TimeoutConfig {
        request_s: Some(7),
        queue_s: Some(8),
        step_watchdog_s: 9,
        health_s: 10,
        drain_s: 11,
        drain_delay_s: 14,
        startup_s: 12,
        weight_update_s: 13,
    };
    assert_eq!(engine.timeouts, times);
    assert_eq!((node.log.as_str(), node.log_json), ("debug", true));
    assert_eq!(node.weight_cache, Some("/w".into()));
    assert_eq!(node.weight_update_dir, None);
}

#[test]
fn port_0_closes_a_port_that_may_be_closed() {
    let (engine, _) = resolve_line("--grpc-port 0 --sglang-grpc-port 0").expect("good");
    let server = &engine.server;
    assert_eq!((server.grpc_port, server.sglang_grpc_port), (None, None));
}

#[test]
fn folders_of_weights_are_named_in_one_that_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let (_, node) = resolve_line(&format!("--weight-update-dir {path}")).expect("good");
    assert_eq!(node.weight_update_dir, Some(path.into()));
    assert!(format!("{node:?}").contains(path));
    let missing = format!("--weight-update-dir {path}/none");
    let error = resolve_line(&missing).expect_err("nothing there");
    assert!(error.to_string().contains(&missing), "{error}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let file = format!("--weight-update-dir {}", file.path().display());
    let error = resolve_line(&file).expect_err("no folder");
    assert!(error.to_string().contains(&file), "{error}");
}

/// Command lines that cannot be served, and texts in the error.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "--tp-size 3",
        &["--tp-size 3", "8 attention heads", "1, 2, 4, 8"],
    ),
    ("--tp-size 16", &["--tp-size 16", "1, 2, 4, 8"]),
    ("--nnodes 2", &["--tp-size 1", "--nnodes 2"]),
    (
        "--nnodes 2 --tp 2",
        &[
            "--nnodes 2",
            "--dist-init-addr",
            "--dist-init-addr 10.0.0.1:5000",
        ],
    ),
    (
        "--nnodes 2 --tp 2 --dist-init-addr a:1",
        &["--nnodes 2", "--dist-secret", "openssl"],
    ),
    (
        "--nnodes 2 --tp 2 --dist-init-addr a --dist-secret 0123456789abcdef",
        &["--dist-init-addr a", "host:port"],
    ),
    (
        "--nnodes 2 --tp 2 --dist-init-addr a:0 --dist-secret 0123456789abcdef",
        &["host:port"],
    ),
    (
        "--nnodes 2 --tp 2 --dist-init-addr a:1 --dist-secret 0123456789abcdef --node-rank 2",
        &["--node-rank 2", "--nnodes 2", "below 2"],
    ),
    ("--node-rank 1", &["--node-rank 1", "--nnodes 1"]),
    ("--load-format gguf", &["--load-format", "safetensors"]),
    (
        "--load-format dummy --weight-cache /w",
        &["--weight-cache /w", "--load-format dummy"],
    ),
    ("--dist-init-addr a:1", &["--dist-init-addr", "--nnodes 1"]),
    (
        "--dist-secret 0123456789abcdef",
        &["--dist-secret", "--nnodes 1"],
    ),
    (
        "--dist-secret fifteen-letters",
        &["--dist-secret", "16 characters", "openssl"],
    ),
    (
        "--dist-secret 0123456789abcdef --dist-secret-file f",
        &["--dist-secret", "--dist-secret-file"],
    ),
    (
        "--api-key s --api-key-file f",
        &["--api-key", "--api-key-file"],
    ),
    (
        "--api-key-file /nowhere/key",
        &["--api-key-file /nowhere/key"],
    ),
    ("--api-key ä", &["--api-key", "printable ASCII"]),
    ("--port 0", &["--port 0"]),
    ("--port 65535", &["--port 65535", "--grpc-port"]),
    (
        "--port 9000 --grpc-port 9000",
        &["--port 9000", "--grpc-port 9000"],
    ),
    (
        "--sglang-grpc-port 8001",
        &["--grpc-port 8001", "--sglang-grpc-port 8001"],
    ),
    ("--host http://x", &["--host http://x"]),
    ("--context-length 513", &["--context-length 513", "512"]),
    ("--page-size 5000", &["--page-size 5000"]),
    (
        "--sglang-grpc-port 8000",
        &["--port 8000", "--sglang-grpc-port 8000"],
    ),
    (
        "--ssl-ca-certs roots.pem",
        &["--ssl-ca-certs", "Give --ssl-certfile too"],
    ),
    (
        "--cors-allowed-origins https://user@chat.example.com",
        &["--cors-allowed-origins https://user@", "scheme and host"],
    ),
    ("--mem-fraction-static 0", &["--mem-fraction-static 0"]),
    ("--mem-fraction-static 1.5", &["--mem-fraction-static 1.5"]),
    ("--mem-fraction-static NaN", &["--mem-fraction-static NaN"]),
    (
        "--max-total-tokens 8",
        &["--max-total-tokens 8", "--page-size 16"],
    ),
    (
        "--max-total-tokens 64 --context-length 64",
        &["--context-length 64", "--max-total-tokens"],
    ),
    (
        "--chunked-prefill-size 0",
        &["--chunked-prefill-size 0", "-1"],
    ),
    ("--chunked-prefill-size -2", &["--chunked-prefill-size -2"]),
    (
        "--chunked-prefill-size 99 --max-prefill-tokens 98",
        &["--max-prefill-tokens 98", "--chunked-prefill-size 99"],
    ),
    (
        "--chunked-prefill-size -1 --max-prefill-tokens 511",
        &["--chunked-prefill-size -1", "--max-prefill-tokens 511"],
    ),
    (
        "--schedule-policy lpm --disable-radix-cache",
        &["--schedule-policy lpm", "--disable-radix-cache"],
    ),
    (
        "--max-queued-tokens 511",
        &["--max-queued-tokens 511", "512"],
    ),
    (
        "--max-running-requests 65537",
        &["--max-running-requests", "--max-queued-requests"],
    ),
    ("--tokenizer-managers 65", &["--tokenizer-managers 65"]),
    ("--max-json-depth 128", &["--max-json-depth 128", "127"]),
    (
        "--max-header-bytes 100",
        &["--max-header-bytes 100", "8192"],
    ),
    ("--pin-cores x", &["--pin-cores x", "0-3|4-7"]),
    ("--pin-cores 0-1|1", &["--pin-cores", "1 lists"]),
    ("--tp 2 --pin-cores 0|0", &["core 0 is given twice"]),
    ("--tp 4 --pin-cores 0|1|0|1", &["core 0 is given twice"]),
    (
        "--dist-ssl-certfile c.pem --dist-ssl-keyfile k.pem",
        &["--dist-ssl-keyfile", "Give --dist-ssl-ca-certs too"],
    ),
    ("--tp 2 --pin-cores 0|7", &["core 7 is not available"]),
    (
        "--pin-cores 0-1 --threads-per-rank 1",
        &["--threads-per-rank 1", "--pin-cores 0-1"],
    ),
    (
        "--pin-cores auto --threads-per-rank 3",
        &["--pin-cores auto", "--threads-per-rank"],
    ),
    ("--tp 4 --pin-cores auto", &["--pin-cores auto", "4 ranks"]),
    ("--pp 2", &["--pp is not an option here", "--tp-size"]),
    (
        "--ep-size 2",
        &["--ep-size 2", "no experts", "Leave it out"],
    ),
    (
        "--enable-expert-parallel",
        &["--enable-expert-parallel", "--ep-size"],
    ),
    (
        "--gpu-memory-utilization 0.9",
        &["--gpu-memory-utilization", "--mem-fraction-static"],
    ),
    (
        "--tool-call-parser qwen9",
        &["--tool-call-parser qwen9", "auto, none, ", "qwen3_coder"],
    ),
    (
        "--reasoning-parser qwen9",
        &["--reasoning-parser qwen9", "auto, none, ", "deepseek-r1"],
    ),
    (
        "--enable-auto-tool-choice",
        &["--enable-auto-tool-choice", "--tool-call-parser"],
    ),
    (
        "--device cuda --base-gpu-id 1",
        &["--device", "there is no GPU 1", "lockstep doctor"],
    ),
    (
        "--device cpu --base-gpu-id 0",
        &["--base-gpu-id", "--device"],
    ),
    (
        "--device auto --base-gpu-id 3",
        &["--base-gpu-id 3", "there is no GPU 3"],
    ),
    (
        "--device auto --base-gpu-id 0 --quantization int8",
        &["--base-gpu-id 0", "--quantization int8"],
    ),
    ("--base-gpu-id 0", &["--base-gpu-id", "--device cuda"]),
    (
        "--device cuda --tp 2",
        &[
            "--device cuda",
            "2 ranks of a node",
            "there is no GPU 1",
            "--gpu-id-step 0",
            "--tp-size",
        ],
    ),
    (
        "--device auto --gpu-id-step 3 --tp 2",
        &["--gpu-id-step 3", "there is no GPU 3", "share GPU 0"],
    ),
    (
        "--gpu-id-step 0 --tp 2",
        &["--gpu-id-step 0", "--device cuda"],
    ),
    (
        "--device cuda --quantization int4",
        &["--quantization int4", "--device cuda", "--device cpu"],
    ),
    (
        "--device cuda --kv-cache-dtype int8",
        &["--kv-cache-dtype int8", "--device cuda", "bfloat16"],
    ),
    (
        "--isa mmx",
        &["--isa", "mmx", "there is no mmx", "lockstep doctor"],
    ),
    (
        "--device cuda --isa scalar",
        &["--isa scalar", "--device cuda", "--device cpu"],
    ),
    (
        "--cuda-graph-bs 1,2",
        &["--cuda-graph-bs 1,2", "--device cpu", "--device cuda"],
    ),
    (
        "--disable-cuda-graph",
        &["--disable-cuda-graph", "--device cpu", "--device cuda"],
    ),
    (
        "--device cuda --cuda-graph-bs 1,2 --disable-cuda-graph",
        &["--cuda-graph-bs 1,2", "--disable-cuda-graph", "one of them"],
    ),
    (
        "--device cuda --tp 2 --gpu-id-step 0 --cuda-graph-max-bs 4",
        &["--cuda-graph-max-bs 4", "--tp-size 2", "--tp-size 1"],
    ),
    (
        "--device cuda --tp 2 --gpu-id-step 0 --collective-backend nccl",
        &[
            "--collective-backend nccl",
            "--gpu-id-step 0",
            "share a GPU",
        ],
    ),
    (
        "--device cuda --threads-per-rank 2",
        &["--threads-per-rank 2", "--device cuda"],
    ),
    (
        "--device cuda --pin-cores auto",
        &["--pin-cores auto", "--device cuda"],
    ),
    (
        "--device cuda --dp-size 2 --tp 2 --enable-dp-attention",
        &["2 ranks of a node", "--gpu-id-step 0", "--device cpu"],
    ),
    (
        "--chat-template x",
        &["--chat-template", "chat_template.jinja"],
    ),
    (
        "--kv-cache-dtype fp8_e5m2",
        &["--kv-cache-dtype fp8_e5m2", "8-bit floats", "int8"],
    ),
    (
        "--kv-cache-dtype fp8_e4m3",
        &["--kv-cache-dtype fp8_e4m3", "int8"],
    ),
    ("--kv-cache-dtype fp8", &["--kv-cache-dtype fp8:", "int8"]),
    (
        "--load-format gguf",
        &["--load-format gguf", "safetensors", "dummy"],
    ),
    ("--load-format pt", &["--load-format pt", "safetensors"]),
    ("--trust-remote-code", &["--trust-remote-code", "never run"]),
];

#[test]
fn what_cannot_be_served_is_refused_with_a_remedy() {
    for (line, names) in REFUSED {
        let error = resolve_line(line).map(|_| ()).expect_err(line).to_string();
        for name in *names {
            assert!(error.contains(name), "{line}: {name:?} is not in: {error}");
        }
        assert!(
            error.ends_with('.') || error.contains("os error"),
            "{line}: {error}"
        );
    }
}

/// Nodes compare their configurations, so equal settings need one spelling.
#[test]
fn kernels_are_known_by_one_spelling() {
    for line in ["--isa scalar", "--isa SCALAR"] {
        let (engine, _) = resolve_line(line).expect(line);
        assert_eq!(engine.isa.as_deref(), Some("scalar"), "{line}");
    }
}

/// Command lines that are fine although they are close to refused ones.
#[test]
fn what_means_nothing_new_is_accepted() {
    for line in [
        "--dp-size 1 --pp-size 1 --ep 1 --kv-cache-dtype auto",
        "--device cpu --max-model-len 256 --max-num-seqs 2",
        "--nnodes 1 --node-rank 0",
        "--nnodes 2 --tp 2 --node-rank 1 --dist-init-addr [::1]:5000 --dist-secret 0123456789abcdef",
        "--sglang-grpc-port 0",
        "--tp 2 --pin-cores auto",
        "--tp 2 --pin-cores 1|0",
        "--tp 8 --threads-per-rank 4",
        "--schedule-policy fcfs --disable-radix-cache",
        "--max-prefill-tokens 100",
        "--chunked-prefill-size -1 --max-prefill-tokens 512",
        "--page-size 1 --max-total-tokens 514",
        "--max-total-tokens 64",
    ] {
        if let Err(error) = resolve_line(line) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn the_caches_type_follows_the_models_unless_it_is_given() {
    use {Dtype::*, KvCacheDtype as Kv, Quantization as Weights};
    for (line, expected) in [
        ("", (Bfloat16, Weights::None, Kv::Bfloat16)),
        (
            "--dtype float32 --kv-cache-dtype auto",
            (Float32, Weights::None, Kv::Float32),
        ),
        (
            "--dtype float32 --quantization int4",
            (Float32, Weights::Int4, Kv::Float32),
        ),
        (
            "--quantization w8a8_int8 --kv-cache-dtype float32",
            (Bfloat16, Weights::Int8, Kv::Float32),
        ),
        (
            "--quantization none --kv-cache-dtype int8",
            (Bfloat16, Weights::None, Kv::Int8),
        ),
        (
            "--dtype float32 --kv-cache-dtype bf16",
            (Float32, Weights::None, Kv::Bfloat16),
        ),
    ] {
        let (engine, _) = resolve_line(line).expect(line);
        let found = (engine.dtype, engine.model.quantization, engine.kv.dtype);
        assert_eq!(found, expected, "{line}");
    }
}

#[test]
fn chunks_and_steps_follow_each_other() {
    let table = [
        ("", 1024, Some(512)),
        ("--chunked-prefill-size 2048", 2048, Some(2048)),
        ("--max-prefill-tokens 100", 100, Some(100)),
        ("--max-prefill-tokens 4096", 4096, Some(512)),
        ("--chunked-prefill-size -1", 512, None),
        (
            "--chunked-prefill-size -1 --max-prefill-tokens 600",
            600,
            None,
        ),
    ];
    for (line, tokens, chunk) in table {
        let schedule = resolve_line(line).expect(line).0.schedule;
        assert_eq!(
            (schedule.max_prefill_tokens, schedule.chunked_prefill_size),
            (tokens, chunk),
            "{line}"
        );
    }
}

#[test]
fn threads_and_cores_are_shared_out() {
    let nodes = "--tp 2 --nnodes 2 --dist-init-addr a:1 --dist-secret 0123456789abcdef";
    let table: [(&str, usize, &[&[usize]]); 6] = [
        ("--tp 1", 2, &[]),
        ("--tp 8", 1, &[]),
        // Each has a machine of its own.
        (nodes, 2, &[]),
        ("--tp 1 --pin-cores auto", 2, &[&[0, 1]]),
        ("--tp 2 --pin-cores auto", 1, &[&[0], &[1]]),
        ("--tp 2 --pin-cores 1|0", 1, &[&[1], &[0]]),
    ];
    for (line, threads, cores) in table {
        let (engine, node) = resolve_line(line).expect(line);
        assert_eq!(engine.parallel.threads_per_rank, threads, "{line}");
        assert_eq!(node.cores, cores, "{line}");
    }
}

#[test]
fn the_console_is_served_unless_it_is_turned_off() {
    for (line, served) in [("", true), ("--disable-console", false)] {
        let (engine, _) = resolve_line(line).expect("good");
        assert_eq!(engine.server.web.console, served, "{line}");
    }
}

mod access;
mod bounds;
mod cores;
mod dp_attention;
mod ep_size;
mod load_format;
mod lora;
mod own_draft;

#[test]
fn a_folder_is_required() {
    let args = Program::parse_words(["lockstep"]).expect("parses").args;
    let error =
        resolve(&args, &machine(), &algorithms(), &crate::testing::Plain).expect_err("no model");
    assert!(matches!(
        error,
        ConfigError::Value {
            option: "--model-path",
            ..
        }
    ));
}

#[test]
fn the_file_is_private_and_of_this_version() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (engine, mut node) = resolve_line("--api-key k").expect("good");
    node.run_dir = dir.path().to_owned();
    let file = ConfigFile::new(engine, node);
    file.write().expect("written");
    let path = file.node.config_file();
    let mode = std::fs::metadata(&path)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(ConfigFile::read(dir.path()).expect("read") == file);
    assert!(file.write().is_err(), "never overwritten");
    let text = std::fs::read_to_string(&path).expect("read");
    std::fs::write(&path, text.replace(env!("CARGO_PKG_VERSION"), "0.0.0")).expect("written");
    let error = ConfigFile::read(dir.path())
        .map(|_| ())
        .expect_err("another version")
        .to_string();
    assert!(error.contains("another version"), "{error}");
}
