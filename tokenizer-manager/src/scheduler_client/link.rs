//! The task that connects to the scheduler, and connects again after a failure.

use std::time::Duration;

use lockstep_process::connect_unix;
use lockstep_proto::{
    limits::INTERNAL_MESSAGE_BYTES,
    pb::lockstep::{
        FrontendHello, FrontendMessage, frontend_client::FrontendClient, frontend_message::Kind,
    },
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::{
    LinkOptions, LinkState, OwnFigures, SchedulerStatus,
    command::LinkCommand,
    session::{self, Connection},
};

/// Pause between attempts to connect.
const RETRY: Duration = Duration::from_millis(100);
/// Time limit of one attempt to connect; the socket appears when the scheduler starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit from the connection to the scheduler's welcome. A scheduler answers at
/// once unless it hangs.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Link {
    options: LinkOptions,
    inbox: mpsc::UnboundedReceiver<LinkCommand>,
    state: watch::Sender<LinkState>,
    status: SchedulerStatus,
    own: OwnFigures,
    halt: CancellationToken,
}

enum ConnectError {
    /// An error that may go away later.
    Retry(String),
    /// The scheduler has another configuration.
    Incompatible(String),
}

impl Link {
    pub(super) fn new(
        options: LinkOptions,
        inbox: mpsc::UnboundedReceiver<LinkCommand>,
        state: watch::Sender<LinkState>,
        status: SchedulerStatus,
        own: OwnFigures,
        halt: CancellationToken,
    ) -> Self {
        Self {
            options,
            inbox,
            state,
            status,
            own,
            halt,
        }
    }

    /// Connects, serves and connects again until halted.
    pub(super) async fn run(mut self) {
        let halt = self.halt.clone();
        let mut last_failure = String::new();
        while !halt.is_cancelled() {
            let options = self.options.clone();
            let Some(connected) = self.refuse_during(connect(&options)).await else {
                break;
            };
            match connected {
                Ok(connection) => {
                    last_failure.clear();
                    self.status.set_healthy(connection.healthy);
                    let ready = LinkState::Ready(connection.client.clone());
                    self.state.send_replace(ready);
                    tracing::info!(socket = %options.socket.display(), "connected to the scheduler");
                    let (status, own) = (self.status.clone(), self.own.clone());
                    let outlook = &options.outlook;
                    let status = (status, outlook);
                    session::serve(connection, &mut self.inbox, &halt, status, own, || {
                        self.state.send_replace(LinkState::Connecting);
                    })
                    .await;
                }
                Err(ConnectError::Incompatible(reason)) => {
                    tracing::error!(reason, "cannot serve with this scheduler");
                    self.state.send_replace(LinkState::Incompatible(reason));
                    self.refuse_during(std::future::pending::<()>()).await;
                    break;
                }
                Err(ConnectError::Retry(reason)) => {
                    if reason != last_failure {
                        tracing::debug!(reason, "no scheduler yet");
                        last_failure = reason;
                    }
                }
            }
            self.refuse_during(tokio::time::sleep(RETRY)).await;
        }
        self.state.send_replace(LinkState::Closed);
        self.inbox.close();
        while let Some(command) = self.inbox.recv().await {
            session::refuse(command, &self.options.outlook);
        }
    }

    /// Runs `work` and refuses all commands that arrive meanwhile; `None` once halted.
    async fn refuse_during<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                () = self.halt.cancelled() => return None,
                done = &mut work => return Some(done),
                Some(command) = self.inbox.recv() => {
                    session::refuse(command, &self.options.outlook);
                }
            }
        }
    }
}

async fn connect(options: &LinkOptions) -> Result<Connection, ConnectError> {
    match tokio::time::timeout(WELCOME_TIMEOUT, handshake(options)).await {
        Ok(result) => result,
        Err(_) => Err(ConnectError::Retry(
            "the scheduler did not welcome us in time".to_owned(),
        )),
    }
}

async fn handshake(options: &LinkOptions) -> Result<Connection, ConnectError> {
    let retry =
        |what: &str, error: &dyn std::error::Error| ConnectError::Retry(format!("{what}: {error}"));
    let channel = connect_unix(&options.socket, CONNECT_TIMEOUT)
        .await
        .map_err(|error| retry("connecting", &error))?;
    let mut client = FrontendClient::new(channel)
        .max_decoding_message_size(INTERNAL_MESSAGE_BYTES)
        .max_encoding_message_size(INTERNAL_MESSAGE_BYTES);
    // The queue has room for all live requests, so only a scheduler that takes nothing
    // can fill it.
    let (outbound, messages) = mpsc::channel(options.capacity.max(1) + 1);
    let hello = FrontendMessage {
        kind: Some(Kind::Hello(FrontendHello {
            config_hash: options.config_hash.clone(),
            name: options.name.clone(),
        })),
    };
    // This cannot fail: the receiver is held here, and the queue is empty.
    let _ = outbound.try_send(hello);
    let response = client.exchange(ReceiverStream::new(messages)).await;
    let mut inbound = response
        .map_err(|status| refused(&status, options))?
        .into_inner();
    let first = inbound
        .message()
        .await
        .map_err(|status| refused(&status, options))?;
    let first = first.unwrap_or_default();
    let Some(welcome) = first.welcome else {
        return Err(ConnectError::Retry(
            "the scheduler's first message is not a welcome".to_owned(),
        ));
    };
    if welcome.config_hash != options.config_hash {
        return Err(incompatible(&welcome.config_hash, options));
    }
    Ok(Connection {
        client,
        outbound,
        inbound,
        weights: first.weights,
        healthy: first.healthy.unwrap_or_default(),
    })
}

/// Converts a refusal. A scheduler with another configuration answers
/// FAILED_PRECONDITION.
fn refused(status: &tonic::Status, options: &LinkOptions) -> ConnectError {
    if status.code() == tonic::Code::FailedPrecondition {
        return incompatible(status.message(), options);
    }
    ConnectError::Retry(format!("the scheduler refused the stream: {status}"))
}

fn incompatible(theirs: &str, options: &LinkOptions) -> ConnectError {
    ConnectError::Incompatible(format!(
        "the scheduler has another configuration ({theirs}) than this process ({}); restart both \
         from one launcher",
        options.config_hash
    ))
}
