//! Tests of `/v1/responses` and `/v1/messages`: the answers that chats have, in other forms.

use lockstep_tests::{
    MODEL,
    body::{COUNTED, counting, with},
    turns,
};
use serde_json::{Value, json};

use crate::shared;

const QUESTION: &str = "Count from 3 to 12.";

/// Joins the deltas of a stream's text.
fn text(events: &[Value], kind: &str, field: &str) -> String {
    let deltas = events.iter().filter(|event| event["type"] == kind);
    let texts = deltas.filter_map(|event| event.pointer(field)?.as_str());
    texts.collect()
}

#[tokio::test]
async fn a_response_is_a_chats_answer() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let chat = server
        .ok("/v1/chat/completions", &counting(&json!({})))
        .await;
    let body = json!({"model": MODEL, "input": QUESTION, "temperature": 0});
    let answer = server.ok("/v1/responses", &body).await;
    assert_eq!(answer["status"], "completed");
    assert_eq!(answer["output"][0]["content"][0]["text"], COUNTED);
    for (name, old) in [
        ("input_tokens", "prompt_tokens"),
        ("output_tokens", "completion_tokens"),
        ("total_tokens", "total_tokens"),
    ] {
        assert_eq!(answer["usage"][name], chat["usage"][old], "{answer}");
    }
    let streamed = with(body.clone(), &json!({"stream": true}));
    let events = server.stream("/v1/responses", &streamed).await;
    let events = events.to_end().await;
    assert_eq!(
        text(&events, "response.output_text.delta", "/delta"),
        COUNTED
    );
    let last = events.last().expect("events");
    assert_eq!(last["type"], "response.completed");
    assert_eq!(
        last["response"]["output"][0]["content"],
        answer["output"][0]["content"]
    );
    // The conversation goes on with what the server said.
    let input = json!([
        {"role": "user", "content": QUESTION}, answer["output"][0], {"role": "user", "content": QUESTION}
    ]);
    let next = with(body, &json!({"input": input, "max_output_tokens": 4}));
    let next = server.ok("/v1/responses", &next).await;
    assert_eq!(next["incomplete_details"]["reason"], "max_output_tokens");
    let fields = json!({"messages": [
        {"role": "user", "content": QUESTION}, {"role": "assistant", "content": COUNTED},
        {"role": "user", "content": QUESTION}
    ], "max_tokens": 4});
    let chat = server.ok("/v1/chat/completions", &counting(&fields)).await;
    let said = &chat["choices"][0]["message"]["content"];
    assert_eq!(next["output"][0]["content"][0]["text"], *said);
}

#[tokio::test]
async fn a_message_is_a_chats_answer() {
    let (_turn, server) = (turns::shared().await, shared().await);
    let messages = json!([{"role": "user", "content": QUESTION}]);
    let body = json!({"model": MODEL, "messages": messages, "max_tokens": 60, "temperature": 0});
    let answer = server.ok("/v1/messages", &body).await;
    assert_eq!(
        answer["content"],
        json!([{"type": "text", "text": COUNTED}])
    );
    assert_eq!(answer["stop_reason"], "end_turn");
    let counted = with(body.clone(), &json!({"max_tokens": null}));
    let counted = server.ok("/v1/messages/count_tokens", &counted).await;
    let prompt = |usage: &Value| {
        let count = |name: &str| usage[name].as_u64().expect("a count");
        count("input_tokens") + count("cache_read_input_tokens")
    };
    assert_eq!(counted["input_tokens"], prompt(&answer["usage"]));
    let streamed = with(body.clone(), &json!({"stream": true}));
    let events = server.stream("/v1/messages", &streamed).await;
    let events = events.to_end().await;
    assert_eq!(text(&events, "content_block_delta", "/delta/text"), COUNTED);
    let [.., end, stop] = &events[..] else {
        panic!("an end");
    };
    assert_eq!(stop["type"], "message_stop");
    assert_eq!(end["delta"]["stop_reason"], "end_turn");
    assert_eq!(counted["input_tokens"], prompt(&end["usage"]));
    assert_eq!(
        end["usage"]["output_tokens"],
        answer["usage"]["output_tokens"]
    );
    // The begin of an answer is continued, up to a stop sequence.
    let begun = json!([messages[0], {"role": "assistant", "content": "3, 4,"}]);
    let stopped = with(body, &json!({"messages": begun, "stop_sequences": ["8"]}));
    let stopped = server.ok("/v1/messages", &stopped).await;
    assert_eq!(
        stopped["content"],
        json!([{"type": "text", "text": " 5, 6, 7, "}])
    );
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("8"))
    );
}
