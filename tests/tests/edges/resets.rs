//! Streams that a client makes the server reset ("made you reset", CVE-2025-8671). Each
//! reset costs the client two small frames.

use lockstep_tests::{
    h2,
    raw::connect,
    server::Server,
    turns,
    wait::{LIMIT, within},
};
use tokio::io::AsyncWriteExt;

use crate::{nodes::Nodes, one_rank};

/// Makes a port reset streams, and waits until the server ends the connection.
pub async fn provoke(port: u16, path: &str) {
    let (mut read, mut write) = connect(port).await.into_split();
    let provoke = async {
        let mut frames = h2::hello();
        for stream in (1..6000).step_by(2) {
            frames.extend(h2::headers(stream, path));
            frames.extend(h2::window_update(stream, 0x7fff_ffff));
            if frames.len() > 16 << 10 {
                // The server may have closed the connection.
                let _ = write.write_all(&frames).await;
                frames.clear();
            }
        }
        frames.extend(h2::ping());
        let _ = write.write_all(&frames).await;
    };
    let (_, goodbye) = within("an end", LIMIT, async {
        tokio::join!(provoke, h2::until_goaway_or_pong(&mut read))
    })
    .await;
    assert!(goodbye, "port of {path}: 3,000 resets are put up with");
}

#[tokio::test]
async fn a_client_that_provokes_resets_is_sent_away() {
    let _turn = turns::shared().await;
    let server = Server::start(one_rank()).await;
    for (port, path) in [
        (server.port, "/v1/completions"),
        (server.grpc_port, "/lockstep.v1.Inference/Generate"),
        (
            server.sglang_port,
            "/sglang.grpc.scheduler.SglangScheduler/Generate",
        ),
    ] {
        provoke(port, path).await;
    }
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn the_port_of_nodes_sends_such_a_client_away_too() {
    let _turn = turns::shared().await;
    let nodes = Nodes::new();
    // Node 0 listens long before node 1 starts.
    let _first = Server::launch(nodes.options(0));
    nodes.open().await;
    provoke(nodes.port, "/lockstep.v1.WorkerGateway/Attach").await;
}
