//! Serving a port, from its first connection to its last.

use std::{io, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, oneshot},
    time::MissedTickBehavior,
};
use tokio_util::{either::Either, sync::CancellationToken, task::TaskTracker};

use crate::{
    accept::Acceptor,
    first_bytes::PeekedStream,
    peer,
    port::{Budgets, Port, Protocol},
    report::Closed,
    request_service::{ReceiveWindow, RequestService},
};

/// Interval between searches for connections that wait too long.
const SWEEP: Duration = Duration::from_secs(1);
/// Number of streams of one connection that the server may reset for the client's
/// mistakes before it ends the connection. hyper has this limit, and tonic switches it
/// off.
const PROVOKED_RESETS: usize = 1024;
/// Time that an idle HTTP/2 connection has to take its goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// Bytes of an answer's part that may be unsent when an HTTP/2 stream asks for the next
/// part. So no more of an answer is left to be sent once its end was asked for.
const SEND_BUFFER: usize = 4 << 10;
/// Minimum size of hyper's buffer for a head.
const LEAST_HEAD: usize = 8192;

impl Port {
    /// Serves `router` until `close`, then lets open requests end. Returns once every
    /// connection has ended.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        router: Router,
        close: CancellationToken,
    ) {
        let tasks = TaskTracker::new();
        let connections = async {
            self.accept_all(listener, router, &tasks, &close).await;
            tasks.close();
            tasks.wait().await;
        };
        tokio::select! {
            () = connections => {}
            () = self.sweep() => {}
            () = self.watch() => {}
        }
    }

    async fn sweep(&self) {
        let mut ticks = tokio::time::interval(SWEEP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.places.sweep(ticks.tick().await);
        }
    }

    /// Keeps the TLS certificate up to date, if there is one.
    async fn watch(&self) {
        match &self.tls {
            Some(tls) => tls.watch().await,
            None => std::future::pending().await,
        }
    }

    async fn accept_all(
        self: &Arc<Self>,
        listener: TcpListener,
        router: Router,
        tasks: &TaskTracker,
        close: &CancellationToken,
    ) {
        let builder = Arc::new(self.builder());
        let mut acceptor = Acceptor::new(listener);
        loop {
            let (stream, peer) = tokio::select! {
                () = close.cancelled() => return,
                accepted = acceptor.next(&self.places) => accepted,
            };
            let Some((place, ended)) = self.places.admit(peer.ip()) else {
                tracing::debug!(port = self.name, %peer, "no place for a connection");
                continue;
            };
            let of_peer = |budgets: &Budgets| budgets.of_peer(peer::of(peer.ip()));
            let service = RequestService {
                port: self.clone(),
                router: router.clone(),
                peer,
                place,
                window: ReceiveWindow::default(),
                probing: Arc::new(Semaphore::new(1)),
                budgets: self.budgets.as_ref().map(of_peer),
            };
            let (builder, close) = (builder.clone(), close.clone());
            tasks.spawn(async move { receive(&builder, stream, service, ended, close).await });
        }
    }

    fn builder(&self) -> Builder<TokioExecutor> {
        let mut builder = Builder::new(TokioExecutor::new());
        let (Protocol::Http { head_bytes, .. } | Protocol::Grpc { head_bytes }) = self.protocol;
        if matches!(self.protocol, Protocol::Http { .. }) {
            builder
                .http1()
                .timer(TokioTimer::new())
                // `Places` measures this time, from the head's first byte.
                .header_read_timeout(None)
                .max_buf_size(LEAST_HEAD.max(head_bytes as usize));
        }
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(self.limits.ask)
            .keep_alive_timeout(self.limits.answer)
            .max_concurrent_streams(self.limits.streams)
            .max_header_list_size(head_bytes)
            .max_local_error_reset_streams(PROVOKED_RESETS)
            .max_send_buf_size(SEND_BUFFER);
        if self.budgets.is_some() {
            builder
                .http2()
                .initial_stream_window_size(ReceiveWindow::BYTES)
                .initial_connection_window_size(ReceiveWindow::BYTES);
        }
        builder
    }
}

/// Detects a connection's protocol and serves its requests.
async fn receive(
    builder: &Builder<TokioExecutor>,
    stream: TcpStream,
    service: RequestService,
    mut ended: oneshot::Receiver<Closed>,
    close: CancellationToken,
) {
    let http2_alone = matches!(service.port.protocol, Protocol::Grpc { .. });
    let peeked = tokio::select! {
        peeked = peek(stream, &service) => peeked,
        // No request has come yet.
        () = close.cancelled() => return,
        _ = &mut ended => return,
    };
    match peeked {
        Ok(stream) if stream.http2 || !http2_alone => {
            serve_requests(builder, stream, service, ended, close).await;
        }
        Ok(_) => tracing::debug!("a connection does not speak HTTP/2"),
        Err(error) => tracing::debug!(%error, "a connection ended early"),
    }
}

/// Waits for a connection's first bytes.
async fn peek(stream: TcpStream, service: &RequestService) -> io::Result<PeekedStream> {
    let stream = match &service.port.tls {
        Some(tls) => Either::Right(tls.greet(stream).await?),
        None => Either::Left(stream),
    };
    PeekedStream::peek(stream, service.place.clone(), service.budgets.as_ref()).await
}

async fn serve_requests(
    builder: &Builder<TokioExecutor>,
    stream: PeekedStream,
    service: RequestService,
    mut ended: oneshot::Receiver<Closed>,
    close: CancellationToken,
) {
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut closing = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(error, "a connection ended early");
                }
                return;
            }
            () = close.cancelled(), if !closing => {
                closing = true;
                connection.as_mut().graceful_shutdown();
            }
            reason = &mut ended => {
                // The place of an evicted connection belongs to another one already. A
                // connection that was idle for long may get a goodbye.
                if reason == Ok(Closed::Idle) {
                    connection.as_mut().graceful_shutdown();
                    let _ = tokio::time::timeout(GOODBYE, connection.as_mut()).await;
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
