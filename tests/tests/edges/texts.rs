//! Texts as long as a body, of one character that is costly for tokenizers or their
//! patterns.

use lockstep_tests::{processes::Role, server::Server, turns};
use serde_json::json;

use crate::options;

/// Bytes of a text, somewhat less than the limit of a body.
const TEXT: usize = 15 << 20;

#[tokio::test]
async fn the_longest_texts_cost_little_more_than_themselves() {
    let _turn = turns::shared().await;
    let server = Server::start(options()).await;
    let front = server.process(Role::TokenizerManager(0)).await;
    let counted = json!({"prompt": "One, two, three."});
    let expected = server.ok("/tokenize", &counted).await;
    let before = front.memory("VmRSS");
    send(&server).await;
    let grown = front.memory("VmHWM") - before;
    assert!(grown < 10 * TEXT, "{} MiB", grown >> 20);
    // The answer and the process are the same as before.
    assert_eq!(server.ok("/tokenize", &counted).await, expected);
    assert_eq!(server.process(Role::TokenizerManager(0)).await, front);
}

/// Sends a text of each character to every path that tokenizes.
pub async fn send(server: &Server) {
    for character in ["7", " ", "\n", "a", "日"] {
        let written = json!(character).to_string().len() - 2;
        let text = character.repeat(TEXT / written);
        for (path, body) in [
            ("/tokenize", json!({"prompt": text})),
            ("/v1/completions", json!({"prompt": text, "max_tokens": 1})),
        ] {
            let answer = server.post(path, &body).await;
            assert_eq!(answer.status, 400, "{path} {character:?}: {}", answer.text);
            assert!(answer.text.len() < 1_000, "{path} {character:?}");
        }
    }
}

#[tokio::test]
async fn words_counted_one_by_one_are_those_of_the_whole() {
    let _turn = turns::shared().await;
    let server = Server::start(options()).await;
    let count = async |text: &str| {
        let answer = server.ok("/tokenize", &json!({"prompt": text})).await;
        answer["count"].as_u64().expect("a number")
    };
    let sentence = "Counted: 12 words, 3 of them\tafter\u{301} a tab.\n";
    let short = count(sentence).await;
    assert_eq!(count(&sentence.repeat(10_000)).await, 10_000 * short);
}
