//! HTTP connections: limited in number, ended gracefully.

use std::{sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use lockstep_types::request::{ErrorKind, RequestError};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    accept::{ConnectionPermits, accept},
    error::ApiError,
};

/// How long a client may take to send its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Room that hyper gets beyond the header limit, so that our own check, which
/// answers with an error object, comes first.
const HEADER_SLACK: usize = 64 * 1024;
/// How long a connection beyond the limit gets to read its refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a router on a listener.
#[derive(Debug)]
pub struct Connections {
    /// Limits the connections of all ports together.
    pub permits: ConnectionPermits,
    /// Bytes of headers that a route may see.
    pub header_bytes: usize,
    /// Ends the accepting, and each connection after the answer it is giving.
    pub close: CancellationToken,
}

impl Connections {
    /// Accepts until `close`, then returns once every connection has ended.
    pub async fn serve(self, listener: TcpListener, router: Router) {
        let tasks = TaskTracker::new();
        let builder = Arc::new(self.builder());
        loop {
            let stream = tokio::select! {
                () = self.close.cancelled() => break,
                stream = accept(&listener) => stream,
            };
            let Some(permit) = self.permits.try_acquire() else {
                tasks.spawn(refuse(stream, self.permits.limit));
                continue;
            };
            let (builder, router, close) = (builder.clone(), router.clone(), self.close.clone());
            tasks.spawn(async move {
                serve_one(&builder, stream, router, close).await;
                drop(permit);
            });
        }
        drop(listener);
        tasks.close();
        tasks.wait().await;
    }

    fn builder(&self) -> Builder<TokioExecutor> {
        let mut builder = Builder::new(TokioExecutor::new());
        let header_room = self.header_bytes.saturating_add(HEADER_SLACK);
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(header_room.max(8192));
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(20))
            .max_concurrent_streams(lockstep_proto::limits::PUBLIC_CONCURRENT_STREAMS)
            .max_header_list_size(u32::try_from(header_room).unwrap_or(u32::MAX));
        builder
    }
}

async fn serve_one(
    builder: &Builder<TokioExecutor>,
    stream: TcpStream,
    router: Router,
    close: CancellationToken,
) {
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = close.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(error, "a connection ended early");
    }
}

/// Answers a connection beyond the limit with 503.
async fn refuse(mut stream: TcpStream, limit: usize) {
    let error = ApiError::from(RequestError::new(
        ErrorKind::Unavailable,
        format!("The server serves {limit} connections already; try again later."),
    ));
    let body = error.json();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: \
         1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let write = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    };
    // Whether a client beyond the limit reads its refusal is its own affair.
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, write).await;
}
