//! Tests of the public service for SGLang's gateway.

use std::net::TcpListener;

use futures::StreamExt as _;
use lockstep_config::ServeArgs;
use lockstep_proto::pb::{
    sglang::grpc::scheduler::{
        EmbedRequest, GenerateRequest, GenerateResponse, GetLoadsRequest, GetModelInfoRequest,
        GetServerInfoRequest, HealthCheckRequest, SamplingParams, TokenizedInput,
        generate_response::Response, sampling_params::Constraint,
        sglang_scheduler_client::SglangSchedulerClient,
    },
    smg::grpc::common::{
        FlushCacheRequest, GetTokenizerRequest, SubscribeKvEventsRequest, kv_cache_event::Data,
    },
};
use sha2::{Digest as _, Sha256};
use tonic::{Code, transport::Channel};

use crate::fixture::{LIMIT, Scheduler, args};

pub type Client = SglangSchedulerClient<Channel>;

pub async fn serving() -> (Scheduler, Client) {
    serving_with(|_| {}).await
}

/// Returns a port that no program has.
pub fn free_port() -> u16 {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    port.expect("a free port").port()
}

pub async fn serving_with(change: impl FnOnce(&mut ServeArgs)) -> (Scheduler, Client) {
    let port = free_port();
    let mut args = args(2);
    args.server.sglang_grpc_port = Some(port);
    change(&mut args);
    let (scheduler, _) = Scheduler::serving(&args).await;
    let channel = lockstep_process::connect_tcp(&format!("127.0.0.1:{port}"), LIMIT, None).await;
    (
        scheduler,
        SglangSchedulerClient::new(channel.expect("listening")),
    )
}

pub fn generate(prompt: &[u32], tokens: u32) -> GenerateRequest {
    GenerateRequest {
        request_id: format!("r{}", prompt.len()),
        tokenized: Some(TokenizedInput {
            input_ids: prompt.to_vec(),
            ..Default::default()
        }),
        sampling_params: Some(SamplingParams {
            max_new_tokens: Some(tokens),
            ignore_eos: true,
            ..Default::default()
        }),
        stream: true,
        logprob_start_len: -1,
        ..Default::default()
    }
}

pub async fn collect(client: &mut Client, request: GenerateRequest) -> Vec<GenerateResponse> {
    let stream = client
        .generate(request)
        .await
        .expect("accepted")
        .into_inner();
    stream
        .map(|message| message.expect("a message"))
        .collect()
        .await
}

#[tokio::test]
async fn a_stream_has_incremental_tokens_cumulative_counts_and_one_end() {
    let (_scheduler, mut client) = serving().await;
    let messages = collect(&mut client, generate(&[1; 33], 6)).await;
    let (mut tokens, mut ends) = (Vec::new(), Vec::new());
    for message in messages {
        match message.response.expect("a response") {
            Response::Chunk(chunk) => {
                tokens.extend(chunk.token_ids);
                assert_eq!(chunk.completion_tokens as usize, tokens.len());
                assert_eq!(chunk.prompt_tokens, 33);
            }
            Response::Complete(end) => ends.push(end),
        }
    }
    assert_eq!(ends.len(), 1);
    assert_eq!(ends[0].output_ids.len(), 6);
    assert_eq!(ends[0].output_ids, tokens, "chunks bring every token");
    assert_eq!(
        (ends[0].finish_reason.as_str(), ends[0].completion_tokens),
        ("length", 6)
    );
}

#[tokio::test]
async fn messages_of_many_parts_are_refused() {
    let (_scheduler, mut client) = serving().await;
    let mut request = generate(&[1; 20], 7);
    if let Some(params) = &mut request.sampling_params {
        params.stop = vec![String::new(); 100_000];
    }
    let refused = client.generate(request).await.expect_err("too many");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("65536"), "{refused:?}");
}

#[tokio::test]
async fn a_call_whose_answer_is_not_taken_is_given_up() {
    let (scheduler, mut client) = serving_with(|args| {
        args.limits.max_body_bytes = Some(16 << 10);
        args.limits.max_request_memory = Some(128 << 10);
    })
    .await;
    let port = scheduler.engine.server.sglang_grpc_port.expect("open");
    let channel = Channel::from_shared(format!("http://127.0.0.1:{port}")).expect("a URL");
    let channel = channel.initial_stream_window_size(1024_u32);
    let channel = channel.connect().await.expect("listening");
    let mut unread = SglangSchedulerClient::new(channel);
    let unread = unread.generate(generate(&[1; 7], 2000)).await;
    let unread = unread.expect("runs");
    let mut frontend = scheduler.frontend().await;
    let mut runs = async || {
        let load = frontend.load().await;
        load.running_requests + load.waiting_requests > 0
    };
    while runs().await {
        // Other calls are served meanwhile.
        assert!(collect(&mut client, generate(&[1; 33], 6)).await.len() > 1);
    }
    let (mut unread, mut tokens) = (unread.into_inner(), 0);
    let end = loop {
        match unread.message().await {
            Ok(Some(message)) => match message.response.expect("a response") {
                Response::Chunk(chunk) => tokens += chunk.token_ids.len(),
                Response::Complete(_) => panic!("{tokens} tokens have come to an end"),
            },
            Ok(None) => panic!("no status"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
    assert!(end.message().contains("too slowly"), "{end}");
    assert!(tokens < 2000, "what waited came first");
}

#[tokio::test]
async fn a_stream_interval_loses_no_token() {
    let (_scheduler, mut client) = serving().await;
    let mut request = generate(&[1; 20], 7);
    request
        .sampling_params
        .iter_mut()
        .for_each(|params| params.stream_interval = Some(3));
    let (mut chunks, mut end) = (Vec::new(), None);
    for message in collect(&mut client, request).await {
        match message.response.expect("a response") {
            Response::Chunk(chunk) => chunks.push(chunk.token_ids),
            Response::Complete(complete) => end = Some(complete.output_ids),
        }
    }
    let lengths: Vec<usize> = chunks.iter().map(Vec::len).collect();
    assert_eq!(lengths, [3, 3, 1]);
    assert_eq!(Some(chunks.concat()), end);
}

#[tokio::test]
async fn choices_and_logprobs_arrive_once_per_index() {
    let (_scheduler, mut client) = serving().await;
    let mut request = generate(&[2; 5], 4);
    request.stream = false;
    request.return_logprob = true;
    request.logprob_start_len = 0;
    if let Some(params) = &mut request.sampling_params {
        params.n = 2;
    }
    let messages = collect(&mut client, request).await;
    let mut indices = Vec::new();
    for message in messages {
        let Some(Response::Complete(end)) = message.response else {
            panic!("a chunk")
        };
        indices.push(end.index);
        let output = end.output_logprobs.expect("asked for");
        assert_eq!(output.token_ids, end.output_ids);
        assert_eq!(output.token_logprobs.len(), 4);
        let input = end.input_logprobs.expect("asked for");
        assert_eq!(input.token_ids, [2; 5]);
        assert!(input.token_logprobs[0].value.is_none() && input.token_logprobs[1].value.is_some());
    }
    indices.sort_unstable();
    assert_eq!(indices, [0, 1]);
}

#[tokio::test]
async fn what_is_not_supported_is_refused_by_name() {
    let (_scheduler, mut client) = serving().await;
    let mut cases = vec![
        ("tokenized.input_ids", generate(&[], 1)),
        (
            "request_id",
            GenerateRequest {
                request_id: "x".repeat(300),
                ..generate(&[1], 1)
            },
        ),
        ("maximum context length", generate(&[1; 5000], 1)),
        ("maximum context length", generate(&[1; 5], 1_000_000)),
        (
            "lora_id",
            GenerateRequest {
                lora_id: "x".into(),
                ..generate(&[1], 1)
            },
        ),
        (
            "data_parallel_rank",
            GenerateRequest {
                data_parallel_rank: Some(3),
                ..generate(&[1], 1)
            },
        ),
        (
            "top_logprobs_num",
            GenerateRequest {
                return_logprob: true,
                top_logprobs_num: 1000,
                ..generate(&[1], 1)
            },
        ),
    ];
    type Change = fn(&mut SamplingParams);
    let params: [(&str, Change); 11] = [
        (
            "sampling_params.ebnf_grammar: line 2: there is no rule 'b'",
            |params| {
                params.constraint = Some(Constraint::EbnfGrammar("root ::= \"a\"\n | b".into()));
                params.ignore_eos = false;
            },
        ),
        (
            "sampling_params.structural_tag: at \"#\": expected 'format'",
            |params| {
                params.constraint = Some(Constraint::StructuralTag("{}".into()));
                params.ignore_eos = false;
            },
        ),
        ("sampling_params.regex: ", |params| {
            params.constraint = Some(Constraint::Regex("(?=a)".into()));
            params.ignore_eos = false;
        }),
        (
            "sampling_params.json_schema: at \"#/properties/a\": the keyword 'not' is not",
            |params| {
                let schema = r#"{"properties": {"a": {"not": {}}}}"#;
                params.constraint = Some(Constraint::JsonSchema(schema.into()));
                params.ignore_eos = false;
            },
        ),
        ("json_schema: it has 70000 bytes", |params| {
            params.constraint = Some(Constraint::JsonSchema(" ".repeat(70_000)));
            params.ignore_eos = false;
        }),
        ("sampling_params.ignore_eos", |params| {
            params.constraint = Some(Constraint::Regex("a".into()));
            params.ignore_eos = true;
        }),
        ("top_k", |params| params.top_k = -7),
        ("stream_interval", |params| params.stream_interval = Some(0)),
        ("choices", |params| params.n = 1_000_000),
        ("logit_bias", |params| {
            params.logit_bias.insert("x".into(), 1.0);
        }),
        ("stop_token_ids", |params| {
            params.stop_token_ids = vec![1; 10_000];
        }),
    ];
    for (name, change) in params {
        let mut request = generate(&[1], 1);
        request.sampling_params.iter_mut().for_each(change);
        cases.push((name, request));
    }
    for (name, request) in cases {
        let status = client.generate(request).await.expect_err(name);
        assert_eq!(status.code(), Code::InvalidArgument, "{name}: {status}");
        assert!(status.message().contains(name), "{name}: {status}");
    }
    let status = client
        .embed(EmbedRequest::default())
        .await
        .expect_err("embeddings");
    assert_eq!(status.code(), Code::Unimplemented);
    // A value outside its range is found by the engine, before the stream begins.
    let mut hot = generate(&[1], 1);
    hot.sampling_params
        .iter_mut()
        .for_each(|params| params.temperature = f32::NAN);
    let status = client.generate(hot).await.expect_err("temperature");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
}

#[tokio::test]
async fn info_health_load_and_flush_answer() {
    let (scheduler, mut client) = serving().await;
    let health = client
        .health_check(HealthCheckRequest {})
        .await
        .expect("an answer");
    assert!(health.into_inner().healthy);
    let model = client
        .get_model_info(GetModelInfoRequest {})
        .await
        .expect("an answer");
    let model = model.into_inner();
    assert_eq!(
        model.served_model_name,
        scheduler.engine.server.served_model_name
    );
    assert_eq!((model.is_generation, model.eos_token_ids), (true, vec![2]));
    let server = client
        .get_server_info(GetServerInfoRequest {})
        .await
        .expect("an answer");
    assert!(
        server
            .into_inner()
            .server_args
            .expect("given")
            .fields
            .contains_key("tp_size")
    );
    collect(&mut client, generate(&[8; 70], 3)).await;
    let mut load = async |section: &str| {
        let request = GetLoadsRequest {
            include: vec![section.into()],
            ..Default::default()
        };
        let loads = client.get_loads(request).await.expect("an answer");
        let loads = loads.into_inner();
        assert!(loads.timestamp.ends_with('Z'), "{}", loads.timestamp);
        loads.loads.into_iter().next().expect("one rank")
    };
    let all = load("all").await;
    assert!(all.queues.is_some() && all.max_total_num_tokens > 0);
    assert_eq!(all.disaggregation.expect("asked for").mode, "null");
    let memory = all.memory.expect("asked for");
    let ranks = scheduler.engine.parallel.tp_size as f64;
    assert_eq!(
        (memory.weight_gb, memory.kv_cache_gb),
        (3.0 * ranks, ranks),
        "of all ranks"
    );
    let core = load("core").await;
    assert!(core.memory.is_none() && core.queues.is_none() && core.disaggregation.is_none());
    let flushed = client
        .flush_cache(FlushCacheRequest { timeout_s: 5.0 })
        .await;
    assert!(flushed.expect("an answer").into_inner().success);
    for odd in [f32::NAN, f32::NEG_INFINITY, -1.0] {
        let flushed = client
            .flush_cache(FlushCacheRequest { timeout_s: odd })
            .await;
        assert!(flushed.expect("an answer").into_inner().success, "{odd}");
    }
}

/// A gateway asks another server if a call is refused, but can't after its stream has begun.
#[tokio::test]
async fn a_server_that_drains_refuses_calls_and_not_their_streams() {
    let (scheduler, mut client) = serving().await;
    let running = client.generate(generate(&[1; 20], 200)).await;
    let mut running = running.expect("accepted").into_inner();
    running.message().await.expect("it runs").expect("a chunk");
    scheduler.link.lifecycle().drain.cancel();
    let refused = client.generate(generate(&[1; 30], 5)).await;
    let status = refused.expect_err("refused");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let rest: Vec<_> = running.collect().await;
    assert!(rest.iter().all(Result::is_ok), "what runs is finished");
    scheduler.ended().await.expect("it ends well");
}

#[tokio::test]
async fn watches_of_its_health_end_with_it() {
    let (scheduler, _client) = serving().await;
    let port = scheduler.engine.server.sglang_grpc_port.expect("open");
    let channel = Channel::from_shared(format!("http://127.0.0.1:{port}")).expect("a URL");
    let channel = channel.connect().await.expect("listening");
    let request = tonic_health::pb::HealthCheckRequest::default();
    let mut client = tonic_health::pb::health_client::HealthClient::new(channel);
    let watch = client.watch(request).await.expect("accepted");
    let mut watch = watch.into_inner();
    watch.message().await.expect("a message").expect("a status");
    scheduler.link.lifecycle().drain.cancel();
    let rest = async { while watch.message().await.expect("no broken stream").is_some() {} };
    tokio::time::timeout(LIMIT, rest).await.expect("an end");
}

#[tokio::test]
async fn the_tokenizer_arrives_whole_with_its_digest() {
    let (_scheduler, mut client) = serving().await;
    let stream = client
        .get_tokenizer(GetTokenizerRequest {})
        .await
        .expect("found")
        .into_inner();
    let chunks: Vec<_> = stream.map(|chunk| chunk.expect("a chunk")).collect().await;
    let archive: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.data.clone()).collect();
    let digest: String = Sha256::digest(&archive)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        chunks.last().map(|chunk| chunk.sha256.clone()),
        Some(digest)
    );
    let zip = zip::ZipArchive::new(std::io::Cursor::new(archive)).expect("a zip archive");
    assert!(zip.index_for_name("tokenizer.json").is_some());
}

#[tokio::test]
async fn a_subscriber_learns_what_is_cached_before_and_after_it_came() {
    let (scheduler, mut client) = serving().await;
    let page = scheduler.engine.kv.page_size;
    collect(&mut client, generate(&vec![5; page * 2 + 1], 1)).await;
    let events = client
        .subscribe_kv_events(SubscribeKvEventsRequest::default())
        .await;
    let mut events = events.expect("a stream").into_inner();
    let stored = |batch: lockstep_proto::pb::smg::grpc::common::KvEventBatch| {
        let blocks = |event: lockstep_proto::pb::smg::grpc::common::KvCacheEvent| match event.data {
            Some(Data::Stored(stored)) => stored.blocks,
            _ => Vec::new(),
        };
        batch
            .events
            .into_iter()
            .flat_map(blocks)
            .collect::<Vec<_>>()
    };
    let first = events.message().await.expect("a batch").expect("not ended");
    assert_eq!(first.sequence_number, 1);
    assert!(
        stored(first)
            .iter()
            .any(|block| block.token_ids == vec![5; page])
    );
    collect(&mut client, generate(&vec![6; page + 1], 1)).await;
    let next = events.message().await.expect("a batch").expect("not ended");
    assert!(
        stored(next)
            .iter()
            .any(|block| block.token_ids == vec![6; page])
    );
}

#[tokio::test]
async fn so_many_subscribe_to_the_cache_at_once() {
    let (_scheduler, mut client) = serving().await;
    let mut subscribe = async || {
        let events = client.subscribe_kv_events(SubscribeKvEventsRequest::default());
        events.await.map(tonic::Response::into_inner)
    };
    let mut subscribers = Vec::new();
    for _ in 0..16 {
        let mut events = subscribe().await.expect("a place");
        events
            .message()
            .await
            .expect("a batch")
            .expect("a snapshot");
        subscribers.push(events);
    }
    let status = subscribe().await.expect_err("one too many");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("16 subscribers"), "{status}");
    subscribers.pop();
    // The dropped stream ends a moment later.
    let again = async {
        while let Err(status) = subscribe().await {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        }
    };
    tokio::time::timeout(LIMIT, again).await.expect("a place");
}

#[tokio::test]
async fn who_leaves_is_unhealthy_and_serves() {
    let (scheduler, mut client) = serving().await;
    scheduler.link.lifecycle().leave.cancel();
    let health = client.health_check(HealthCheckRequest {}).await;
    let health = health.expect("an answer").into_inner();
    assert!(!health.healthy && health.message.contains("shut down"));
    assert!(!collect(&mut client, generate(&[1; 5], 2)).await.is_empty());
}
