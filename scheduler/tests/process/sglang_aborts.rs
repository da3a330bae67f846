//! Ends of calls of SGLang's gateway before they are done.

use futures::StreamExt as _;
use lockstep_proto::pb::sglang::grpc::scheduler::{
    AbortRequest, generate_response::Response, sampling_params::Constraint,
};
use tonic::Code;

use crate::sglang::{collect, generate, serving};

#[tokio::test]
async fn abort_and_a_caller_that_leaves_end_the_request() {
    let (scheduler, mut client) = serving().await;
    let mut stream = client
        .generate(generate(&[3; 4], 1000))
        .await
        .expect("runs")
        .into_inner();
    stream.message().await.expect("a message");
    let twice = client.generate(generate(&[3; 4], 1)).await;
    assert_eq!(
        twice.err().map(|status| status.code()),
        Some(Code::AlreadyExists)
    );
    let abort = AbortRequest {
        request_id: "r4".to_owned(),
        reason: "test".to_owned(),
    };
    assert!(
        client
            .abort(abort.clone())
            .await
            .expect("an answer")
            .into_inner()
            .success
    );
    let last = stream
        .map(|message| message.expect("a message"))
        .collect::<Vec<_>>()
        .await;
    let Some(Response::Complete(end)) = last.last().and_then(|last| last.response.clone()) else {
        panic!("no end")
    };
    assert_eq!(end.finish_reason, "abort");
    assert!(
        !client
            .abort(abort)
            .await
            .expect("harmless")
            .into_inner()
            .success
    );

    let mut left = client
        .generate(generate(&[3; 6], 1000))
        .await
        .expect("runs")
        .into_inner();
    left.message().await.expect("a message");
    drop(left);
    let mut frontend = scheduler.frontend().await;
    while frontend.load().await.running_requests > 0 {
        tokio::task::yield_now().await;
    }
}

/// An abort ends a call whose constraint still compiles, before it queues. The grammar is as
/// ambiguous as can be, so following it takes longer than the server allows; the abort is sent until
/// the call is known.
#[tokio::test]
async fn an_abort_ends_a_call_whose_constraint_compiles() {
    let (scheduler, mut client) = serving().await;
    let mut request = generate(&[3; 4], 1000);
    request.return_logprob = true;
    if let Some(params) = &mut request.sampling_params {
        params.ignore_eos = false;
        params.n = 2;
        let grammar = "start: s\ns: s s s | s s | \"a\" | \"b\" | /[a-z]/ | /[a-m]/";
        params.constraint = Some(Constraint::EbnfGrammar(grammar.to_owned()));
    }
    let mut other = client.clone();
    let abort = async {
        let abort = AbortRequest {
            request_id: "r4".to_owned(),
            reason: "test".to_owned(),
        };
        let known = || other.clone();
        while !known()
            .abort(abort.clone())
            .await
            .expect("an answer")
            .into_inner()
            .success
        {
            tokio::task::yield_now().await;
        }
    };
    let (messages, ()) = tokio::join!(collect(&mut client, request), abort);
    assert_eq!(messages.len(), 2);
    for (at, message) in messages.into_iter().enumerate() {
        let Some(Response::Complete(end)) = message.response else {
            panic!("a chunk")
        };
        assert_eq!((end.index as usize, &*end.finish_reason), (at, "abort"));
        assert_eq!((end.prompt_tokens, end.output_ids.len()), (4, 0));
        assert!(end.output_logprobs.is_some() && end.input_logprobs.is_none());
    }
    let load = scheduler.frontend().await.load().await;
    assert_eq!((load.running_requests, load.waiting_requests), (0, 0));
    // Its id is free again.
    assert!(collect(&mut other, generate(&[3; 4], 2)).await.len() > 1);
}
