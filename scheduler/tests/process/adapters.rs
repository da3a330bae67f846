//! Tests of adapters: all ranks load one or none does, and a place changes hands when its last
//! request has ended.

use std::path::PathBuf;

use lockstep_config::ServeArgs;
use lockstep_proto::pb::lockstep::{
    self as wire, AdapterReply, ListAdaptersRequest, LoadAdapterRequest, UnloadAdapterRequest,
    UpdateWeightsRequest, adapter_reply,
};
use lockstep_types::{
    NamedAdapter,
    request::{ErrorKind, Output, Request, RequestError},
};

use crate::fixture::{Frontend, LIMIT, Scheduler, args, request};

/// Output tokens of a request that runs until it is told to end.
const LONG: u32 = 1800;

fn with_adapters(tp_size: usize, places: u16) -> ServeArgs {
    let mut args = args(tp_size);
    args.lora.enable_lora = Some(true);
    args.lora.lora_dir = Some("/".into());
    args.lora.max_loras_per_batch = Some(places);
    args
}

fn adapted(name: &str, max_new_tokens: u32) -> Request {
    Request {
        adapter_name: Some(name.to_owned()),
        ..request(&[1, 2, 3], max_new_tokens)
    }
}

/// Returns the names and places of all adapters, or the reason why nothing changed.
fn listed(reply: AdapterReply) -> Result<Vec<(String, u32)>, RequestError> {
    match reply.kind.expect("an answer") {
        adapter_reply::Kind::Error(error) => Err(error.into()),
        adapter_reply::Kind::Adapters(list) => {
            let adapters = list.adapters.into_iter();
            let named = |adapter: wire::LoadedAdapter| {
                (adapter.name, adapter.adapter.expect("it has one").place)
            };
            Ok(adapters.map(named).collect())
        }
    }
}

async fn load(
    frontend: &Frontend,
    name: &str,
    path: &str,
) -> Result<Vec<(String, u32)>, RequestError> {
    let wanted = LoadAdapterRequest {
        name: name.to_owned(),
        path: path.to_owned(),
    };
    let reply = frontend.client.clone().load_adapter(wanted).await;
    listed(reply.expect("an answer").into_inner())
}

async fn unload(frontend: &Frontend, name: &str) -> Result<Vec<(String, u32)>, RequestError> {
    let name = name.to_owned();
    let mut client = frontend.client.clone();
    let reply = client.unload_adapter(UnloadAdapterRequest { name }).await;
    listed(reply.expect("an answer").into_inner())
}

async fn list(frontend: &Frontend) -> Vec<String> {
    let mut client = frontend.client.clone();
    let list = client.list_adapters(ListAdaptersRequest {}).await;
    let adapters = list.expect("an answer").into_inner().adapters;
    adapters.into_iter().map(|adapter| adapter.name).collect()
}

fn named(all: &[(&str, u32)]) -> Vec<(String, u32)> {
    all.iter()
        .map(|(name, place)| ((*name).to_owned(), *place))
        .collect()
}

/// Returns the end of a request.
async fn end(frontend: &mut Frontend, wanted: u64) -> Output {
    loop {
        for (number, output) in frontend.outputs().await.expect("outputs") {
            if number == wanted && output.finish.is_some() {
                return output;
            }
        }
    }
}

async fn outcome(frontend: &mut Frontend, wanted: u64) -> Result<(), RequestError> {
    let finish = end(frontend, wanted).await.finish.expect("the end");
    finish.outcome.map(drop)
}

/// Waits until rank 0 has had this order so many times.
async fn until_ordered(scheduler: &Scheduler, order: &str, times: usize) {
    let ordered = async {
        loop {
            let count = {
                let orders = scheduler.adapter_orders.lock().expect("no panic");
                orders.iter().filter(|one| *one == order).count()
            };
            if count == times {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, ordered).await.expect(order);
}

#[tokio::test]
async fn an_adapter_is_used_by_name_and_cleared_after_its_last_request() {
    let (scheduler, mut frontend) = Scheduler::serving(&with_adapters(2, 1)).await;
    frontend.submit(1, adapted("a", 1)).await;
    let unknown = outcome(&mut frontend, 1).await.expect_err("not loaded");
    assert_eq!(unknown.kind, ErrorKind::NotFound);
    assert_eq!(load(&frontend, "a", "/7").await, Ok(named(&[("a", 0)])));
    frontend.submit(2, adapted("a", LONG)).await;
    frontend.outputs().await.expect("it runs");
    let load_now = frontend.load().await;
    assert_eq!(
        (load_now.adapters_in_memory, load_now.adapters.len()),
        (1, 1)
    );
    assert_eq!(load_now.adapters[0].live_requests, 1);
    assert_eq!(unload(&frontend, "a").await, Ok(Vec::new()));
    // The name is gone, and its request goes on.
    frontend.submit(3, adapted("a", 1)).await;
    let gone = outcome(&mut frontend, 3).await.expect_err("unloaded");
    assert_eq!(gone.kind, ErrorKind::NotFound);
    let full = load(&frontend, "b", "/8").await.expect_err("no place");
    assert_eq!(full.kind, ErrorKind::Conflict);
    assert!(full.message.contains("wait for the requests"), "{full}");
    assert_eq!(frontend.load().await.adapters_in_memory, 1);
    frontend.abort(2).await;
    until_ordered(&scheduler, "clear 0", 1).await;
    assert_eq!(load(&frontend, "b", "/8").await, Ok(named(&[("b", 0)])));
    frontend.submit(4, adapted("b", 3)).await;
    outcome(&mut frontend, 4).await.expect("served");
    // Other prompts of no adapter run beside them.
    frontend.submit(5, request(&[1, 2, 3], 3)).await;
    outcome(&mut frontend, 5).await.expect("served");
}

#[tokio::test]
async fn other_bytes_take_the_name_while_requests_of_the_first_run() {
    let (scheduler, mut frontend) = Scheduler::serving(&with_adapters(2, 2)).await;
    load(&frontend, "a", "/7").await.expect("loaded");
    frontend.submit(1, adapted("a", LONG)).await;
    frontend.outputs().await.expect("it runs");
    // The same bytes, from wherever they come, change nothing.
    assert_eq!(load(&frontend, "a", "/x/7").await, Ok(named(&[("a", 0)])));
    until_ordered(&scheduler, "forget", 1).await;
    assert_eq!(load(&frontend, "a", "/8").await, Ok(named(&[("a", 1)])));
    frontend.submit(2, adapted("a", 5)).await;
    outcome(&mut frontend, 2)
        .await
        .expect("served by the second");
    let full = load(&frontend, "a", "/9").await.expect_err("no place");
    assert_eq!(full.kind, ErrorKind::Conflict);
    until_ordered(&scheduler, "forget", 2).await;
    frontend.abort(1).await;
    until_ordered(&scheduler, "clear 0", 1).await;
    assert_eq!(load(&frontend, "a", "/9").await, Ok(named(&[("a", 0)])));
    until_ordered(&scheduler, "clear 1", 1).await;
}

#[tokio::test]
async fn all_ranks_load_an_adapter_or_none_does() {
    let (scheduler, mut frontend) = Scheduler::serving(&with_adapters(2, 2)).await;
    for (times, path, why) in [
        (1, "/broken", "rank 0: it is broken"),
        (2, "/broken-on-rank-1", "rank 1: it is broken"),
        (3, "/other-on-rank-1", "different files"),
    ] {
        let error = load(&frontend, "a", path).await.expect_err(path);
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert_eq!(error.param.as_deref(), Some("lora_path"));
        assert!(error.message.contains(why), "{error}");
        until_ordered(&scheduler, "forget", times).await;
    }
    assert_eq!(list(&frontend).await, Vec::<String>::new());
    for name in ["", "a b", "a:b", "default"] {
        let error = load(&frontend, name, "/7").await.expect_err(name);
        assert_eq!(error.param.as_deref(), Some("lora_name"), "{error}");
    }
    let error = unload(&frontend, "a").await.expect_err("unknown");
    assert_eq!(error.kind, ErrorKind::NotFound);
    frontend.submit(1, request(&[1, 2, 3], 3)).await;
    outcome(&mut frontend, 1).await.expect("served");
}

#[tokio::test]
async fn weights_are_not_exchanged_under_an_adapter() {
    let (scheduler, frontend) = Scheduler::serving(&with_adapters(1, 1)).await;
    load(&frontend, "a", "/7").await.expect("loaded");
    let update = async || {
        let wanted = UpdateWeightsRequest {
            model_path: "/new".to_owned(),
            ..UpdateWeightsRequest::default()
        };
        let answer = frontend.client.clone().update_weights(wanted).await;
        answer.expect("an answer").into_inner().error
    };
    let error: RequestError = update().await.expect("refused").into();
    assert_eq!(error.kind, ErrorKind::Conflict);
    unload(&frontend, "a").await.expect("loaded");
    until_ordered(&scheduler, "clear 0", 1).await;
    assert_eq!(update().await, None);
}

#[tokio::test]
async fn a_server_without_adapters_says_so() {
    let (_scheduler, mut frontend) = Scheduler::serving(&args(1)).await;
    for error in [
        load(&frontend, "a", "/7").await.expect_err("none"),
        unload(&frontend, "a").await.expect_err("none"),
    ] {
        assert!(error.message.contains("--enable-lora"), "{error}");
    }
    frontend.submit(1, adapted("a", 1)).await;
    let error = outcome(&mut frontend, 1).await.expect_err("none");
    assert_eq!(error.kind, ErrorKind::NotFound);
}

/// Folders that are called so, and adapters of the same names.
fn at_start(dir: &tempfile::TempDir, names: &[&str]) -> Vec<NamedAdapter> {
    let adapter = |name: &&str| {
        let path: PathBuf = dir.path().join(name);
        std::fs::create_dir(&path).expect("made");
        let name = (*name).to_owned();
        NamedAdapter { name, path }
    };
    names.iter().map(adapter).collect()
}

#[tokio::test]
async fn adapters_of_the_start_are_there_before_requests_are_served() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut args = args(2);
    args.lora.lora_paths = at_start(&dir, &["7", "8"]);
    let (_scheduler, mut frontend) = Scheduler::serving(&args).await;
    // What is healthy serves all of them.
    frontend.submit(0, adapted("8", 3)).await;
    assert_eq!(
        outcome(&mut frontend, 0)
            .await
            .map_err(|error| error.message),
        Ok(())
    );
    assert_eq!(list(&frontend).await, ["7", "8"]);
}

#[tokio::test]
async fn an_adapter_of_the_start_that_is_broken_ends_the_start() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut args = args(1);
    args.lora.lora_paths = at_start(&dir, &["7", "broken"]);
    let scheduler = Scheduler::start(&args);
    scheduler.worker(0, |_, _| true).await;
    let error = scheduler
        .ended()
        .await
        .expect_err("it is broken")
        .to_string();
    let told = error.contains("--lora-paths") && error.contains("`broken`");
    assert!(told && error.contains("it is broken"), "{error}");
}
