//! Commands to the drafter, handled on a thread of their own. A command may take seconds, and
//! steps go on meanwhile.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender, channel},
};

use lockstep_proto::pb::lockstep::{WorkerMessage, worker_message::Kind};
use lockstep_speculation::CommandHandler;
use lockstep_types::{
    drafter::DrafterCommand,
    request::{ErrorKind, RequestError},
};
use tokio::sync::mpsc::WeakSender;

use super::stream::message;

type Task = (Option<Arc<dyn CommandHandler>>, DrafterCommand);

/// Handles commands one after another. The thread ends when this value is dropped, after the
/// command that it is handling.
pub struct CommandThread(Sender<Task>);

impl CommandThread {
    /// Starts the thread. Answers leave by `outgoing` while that channel is open.
    pub fn new(outgoing: WeakSender<WorkerMessage>) -> Self {
        let (sender, tasks) = channel();
        std::thread::spawn(move || work(&tasks, &outgoing));
        Self(sender)
    }

    /// Hands a command to the thread. `handler` handles it there; without a handler the command
    /// is refused.
    pub fn send(&self, handler: Option<Arc<dyn CommandHandler>>, command: DrafterCommand) {
        // The thread lives as long as this sender.
        let _ = self.0.send((handler, command));
    }
}

fn work(tasks: &Receiver<Task>, outgoing: &WeakSender<WorkerMessage>) {
    while let Ok((handler, command)) = tasks.recv() {
        let result = match handler {
            Some(handler) => handler.handle(command),
            None => Err(unsupported(&command)),
        };
        let Some(outgoing) = outgoing.upgrade() else {
            return;
        };
        let reply = message(Kind::Drafter(result.into()));
        if outgoing.blocking_send(reply).is_err() {
            return;
        }
    }
}

fn unsupported(command: &DrafterCommand) -> RequestError {
    let DrafterCommand::Corpora(_) = command;
    RequestError::new(ErrorKind::Invalid, "This server does not draft from texts.")
}

#[cfg(test)]
mod tests {
    use lockstep_speculation::{Corpora, CorpusIndex};
    use lockstep_types::drafter::{CorpusCommand, CorpusSize, DrafterReply, DrafterResult};

    use super::*;

    struct Plain(usize);

    impl CorpusIndex for Plain {
        fn new(tokens: Vec<u32>) -> Self {
            Self(tokens.len())
        }

        fn tokens(&self) -> usize {
            self.0
        }
    }

    fn add(name: &str, tokens: u32) -> CorpusCommand {
        CorpusCommand::Add {
            name: name.to_owned(),
            token_ids: (0..tokens).collect(),
        }
    }

    fn remove(name: &str) -> CorpusCommand {
        CorpusCommand::Remove {
            name: name.to_owned(),
        }
    }

    #[test]
    fn commands_are_handled_in_order_and_each_is_answered() {
        let (outgoing, mut answers) = tokio::sync::mpsc::channel(8);
        let thread = CommandThread::new(outgoing.downgrade());
        let corpora: Arc<dyn CommandHandler> = Arc::new(Corpora::<Plain>::default());
        for command in [
            add("a", 9),
            add("b", 5),
            add("short", 1),
            remove("a"),
            remove("a"),
            CorpusCommand::List,
        ] {
            thread.send(Some(corpora.clone()), DrafterCommand::Corpora(command));
        }
        thread.send(None, DrafterCommand::Corpora(CorpusCommand::List));
        let mut next = || match answers.blocking_recv() {
            Some(WorkerMessage {
                kind: Some(Kind::Drafter(reply)),
            }) => DrafterResult::from(reply).map(|DrafterReply::Corpora(all)| {
                let size = |corpus: CorpusSize| (corpus.name, corpus.tokens);
                all.into_iter().map(size).collect::<Vec<_>>()
            }),
            other => panic!("{other:?}"),
        };
        let sizes = |all: &[(&str, u64)]| -> Result<Vec<(String, u64)>, RequestError> {
            let own = |(name, tokens): &(&str, u64)| ((*name).to_owned(), *tokens);
            Ok(all.iter().map(own).collect())
        };
        assert_eq!(next(), sizes(&[("a", 9)]));
        assert_eq!(next(), sizes(&[("a", 9), ("b", 5)]));
        assert!(next().is_err(), "one token is nothing to draft from");
        assert_eq!(next(), sizes(&[("b", 5)]));
        assert!(next().is_err(), "it is gone");
        assert_eq!(next(), sizes(&[("b", 5)]));
        let error = next().expect_err("nothing drafts from texts");
        assert_eq!(error.message, "This server does not draft from texts.");
        drop(thread);
        drop(outgoing);
        assert!(answers.blocking_recv().is_none(), "the thread has ended");
    }
}
