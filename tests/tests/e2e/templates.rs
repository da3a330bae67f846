//! Changes to messages before the model's template sees them, over HTTP and gRPC.

use std::{fs, path::Path};

use lockstep_proto::pb::lockstep::{Chat, ChatMessage, GenerateRequest, generate_request::Input};
use lockstep_tests::{
    MODEL,
    body::{chat, with},
    server::Server,
    turns,
};
use serde_json::{Value, json};

use crate::{options, weights::copy_demo};

const CHAT: &str = "/v1/chat/completions";

/// Template with three roles that prints the reasoning of a message.
const TEMPLATE: &str = "{%- for m in messages -%}
{%- if m.role in ['system', 'user', 'assistant'] -%}
<|im_start|>{{ m.role }}
{% if m.reasoning_content %}({{ m.reasoning_content }}) {% endif %}{{ m.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}";

async fn strict_server(folder: &Path) -> Server {
    let model = folder.join("strict");
    copy_demo(&model);
    fs::write(model.join("chat_template.jinja"), TEMPLATE).expect("written");
    let options = options()
        .set("--model-path", model.to_str().expect("UTF-8"))
        .set("--served-model-name", MODEL);
    Server::start(options).await
}

/// Returns the prompt that a server renders from messages, and its number of tokens.
async fn prompt(server: &Server, messages: &Value) -> (String, Value) {
    let tokens = server.ok("/tokenize", &json!({"messages": messages})).await;
    let ask = json!({"tokens": tokens["tokens"], "skip_special_tokens": false});
    let text = server.ok("/detokenize", &ask).await["text"].clone();
    (
        text.as_str().expect("a text").to_owned(),
        tokens["count"].clone(),
    )
}

/// Returns the number of prompt tokens of a chat over gRPC.
async fn tokens_over_grpc(server: &Server, messages: &Value) -> u32 {
    let messages = messages.as_array().expect("messages").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let messages = messages.map(|message| ChatMessage {
        role: text(&message["role"]),
        content: text(&message["content"]),
    });
    let request = GenerateRequest {
        input: Some(Input::Chat(Chat {
            messages: messages.collect(),
        })),
        max_new_tokens: Some(1),
        stream: Some(false),
        ..GenerateRequest::default()
    };
    let mut client = server.inference().await;
    let answer = client.generate(request).await.expect("an answer");
    let message = answer.into_inner().message().await.expect("a message");
    let usage = message.expect("one").usage;
    usage.expect("counts").prompt_tokens
}

#[tokio::test]
async fn developer_messages_reach_the_prompt_whichever_way_they_come() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let server = strict_server(folder.path()).await;
    let user = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";
    let hello = json!({"role": "user", "content": "Hello"});
    let brief = json!({"role": "developer", "content": "Answer in one word."});
    let system = json!({"role": "system", "content": "You are kind."});
    for (messages, instructions) in [
        (json!([brief, hello]), "Answer in one word."),
        (json!([hello, brief]), "Answer in one word."),
        (
            json!([system, brief, hello]),
            "You are kind.\n\nAnswer in one word.",
        ),
        (
            json!([brief, hello, system]),
            "Answer in one word.\n\nYou are kind.",
        ),
    ] {
        let (text, count) = prompt(&server, &messages).await;
        let expected = format!("<|im_start|>system\n{instructions}<|im_end|>\n{user}");
        assert_eq!(text, expected, "{messages}");
        let body = with(
            chat("", &json!({"max_tokens": 1})),
            &json!({"messages": messages}),
        );
        let answer = server.ok(CHAT, &body).await;
        assert_eq!(answer["usage"]["prompt_tokens"], count, "{messages}");
        assert_eq!(
            json!(tokens_over_grpc(&server, &messages).await),
            count,
            "{messages}"
        );
    }
    let thought = json!([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi"}]);
    for answer in [
        json!({"role": "assistant", "content": "Hi", "reasoning": "Hm."}),
        json!({"role": "assistant", "content": thought, "tool_calls": null}),
    ] {
        let (text, _) = prompt(&server, &json!([hello, answer, hello])).await;
        let expected = "<|im_start|>assistant\n(Hm.) Hi<|im_end|>\n";
        assert!(text.contains(expected), "{text}");
    }
}
