//! Several tokenizer-managers behind one port.

use std::collections::BTreeSet;

use lockstep_tests::{
    body::{COUNTED, counting},
    processes::Role,
    server::Server,
    turns,
    wait::{LIMIT, until},
};
use serde_json::json;

use crate::options;

#[tokio::test]
async fn tokenizer_managers_share_the_port_and_the_engine() {
    let _turn = turns::shared().await;
    let server = Server::start(options().set("--tokenizer-managers", "2")).await;
    let fronts = server
        .processes()
        .into_iter()
        .filter(|process| matches!(process.role, Role::TokenizerManager(_)));
    assert_eq!(fronts.count(), 2);
    // The kernel spreads connections over them.
    let mut seen = BTreeSet::new();
    until("an answer from both", LIMIT, async || {
        let info = server.get("/server_info").await.ok();
        seen.insert(info["tokenizer_manager"].as_u64());
        (seen.len() == 2).then_some(())
    })
    .await;
    let bodies: Vec<_> = (0..16).map(|_| counting(&json!({}))).collect();
    let answers = bodies
        .iter()
        .map(|body| server.ok("/v1/chat/completions", body));
    for answer in futures::future::join_all(answers).await {
        assert_eq!(answer["choices"][0]["message"]["content"], COUNTED);
    }
    // Whichever is scraped, the engine's series are the same.
    for _ in 0..8 {
        let metrics = server.metrics().await;
        assert!(metrics.value("lockstep_requests_total") >= 16.0);
    }
}
