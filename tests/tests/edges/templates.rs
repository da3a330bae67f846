//! A model whose own chat template runs wild.

use std::{fs, path::Path};

use futures::future::join_all;
use lockstep_tests::{
    MODEL,
    body::{chat, completion},
    row::Row,
    server::Server,
    turns,
};
use serde_json::{Value, json};

use crate::{folders::copy_demo, options};

/// Template whose behaviour the last message selects. Other messages select nothing
/// wild, so the server accepts the template for chats.
const TEMPLATE: &str = "{%- set ns = namespace(v='ab') -%}
{%- set wild = messages[-1].content -%}
{%- if wild == 'double' -%}
{%- for i in range(1000) -%}{%- set ns.v = ns.v ~ ns.v -%}{%- endfor -%}
{%- elif wild == 'indent' -%}{%- set ns.v = ns.v|indent(4000000000, true) -%}
{%- elif wild == 'batch' -%}{%- set ns.v = ns.v|batch(4000000000, 0)|list -%}
{%- elif wild == 'slice' -%}{%- set ns.v = ns.v|slice(4000000000)|list -%}
{%- elif wild == 'nest' -%}
{%- for i in range(90000) -%}{%- set ns.v = [ns.v] -%}{%- endfor -%}
{%- elif wild == 'itself' -%}{%- set ns.v = ns -%}{{ ns }}
{%- elif wild == 'spin' -%}
{%- for i in range(90000) -%}{%- for j in range(90000) -%}{%- endfor -%}{%- endfor -%}
{%- elif wild == 'capture' -%}
{%- for i in range(1000) -%}{%- set v -%}{{ ns.v }}{{ ns.v }}{%- endset -%}{%- set ns.v = v -%}{%- endfor -%}
{%- endif -%}
{%- for message in messages -%}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}<|im_start|>assistant
{{ ns.v|length }}";

fn wild_model(folder: &Path) {
    copy_demo(folder, "chat_template.jinja");
    let config = folder.join("tokenizer_config.json");
    let text = fs::read(&config).expect("read");
    let mut described: Value = serde_json::from_slice(&text).expect("JSON");
    described["chat_template"] = TEMPLATE.into();
    fs::write(config, described.to_string()).expect("written");
}

async fn wild_server(folder: &Path) -> Server {
    let model = folder.join("wild");
    wild_model(&model);
    let options = options()
        .set("--model-path", model.to_str().expect("UTF-8"))
        .set("--served-model-name", MODEL);
    Server::start(options).await
}

const WILD: [&str; 8] = [
    "double", "indent", "batch", "slice", "nest", "itself", "spin", "capture",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size"]
async fn wild_templates_beside_an_innocent_client() {
    let _turn = turns::alone().await;
    let folder = tempfile::tempdir().expect("a folder");
    let server = wild_server(folder.path()).await;
    let row = Row::begin("09", &server);
    for wild in WILD {
        let body = chat(wild, &json!({"max_tokens": 4}));
        let asked = (0..3).map(|_| server.post("/v1/chat/completions", &body));
        for answer in join_all(asked).await {
            assert_eq!(answer.status, 400, "{wild}: {}", answer.text);
        }
    }
    row.end(&server, "8 templates, three at once: 400").await;
}

#[tokio::test]
async fn wild_templates_get_an_error_and_others_an_answer() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let server = wild_server(folder.path()).await;
    let short = json!({"max_tokens": 4});
    let other = completion("1, 2, 3,", &short);
    for wild in WILD {
        let body = chat(wild, &short);
        let (answer, health, other) = tokio::join!(
            server.post("/v1/chat/completions", &body),
            server.get("/health"),
            server.post("/v1/completions", &other),
        );
        assert_eq!(answer.status, 400, "{wild}: {}", answer.text);
        assert_eq!((health.status, other.status), (200, 200), "{wild}");
    }
    server
        .ok("/v1/chat/completions", &chat("tame", &short))
        .await;
}
