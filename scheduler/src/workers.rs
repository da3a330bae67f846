//! The seam to the workers: one bidirectional stream each.

use std::{pin::Pin, time::Duration};

use futures::{Stream, StreamExt as _};
use lockstep_proto::{
    limits::INTERNAL_MESSAGE_BYTES,
    pb::lockstep::{
        CorporaEdit, GroupStart, ReloadWeights, StepPlan, WorkerCommand, WorkerHello,
        WorkerMessage, worker_command,
        worker_gateway_server::{WorkerGateway, WorkerGatewayServer},
        worker_message,
    },
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    command::{Command, Commands},
    frontend::ask,
};

/// Commands that may wait for one worker: plans, and what operators want.
const LINK_QUEUE: usize = 16;
/// A stream that does not say hello within this is not a worker.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// The engine's end of one worker's stream; dropping it ends the worker.
pub struct WorkerLink(mpsc::Sender<Result<WorkerCommand, Status>>);

/// The stream's end of it.
pub type WorkerCommands = mpsc::Receiver<Result<WorkerCommand, Status>>;

impl WorkerLink {
    /// A link and what it feeds.
    pub fn new() -> (Self, WorkerCommands) {
        let (sender, receiver) = mpsc::channel(LINK_QUEUE);
        (Self(sender), receiver)
    }
    /// Sends the start.
    pub fn start(&self, start: GroupStart) -> Result<(), String> {
        self.send(worker_command::Kind::Start(start))
    }
    /// Sends a plan.
    pub fn plan(&self, plan: StepPlan) -> Result<(), String> {
        self.send(worker_command::Kind::Plan(plan))
    }
    /// Asks for other weights.
    pub fn reload(&self, reload: ReloadWeights) -> Result<(), String> {
        self.send(worker_command::Kind::Reload(reload))
    }
    /// Changes the texts that are drafted from.
    pub fn edit_corpora(&self, edit: CorporaEdit) -> Result<(), String> {
        self.send(worker_command::Kind::Corpora(edit))
    }
    /// Ends the stream with an error, so that the worker's node knows that the
    /// engine failed; dropping the link alone says that all is done.
    pub fn fail(&self, reason: &str) {
        // A worker that is gone already needs no reason.
        let _ = self.0.try_send(Err(Status::unavailable(reason)));
    }
    fn send(&self, kind: worker_command::Kind) -> Result<(), String> {
        self.0
            .try_send(Ok(WorkerCommand { kind: Some(kind) }))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => "does not take commands".to_owned(),
                mpsc::error::TrySendError::Closed(_) => "its stream ended".to_owned(),
            })
    }
}

/// The service.
pub struct Gateway {
    commands: Commands,
    config_hash: String,
}

impl Gateway {
    /// The gRPC service with its limits set.
    pub fn service(commands: Commands, config_hash: String) -> WorkerGatewayServer<Self> {
        WorkerGatewayServer::new(Self {
            commands,
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
             with the same flags and the same model",
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
        let first = tokio::time::timeout(HELLO_TIMEOUT, messages.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no hello"))??;
        let Some(worker_message::Kind::Hello(hello)) = first.and_then(|message| message.kind)
        else {
            return Err(Status::invalid_argument(
                "the first message must be a hello",
            ));
        };
        self.check(&hello)?;
        let rank = hello.rank as usize;
        let (link, stream) = WorkerLink::new();
        let commands = self.commands.clone();
        ask(&commands, |reply| Command::WorkerHello {
            hello,
            link,
            reply,
        })
        .await?
        .map_err(Status::failed_precondition)?;
        tokio::spawn(async move {
            let reason = forward(rank, &mut messages, &commands).await;
            // Nobody listens any more when the engine has ended.
            let _ = commands.send(Command::WorkerGone { rank, reason }).await;
        });
        Ok(Response::new(ReceiverStream::new(stream).boxed()))
    }
}

/// Hands a worker's messages to the engine until its stream ends; says why it did.
async fn forward(
    rank: usize,
    messages: &mut Streaming<WorkerMessage>,
    commands: &Commands,
) -> String {
    loop {
        let command = match messages.message().await {
            Ok(Some(WorkerMessage { kind: Some(kind) })) => match kind {
                worker_message::Kind::Ready(ready) => Command::WorkerReady { rank, ready },
                worker_message::Kind::Result(result) => Command::WorkerResult {
                    rank,
                    result: result.into(),
                },
                worker_message::Kind::Reloaded(reloaded) => {
                    Command::WorkerReloaded { rank, reloaded }
                }
                worker_message::Kind::Corpora(edited) => Command::WorkerCorpora { edited },
                worker_message::Kind::Leaving(_) => Command::WorkerLeaving { rank },
                worker_message::Kind::Failure(failure) => return failure.message,
                worker_message::Kind::Hello(_) => return "it said hello twice".to_owned(),
            },
            Ok(Some(WorkerMessage { kind: None })) => continue,
            Ok(None) => return "its stream ended".to_owned(),
            Err(status) => return format!("its stream broke: {}", status.message()),
        };
        if commands.send(command).await.is_err() {
            return "the scheduler is stopping".to_owned();
        }
    }
}
