//! The gRPC service for the workers: one bidirectional stream each.

use std::pin::Pin;

use futures::{Stream, StreamExt as _};
use lockstep_proto::{
    limits::INTERNAL_MESSAGE_BYTES,
    pb::lockstep::{
        WorkerCommand, WorkerHello, WorkerMessage,
        worker_gateway_server::{WorkerGateway, WorkerGatewayServer},
        worker_message,
    },
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    hello::hello,
    inbox::{StreamEnd, WorkerEvent, WorkerEvents},
    worker_link::WorkerLink,
};

/// Implementation of the service.
pub struct Gateway {
    events: WorkerEvents,
    config_hash: String,
}

impl Gateway {
    /// Makes the gRPC service with its limits set.
    pub fn service(events: WorkerEvents, config_hash: String) -> WorkerGatewayServer<Self> {
        WorkerGatewayServer::new(Self {
            events,
            config_hash,
        })
        .max_decoding_message_size(INTERNAL_MESSAGE_BYTES)
        .max_encoding_message_size(INTERNAL_MESSAGE_BYTES)
    }

    fn check(&self, hello: &WorkerHello) -> Result<(), Status> {
        if hello.config_hash == self.config_hash {
            return Ok(());
        }
        let reason = format!(
            "rank {} runs another configuration ({}) than the scheduler ({}): start every node \
             with the same flags and the same model, and one of the hub at the same commit, which \
             --revision and --speculative-draft-model-revision name; `lockstep config` with each \
             node's flags shows what differs",
            hello.rank, hello.config_hash, self.config_hash
        );
        tracing::warn!(reason, "a worker was turned away");
        Err(Status::failed_precondition(reason))
    }
}

#[tonic::async_trait]
impl WorkerGateway for Gateway {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<WorkerCommand, Status>> + Send>>;

    async fn attach(
        &self,
        request: Request<Streaming<WorkerMessage>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let mut messages = request.into_inner();
        let hello = hello(&mut messages, |message| match message.kind {
            Some(worker_message::Kind::Hello(hello)) => Some(hello),
            _ => None,
        })
        .await?;
        self.check(&hello)?;
        let rank = hello.rank as usize;
        let (link, stream) = WorkerLink::new();
        let events = self.events.clone();
        events.attach(rank, hello, link).await?;
        tokio::spawn(async move {
            let gone = forward(rank, &mut messages, &events).await;
            // The engine may have ended.
            let _ = events.send(rank, WorkerEvent::StreamEnd(gone)).await;
        });
        Ok(Response::new(ReceiverStream::new(stream).boxed()))
    }
}

/// Hands a worker's messages to the engine until its stream ends. Returns the reason of the
/// end.
async fn forward(
    rank: usize,
    messages: &mut Streaming<WorkerMessage>,
    events: &WorkerEvents,
) -> StreamEnd {
    loop {
        let event = match messages.message().await {
            Ok(Some(WorkerMessage { kind: Some(kind) })) => match kind {
                worker_message::Kind::Ready(ready) => WorkerEvent::Ready(ready),
                worker_message::Kind::Result(result) => WorkerEvent::Result(result.into()),
                worker_message::Kind::Reloaded(reloaded) => WorkerEvent::Reloaded(reloaded),
                worker_message::Kind::Adapter(read) => WorkerEvent::Adapter(read),
                worker_message::Kind::Drafter(reply) => WorkerEvent::Drafter(reply),
                worker_message::Kind::Leaving(_) => WorkerEvent::Leaving,
                worker_message::Kind::Failure(failure) => {
                    return StreamEnd {
                        reason: failure.message,
                        diverged: failure.diverged,
                    };
                }
                worker_message::Kind::Hello(_) => return StreamEnd::because("it said hello twice"),
            },
            Ok(Some(WorkerMessage { kind: None })) => continue,
            Ok(None) => return StreamEnd::because("its stream ended"),
            Err(status) => {
                let reason = format!("its stream broke: {}", status.message());
                return StreamEnd::because(reason);
            }
        };
        if let Err(stopping) = events.send(rank, event).await {
            return StreamEnd::because(stopping.message());
        }
    }
}
