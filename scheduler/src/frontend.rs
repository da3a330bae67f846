//! The gRPC service for the tokenizer-managers.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _};
use lockstep_adaptive::DepthRange;
use lockstep_proto::{
    limits::INTERNAL_MESSAGE_BYTES,
    pb::lockstep::{
        AdapterList, AdapterReply, CheckHealthRequest, CheckHealthResponse, DrafterCommand,
        DrafterReply, FlushCacheRequest, FlushCacheResponse, FrontendEvent, FrontendHello,
        FrontendMessage, GetFiguresRequest, GetFiguresResponse, GetLoadRequest, GetLoadResponse,
        ListAdaptersRequest, ListRequestsRequest, ListRequestsResponse, LoadAdapterRequest,
        SetDepthRangeRequest, SetDepthRangeResponse, Submit, UnloadAdapterRequest,
        UpdateWeightsRequest, UpdateWeightsResponse, frontend_message,
        frontend_server::{Frontend, FrontendServer},
    },
};
use lockstep_types::request::{ErrorKind, Request as TokenRequest, RequestError};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    hello::hello,
    inbox::{AdapterCommand, Command, Commands},
    ports::Ports,
    sinks::{SINK_QUEUE, Sink, SinkId},
};

/// Time limit for all frontends together to send their figures.
const FIGURES_TIMEOUT: Duration = Duration::from_secs(1);

/// Implementation of the service.
pub struct FrontendService {
    commands: Commands,
    ports: Arc<Ports>,
    config_hash: String,
}

impl FrontendService {
    /// Makes the gRPC service with its limits set.
    pub fn service(
        commands: Commands,
        ports: Arc<Ports>,
        config_hash: String,
    ) -> FrontendServer<Self> {
        FrontendServer::new(Self {
            commands,
            ports,
            config_hash,
        })
        .max_decoding_message_size(INTERNAL_MESSAGE_BYTES)
        .max_encoding_message_size(INTERNAL_MESSAGE_BYTES)
    }

    fn check(&self, hello: &FrontendHello) -> Result<(), Status> {
        if hello.config_hash == self.config_hash {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "{} runs another configuration ({}) than the scheduler ({})",
            hello.name, hello.config_hash, self.config_hash
        )))
    }
}

#[tonic::async_trait]
impl Frontend for FrontendService {
    type ExchangeStream = Pin<Box<dyn Stream<Item = Result<FrontendEvent, Status>> + Send>>;

    async fn exchange(
        &self,
        request: Request<Streaming<FrontendMessage>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let mut messages = request.into_inner();
        let hello = hello(&mut messages, |message| match message.kind {
            Some(frontend_message::Kind::Hello(hello)) => Some(hello),
            _ => None,
        })
        .await?;
        self.check(&hello)?;
        let (events, stream) = mpsc::channel(SINK_QUEUE);
        let commands = self.commands.clone();
        let sink = Sink::Frontend(events);
        let sink = commands.ask(|reply| Command::Open { sink, reply }).await?;
        tracing::info!(frontend = hello.name, "connected");
        tokio::spawn(async move {
            forward(sink, &mut messages, &commands).await;
            tracing::info!(frontend = hello.name, "disconnected");
            // The engine may have ended.
            let _ = commands.send(Command::Close { sink }).await;
        });
        Ok(Response::new(ReceiverStream::new(stream).map(Ok).boxed()))
    }

    async fn check_health(
        &self,
        request: Request<CheckHealthRequest>,
    ) -> Result<Response<CheckHealthResponse>, Status> {
        let CheckHealthRequest {
            timeout_ms,
            force_step,
        } = request.into_inner();
        let timeout = Duration::from_millis(u64::from(timeout_ms.max(1)));
        self.commands
            .check_health(timeout, force_step)
            .await
            .map(Response::new)
    }

    async fn get_load(
        &self,
        _: Request<GetLoadRequest>,
    ) -> Result<Response<GetLoadResponse>, Status> {
        let mut load = self.commands.ask(|reply| Command::Load { reply }).await?;
        load.ports = self.ports.loads();
        load.request_memory = self.ports.budget.taken() as u64;
        Ok(Response::new(load))
    }

    async fn list_requests(
        &self,
        request: Request<ListRequestsRequest>,
    ) -> Result<Response<ListRequestsResponse>, Status> {
        let limit = request.into_inner().limit as usize;
        self.commands
            .ask(|reply| Command::ListRequests { limit, reply })
            .await
            .map(Response::new)
    }

    async fn get_figures(
        &self,
        request: Request<GetFiguresRequest>,
    ) -> Result<Response<GetFiguresResponse>, Status> {
        let metrics = request.into_inner().metrics;
        let ask = |reply| Command::AskFigures { metrics, reply };
        let mut answers = self.commands.ask(ask).await?;
        let mut fronts = Vec::new();
        let all = async {
            while let Some(figures) = answers.recv().await {
                fronts.push(figures);
            }
        };
        // Figures that are late are left out.
        let _ = tokio::time::timeout(FIGURES_TIMEOUT, all).await;
        Ok(Response::new(GetFiguresResponse { fronts }))
    }

    async fn flush_cache(
        &self,
        _: Request<FlushCacheRequest>,
    ) -> Result<Response<FlushCacheResponse>, Status> {
        self.commands
            .ask(|reply| Command::Flush { reply })
            .await
            .map(Response::new)
    }

    async fn set_depth_range(
        &self,
        request: Request<SetDepthRangeRequest>,
    ) -> Result<Response<SetDepthRangeResponse>, Status> {
        let range = request.into_inner().range;
        let range = range.map_or_else(DepthRange::default, DepthRange::from);
        self.commands
            .ask(|reply| Command::SetDepthRange { range, reply })
            .await
            .map(|()| Response::new(SetDepthRangeResponse {}))
    }

    async fn command_drafter(
        &self,
        request: Request<DrafterCommand>,
    ) -> Result<Response<DrafterReply>, Status> {
        let command = request.into_inner();
        self.commands
            .ask(|reply| Command::Drafter { command, reply })
            .await
            .map(Response::new)
    }

    async fn load_adapter(
        &self,
        request: Request<LoadAdapterRequest>,
    ) -> Result<Response<AdapterReply>, Status> {
        let wanted = request.into_inner();
        self.commands
            .ask(|reply| Command::Adapters(AdapterCommand::Load { wanted, reply }))
            .await
            .map(Response::new)
    }

    async fn unload_adapter(
        &self,
        request: Request<UnloadAdapterRequest>,
    ) -> Result<Response<AdapterReply>, Status> {
        let name = request.into_inner().name;
        self.commands
            .ask(|reply| Command::Adapters(AdapterCommand::Unload { name, reply }))
            .await
            .map(Response::new)
    }

    async fn list_adapters(
        &self,
        _: Request<ListAdaptersRequest>,
    ) -> Result<Response<AdapterList>, Status> {
        self.commands
            .ask(|reply| Command::Adapters(AdapterCommand::List { reply }))
            .await
            .map(Response::new)
    }

    async fn update_weights(
        &self,
        request: Request<UpdateWeightsRequest>,
    ) -> Result<Response<UpdateWeightsResponse>, Status> {
        let wanted = request.into_inner();
        self.commands
            .ask(|reply| Command::UpdateWeights { wanted, reply })
            .await
            .map(Response::new)
    }
}

/// Hands a frontend's messages to the engine until its stream ends.
async fn forward(sink: SinkId, messages: &mut Streaming<FrontendMessage>, commands: &Commands) {
    while let Ok(Some(message)) = messages.message().await {
        let command = match message.kind {
            Some(frontend_message::Kind::Submit(submit)) => submit_command(sink, submit),
            Some(frontend_message::Kind::Abort(abort)) => Command::Abort {
                sink,
                request: abort.request,
            },
            Some(frontend_message::Kind::AbortTrace(abort)) => Command::AbortTrace {
                sink,
                query: abort.query,
                trace_ids: (!abort.all).then_some(abort.trace_ids),
            },
            Some(frontend_message::Kind::Figures(answer)) => Command::Figures {
                query: answer.query,
                figures: answer.figures.unwrap_or_default(),
            },
            Some(frontend_message::Kind::Stop(stop)) => Command::Stop {
                sink,
                request: stop.request,
            },
            Some(frontend_message::Kind::Hello(_)) | None => continue,
        };
        if commands.send(command).await.is_err() {
            return;
        }
    }
}

fn submit_command(sink: SinkId, mut submit: Submit) -> Command {
    let (request, parent) = (submit.request, submit.parent);
    let trace = submit.trace.take().map(Into::into);
    let body = TokenRequest::try_from(submit)
        .map(Box::new)
        .map_err(|error| RequestError::new(ErrorKind::Invalid, error.to_string()));
    Command::Submit {
        sink,
        request,
        parent,
        trace,
        body,
        reply: None,
    }
}
