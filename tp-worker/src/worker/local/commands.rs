//! Commands to the ranks of a group in one process, and their adapters.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
};

use lockstep_backend::Backend;
use lockstep_model::ReadAdapter;
use lockstep_types::step::StepPlan;

use super::{LocalGroup, Worker, WorkerError, cause};

/// A command to one rank, which takes commands in their order.
pub(super) enum Command {
    /// Follows a plan.
    Plan(Arc<StepPlan>),
    /// Does something about adapters.
    Adapter(AdapterCommand),
}

/// A command about adapters.
pub(super) enum AdapterCommand {
    /// Reads the adapter in a folder, keeps it aside, and answers with its content.
    Read(PathBuf, Sender<Result<u128, WorkerError>>),
    /// Puts the adapter that was read last in a place.
    Place(u16, Sender<Result<(), WorkerError>>),
    /// Takes the adapter at a place away.
    Clear(u16),
}

/// The adapter that a rank has read last.
#[derive(Default)]
pub(super) struct Aside(Option<ReadAdapter>);

impl Aside {
    /// Runs a command on a rank.
    pub fn run<B: Backend + 'static>(&mut self, worker: &mut Worker<B>, command: AdapterCommand) {
        match command {
            AdapterCommand::Read(folder, reply) => {
                let read = worker.adapter_reader().read(&folder);
                let read = read.map(|read| self.0.insert(read).content());
                let _ = reply.send(read.map_err(|error| WorkerError::Model(error.into())));
            }
            AdapterCommand::Place(place, reply) => {
                let read = self.0.take();
                let placed = read.map(|read| worker.place_adapter(place, &read));
                let _ = reply.send(placed.unwrap_or(Ok(())));
            }
            AdapterCommand::Clear(place) => worker.clear_adapter(place),
        }
    }
}

impl LocalGroup {
    /// Reads the adapter in `folder` on all ranks and, if none of them refuses it, puts it in
    /// `place`, where plans sent from now on find it. Returns its content. No request may have the
    /// adapter that was there.
    ///
    /// # Errors
    /// The [`WorkerError`] of a rank that refuses the adapter; then nothing changes.
    pub fn load_adapter(&self, place: u16, folder: &Path) -> Result<u128, WorkerError> {
        let contents = self.ask(|reply| AdapterCommand::Read(folder.to_owned(), reply))?;
        self.ask(|reply| AdapterCommand::Place(place, reply))?;
        Ok(contents.first().copied().unwrap_or_default())
    }

    /// Takes the adapter at `place` away, if there is one. No request may have it.
    ///
    /// # Errors
    /// [`WorkerError::Ended`] when a rank is gone.
    pub fn clear_adapter(&self, place: u16) -> Result<(), WorkerError> {
        self.send_all(|| Command::Adapter(AdapterCommand::Clear(place)))
    }

    /// Sends a command to all ranks, and waits for all answers.
    fn ask<T>(
        &self,
        command: impl Fn(Sender<Result<T, WorkerError>>) -> AdapterCommand,
    ) -> Result<Vec<T>, WorkerError> {
        let (reply, answers) = channel();
        self.send_all(|| Command::Adapter(command(reply.clone())))?;
        drop(reply);
        let (mut done, mut failures) = (Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Ok(answer) => done.push(answer),
                Err(error) => failures.push(error),
            }
        }
        cause(failures).map_or(Ok(done), Err)
    }

    /// Queues a command on every rank.
    ///
    /// # Errors
    /// [`WorkerError::Ended`] when a rank is gone.
    pub(super) fn send_all(&self, command: impl Fn() -> Command) -> Result<(), WorkerError> {
        for (rank, thread) in self.ranks.iter().enumerate() {
            let commands = thread.commands.as_ref();
            if !matches!(commands.map(|all| all.send(command())), Some(Ok(()))) {
                return Err(WorkerError::Ended { rank });
            }
        }
        Ok(())
    }
}
