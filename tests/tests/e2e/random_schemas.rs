//! Answers of a server to random schemas, judged by a validator of others.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use lockstep_tests::{
    body::chat,
    schemas::schema,
    server::{Options, Server},
    turns,
};
use serde_json::{Value, json};

use crate::{options, shared};

/// Requests that run at once.
const AT_ONCE: usize = 8;
const TEMPERATURES: [f64; 3] = [0.0, 1.0, 2.0];

/// A server whose weights are random, so that it writes whatever it may.
fn random_weights() -> Options {
    options().set("--load-format", "dummy")
}

/// Asks for an instance of a schema. Returns true if the answer ended by itself; it is then
/// an instance, and is JSON in either case.
async fn is_finished(server: &Server, number: u64, temperature: f64) -> bool {
    let own = schema(number);
    let format = json!({"type": "json_schema", "json_schema": {"name": "random", "schema": own}});
    let fields = json!({"temperature": temperature, "seed": number, "max_tokens": 300,
        "response_format": format});
    let answer = server
        .ok("/v1/chat/completions", &chat("Who are you?", &fields))
        .await;
    let choice = &answer["choices"][0];
    if choice["finish_reason"] == "length" {
        return false;
    }
    let text = choice["message"]["content"].as_str().expect("a text");
    let instance: Value = serde_json::from_str(text)
        .unwrap_or_else(|error| panic!("schema {number} at {temperature}: {error}: {text}"));
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    compiler.enable_format_assertions();
    let place = "http://localhost/schema.json";
    compiler
        .add_resource(place, own.clone())
        .expect("a new place");
    let compiled = compiler
        .compile(place, &mut schemas)
        .unwrap_or_else(|error| panic!("{own}: {error}"));
    if let Err(error) = schemas.validate(&instance, compiled) {
        panic!("schema {number} at {temperature}: {error}: {text} of {own}");
    }
    true
}

/// Asks for instances of the first schemas at every temperature, and returns how many answers
/// ended by themselves.
async fn judge(server: &Server, schemas: u64) -> usize {
    let asked = (0..schemas).flat_map(|number| TEMPERATURES.map(|at| (number, at)));
    let answers = stream::iter(asked).map(|(number, at)| is_finished(server, number, at));
    let finished = answers.buffer_unordered(AT_ONCE);
    let finished = finished.filter(|finished| std::future::ready(*finished));
    finished.count().await
}

async fn servers() -> [Arc<Server>; 2] {
    [
        shared().await,
        Arc::new(Server::start(random_weights()).await),
    ]
}

#[tokio::test]
async fn answers_are_instances_of_random_schemas() {
    let _turn = turns::shared().await;
    for server in servers().await {
        let finished = judge(&server, 12).await;
        assert!(finished > 24, "{finished} of 36");
    }
}

#[tokio::test]
#[ignore = "takes minutes"]
async fn answers_are_instances_of_hundreds_of_random_schemas() {
    let _turn = turns::shared().await;
    for server in servers().await {
        let finished = judge(&server, 300).await;
        println!("{finished} of 900 answers ended by themselves, each an instance");
        assert!(finished > 600, "{finished} of 900");
    }
}
