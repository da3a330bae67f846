//! The wire contract of SGLang's scheduler service. Messages written with literal field numbers
//! decode to the right fields, and back to the same bytes.

use std::collections::HashMap;

use lockstep_proto::pb::SGLANG_DESCRIPTORS;
use lockstep_proto::pb::sglang::grpc::scheduler::generate_complete::MatchedStop;
use lockstep_proto::pb::sglang::grpc::scheduler::generate_response::Response;
use lockstep_proto::pb::sglang::grpc::scheduler::sampling_params::Constraint;
use lockstep_proto::pb::sglang::grpc::scheduler::{
    AbortRequest, GenerateComplete, GenerateRequest, GenerateResponse, GenerateStreamChunk,
    GetLoadsRequest, GetLoadsResponse, GetModelInfoResponse, GetServerInfoResponse,
    HealthCheckResponse, InputLogProbs, InputTokenLogProb, OutputLogProbs, SamplingParams,
    SchedulerLoad, TokenizedInput, TopLogProbs,
};
use lockstep_proto::pb::smg::grpc::common::kv_cache_event::Data;
use lockstep_proto::pb::smg::grpc::common::{
    EngineLoad, FlushCacheRequest, FlushCacheResponse, GetTokenizerChunk, KvBlock, KvBlocksRemoved,
    KvBlocksStored, KvCacheEvent, KvEventBatch, SubscribeKvEventsRequest,
};
use prost::Message;

/// A message under construction, by field number.
#[derive(Default, Clone)]
struct Wire(Vec<u8>);

impl Wire {
    fn number(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    fn varint(self, field: u64, value: u64) -> Self {
        self.number(field << 3).number(value)
    }

    fn bytes(self, field: u64, value: &[u8]) -> Self {
        let mut wire = self.number(field << 3 | 2).number(value.len() as u64);
        wire.0.extend(value);
        wire
    }

    fn text(self, field: u64, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    fn message(self, field: u64, value: &Wire) -> Self {
        self.bytes(field, &value.0)
    }

    fn float(self, field: u64, value: f32) -> Self {
        let mut wire = self.number(field << 3 | 5);
        wire.0.extend(value.to_le_bytes());
        wire
    }

    fn double(self, field: u64, value: f64) -> Self {
        let mut wire = self.number(field << 3 | 1);
        wire.0.extend(value.to_le_bytes());
        wire
    }

    /// Adds repeated floats in the packed form of proto3.
    fn floats(self, field: u64, values: &[f32]) -> Self {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.bytes(field, &bytes)
    }

    /// Adds repeated integers in the packed form of proto3.
    fn varints(self, field: u64, values: &[u64]) -> Self {
        let packed = values
            .iter()
            .fold(Wire::default(), |wire, &value| wire.number(value));
        self.message(field, &packed)
    }
}

/// Checks that `wire` decodes to `message`, and that `message` survives encoding. Fields may
/// stand in any order on the wire, so messages and lengths are compared, not bytes.
fn check<M: Message + Default + PartialEq + std::fmt::Debug>(wire: &Wire, message: &M) {
    let decoded = M::decode(&wire.0[..]).expect("decodes");
    assert!(
        decoded == *message,
        "decoded {decoded:?}, expected {message:?}"
    );
    assert_eq!(message.encoded_len(), wire.0.len(), "{message:?}");
    assert!(M::decode(&message.encode_to_vec()[..]).expect("decodes") == *message);
}

fn wire() -> Wire {
    Wire::default()
}

const MINUS_ONE: u64 = u64::MAX;

#[test]
fn sampling_params() {
    let message = SamplingParams {
        temperature: 0.5,
        top_p: 0.25,
        top_k: -1,
        min_p: 0.125,
        frequency_penalty: 1.5,
        presence_penalty: -1.5,
        repetition_penalty: 1.25,
        max_new_tokens: Some(0),
        stop: vec!["a".into(), "b".into()],
        stop_token_ids: vec![1, 300],
        skip_special_tokens: true,
        spaces_between_special_tokens: true,
        constraint: Some(Constraint::Regex("x+".into())),
        n: 2,
        min_new_tokens: 3,
        ignore_eos: true,
        no_stop_trim: true,
        stream_interval: Some(4),
        logit_bias: HashMap::from([("17".to_owned(), -2.0)]),
        custom_params: None,
    };
    let encoded = wire()
        .float(1, 0.5)
        .float(2, 0.25)
        .varint(3, MINUS_ONE)
        .float(4, 0.125)
        .float(5, 1.5)
        .float(6, -1.5)
        .float(7, 1.25)
        .varint(8, 0)
        .text(9, "a")
        .text(9, "b")
        .varints(10, &[1, 300])
        .varint(11, 1)
        .varint(12, 1)
        .text(13, "x+")
        .varint(17, 2)
        .varint(18, 3)
        .varint(19, 1)
        .varint(20, 1)
        .varint(21, 4)
        .message(22, &wire().text(1, "17").float(2, -2.0));
    check(&encoded, &message);
    for (field, constraint) in [
        (14, Constraint::JsonSchema("s".into())),
        (15, Constraint::EbnfGrammar("s".into())),
        (16, Constraint::StructuralTag("s".into())),
    ] {
        let message = SamplingParams {
            constraint: Some(constraint),
            ..Default::default()
        };
        check(&wire().text(field, "s"), &message);
    }
}

#[test]
fn generate_request() {
    let message = GenerateRequest {
        request_id: "r".into(),
        tokenized: Some(TokenizedInput {
            original_text: "t".into(),
            input_ids: vec![1, 2, 1 << 20],
        }),
        sampling_params: Some(SamplingParams {
            n: 1,
            ..Default::default()
        }),
        return_logprob: true,
        logprob_start_len: -1,
        top_logprobs_num: 5,
        token_ids_logprob: vec![7],
        return_hidden_states: true,
        custom_logit_processor: "c".into(),
        log_metrics: true,
        input_embeds: vec![0.5],
        lora_id: "l".into(),
        data_parallel_rank: Some(0),
        stream: true,
        require_reasoning: true,
        ..Default::default()
    };
    let tokenized = wire().text(1, "t").varints(2, &[1, 2, 1 << 20]);
    let encoded = wire()
        .text(1, "r")
        .message(2, &tokenized)
        .message(4, &wire().varint(17, 1))
        .varint(5, 1)
        .varint(6, MINUS_ONE)
        .varint(7, 5)
        .varints(8, &[7])
        .varint(9, 1)
        .text(11, "c")
        .varint(13, 1)
        .floats(14, &[0.5])
        .text(15, "l")
        .varint(16, 0)
        .varint(17, 1)
        .varint(18, 1);
    check(&encoded, &message);
}

fn output_logprobs() -> (Wire, OutputLogProbs) {
    let top = TopLogProbs {
        values: vec![-0.5, -1.0],
        token_ids: vec![8, 9],
    };
    let top_wire = wire().floats(1, &[-0.5, -1.0]).varints(2, &[8, 9]);
    let message = OutputLogProbs {
        token_logprobs: vec![-0.5],
        token_ids: vec![8],
        top_logprobs: vec![top.clone()],
        token_ids_logprobs: vec![top],
    };
    let encoded = wire().floats(1, &[-0.5]).varints(2, &[8]);
    (encoded.message(3, &top_wire).message(4, &top_wire), message)
}

fn input_logprobs() -> (Wire, InputLogProbs) {
    let values = [None, Some(0.0)].map(|value| InputTokenLogProb { value });
    let message = InputLogProbs {
        token_logprobs: values.to_vec(),
        token_ids: vec![3, 4],
        top_logprobs: vec![TopLogProbs::default()],
    };
    let encoded = wire().message(1, &wire()).message(1, &wire().float(1, 0.0));
    (encoded.varints(2, &[3, 4]).message(3, &wire()), message)
}

#[test]
fn generate_response() {
    let (output_wire, output_logprobs) = output_logprobs();
    let (input_wire, input_logprobs) = input_logprobs();
    let chunk = GenerateStreamChunk {
        token_ids: vec![5, 6],
        prompt_tokens: 1,
        completion_tokens: 2,
        cached_tokens: 3,
        reasoning_tokens: 4,
        output_logprobs: Some(output_logprobs.clone()),
        hidden_states: vec![1.0],
        input_logprobs: Some(input_logprobs.clone()),
        index: 6,
    };
    let chunk_wire = wire()
        .varints(1, &[5, 6])
        .varint(2, 1)
        .varint(3, 2)
        .varint(4, 3)
        .varint(9, 4);
    let chunk_wire = chunk_wire.message(5, &output_wire).floats(6, &[1.0]);
    let chunk_wire = chunk_wire.message(7, &input_wire).varint(8, 6);
    let message = GenerateResponse {
        request_id: "r".into(),
        response: Some(Response::Chunk(chunk)),
    };
    check(&wire().text(1, "r").message(2, &chunk_wire), &message);

    let complete = GenerateComplete {
        output_ids: vec![5],
        finish_reason: "stop".into(),
        prompt_tokens: 1,
        completion_tokens: 2,
        cached_tokens: 3,
        reasoning_tokens: 4,
        output_logprobs: Some(output_logprobs),
        all_hidden_states: Vec::new(),
        input_logprobs: Some(input_logprobs),
        index: 6,
        spec_accepted_tokens: 7,
        spec_draft_tokens: 8,
        matched_stop: Some(MatchedStop::MatchedTokenId(0)),
    };
    let complete_wire = wire()
        .varints(1, &[5])
        .text(2, "stop")
        .varint(3, 1)
        .varint(4, 2);
    let complete_wire = complete_wire
        .varint(5, 3)
        .varint(12, 4)
        .message(6, &output_wire);
    let complete_wire = complete_wire
        .varint(8, 0)
        .message(10, &input_wire)
        .varint(11, 6);
    let complete_wire = complete_wire.varint(13, 7).varint(14, 8);
    let message = GenerateResponse {
        request_id: String::new(),
        response: Some(Response::Complete(complete)),
    };
    check(&wire().message(3, &complete_wire), &message);
    let matched_stop = Some(MatchedStop::MatchedStopStr("x".into()));
    check(
        &wire().text(9, "x"),
        &GenerateComplete {
            matched_stop,
            ..Default::default()
        },
    );
}

#[test]
fn health_and_abort() {
    let health = HealthCheckResponse {
        healthy: true,
        message: "m".into(),
    };
    check(&wire().varint(1, 1).text(2, "m"), &health);
    let abort = AbortRequest {
        request_id: "r".into(),
        reason: "m".into(),
    };
    check(&wire().text(1, "r").text(2, "m"), &abort);
}

#[test]
fn model_and_server_info() {
    let model = GetModelInfoResponse {
        model_path: "a".into(),
        tokenizer_path: "b".into(),
        is_generation: true,
        preferred_sampling_params: "c".into(),
        weight_version: "d".into(),
        served_model_name: "e".into(),
        max_context_length: 6,
        vocab_size: 7,
        supports_vision: true,
        model_type: "f".into(),
        eos_token_ids: vec![2, 3],
        pad_token_id: 4,
        bos_token_id: 5,
        max_req_input_len: 8,
        architectures: vec!["g".into()],
        id2label_json: "h".into(),
        num_labels: 9,
        default_sampling_params_json: "i".into(),
    };
    let encoded = wire()
        .text(1, "a")
        .text(2, "b")
        .varint(3, 1)
        .text(4, "c")
        .text(5, "d");
    let encoded = encoded
        .text(6, "e")
        .varint(7, 6)
        .varint(8, 7)
        .varint(9, 1)
        .text(10, "f");
    let encoded = encoded
        .varints(11, &[2, 3])
        .varint(12, 4)
        .varint(13, 5)
        .varint(14, 8);
    let encoded = encoded
        .text(15, "g")
        .text(16, "h")
        .varint(17, 9)
        .text(20, "i");
    check(&encoded, &model);

    let server = GetServerInfoResponse {
        active_requests: 1,
        is_paused: true,
        last_receive_timestamp: 0.5,
        uptime_seconds: 1.5,
        sglang_version: "v".into(),
        server_type: "grpc".into(),
        max_total_num_tokens: 9,
        ..Default::default()
    };
    let encoded = wire()
        .varint(3, 1)
        .varint(4, 1)
        .double(5, 0.5)
        .double(6, 1.5);
    check(&encoded.text(7, "v").text(8, "grpc").varint(10, 9), &server);
    // google.protobuf.Struct {"tp_size": 2} and a google.protobuf.Timestamp.
    let entry = wire().text(1, "tp_size").message(2, &wire().double(2, 2.0));
    let encoded = wire()
        .message(1, &wire().message(1, &entry))
        .message(9, &wire().varint(1, 77));
    let server = GetServerInfoResponse::decode(&encoded.0[..]).expect("decodes");
    let tp_size = server.server_args.expect("server_args").fields["tp_size"]
        .kind
        .clone();
    assert_eq!(tp_size, Some(prost_types::value::Kind::NumberValue(2.0)));
    assert_eq!(server.start_time.expect("start_time").seconds, 77);
}

#[test]
fn loads() {
    let request = GetLoadsRequest {
        dp_rank: Some(0),
        include: vec!["core".into()],
    };
    check(&wire().varint(1, 0).text(2, "core"), &request);
    let load = SchedulerLoad {
        num_running_reqs: 1,
        num_waiting_reqs: 2,
        num_total_reqs: 3,
        num_used_tokens: 4,
        max_total_num_tokens: 5,
        token_usage: 0.5,
        gen_throughput: 1.5,
        cache_hit_rate: 0.25,
        utilization: 0.125,
        max_running_requests: 6,
        num_waiting_uncached_tokens: 7,
        ..Default::default()
    };
    let load_wire = wire()
        .varint(2, 1)
        .varint(3, 2)
        .varint(4, 3)
        .varint(5, 4)
        .varint(6, 5);
    let load_wire = load_wire
        .double(7, 0.5)
        .double(8, 1.5)
        .double(9, 0.25)
        .double(10, 0.125);
    let load_wire = load_wire.varint(11, 6).varint(17, 7);
    let response = GetLoadsResponse {
        timestamp: "t".into(),
        version: "v".into(),
        dp_rank_count: 1,
        loads: vec![load],
        aggregate: None,
    };
    let encoded = wire()
        .text(1, "t")
        .text(2, "v")
        .varint(3, 1)
        .message(4, &load_wire);
    check(&encoded, &response);
}

#[test]
fn cache_and_tokenizer() {
    check(&wire().float(1, 0.5), &FlushCacheRequest { timeout_s: 0.5 });
    let flushed = FlushCacheResponse {
        success: true,
        message: "m".into(),
    };
    check(&wire().varint(1, 1).text(2, "m"), &flushed);
    let chunk = GetTokenizerChunk {
        data: vec![0, 255].into(),
        sha256: "s".into(),
    };
    check(&wire().bytes(1, &[0, 255]).text(2, "s"), &chunk);
}

#[test]
fn kv_events() {
    let request = SubscribeKvEventsRequest {
        start_sequence_number: 9,
        load_records_before_first_batch: true,
    };
    check(&wire().varint(1, 9).varint(2, 1), &request);

    let block = KvBlock {
        block_hash: -1,
        token_ids: vec![1, 2],
        block_size: 2,
        ..Default::default()
    };
    let block_wire = wire().varint(1, MINUS_ONE).varints(2, &[1, 2]).varint(3, 2);
    let stored = KvBlocksStored {
        blocks: vec![block],
        parent_block_hash: Some(0),
        ..Default::default()
    };
    let stored_wire = wire().message(1, &block_wire).varint(2, 0);
    let removed = KvBlocksRemoved {
        block_hashes: vec![5],
        ..Default::default()
    };
    let event = |event_id, data| KvCacheEvent {
        event_id,
        data: Some(data),
    };
    let batch = KvEventBatch {
        sequence_number: 3,
        timestamp: 1.5,
        events: vec![
            event(1, Data::Stored(stored)),
            event(2, Data::Removed(removed)),
            event(3, Data::Cleared(Default::default())),
        ],
        dp_rank: Some(0),
        snapshot: None,
        load: Some(EngineLoad {
            running_requests: 4,
            load_only: true,
            ..Default::default()
        }),
    };
    let encoded = wire()
        .varint(1, 3)
        .double(2, 1.5)
        .message(3, &wire().varint(1, 1).message(2, &stored_wire))
        .message(3, &wire().varint(1, 2).message(3, &wire().varints(1, &[5])))
        .message(3, &wire().varint(1, 3).message(4, &wire()))
        .varint(4, 0)
        .message(8, &wire().varint(1, 4).varint(9, 1));
    check(&encoded, &batch);
}

#[test]
fn the_service_has_the_published_name_and_calls() {
    let set = prost_types::FileDescriptorSet::decode(SGLANG_DESCRIPTORS).expect("descriptors");
    let service = set
        .file
        .iter()
        .flat_map(|file| file.service.iter().map(move |s| (file, s)));
    let (file, service) = service.into_iter().next().expect("a service");
    assert_eq!(
        (file.package(), service.name()),
        ("sglang.grpc.scheduler", "SglangScheduler")
    );
    let calls: Vec<_> = service
        .method
        .iter()
        .map(|m| (m.name(), m.server_streaming()))
        .collect();
    let expected = [
        ("Generate", true),
        ("Embed", false),
        ("HealthCheck", false),
        ("Abort", false),
        ("GetModelInfo", false),
        ("GetServerInfo", false),
        ("GetLoads", false),
        ("FlushCache", false),
        ("StartProfile", false),
        ("StopProfile", false),
        ("GetTokenizer", true),
        ("SubscribeKvEvents", true),
        ("LoadLoRAAdapter", false),
        ("UnloadLoRAAdapter", false),
        ("ListLoadedLoRAAdapters", false),
    ];
    assert_eq!(calls, expected);
    assert!(
        service
            .method
            .iter()
            .all(|method| !method.client_streaming())
    );
}
