//! The algorithm's own option and texts, through a server of real processes.

use std::process::Command;

use lockstep_tests::{
    body::chat,
    server::{Options, Server},
    turns,
};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockstep-example-block-drafter");
const PATH: &str = "/ngram/corpus";

/// Runs the program and returns its standard output and standard error.
fn printed(arguments: &[&str]) -> String {
    let mut command = Command::new(PROGRAM);
    let output = command
        .args(arguments)
        .env("LOCKSTEP_DEVICE", "cpu")
        .output();
    let output = output.expect("the program runs");
    [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat()
}

/// The answer of the demo model that counts ten numbers from `first`.
fn counted(first: u32) -> String {
    let numbers: Vec<String> = (first..first + 10).map(|n| n.to_string()).collect();
    numbers.join(", ")
}

/// Lets the demo model count from `first`. Returns the number of accepted draft tokens
/// and the text.
async fn count(server: &Server, first: u32) -> (u64, String) {
    let prompt = format!("Count from {first} to {}.", first + 9);
    let answer = server
        .ok("/v1/chat/completions", &chat(&prompt, &json!({})))
        .await;
    let text = answer["choices"][0]["message"]["content"].as_str();
    let accepted = answer["usage"]["speculative"]["accepted_tokens"].as_u64();
    (accepted.unwrap_or(0), text.expect("a text").to_owned())
}

fn names(answer: &Value) -> Vec<&str> {
    let all = answer["corpora"].as_array().expect("a list").iter();
    all.map(|corpus| corpus["name"].as_str().expect("a name"))
        .collect()
}

#[test]
fn its_option_is_a_flag_of_the_program_and_of_no_other_algorithm() {
    let help = printed(&["serve", "-h"]);
    assert!(
        help.contains("--speculative-phrase-length <TOKENS>"),
        "{help}"
    );
    assert!(
        help.contains("PHRASES: tokens at a request's end"),
        "{help}"
    );
    let config = |line: &str| {
        let words = line.split_whitespace();
        printed(&[&["config"], &words.collect::<Vec<_>>()[..]].concat())
    };
    let good = config("--speculative-algorithm phrases --speculative-phrase-length 3");
    assert!(good.contains("\"speculative-phrase-length\": 3"), "{good}");
    for (line, expected) in [
        (
            "--speculative-algorithm NGRAM --speculative-phrase-length 3",
            "--speculative-phrase-length and --speculative-algorithm NGRAM: it looks for no \
             phrases. Leave --speculative-phrase-length out, or give --speculative-algorithm \
             PHRASES.",
        ),
        (
            "--speculative-algorithm PHRASES --speculative-ngram-private",
            "it looks no texts up",
        ),
        (
            "--speculative-algorithm PHRASES --speculative-phrase-length 17",
            "--speculative-phrase-length 17: at most 16.",
        ),
        (
            "--speculative-algorithm PHRASES --speculative-phrase-length 0",
            "must be at least 1",
        ),
    ] {
        let said = config(line);
        assert!(said.contains(expected), "{line}: {said}");
    }
}

#[tokio::test]
async fn its_texts_are_drafted_from_until_they_are_removed() {
    let _turn = turns::shared().await;
    let options = Options::new(PROGRAM)
        .set("--speculative-algorithm", "PHRASES")
        .set("--speculative-phrase-length", "3");
    let server = Server::start(options).await;
    assert_eq!(names(&server.get(PATH).await.ok()), [] as [&str; 0]);
    let (without, text) = count(&server, 14).await;
    assert_eq!(text, counted(14));
    let body = json!({"name": "teens", "text": counted(14)});
    assert_eq!(names(&server.ok(PATH, &body).await), ["teens"]);
    let (with, text) = count(&server, 14).await;
    assert_eq!(text, counted(14));
    assert!(with > without + 5, "{with} were right, {without} before");
    let short = server
        .post(PATH, &json!({"name": "short", "token_ids": [5]}))
        .await;
    assert_eq!(short.status, 400, "{}", short.text);
    let url = server.url("/ngram/corpus/teens");
    let removed = server.client.delete(&url).send().await.expect("answered");
    assert_eq!(removed.status(), 200);
    let (again, _) = count(&server, 14).await;
    assert_eq!(again, without);
}
