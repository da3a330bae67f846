//! Clients that stop in the middle of a request, on every port.

use lockstep_tests::{
    MODEL, raw,
    wait::{LIMIT, within},
};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::beside_good_requests;

/// The first bytes of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn beginnings() -> Vec<Vec<u8>> {
    let body = json!({"model": MODEL, "prompt": "a", "max_tokens": 1}).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // A header frame that announces 16 KiB and has none.
    let headers = [0, 0x40, 0, 1, 4, 0, 0, 0, 1];
    vec![
        Vec::new(),
        b"P".to_vec(),
        head.as_bytes()[..40].to_vec(),
        head.clone().into_bytes(),
        format!("{head}{}", &body[..body.len() / 2]).into_bytes(),
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab"
            .to_vec(),
        PREFACE[..10].to_vec(),
        PREFACE.to_vec(),
        [PREFACE, &settings].concat(),
        [PREFACE, &settings, &headers].concat(),
    ]
}

#[tokio::test]
async fn who_stops_in_the_middle_holds_up_nobody() {
    beside_good_requests(async |server| {
        let ports = [server.port, server.grpc_port, server.sglang_port];
        let mut held = Vec::new();
        for port in ports {
            for beginning in beginnings() {
                // Of each kind, one connection stays open until the end, one ends its
                // side, and one is reset with bytes unread.
                for at in 0..3 {
                    let mut stream = raw::connect(port).await;
                    stream.write_all(&beginning).await.expect("sent");
                    match at {
                        0 => held.push(stream),
                        1 => {
                            stream.shutdown().await.expect("ended");
                            let mut rest = Vec::new();
                            // The server closes its side too, with or without an
                            // answer.
                            let closed = stream.read_to_end(&mut rest);
                            let _ = within("the server's end", LIMIT, closed).await;
                        }
                        _ => drop(stream),
                    }
                }
            }
        }
        let health = server.get("/health").await;
        assert_eq!(health.status, 200);
        drop(held);
        Vec::new()
    })
    .await;
}

#[tokio::test]
async fn garbage_on_any_port_closes_its_own_connection_only() {
    let rows: [Vec<u8>; 6] = [
        vec![0; 1000],
        vec![0xff; 1000],
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        [PREFACE, &[0xff; 100]].concat(),
        // A frame of a forbidden size, on a stream that is not open.
        [PREFACE, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 7], &[0; 50]].concat(),
        (0..=255).collect(),
    ];
    beside_good_requests(async |server| {
        for port in [server.port, server.grpc_port, server.sglang_port] {
            for row in &rows {
                let mut stream = raw::connect(port).await;
                // The connection may be closed before everything is sent.
                let _ = stream.write_all(row).await;
                let _ = stream.shutdown().await;
                let mut rest = Vec::new();
                let closed = stream.read_to_end(&mut rest);
                let _ = within("the server's end", LIMIT, closed).await;
            }
        }
        Vec::new()
    })
    .await;
}
