//! Tests with several DP ranks: where requests run, and the load that is reported for each.

use lockstep_planner::sim::{SimModel, run_alone};
use lockstep_proto::pb::sglang::grpc::scheduler::{
    GenerateRequest, GetLoadsRequest, GetServerInfoRequest,
};
use lockstep_proto::pb::smg::grpc::common::{
    KvEventBatch, SubscribeKvEventsRequest, kv_cache_event::Data,
};
use lockstep_types::request::{ErrorKind, FinishReason, Request};
use tonic::Code;

use crate::fixture::{Frontend, Scheduler, dp_args, request};
use crate::sglang::{collect, generate, serving_with};

fn named(dp_rank: u32, request: Request) -> Request {
    Request {
        data_parallel_rank: Some(dp_rank),
        ..request
    }
}

/// Every request gets the output that it would get alone, wherever it runs.
#[tokio::test]
async fn requests_run_where_they_are_asked_to() {
    for (tp_size, dp_size) in [(2, 2), (4, 2), (4, 4)] {
        let (scheduler, mut frontend) = Scheduler::serving(&dp_args(tp_size, dp_size)).await;
        let ranks = dp_size as u32;
        let requests: Vec<_> = (0..20u32)
            .map(|n| named(n % ranks, request(&vec![n % 5; 10 + n as usize * 7], 5 + n)))
            .collect();
        for (number, request) in (0..).zip(&requests) {
            frontend.submit(number, request.clone()).await;
        }
        // Two more requests go where there is room.
        for number in [20, 21] {
            frontend.submit(number, request(&[7; 40], 3)).await;
        }
        let outputs = frontend.finish(22).await;
        let model = SimModel {
            vocab_size: scheduler.engine.model.vocab_size as u32,
        };
        let context = scheduler.engine.server.context_length as u32;
        for (number, request) in (0..).zip(&requests) {
            let alone = run_alone(model, context, request);
            let output = &outputs[&number];
            assert_eq!(output.token_ids, alone.token_ids, "request {number}");
            assert_eq!(output.dp_rank, request.data_parallel_rank);
            let finish = output.finish.as_ref().expect("ended");
            assert_eq!(finish.outcome, Ok(FinishReason::Length));
        }
        assert!(outputs[&20].dp_rank < Some(ranks) && outputs[&20].dp_rank.is_some());
        let load = frontend.load().await;
        assert_eq!((load.running_requests, load.kv_tokens_used), (0, 0));
        assert_eq!(load.dp_ranks.len(), dp_size);
        let sum = |of: fn(&lockstep_proto::pb::lockstep::DpRankLoad) -> u64| {
            load.dp_ranks.iter().map(of).sum::<u64>()
        };
        assert_eq!(sum(|rank| rank.kv_tokens_cached), load.kv_tokens_cached);
        assert_eq!(sum(|rank| rank.kv_tokens_total), load.kv_tokens_total);
        assert_eq!(
            sum(|rank| rank.prompt_tokens_total),
            load.prompt_tokens_total
        );
        assert_eq!(
            sum(|rank| rank.generated_tokens_total),
            load.generated_tokens_total
        );
        for rank in &load.dp_ranks {
            assert_eq!(rank.running_requests, 0);
            assert!(rank.generated_tokens_total > 0 && rank.kv_tokens_cached > 0);
        }
    }
}

async fn refusal(frontend: &mut Frontend, request: Request) -> (ErrorKind, Option<String>) {
    frontend.submit(1, request).await;
    let outputs = frontend.finish(1).await;
    assert_eq!(outputs[&1].dp_rank, None, "it ran nowhere");
    let finish = outputs[&1].finish.clone().expect("ended");
    let error = finish.outcome.expect_err("not there");
    (error.kind, error.param)
}

#[tokio::test]
async fn a_dp_rank_that_is_not_there_is_refused() {
    for (dp_size, wrong) in [(1, 1), (2, 2), (2, u32::MAX)] {
        let (_scheduler, mut frontend) = Scheduler::serving(&dp_args(2, dp_size)).await;
        let refused = refusal(&mut frontend, named(wrong, request(&[1], 1))).await;
        let field = "data_parallel_rank".to_owned();
        assert_eq!(
            refused,
            (ErrorKind::Invalid, Some(field)),
            "{dp_size} {wrong}"
        );
    }
}

/// With one DP rank, outputs name none.
#[tokio::test]
async fn outputs_of_one_dp_rank_name_none() {
    let (_scheduler, mut frontend) = Scheduler::serving(&dp_args(2, 1)).await;
    frontend.submit(1, named(0, request(&[1; 20], 3))).await;
    assert_eq!(frontend.finish(1).await[&1].dp_rank, None);
    let load = frontend.load().await;
    let [only] = load.dp_ranks.as_slice() else {
        panic!("{load:?}");
    };
    assert_eq!(only.kv_tokens_total, load.kv_tokens_total);
    assert_eq!(only.generated_tokens_total, load.generated_tokens_total);
}

fn at(data_parallel_rank: i32, prompt: &[u32], tokens: u32) -> GenerateRequest {
    GenerateRequest {
        data_parallel_rank: Some(data_parallel_rank),
        ..generate(prompt, tokens)
    }
}

/// Returns the first tokens of the blocks that a batch says are stored.
fn stored(batch: &KvEventBatch) -> Vec<u32> {
    let blocks = batch.events.iter().filter_map(|event| match &event.data {
        Some(Data::Stored(stored)) => Some(&stored.blocks),
        _ => None,
    });
    blocks.flatten().map(|block| block.token_ids[0]).collect()
}

#[tokio::test]
async fn a_gateway_names_dp_ranks_and_is_told_of_each() {
    let (scheduler, mut client) = serving_with(|args| {
        args.parallel.dp_size = Some(2);
        args.parallel.enable_dp_attention = true;
    })
    .await;
    for wrong in [2, -1] {
        let status = client.generate(at(wrong, &[1], 1)).await;
        let status = status.expect_err("not there");
        assert_eq!(status.code(), Code::InvalidArgument);
        let message = status.message();
        assert!(message.contains("data_parallel_rank") && message.contains("from 0 to 1"));
    }
    let info = client.get_server_info(GetServerInfoRequest {}).await;
    let info = info.expect("an answer").into_inner();
    let args = info.server_args.expect("given").fields;
    assert_eq!(
        format!("{:?}", args["dp_size"].kind),
        "Some(NumberValue(2.0))"
    );

    let page = scheduler.engine.kv.page_size;
    collect(&mut client, at(1, &vec![5; page + 1], 1)).await;
    let events = client.subscribe_kv_events(SubscribeKvEventsRequest::default());
    let mut events = events.await.expect("a stream").into_inner();
    let mut next = async || events.message().await.expect("a batch").expect("not ended");
    // The first batches have the contents of each cache. The step at the start left nothing
    // there.
    let (first, second) = (next().await, next().await);
    assert_eq!((first.dp_rank, first.sequence_number), (Some(0), 1));
    assert_eq!((second.dp_rank, second.sequence_number), (Some(1), 2));
    assert!(!stored(&first).contains(&5) && stored(&second).contains(&5));
    collect(&mut client, at(0, &vec![6; page + 1], 1)).await;
    let third = next().await;
    assert_eq!((third.dp_rank, stored(&third)), (Some(0), vec![6]));

    let mut loads = async |dp_rank| {
        let request = GetLoadsRequest {
            dp_rank,
            include: vec!["all".to_owned()],
        };
        client
            .get_loads(request)
            .await
            .map(tonic::Response::into_inner)
    };
    let all = loads(None).await.expect("an answer");
    assert_eq!((all.dp_rank_count, all.loads.len()), (2, 2));
    let numbers: Vec<_> = all.loads.iter().map(|load| load.dp_rank).collect();
    assert_eq!(numbers, [0, 1]);
    // Each DP rank may run half of the eight requests.
    assert!(all.loads.iter().all(|load| load.max_running_requests == 4));
    assert!(
        all.loads
            .iter()
            .all(|load| load.max_total_num_tokens == 4096)
    );
    let one = loads(Some(1)).await.expect("an answer");
    assert_eq!((one.dp_rank_count, one.loads.len()), (2, 1));
    assert_eq!(one.loads[0].dp_rank, 1);
    let status = loads(Some(2)).await.expect_err("not there");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("from 0 to 1"), "{status}");
}
