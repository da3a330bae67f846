//! Loading and unloading of adapters while the server runs. Every rank reads an adapter aside
//! while plans go on. Then all ranks put it in its place between two plans, or none does.

use std::time::{Duration, Instant};

use lockstep_proto::pb::lockstep::{
    AdapterOrder, AdapterRead, AdapterReply, ForgetAdapter, LoadAdapterRequest, ReadAdapter,
    adapter_order::Kind as Order, adapter_read, adapter_reply,
};
use lockstep_types::{
    adapter::{Adapter, check_adapter_name},
    request::{ErrorKind, RequestError},
};
use tokio::sync::oneshot;

use super::{Engine, Phase, requests::unavailable};
use crate::{error::RunError, inbox::AdapterCommand};

/// Sender of the outcome.
pub type Reply = oneshot::Sender<AdapterReply>;

/// An adapter that the ranks read.
pub struct Loading {
    name: String,
    path: String,
    /// The caller; `None` for an adapter of the start.
    reply: Option<Reply>,
    since: Instant,
    /// By rank: its answer.
    answers: Vec<Option<Result<u128, String>>>,
}

impl Loading {
    /// Returns the ranks that have not answered yet.
    fn awaited(&self) -> Vec<usize> {
        let awaited = |(rank, answer): (usize, &Option<_>)| answer.is_none().then_some(rank);
        let answers = self.answers.iter().enumerate();
        answers.filter_map(awaited).collect()
    }

    /// Returns the content that all ranks have read, or the reason of the first that refuses.
    fn content(&self) -> Result<u128, String> {
        let mut all = None;
        for (rank, answer) in self.answers.iter().enumerate() {
            let content = match answer {
                None => Err("it has not answered".to_owned()),
                Some(answer) => answer.clone(),
            };
            let content = content.map_err(|reason| match self.answers.len() {
                1 => reason,
                _ => format!("rank {rank}: {reason}"),
            })?;
            if *all.get_or_insert(content) != content {
                return Err(
                    "the ranks read different files; give all nodes the same ones".to_owned(),
                );
            }
        }
        all.ok_or_else(|| "there is no rank".to_owned())
    }
}

impl Engine {
    /// Handles a command about adapters.
    pub(super) fn handle_adapters(&mut self, command: AdapterCommand) -> Result<(), RunError> {
        match command {
            AdapterCommand::Load { wanted, reply } => self.load_adapter(wanted, reply)?,
            AdapterCommand::Unload { name, reply } => {
                // The asker may have given up.
                let _ = reply.send(self.unload_adapter(&name));
            }
            AdapterCommand::List { reply } => {
                // The asker may have given up.
                let _ = reply.send(self.adapters.list());
            }
        }
        Ok(())
    }

    /// Begins to load an adapter, or answers with the reason why not.
    fn load_adapter(&mut self, wanted: LoadAdapterRequest, reply: Reply) -> Result<(), RunError> {
        match self.may_load(&wanted.name) {
            Ok(()) => self.read_adapter(wanted, Some(reply)),
            Err(error) => {
                // The asker may have given up.
                let _ = reply.send(refused(error));
                Ok(())
            }
        }
    }

    fn may_load(&self, name: &str) -> Result<(), RequestError> {
        self.may_change_adapters()?;
        check_adapter_name(name).map_err(|rule| RequestError {
            param: Some("lora_name".to_owned()),
            ..RequestError::new(ErrorKind::Invalid, format!("The adapter's name {rule}."))
        })?;
        if self.config.server.is_model_name(name) {
            let message = format!("`{name}` is a name of the model; give the adapter another one.");
            return Err(RequestError {
                param: Some("lora_name".to_owned()),
                ..RequestError::new(ErrorKind::Invalid, message)
            });
        }
        let busy = match (&self.loading, &self.update) {
            (Some(_), _) => "Another adapter is being loaded; wait for it.",
            (_, Some(_)) => "An update of the weights is under way; wait for it.",
            (None, None) => return Ok(()),
        };
        Err(RequestError::new(ErrorKind::Overloaded, busy))
    }

    fn may_change_adapters(&self) -> Result<(), RequestError> {
        if self.config.adapters.places == 0 {
            return Err(RequestError::new(
                ErrorKind::Invalid,
                "This server serves no adapters; start it with --enable-lora.",
            ));
        }
        if self.phase != Phase::Serving {
            let message = "The engine is starting or shutting down.";
            return Err(unavailable(message.to_owned(), self.served_in()));
        }
        Ok(())
    }

    /// Asks every rank to read an adapter.
    fn read_adapter(
        &mut self,
        wanted: LoadAdapterRequest,
        reply: Option<Reply>,
    ) -> Result<(), RunError> {
        let LoadAdapterRequest { name, path } = wanted;
        tracing::info!(name, path, "reading an adapter");
        let order = Order::Read(ReadAdapter {
            name: name.clone(),
            path: path.clone(),
            at_start: reply.is_none(),
        });
        self.loading = Some(Loading {
            name,
            path,
            reply,
            since: Instant::now(),
            answers: vec![None; self.config.parallel.tp_size],
        });
        self.order_adapters(order)
    }

    fn order_adapters(&self, kind: Order) -> Result<(), RunError> {
        let order = AdapterOrder { kind: Some(kind) };
        self.group.order_adapter(&order).map_err(RunError::Group)
    }

    /// Takes a rank's answer. The last answer decides.
    pub(super) fn adapter_read(&mut self, rank: usize, read: AdapterRead) -> Result<(), RunError> {
        let Some(mut loading) = self.loading.take() else {
            return Err(RunError::Group(format!(
                "rank {rank} read an adapter that was not asked for"
            )));
        };
        let content = match read.kind {
            Some(adapter_read::Kind::Adapter(read)) => Adapter::try_from(read)
                .map(|adapter| adapter.content)
                .map_err(|error| error.to_string()),
            Some(adapter_read::Kind::Error(reason)) => Err(reason),
            None => Err("its answer says nothing".to_owned()),
        };
        loading.answers[rank] = Some(content);
        if loading.awaited().is_empty() {
            return self.place_adapter(loading);
        }
        self.loading = Some(loading);
        Ok(())
    }

    /// Gives an adapter its place on all ranks, or on none.
    fn place_adapter(&mut self, loading: Loading) -> Result<(), RunError> {
        let place_for = |content| (content, self.adapters.place_for(&loading.name, content));
        let place = loading.content().map(place_for);
        let refusal = match place {
            Ok((content, Ok(Some(place)))) => {
                tracing::info!(name = loading.name, place, "adapter loaded");
                self.order_adapters(Order::Place(place.into()))?;
                let adapter = Adapter { place, content };
                self.adapters.insert(loading.name, loading.path, adapter);
                return self.adapter_loaded(loading.reply);
            }
            Ok((_, Ok(None))) => {
                self.order_adapters(Order::Forget(ForgetAdapter {}))?;
                return self.adapter_loaded(loading.reply);
            }
            Ok((_, Err(no_place))) => no_place,
            Err(reason) => RequestError {
                param: Some("lora_path".to_owned()),
                ..RequestError::new(
                    ErrorKind::Invalid,
                    format!("The adapter `{}` was not loaded: {reason}", loading.name),
                )
            },
        };
        tracing::warn!(name = loading.name, reason = refusal.message, "no adapter");
        self.order_adapters(Order::Forget(ForgetAdapter {}))?;
        match loading.reply {
            // The asker may have given up.
            Some(reply) => drop(reply.send(refused(refusal))),
            None => {
                return Err(RunError::Group(format!(
                    "--lora-paths: {}",
                    refusal.message
                )));
            }
        }
        Ok(())
    }

    fn adapter_loaded(&mut self, reply: Option<Reply>) -> Result<(), RunError> {
        match reply {
            // The asker may have given up.
            Some(reply) => drop(reply.send(self.adapter_list())),
            None => return self.warm_up(),
        }
        Ok(())
    }

    /// Loads the next adapter of the start, and runs the first step when there is none left. The
    /// engine is healthy from that step on, so requests find all adapters.
    pub(super) fn warm_up(&mut self) -> Result<(), RunError> {
        match self.phase {
            Phase::Starting | Phase::LoadingAdapters => {}
            // It was told to stop meanwhile.
            Phase::WarmingUp | Phase::Serving | Phase::Draining => return Ok(()),
        }
        if let Some(adapter) = self.at_start.pop_front() {
            self.phase = Phase::LoadingAdapters;
            let wanted = LoadAdapterRequest {
                name: adapter.name,
                path: adapter.path.display().to_string(),
            };
            return self.read_adapter(wanted, None);
        }
        self.phase = Phase::WarmingUp;
        self.probe();
        Ok(())
    }

    /// Takes an adapter's name away. Requests that have it go on.
    fn unload_adapter(&mut self, name: &str) -> AdapterReply {
        let removed = self.may_change_adapters();
        match removed.and_then(|()| self.adapters.remove(name)) {
            Ok(()) => {
                tracing::info!(name, "adapter unloaded");
                self.adapter_list()
            }
            Err(error) => refused(RequestError {
                param: error.param.map(|_| "lora_name".to_owned()),
                ..error
            }),
        }
    }

    fn adapter_list(&self) -> AdapterReply {
        AdapterReply {
            kind: Some(adapter_reply::Kind::Adapters(self.adapters.list())),
        }
    }

    /// Frees the places whose last requests have ended, and checks the ranks' time limit.
    pub(super) fn advance_adapters(&mut self) -> Result<(), RunError> {
        let planner = &self.planner;
        let freed = self
            .adapters
            .free(|place| planner.adapter_requests(place) > 0);
        for place in freed {
            self.order_adapters(Order::Clear(place.into()))?;
        }
        let Some(loading) = &self.loading else {
            return Ok(());
        };
        let limit = Duration::from_secs(self.config.timeouts.loading_s());
        if loading.since.elapsed() > limit {
            return Err(RunError::Group(format!(
                "no adapter on rank {:?} after {} s (the longer of --startup-timeout and \
                 --weight-update-timeout)",
                loading.awaited(),
                limit.as_secs()
            )));
        }
        Ok(())
    }

    /// Tells the caller of a load that the engine has failed.
    pub(super) fn fail_loading(&mut self, reason: &str) {
        if let Some(reply) = self.loading.take().and_then(|loading| loading.reply) {
            let error = unavailable(format!("the engine failed: {reason}"), self.served_in());
            // The asker may have given up.
            let _ = reply.send(refused(error));
        }
    }
}

fn refused(error: RequestError) -> AdapterReply {
    AdapterReply {
        kind: Some(adapter_reply::Kind::Error(error.into())),
    }
}
