//! Many concurrent clients, many of which leave early.

use std::{ops::Range, sync::Arc, time::Duration};

use lockstep_proto::pb::lockstep::{Chat, ChatMessage, generate_request::Input};
use lockstep_tests::{
    body::{chat, completion},
    server::Server,
    sse::{self, Event},
    turns,
    wait::{LIMIT, until},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::{grpc, options};

const CLIENTS: u64 = 64;
const REQUESTS: usize = 20;
/// Tokens in every answer that is not cut short.
const TOKENS: u32 = 24;

/// Questions with common prefixes, each with its answer from an idle server.
pub struct Questions(Vec<(String, String)>);

impl Questions {
    pub async fn ask(server: &Server) -> Self {
        let mut questions = Vec::new();
        for number in 0..12u32 {
            let common = "Think about the numbers. ".repeat((number % 4) as usize * 8);
            let text = format!("{common}Count from {number} to {}.", number + 40);
            let answer = server
                .ok("/v1/chat/completions", &chat(&text, &fields()))
                .await;
            let answer = answer["choices"][0]["message"]["content"].as_str();
            questions.push((text, answer.expect("a text").to_owned()));
        }
        Self(questions)
    }
}

fn fields() -> Value {
    json!({"max_tokens": TOKENS, "ignore_eos": true})
}

/// Adds the DP rank to a request, if one is given.
fn placed(mut body: Value, rank: Option<u32>) -> Value {
    if let Some(rank) = rank {
        body["data_parallel_rank"] = json!(rank);
    }
    body
}

/// Number of a client's requests by outcome.
#[derive(Debug, Default)]
struct Tally {
    answered: usize,
    left: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_that_come_and_go_leave_nothing_behind() {
    let _turn = turns::alone().await;
    // The cache has room for about a third of the need of 64 clients.
    let server = Arc::new(Server::start(options().timed().set("--max-total-tokens", "8192")).await);
    let questions = Arc::new(Questions::ask(&server).await);
    let (answered, left) = wave(&server, &questions, 0..CLIENTS, |_| None).await;
    let all = answered + left;
    assert!(left > all / 5 && answered > all / 2, "{left} of {all} left");
    well(&server).await;
}

/// Lets clients come and go, one for each seed, on the DP rank that `place` returns for
/// the seed. Returns the number of answered requests and the number of requests whose
/// client left early.
pub async fn wave(
    server: &Arc<Server>,
    questions: &Arc<Questions>,
    seeds: Range<u64>,
    place: impl Fn(u64) -> Option<u32>,
) -> (usize, usize) {
    let start = |seed| client(server.clone(), questions.clone(), seed, place(seed));
    let clients: Vec<_> = seeds.map(|seed| tokio::spawn(start(seed))).collect();
    let all = clients.len() * REQUESTS;
    let mut total = Tally::default();
    for client in clients {
        let tally = client.await.expect("no client fails");
        total.answered += tally.answered;
        total.left += tally.left;
    }
    assert_eq!(total.answered + total.left, all);
    (total.answered, total.left)
}

/// Checks that a server without clients soon holds only its prefix cache, and that the
/// cache can be emptied.
pub async fn well(server: &Server) {
    let metrics = until("an idle server", LIMIT, async || {
        let metrics = server.metrics().await;
        // A tokenizer-manager may notice later than the engine that a client has left.
        let busy = metrics.sum("lockstep_num_requests_running")
            + metrics.sum("lockstep_num_requests_waiting")
            + metrics.sum("lockstep_requests_in_flight");
        (busy == 0.0).then_some(metrics)
    })
    .await;
    assert_eq!(metrics.sum("lockstep_kv_tokens_used"), 0.0);
    assert_eq!(metrics.sum("lockstep_kv_leaked_pages"), 0.0);
    assert_eq!(metrics.value("lockstep_requests_failed_total"), 0.0);
    assert!(metrics.value("lockstep_requests_aborted_total") > 0.0);
    let cached = metrics.sum("lockstep_kv_tokens_cached");
    assert!(cached > 0.0);
    let flushed = server.ok("/flush_cache", &json!({})).await;
    assert_eq!(flushed["tokens"].as_f64(), Some(cached));
    let metrics = server.metrics().await;
    assert_eq!(metrics.sum("lockstep_kv_tokens_cached"), 0.0);
    assert_eq!(metrics.sum("lockstep_kv_leaked_pages"), 0.0);
}

async fn client(
    server: Arc<Server>,
    questions: Arc<Questions>,
    seed: u64,
    rank: Option<u32>,
) -> Tally {
    let mut random = StdRng::seed_from_u64(seed);
    let mut tally = Tally::default();
    for _ in 0..REQUESTS {
        let (question, answer) = &questions.0[random.random_range(0..questions.0.len())];
        let leaves = random.random_bool(1.0 / 3.0);
        let answered = match (random.random_range(0..5), leaves) {
            (0, _) => call(&server, question, answer, leaves, &mut random).await,
            (1 | 2, _) => {
                let body = placed(chat(question, &fields()), rank);
                stream(&server, body, answer, leaves, &mut random).await
            }
            (_, false) => {
                let body = placed(chat(question, &fields()), rank);
                let whole = server.ok("/v1/chat/completions", &body).await;
                let text = &whole["choices"][0]["message"]["content"];
                assert_eq!(text, answer, "{question}");
                true
            }
            (_, true) => {
                let body = placed(completion(question.as_str(), &fields()), rank);
                // The client leaves after this time, perhaps only after the answer.
                let patience = Duration::from_millis(random.random_range(0..200));
                let asked = server.post("/v1/completions", &body);
                let answer = tokio::time::timeout(patience, asked).await;
                answer.is_ok_and(|answer| {
                    answer.ok();
                    true
                })
            }
        };
        *if answered {
            &mut tally.answered
        } else {
            &mut tally.left
        } += 1;
    }
    tally
}

/// Reads a stream to its end, or only some events of the stream. Returns true if the
/// stream was read to its end.
async fn stream(
    server: &Server,
    mut body: Value,
    answer: &str,
    leaves: bool,
    random: &mut StdRng,
) -> bool {
    body["stream"] = json!(true);
    let mut events = server.stream("/v1/chat/completions", &body).await;
    if !leaves {
        assert_eq!(sse::text(&events.chunks().await, 0), answer, "{body}");
        return true;
    }
    for _ in 0..random.random_range(0..TOKENS) {
        match events.next().await {
            Event::Json(chunk) => assert_eq!(chunk.get("error"), None, "{chunk}"),
            Event::Done => return true,
            other => panic!("{other:?}"),
        }
    }
    false
}

/// Does the work of [`stream`] over gRPC.
async fn call(
    server: &Server,
    question: &str,
    answer: &str,
    leaves: bool,
    random: &mut StdRng,
) -> bool {
    let message = ChatMessage {
        role: "user".to_owned(),
        content: question.to_owned(),
    };
    let chat = Chat {
        messages: vec![message],
    };
    let mut request = grpc::greedy(Input::Chat(chat), TOKENS);
    request.sampling.get_or_insert_default().ignore_eos = Some(true);
    let mut client = server.inference().await;
    let called = client.generate(request).await;
    let mut messages = called.expect("accepted").into_inner();
    let most = if leaves {
        random.random_range(0..TOKENS)
    } else {
        u32::MAX
    };
    let mut text = String::new();
    for _ in 0..most {
        match messages.message().await.expect("a message") {
            Some(message) => text.push_str(&message.text),
            None => {
                assert_eq!(text, answer, "{question}");
                return true;
            }
        }
    }
    false
}
