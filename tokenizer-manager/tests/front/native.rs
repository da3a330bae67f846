//! `/generate`, SGLang's native form.

use lockstep_proto::pb::lockstep::{FinishReason, Output};
use serde_json::{Value, json};

use super::{
    client::chunks,
    harness::start,
    mock::{EOS, id, ids, logprob, tokens},
};

#[tokio::test]
async fn one_prompt_with_logprobs() {
    let front = start().await;
    let body = json!({
        "text": "ab", "rid": "mine", "return_logprob": true, "logprob_start_len": 0,
        "top_logprobs_num": 1, "return_text_in_logprobs": true,
        "sampling_params": {"max_new_tokens": 4, "temperature": 0, "sampling_seed": 3}
    });
    let scheduler = async {
        let job = front.mock.job().await;
        assert_eq!(job.submit.trace_id, "mine");
        assert_eq!(job.submit.sampling.as_ref().and_then(|s| s.seed), Some(3));
        let prompt: Vec<u32> = job.submit.input_ids.clone();
        let mut first = tokens(&[id('C')]);
        first.prompt_logprobs = vec![logprob(prompt[0], None, &[])];
        first.logprobs = vec![logprob(id('C'), Some(-0.5), &[(id('C'), -0.5)])];
        job.send(first);
        job.send(Output {
            token_ids: vec![EOS],
            logprobs: vec![logprob(EOS, Some(-0.25), &[(EOS, -0.25)])],
            ..super::mock::ended(FinishReason::Stop, job.usage(2), Some(EOS))
        });
    };
    let (answer, ()) = tokio::join!(front.ok("/generate", &body), scheduler);
    assert_eq!(answer["text"], "C");
    assert_eq!(answer["output_ids"], json!([id('C'), EOS]));
    let meta = &answer["meta_info"];
    assert_eq!(meta["id"], "mine");
    assert_eq!(
        meta["finish_reason"],
        json!({"type": "stop", "matched": EOS})
    );
    assert_eq!(meta["cached_tokens"], 2);
    assert_eq!(meta["input_token_logprobs"][0][0], Value::Null);
    assert_eq!(
        meta["output_token_logprobs"],
        json!([[-0.5, id('C'), "C"], [-0.25, EOS, "<|im_end|>"]])
    );
    assert_eq!(
        meta["output_top_logprobs"][0],
        json!([[-0.5, id('C'), "C"]])
    );
}

#[tokio::test]
async fn a_batch_answers_with_a_list() {
    let front = start().await;
    let body = json!({
        "text": ["a", "b"],
        "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2, "stop": "Z"}]
    });
    let scheduler = async {
        for (limit, text) in [(1, "1"), (2, "2")] {
            let job = front.mock.job().await;
            assert_eq!(job.submit.max_new_tokens, limit);
            job.tokens(&ids(text));
            job.finish(FinishReason::Length, 1);
        }
    };
    let (answer, ()) = tokio::join!(front.ok("/generate", &body), scheduler);
    let texts: Vec<&Value> = answer
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| &one["text"])
        .collect();
    assert_eq!(texts, [&json!("1"), &json!("2")]);
    assert_eq!(
        answer[0]["meta_info"]["finish_reason"],
        json!({"type": "length", "length": 1})
    );
}

#[tokio::test]
async fn one_id_of_several_prompts_is_numbered() {
    let front = start().await;
    let body = json!({"text": ["a", "b"], "rid": "mine"});
    let scheduler = async {
        let mut known = Vec::new();
        for _ in 0..2 {
            let job = front.mock.job().await;
            job.finish(FinishReason::Stop, 0);
            known.push(job.submit.trace_id);
        }
        known
    };
    let (answer, known) = tokio::join!(front.ok("/generate", &body), scheduler);
    assert_eq!(known, ["mine-0", "mine-1"]);
    let told = [0, 1].map(|at: usize| answer[at]["meta_info"]["id"].clone());
    assert_eq!(told, ["mine-0", "mine-1"]);
}

/// The scheduler takes turns among clients' requests, not among their choices.
#[tokio::test]
async fn choices_of_one_request_are_told_to_be_that() {
    let front = start().await;
    for (body, choices) in [
        (json!({"text": "a"}), 1),
        (json!({"text": "a", "sampling_params": {"n": 2}}), 2),
        (json!({"text": ["a", "b"]}), 2),
        (json!({"text": ["a", "b"], "sampling_params": {"n": 2}}), 4),
    ] {
        let scheduler = async {
            let mut parents = Vec::new();
            for _ in 0..choices {
                let job = front.mock.job().await;
                job.finish(FinishReason::Stop, 0);
                parents.push(job.submit.parent);
            }
            parents.dedup();
            parents
        };
        let (_, parents) = tokio::join!(front.ok("/generate", &body), scheduler);
        assert_eq!(parents.len(), 1, "{body}: {parents:?}");
        assert_eq!(parents[0].is_some(), choices > 1, "{body}");
    }
}

#[tokio::test]
async fn prompt_positions_are_reported_where_they_are_asked_for_and_there() {
    let front = start().await;
    for (wanted, start, expected) in [
        (true, -1, None),
        (true, 0, Some(0)),
        (true, 1, Some(1)),
        (true, 2, None),
        (true, 9, None),
        (false, 0, None),
    ] {
        let body = json!({
            "input_ids": [35, 36], "return_logprob": wanted, "logprob_start_len": start
        });
        let (_, from) = tokio::join!(front.ok("/generate", &body), async {
            let job = front.mock.job().await;
            job.finish(FinishReason::Stop, 0);
            job.submit.logprobs.and_then(|asked| asked.prompt_start)
        });
        assert_eq!(from, expected, "{body}");
    }
}

#[tokio::test]
async fn a_stream_repeats_the_text_so_far() {
    let front = start().await;
    let body = json!({"input_ids": [35, 36], "stream": true});
    let scheduler = async {
        let job = front.mock.job().await;
        assert_eq!(job.submit.input_ids, [35, 36]);
        job.tokens(&ids("xyz"));
        job.finish(FinishReason::Stop, 3);
    };
    let ((_, text), ()) = tokio::join!(front.post("/generate", &body), scheduler);
    let chunks = chunks(&text);
    let mut so_far = "";
    for chunk in &chunks {
        let text = chunk["text"].as_str().expect("text");
        assert!(text.starts_with(so_far));
        so_far = text;
    }
    assert_eq!(so_far, "xyz");
    let last = &chunks[chunks.len() - 1];
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "stop");
}

#[tokio::test]
async fn a_request_can_be_aborted_by_its_id() {
    let front = start().await;
    let body = json!({"text": "a", "rid": "victim"});
    let scheduler = async {
        let job = front.mock.job().await;
        job.tokens(&ids("x"));
        let asked = async {
            let abort = front.mock.abort_trace().await;
            assert_eq!(
                abort.trace_ids,
                [
                    "victim",
                    "chatcmpl-victim",
                    "cmpl-victim",
                    "msg_victim",
                    "resp_victim"
                ]
            );
            assert!(!abort.all);
            job.finish(FinishReason::Abort, 1);
            front.mock.aborted(&abort, 1);
        };
        let body = json!({"rid": "victim"});
        let (answer, ()) = tokio::join!(front.ok("/abort_request", &body), asked);
        assert_eq!(answer, json!({"aborted": 1}));
    };
    let (answer, ()) = tokio::join!(front.ok("/generate", &body), scheduler);
    assert_eq!(answer["text"], "x");
    assert_eq!(answer["meta_info"]["finish_reason"]["type"], "abort");
}

#[tokio::test]
async fn aborts_are_of_one_id_or_of_all_or_refused() {
    let front = start().await;
    let all = json!({"abort_all": true});
    let (answer, ()) = tokio::join!(front.ok("/abort_request", &all), async {
        let abort = front.mock.abort_trace().await;
        assert!(abort.all && abort.trace_ids.is_empty(), "{abort:?}");
        front.mock.aborted(&abort, 12);
    });
    assert_eq!(answer, json!({"aborted": 12}));

    // A longer id might not fit into a message to the scheduler, and the stream would
    // end.
    let long = json!({"rid": "x".repeat(2000)});
    let refused = front.post("/abort_request", &long).await;
    assert_eq!(refused.0, 400, "{}", refused.1);

    // The scheduler is lost before it answers.
    let one = json!({"rid": "a"});
    let (lost, ()) = tokio::join!(front.post("/abort_request", &one), async {
        front.mock.abort_trace().await;
        front.mock.disconnect();
    });
    assert_eq!(lost.0, 503, "{}", lost.1);
}
