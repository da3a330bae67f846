use proptest::prelude::*;
use prost::Message;
use prost_types::{ListValue, Struct, Value, value::Kind};

use super::*;
use crate::pb::{
    lockstep::{Chat, ChatMessage, GenerateRequest, RankResult, TokenIds, generate_request::Input},
    sglang::grpc::scheduler as sglang,
};

const NATIVE: &str = "lockstep.v1.GenerateRequest";
const SGLANG: &str = "sglang.grpc.scheduler.GenerateRequest";

fn parts(name: &str, message: &impl Message) -> usize {
    let (mut parts, bytes) = (0, message.encode_to_vec());
    SHAPES.count(&bytes, SHAPES.requests[name], DEPTH, &mut parts);
    parts
}

fn list(values: Vec<Value>) -> Value {
    Value {
        kind: Some(Kind::ListValue(ListValue { values })),
    }
}

fn custom(value: Value) -> sglang::GenerateRequest {
    sglang::GenerateRequest {
        sampling_params: Some(sglang::SamplingParams {
            custom_params: Some(Struct {
                fields: [("x".to_owned(), value)].into(),
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn chat(messages: Vec<ChatMessage>) -> GenerateRequest {
    GenerateRequest {
        input: Some(Input::Chat(Chat { messages })),
        ..Default::default()
    }
}

#[test]
fn whatever_takes_few_bytes_and_much_memory_is_refused() {
    let most = PUBLIC_MESSAGE_PARTS;
    let stops = |count| GenerateRequest {
        stop: vec![String::new(); count],
        ..Default::default()
    };
    let bias = |count: usize| sglang::GenerateRequest {
        sampling_params: Some(sglang::SamplingParams {
            logit_bias: (0..count).map(|id| (id.to_string(), 1.0)).collect(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let cases: [(&str, Vec<u8>, Vec<u8>); 4] = [
        (
            NATIVE,
            stops(most).encode_to_vec(),
            stops(most + 1).encode_to_vec(),
        ),
        (
            NATIVE,
            chat(vec![ChatMessage::default(); most - 1]).encode_to_vec(),
            chat(vec![ChatMessage::default(); most]).encode_to_vec(),
        ),
        // Parts are the parameters, and for each entry the entry and its key.
        (
            SGLANG,
            bias((most - 1) / 2).encode_to_vec(),
            bias(most / 2).encode_to_vec(),
        ),
        // Six parts are around it: parameters, custom parameters, entry, key, value and list.
        (
            SGLANG,
            custom(list(vec![Value::default(); most - 6])).encode_to_vec(),
            custom(list(vec![Value::default(); most - 5])).encode_to_vec(),
        ),
    ];
    for (name, allowed, refused) in cases {
        check(name, &allowed).expect("as many as are allowed");
        let status = check(name, &refused).expect_err("one more");
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().contains("65536"), "{status:?}");
    }
}

#[test]
fn texts_and_tokens_are_one_part_whatever_they_look_like() {
    let text = |text: String| GenerateRequest {
        input: Some(Input::Text(text)),
        ..Default::default()
    };
    let tokens = Input::Tokens(TokenIds {
        ids: vec![10; 1 << 20],
    });
    let tokens = GenerateRequest {
        input: Some(tokens),
        ..Default::default()
    };
    // A line feed and a NUL are an empty message in field 1.
    assert_eq!(parts(NATIVE, &text("\n\0".repeat(1 << 20))), 1);
    assert_eq!(parts(NATIVE, &tokens), 2);
    let said = ChatMessage {
        role: "user".to_owned(),
        content: "\n\0".repeat(1 << 20),
    };
    assert_eq!(parts(NATIVE, &chat(vec![said])), 4);
}

#[test]
fn what_no_client_sends_is_not_counted() {
    let result = RankResult {
        outputs: vec![Default::default(); PUBLIC_MESSAGE_PARTS + 1],
        ..Default::default()
    };
    check("lockstep.v1.RankResult", &result.encode_to_vec()).expect("not a client's");
    assert!(!SHAPES.requests.contains_key("lockstep.v1.RankResult"));
}

#[test]
fn a_skipped_group_hides_nothing_behind_it() {
    // An unknown group, field 1000, which holds a damaged chat and then ends.
    let [start, end] = [[0xc3, 0x3e], [0xc4, 0x3e]];
    let mut bytes = start.to_vec();
    let input = chat(Vec::new()).encode_to_vec();
    bytes.extend([input[0], 1, 0xff]);
    bytes.extend(end);
    GenerateRequest::decode(&bytes[..]).expect("it is skipped");
    let stop = GenerateRequest {
        stop: vec![String::new()],
        ..Default::default()
    };
    bytes.extend(stop.encode_to_vec().repeat(PUBLIC_MESSAGE_PARTS + 1));
    assert!(check(NATIVE, &bytes).is_err());
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Kind::NullValue(0)),
        any::<f64>().prop_map(Kind::NumberValue),
        ".{0,8}".prop_map(Kind::StringValue),
    ];
    let leaf = leaf.prop_map(|kind| Value { kind: Some(kind) });
    leaf.prop_recursive(4, 64, 6, |inner| {
        let fields = prop::collection::hash_map(".{1,4}", inner.clone(), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(list),
            fields.prop_map(|fields| Value {
                kind: Some(Kind::StructValue(Struct {
                    fields: fields.into_iter().collect(),
                })),
            }),
        ]
    })
}

/// Returns the number of parts of a decoded value: the value, its list or struct or text, an
/// entry and a key for each field, and the parts of inner values.
fn expected(value: &Value) -> usize {
    1 + match &value.kind {
        Some(Kind::StringValue(_)) => 1,
        Some(Kind::ListValue(list)) => 1 + list.values.iter().map(expected).sum::<usize>(),
        Some(Kind::StructValue(fields)) => {
            1 + fields
                .fields
                .values()
                .map(|value| 2 + expected(value))
                .sum::<usize>()
        }
        _ => 0,
    }
}

proptest! {
    /// The count is that of the decoded message, and never more than two bytes per part allow.
    #[test]
    fn nothing_is_miscounted(value in value()) {
        let request = custom(value.clone());
        let counted = parts(SGLANG, &request);
        prop_assert_eq!(counted, 4 + expected(&value));
        prop_assert!(2 * counted <= request.encoded_len());
    }

    /// Damaged messages are left to prost, and counting them ends.
    #[test]
    fn any_bytes_are_counted(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        for name in [NATIVE, SGLANG] {
            prop_assert!(check(name, &bytes).is_ok());
        }
    }
}
