//! A scheduler that follows a test's script, behind the real protocol.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use lockstep_proto::pb::lockstep::{
    AbortTrace, AdapterList, AdapterReply, CheckHealthRequest, CheckHealthResponse, DepthLoad,
    DepthRange, DpRankLoad, DrafterCommand, DrafterReply, FiguresAnswer, FiguresWanted, Finish,
    FinishReason, FlushCacheRequest, FlushCacheResponse, FrontFigures, FrontendEvent,
    FrontendMessage, FrontendWelcome, GetFiguresRequest, GetFiguresResponse, GetLoadRequest,
    GetLoadResponse, ListAdaptersRequest, ListRequestsRequest, ListRequestsResponse,
    LoadAdapterRequest, LoadedAdapter, Output, RequestError, SetDepthRangeRequest,
    SetDepthRangeResponse, SpeculationLoad, Submit, TokenLogprob, TraceAborted,
    UnloadAdapterRequest, UpdateWeightsRequest, UpdateWeightsResponse, Usage, WeightsInUse,
    adapter_reply, finish,
    frontend_message::Kind,
    frontend_server::{Frontend, FrontendServer},
};
use lockstep_types::{
    drafter::{self, CorpusCommand, CorpusSize},
    request::ErrorKind,
};
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    oneshot,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming};

type Sink = Arc<Mutex<Option<UnboundedSender<Result<FrontendEvent, Status>>>>>;

/// A message from the tokenizer-manager.
#[derive(Debug)]
pub enum Asked {
    Submit(Box<Job>),
    Abort(u64),
    AbortTrace(AbortTrace),
    Stop(u64),
    Update(UpdateWeightsRequest, oneshot::Sender<UpdateWeightsResponse>),
    Corpus(Vec<u32>),
    Figures(FiguresAnswer),
}

/// One submitted request, and the stream for its outputs.
#[derive(Debug)]
pub struct Job {
    pub submit: Submit,
    sink: Sink,
}

impl Job {
    /// Sends an output; returns true if somebody still listens.
    pub fn send(&self, output: Output) -> bool {
        let event = FrontendEvent {
            outputs: vec![Output {
                request: self.submit.request,
                ..output
            }],
            ..FrontendEvent::default()
        };
        let sink = self.sink.lock().expect("unpoisoned");
        sink.as_ref()
            .is_some_and(|sink| sink.send(Ok(event)).is_ok())
    }

    /// Sends one output per token.
    pub fn tokens(&self, ids: &[u32]) {
        for id in ids {
            self.send(tokens(&[*id]));
        }
    }

    /// Sends the end, with counts.
    pub fn finish(&self, reason: FinishReason, completion_tokens: u32) {
        self.send(ended(reason, self.usage(completion_tokens), None));
    }

    /// Sends the end by an end token, which is the last token of the output.
    pub fn end_token(&self, id: u32, completion_tokens: u32) {
        let usage = self.usage(completion_tokens);
        self.send(Output {
            token_ids: vec![id],
            ..ended(FinishReason::Stop, usage, Some(id))
        });
    }

    /// Sends the end with an error.
    pub fn fail(&self, error: RequestError) {
        self.send(Output {
            finish: Some(Finish {
                kind: Some(finish::Kind::Error(error)),
                ..Finish::default()
            }),
            ..Output::default()
        });
    }

    /// Returns counts in which two prompt tokens come from the cache.
    pub fn usage(&self, completion_tokens: u32) -> Usage {
        Usage {
            prompt_tokens: u32::try_from(self.submit.input_ids.len()).expect("short"),
            completion_tokens,
            cached_tokens: 2,
        }
    }
}

/// Returns an output of these tokens.
pub fn tokens(ids: &[u32]) -> Output {
    Output {
        token_ids: ids.to_vec(),
        ..Output::default()
    }
}

/// Returns a last output.
pub fn ended(reason: FinishReason, usage: Usage, matched_token: Option<u32>) -> Output {
    Output {
        finish: Some(Finish {
            kind: Some(finish::Kind::Reason(reason.into())),
            matched_token,
            usage: Some(usage),
            speculation: None,
        }),
        ..Output::default()
    }
}

/// Returns a token with a log-probability and alternatives.
pub fn logprob(id: u32, logprob: Option<f32>, top: &[(u32, f32)]) -> TokenLogprob {
    TokenLogprob {
        token_id: id,
        logprob,
        top_ids: top.iter().map(|(id, _)| *id).collect(),
        top_logprobs: top.iter().map(|(_, value)| *value).collect(),
    }
}

/// Returns the byte-level token of an ASCII character in the demo model's vocabulary.
pub fn id(character: char) -> u32 {
    u32::from(character) - 30
}

/// Returns the tokens of an ASCII text, one per character.
pub fn ids(text: &str) -> Vec<u32> {
    text.chars()
        .map(|c| if c == ' ' { SPACE } else { id(c) })
        .collect()
}

/// The token of a space.
pub const SPACE: u32 = 223;
/// The demo model's end token.
pub const EOS: u32 = 2;

/// The scheduler's state, shared by its connections.
pub struct Mock {
    pub asked: tokio::sync::Mutex<UnboundedReceiver<Asked>>,
    pub healthy: AtomicBool,
    /// Number of health checks so far.
    pub health_asked: AtomicUsize,
    /// Number of health checks with a step of their own.
    pub steps_forced: AtomicUsize,
    /// True if a health check gets an error for an answer.
    pub refuses_health: AtomicBool,
    /// Figures of other tokenizer-managers.
    pub others: Mutex<Vec<FrontFigures>>,
    /// Number of requests for figures so far.
    pub figures_asked: AtomicUsize,
    /// Range of depths that an operator set.
    depth_range: Mutex<Option<DepthRange>>,
    /// Load of each DP rank.
    pub dp_ranks: Mutex<Vec<DpRankLoad>>,
    /// Requests that have not ended.
    pub live: Mutex<ListRequestsResponse>,
    /// Adapters that are loaded.
    pub adapters: Mutex<Vec<LoadedAdapter>>,
    sink: Mutex<Option<Sink>>,
    sender: UnboundedSender<Asked>,
    config_hash: String,
}

impl Mock {
    /// Listens on `socket` until the runtime ends.
    pub fn start(socket: &Path, config_hash: &str) -> Arc<Self> {
        let (sender, asked) = unbounded_channel();
        let mock = Arc::new(Self {
            asked: tokio::sync::Mutex::new(asked),
            healthy: AtomicBool::new(true),
            health_asked: AtomicUsize::new(0),
            steps_forced: AtomicUsize::new(0),
            refuses_health: AtomicBool::new(false),
            others: Mutex::default(),
            figures_asked: AtomicUsize::new(0),
            depth_range: Mutex::new(None),
            dp_ranks: Mutex::new(vec![DpRankLoad {
                running_requests: 3,
                kv_tokens_total: 1024,
                generated_per_s: 12.5,
                ..DpRankLoad::default()
            }]),
            live: Mutex::default(),
            adapters: Mutex::default(),
            sink: Mutex::new(None),
            sender,
            config_hash: config_hash.to_owned(),
        });
        let incoming = lockstep_process::listen_unix(socket).expect("socket");
        let server = tonic::transport::Server::builder()
            .add_service(FrontendServer::new(Service(mock.clone())))
            .serve_with_incoming(incoming);
        tokio::spawn(server);
        mock
    }

    /// Waits for the next message from the tokenizer-manager.
    async fn next(&self) -> Asked {
        let next = self.asked.lock().await.recv().await;
        next.expect("the scheduler is there")
    }

    /// Waits for the next request.
    pub async fn job(&self) -> Job {
        match self.next().await {
            Asked::Submit(job) => *job,
            other => panic!("{other:?}, not a request"),
        }
    }

    /// Waits for the next abort.
    pub async fn abort(&self) -> u64 {
        match self.next().await {
            Asked::Abort(number) => number,
            other => panic!("{other:?}, not an abort"),
        }
    }

    /// Waits for the next abort by id.
    pub async fn abort_trace(&self) -> AbortTrace {
        match self.next().await {
            Asked::AbortTrace(abort) => abort,
            other => panic!("{other:?}, not an abort by id"),
        }
    }

    /// Answers an abort by id with the number of aborted requests.
    pub fn aborted(&self, abort: &AbortTrace, requests: u32) {
        self.say(FrontendEvent {
            trace_aborted: Some(TraceAborted {
                query: abort.query,
                requests,
            }),
            ..FrontendEvent::default()
        });
    }

    /// Asks for figures, as if another tokenizer-manager wanted all figures; returns
    /// the answer.
    pub async fn figures(&self, wanted: FiguresWanted) -> FiguresAnswer {
        self.say(FrontendEvent {
            figures_wanted: Some(wanted),
            ..FrontendEvent::default()
        });
        match self.next().await {
            Asked::Figures(answer) => answer,
            other => panic!("{other:?}, no figures"),
        }
    }

    /// Waits for the next early end of a request whose client has all it wants.
    pub async fn stop(&self) -> u64 {
        match self.next().await {
            Asked::Stop(number) => number,
            other => panic!("{other:?}, not a stop"),
        }
    }

    /// Waits for the tokens of the next corpus.
    pub async fn corpus(&self) -> Vec<u32> {
        match self.next().await {
            Asked::Corpus(tokens) => tokens,
            other => panic!("{other:?}, not a corpus"),
        }
    }

    /// Waits for the next update of the weights; returns the sender for its outcome
    /// too.
    pub async fn update(&self) -> (UpdateWeightsRequest, oneshot::Sender<UpdateWeightsResponse>) {
        match self.next().await {
            Asked::Update(update, reply) => (update, reply),
            other => panic!("{other:?}, not an update"),
        }
    }

    /// Announces that other weights are in use from now on.
    pub fn announce(&self, weights: WeightsInUse) {
        self.say(FrontendEvent {
            weights: Some(weights),
            ..FrontendEvent::default()
        });
    }

    /// Tells every frontend that steps run on every rank, or no longer run.
    pub fn steps(&self, run: bool) {
        self.healthy.store(run, Ordering::Relaxed);
        self.say(FrontendEvent {
            healthy: Some(run),
            ..FrontendEvent::default()
        });
    }

    fn say(&self, event: FrontendEvent) {
        let sink = self.sink.lock().expect("unpoisoned").clone();
        let sink = sink.expect("connected");
        let sink = sink.lock().expect("unpoisoned");
        let sender = sink.as_ref().expect("connected");
        sender.send(Ok(event)).expect("connected");
    }

    /// Breaks the stream, as a dying scheduler would.
    pub fn disconnect(&self) {
        if let Some(sink) = self.sink.lock().expect("unpoisoned").take() {
            sink.lock().expect("unpoisoned").take();
        }
    }
}

struct Service(Arc<Mock>);

impl Service {
    fn loaded(&self) -> Response<AdapterReply> {
        let adapters = self.0.adapters.lock().expect("no panic").clone();
        let list = AdapterList { adapters };
        let kind = Some(adapter_reply::Kind::Adapters(list));
        Response::new(AdapterReply { kind })
    }
}

fn refused(kind: ErrorKind, message: &str) -> Response<AdapterReply> {
    let error = lockstep_types::request::RequestError::new(kind, message);
    let kind = Some(adapter_reply::Kind::Error(error.into()));
    Response::new(AdapterReply { kind })
}

#[tonic::async_trait]
impl Frontend for Service {
    type ExchangeStream = UnboundedReceiverStream<Result<FrontendEvent, Status>>;

    async fn exchange(
        &self,
        request: Request<Streaming<FrontendMessage>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let mut messages = request.into_inner();
        let (sender, events) = unbounded_channel();
        let welcome = FrontendEvent {
            welcome: Some(FrontendWelcome {
                config_hash: self.0.config_hash.clone(),
            }),
            healthy: Some(self.0.healthy.load(Ordering::Relaxed)),
            ..FrontendEvent::default()
        };
        sender.send(Ok(welcome)).expect("open");
        let sink: Sink = Arc::new(Mutex::new(Some(sender)));
        *self.0.sink.lock().expect("unpoisoned") = Some(sink.clone());
        let asked = self.0.sender.clone();
        tokio::spawn(async move {
            while let Ok(Some(message)) = messages.message().await {
                let sent = match message.kind {
                    Some(Kind::Submit(submit)) => asked.send(Asked::Submit(Box::new(Job {
                        submit,
                        sink: sink.clone(),
                    }))),
                    Some(Kind::Abort(abort)) => asked.send(Asked::Abort(abort.request)),
                    Some(Kind::AbortTrace(abort)) => asked.send(Asked::AbortTrace(abort)),
                    Some(Kind::Figures(answer)) => asked.send(Asked::Figures(answer)),
                    Some(Kind::Stop(stop)) => asked.send(Asked::Stop(stop.request)),
                    Some(Kind::Hello(_)) | None => Ok(()),
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(events)))
    }

    async fn check_health(
        &self,
        request: Request<CheckHealthRequest>,
    ) -> Result<Response<CheckHealthResponse>, Status> {
        self.0.health_asked.fetch_add(1, Ordering::Relaxed);
        if request.into_inner().force_step {
            self.0.steps_forced.fetch_add(1, Ordering::Relaxed);
        }
        if self.0.refuses_health.load(Ordering::Relaxed) {
            return Err(Status::internal("out of order"));
        }
        let healthy = self.0.healthy.load(Ordering::Relaxed);
        Ok(Response::new(CheckHealthResponse {
            healthy,
            reason: if healthy {
                String::new()
            } else {
                "rank 1 is stuck".to_owned()
            },
        }))
    }

    async fn get_load(
        &self,
        _: Request<GetLoadRequest>,
    ) -> Result<Response<GetLoadResponse>, Status> {
        Ok(Response::new(GetLoadResponse {
            running_requests: 3,
            waiting_requests: 5,
            kv_tokens_total: 1024,
            weight_bytes: 3 << 29,
            kv_bytes: 1 << 29,
            waiting_tokens: 11,
            generated_per_s: 12.5,
            retracted_requests: 2,
            request_memory: 77,
            dp_ranks: self.0.dp_ranks.lock().expect("no panic").clone(),
            speculation: Some(SpeculationLoad {
                proposed: vec![8, 4, 0],
                accepted: vec![4, 1, 0],
                depths: Some(DepthLoad {
                    depth: 2,
                    switches: 5,
                    steps: vec![3, 0, 7],
                    us: vec![1_500_000, 0, 250_000],
                    predicted_steps: 2,
                    predicted_us: 3_000_000,
                    measured_us: 1_000_000,
                    range: *self.0.depth_range.lock().expect("no panic"),
                }),
                ..SpeculationLoad::default()
            }),
            ..GetLoadResponse::default()
        }))
    }

    async fn list_requests(
        &self,
        _: Request<ListRequestsRequest>,
    ) -> Result<Response<ListRequestsResponse>, Status> {
        let live = self.0.live.lock().expect("no panic").clone();
        Ok(Response::new(live))
    }

    async fn get_figures(
        &self,
        request: Request<GetFiguresRequest>,
    ) -> Result<Response<GetFiguresResponse>, Status> {
        self.0.figures_asked.fetch_add(1, Ordering::Relaxed);
        let mut fronts = self.0.others.lock().expect("no panic").clone();
        if !request.into_inner().metrics {
            fronts.iter_mut().for_each(|front| front.metrics.clear());
        }
        Ok(Response::new(GetFiguresResponse { fronts }))
    }

    async fn flush_cache(
        &self,
        _: Request<FlushCacheRequest>,
    ) -> Result<Response<FlushCacheResponse>, Status> {
        Ok(Response::new(FlushCacheResponse {
            flushed: true,
            tokens: 7,
            reason: String::new(),
        }))
    }

    async fn set_depth_range(
        &self,
        request: Request<SetDepthRangeRequest>,
    ) -> Result<Response<SetDepthRangeResponse>, Status> {
        *self.0.depth_range.lock().expect("no panic") = request.into_inner().range;
        Ok(Response::new(SetDepthRangeResponse {}))
    }

    /// Acts as a drafter with one corpus, "old"; an added corpus is listed in the
    /// answer.
    async fn command_drafter(
        &self,
        request: Request<DrafterCommand>,
    ) -> Result<Response<DrafterReply>, Status> {
        let size = |name: &str, tokens: &[u32]| CorpusSize {
            name: name.to_owned(),
            tokens: tokens.len() as u64,
        };
        let old = size("old", &[1, 2]);
        let command = request.into_inner().try_into().expect("a command");
        let drafter::DrafterCommand::Corpora(command) = command;
        let result = match command {
            CorpusCommand::List => Ok(vec![old]),
            CorpusCommand::Add { name, token_ids } => {
                let new = size(&name, &token_ids);
                let _ = self.0.sender.send(Asked::Corpus(token_ids));
                Ok(vec![new, old])
            }
            CorpusCommand::Remove { name } if name == "old" => Ok(Vec::new()),
            CorpusCommand::Remove { name } => {
                let message = format!("no corpus is called {name}");
                Err(lockstep_types::request::RequestError::new(
                    ErrorKind::Invalid,
                    message,
                ))
            }
        };
        let reply = result.map(drafter::DrafterReply::Corpora);
        Ok(Response::new(reply.into()))
    }

    /// Loads every adapter but `full`, for which there is no place.
    async fn load_adapter(
        &self,
        request: Request<LoadAdapterRequest>,
    ) -> Result<Response<AdapterReply>, Status> {
        let LoadAdapterRequest { name, path } = request.into_inner();
        if name == "full" {
            return Ok(refused(ErrorKind::Conflict, "all places are taken"));
        }
        let adapter = LoadedAdapter {
            name,
            path,
            loaded: 1_700_000_000,
            ..LoadedAdapter::default()
        };
        self.0.adapters.lock().expect("no panic").push(adapter);
        Ok(self.loaded())
    }

    async fn unload_adapter(
        &self,
        request: Request<UnloadAdapterRequest>,
    ) -> Result<Response<AdapterReply>, Status> {
        let name = request.into_inner().name;
        let gone = {
            let mut adapters = self.0.adapters.lock().expect("no panic");
            let before = adapters.len();
            adapters.retain(|adapter| adapter.name != name);
            adapters.len() < before
        };
        Ok(match gone {
            true => self.loaded(),
            false => refused(ErrorKind::NotFound, "there is no such adapter"),
        })
    }

    async fn list_adapters(
        &self,
        _: Request<ListAdaptersRequest>,
    ) -> Result<Response<AdapterList>, Status> {
        let adapters = self.0.adapters.lock().expect("no panic").clone();
        Ok(Response::new(AdapterList { adapters }))
    }

    async fn update_weights(
        &self,
        request: Request<UpdateWeightsRequest>,
    ) -> Result<Response<UpdateWeightsResponse>, Status> {
        let (reply, answer) = oneshot::channel();
        let asked = Asked::Update(request.into_inner(), reply);
        let _ = self.0.sender.send(asked);
        let answer = answer.await;
        answer
            .map(Response::new)
            .map_err(|_| Status::unavailable("the scheduler is stopping"))
    }
}
