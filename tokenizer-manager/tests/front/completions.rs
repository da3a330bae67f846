//! `/v1/completions`.

use lockstep_proto::pb::lockstep::{FinishReason, Output};
use serde_json::{Value, json};

use super::{
    client::{chat, chunks, completion},
    harness::start,
    mock::{id, ids, logprob, tokens},
};

#[tokio::test]
async fn prompts_in_all_four_forms() {
    let front = start().await;
    for (prompt, count) in [
        (json!("ab"), 1),
        (json!(["ab", "c"]), 2),
        (json!([35, 36]), 1),
        (json!([[35, 36], [37]]), 2),
    ] {
        let body = completion(&json!({"prompt": prompt, "n": 2}));
        let scheduler = async {
            for index in 0..count * 2 {
                let job = front.mock.job().await;
                assert_eq!(job.submit.max_new_tokens, 16);
                job.tokens(&ids(&index.to_string()));
                job.finish(FinishReason::Stop, 1);
            }
        };
        let (answer, ()) = tokio::join!(front.ok("/v1/completions", &body), scheduler);
        let texts: Vec<&str> = answer["choices"]
            .as_array()
            .expect("choices")
            .iter()
            .map(|choice| choice["text"].as_str().expect("text"))
            .collect();
        let expected: Vec<String> = (0..count * 2).map(|index| index.to_string()).collect();
        assert_eq!(texts, expected);
        assert_eq!(answer["usage"]["completion_tokens"], count * 2);
    }
}

#[tokio::test]
async fn special_tokens_show_when_asked_for() {
    let front = start().await;
    let conversation = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let tokens = front.ok("/tokenize", &conversation).await["tokens"].clone();
    let special = u32::try_from(tokens[0].as_u64().expect("an id")).expect("an id");
    for (path, field) in [
        ("/v1/completions", "text"),
        ("/v1/chat/completions", "message"),
    ] {
        for (skip, text) in [
            (json!(null), "ab"),
            (json!(true), "ab"),
            (json!(false), "a<|im_start|>b"),
        ] {
            let fields = json!({"skip_special_tokens": skip});
            let body = match field {
                "text" => completion(&fields),
                _ => chat(&fields),
            };
            let scheduler = async {
                let job = front.mock.job().await;
                job.tokens(&[id('a'), special, id('b')]);
                job.finish(FinishReason::Length, 3);
            };
            let (answer, ()) = tokio::join!(front.ok(path, &body), scheduler);
            let shown = &answer["choices"][0][field];
            let shown = shown.get("content").unwrap_or(shown);
            assert_eq!(*shown, text, "{path} {fields}");
        }
    }
}

/// The request is lm_eval's for scoring a continuation, and the checks cover what
/// lm_eval reads.
#[tokio::test]
async fn echo_with_logprobs_scores_the_prompt() {
    let front = start().await;
    let prompt = [id('A'), id('B'), id('C')];
    for (max_tokens, stream) in [(1, false), (0, false), (1, true), (0, true)] {
        let body = completion(&json!({
            "prompt": [prompt], "echo": true, "logprobs": 1, "max_tokens": max_tokens,
            "temperature": 0, "seed": 1234, "stream": stream
        }));
        let scheduler = async {
            let job = front.mock.job().await;
            let wanted = job.submit.logprobs.expect("logprobs");
            assert_eq!(wanted.prompt_start, Some(0));
            assert_eq!(job.submit.max_new_tokens, max_tokens);
            let prompt_logprobs = vec![
                logprob(prompt[0], None, &[]),
                logprob(prompt[1], Some(-0.5), &[(prompt[1], -0.5)]),
                logprob(prompt[2], Some(-2.0), &[(id('X'), -0.1)]),
            ];
            let mut output = super::mock::ended(FinishReason::Length, job.usage(max_tokens), None);
            output.prompt_logprobs = prompt_logprobs;
            if max_tokens == 1 {
                output.token_ids = vec![id('D')];
                output.logprobs = vec![logprob(id('D'), Some(-0.75), &[(id('D'), -0.75)])];
            }
            job.send(output);
        };
        let ((status, text), ()) = tokio::join!(front.post("/v1/completions", &body), scheduler);
        assert_eq!(status, 200, "{text}");
        let answer: Value = if stream {
            chunks(&text).remove(0)
        } else {
            serde_json::from_str(&text).expect("json")
        };
        let choice = &answer["choices"][0];
        let logprobs = &choice["logprobs"];
        let mut expected = (
            "ABC".to_owned(),
            vec![json!("A"), json!("B"), json!("C")],
            vec![Value::Null, json!(-0.5), json!(-2.0)],
            vec![
                Value::Null,
                json!({"B": -0.5}),
                // The prompt's token is listed although another one is likelier.
                json!({"X": -0.1, "C": -2.0}),
            ],
            vec![json!(0), json!(1), json!(2)],
        );
        if max_tokens == 1 {
            expected.0.push('D');
            expected.1.push(json!("D"));
            expected.2.push(json!(-0.75));
            expected.3.push(json!({"D": -0.75}));
            expected.4.push(json!(3));
        }
        assert_eq!(choice["text"], expected.0);
        assert_eq!(logprobs["tokens"], Value::Array(expected.1));
        assert_eq!(logprobs["token_logprobs"], Value::Array(expected.2));
        assert_eq!(logprobs["top_logprobs"], Value::Array(expected.3));
        assert_eq!(logprobs["text_offset"], Value::Array(expected.4));
        assert_eq!(choice["finish_reason"], "length");
    }
}

#[tokio::test]
async fn a_stream_has_text_and_one_reason_per_choice() {
    let front = start().await;
    let body = completion(&json!({
        "prompt": ["a", "b"], "stream": true, "echo": true,
        "stream_options": {"include_usage": true}
    }));
    let scheduler = async {
        let (first, second) = (front.mock.job().await, front.mock.job().await);
        first.tokens(&ids("12"));
        second.tokens(&ids("34"));
        second.finish(FinishReason::Length, 2);
        first.finish(FinishReason::Stop, 2);
    };
    let ((_, text), ()) = tokio::join!(front.post("/v1/completions", &body), scheduler);
    let mut chunks = chunks(&text);
    let usage = chunks.pop().expect("usage");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(
        usage["usage"],
        json!({"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6,
               "prompt_tokens_details": {"cached_tokens": 4}})
    );
    let mut texts = [String::new(), String::new()];
    let mut reasons = [Value::Null, Value::Null];
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().expect("index") as usize;
        assert!(reasons[index].is_null(), "nothing comes after the reason");
        texts[index].push_str(choice["text"].as_str().expect("text"));
        reasons[index] = choice["finish_reason"].clone();
    }
    assert_eq!(texts, ["a12", "b34"]);
    assert_eq!(reasons, [json!("stop"), json!("length")]);
}

#[tokio::test]
async fn every_choice_echoes_its_own_prompt() {
    let front = start().await;
    for stream in [false, true] {
        let body = completion(&json!({
            "prompt": ["a", "b"], "n": 2, "echo": true, "stream": stream
        }));
        let scheduler = async {
            for text in ["1", "2", "3", "4"] {
                let job = front.mock.job().await;
                job.tokens(&ids(text));
                job.finish(FinishReason::Stop, 1);
            }
        };
        let ((_, text), ()) = tokio::join!(front.post("/v1/completions", &body), scheduler);
        let answers = match stream {
            true => chunks(&text),
            false => vec![serde_json::from_str(&text).expect("json")],
        };
        let mut texts = vec![String::new(); 4];
        for choice in answers
            .iter()
            .flat_map(|answer| answer["choices"].as_array().expect("choices"))
        {
            let index = choice["index"].as_u64().expect("index") as usize;
            texts[index].push_str(choice["text"].as_str().expect("text"));
        }
        assert_eq!(texts, ["a1", "a2", "b3", "b4"], "{stream}");
    }
}

#[tokio::test]
async fn tokens_that_are_no_text_have_names_of_their_own() {
    let front = start().await;
    let body = completion(&json!({"logprobs": 0}));
    let scheduler = async {
        let job = front.mock.job().await;
        for token in [130, 105] {
            job.send(Output {
                logprobs: vec![logprob(token, Some(-1.0), &[])],
                ..tokens(&[token])
            });
        }
        job.finish(FinishReason::Length, 2);
    };
    let (answer, ()) = tokio::join!(front.ok("/v1/completions", &body), scheduler);
    let logprobs = &answer["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().expect("tokens");
    assert!(
        tokens
            .iter()
            .all(|token| token.as_str().is_some_and(|t| t.starts_with("bytes:\\x"))),
        "{tokens:?}"
    );
    assert_eq!(logprobs["text_offset"], json!([0, 0]));
}

#[tokio::test]
async fn every_parameter_reaches_the_scheduler() {
    let front = start().await;
    let body = completion(&json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
        "presence_penalty": 0.1, "frequency_penalty": -0.2, "repetition_penalty": 1.2,
        "logit_bias": {"7": -100, "9": 1.5}, "seed": -1, "min_tokens": 2,
        "stop_token_ids": [9, 5], "ignore_eos": true, "best_of": 1, "user": "me",
        "metadata": {"a": "b"}
    }));
    let scheduler = async {
        let job = front.mock.job().await;
        let sampling = job.submit.sampling.clone().expect("sampling");
        assert_eq!(sampling.temperature, Some(0.5));
        assert_eq!(sampling.top_p, Some(0.9));
        assert_eq!(sampling.top_k, Some(40));
        assert_eq!(sampling.min_p, Some(0.05));
        assert_eq!(sampling.presence_penalty, Some(0.1));
        assert_eq!(sampling.frequency_penalty, Some(-0.2));
        assert_eq!(sampling.repetition_penalty, Some(1.2));
        assert_eq!(sampling.logit_bias.get(&7), Some(&-100.0));
        assert_eq!(sampling.logit_bias.get(&9), Some(&1.5));
        assert_eq!(sampling.seed, Some(u64::MAX));
        assert_eq!(sampling.min_new_tokens, Some(2));
        // The ids are sorted and exclude the model's own end token.
        assert_eq!(sampling.stop_token_ids, [5, 9]);
        assert_eq!(sampling.ignore_eos, Some(true));
        job.tokens(&ids("xy"));
        job.finish(FinishReason::Length, 2);
    };
    tokio::join!(front.ok("/v1/completions", &body), scheduler);
}
