//! Texts to draft from, sorted on a thread of their own: a long one takes
//! seconds, and steps go on meanwhile.

use std::sync::mpsc::{Receiver, Sender, channel};

use lockstep_proto::pb::lockstep::{
    CorporaEdit, CorporaEdited, CorpusSize, WorkerMessage, corpora_edit, worker_message::Kind,
};
use lockstep_speculation::{Corpora, CorpusError};
use lockstep_types::request::{ErrorKind, RequestError};
use tokio::sync::mpsc::WeakSender;

use super::stream::message;

type Task = (Option<Corpora>, CorporaEdit);

/// Makes changes one after another. The thread ends with it, once it has
/// finished what it is at.
pub struct Librarian(Sender<Task>);

impl Librarian {
    /// Starts the thread; answers leave by `outgoing` while that is open.
    pub fn new(outgoing: WeakSender<WorkerMessage>) -> Self {
        let (sender, tasks) = channel();
        std::thread::spawn(move || work(&tasks, &outgoing));
        Self(sender)
    }

    /// Makes a change, or says that nothing here drafts from texts.
    pub fn edit(&self, corpora: Option<Corpora>, edit: CorporaEdit) {
        // The thread lives as long as this sender.
        let _ = self.0.send((corpora, edit));
    }
}

fn work(tasks: &Receiver<Task>, outgoing: &WeakSender<WorkerMessage>) {
    while let Ok((corpora, edit)) = tasks.recv() {
        let edited = match corpora {
            Some(corpora) => change(&corpora, edit),
            None => refused("This server does not draft from texts.".to_owned()),
        };
        let Some(outgoing) = outgoing.upgrade() else {
            return;
        };
        if outgoing
            .blocking_send(message(Kind::Corpora(edited)))
            .is_err()
        {
            return;
        }
    }
}

fn change(corpora: &Corpora, edit: CorporaEdit) -> CorporaEdited {
    let changed = match edit.kind {
        Some(corpora_edit::Kind::Add(add)) => corpora.insert(&add.name, add.token_ids),
        Some(corpora_edit::Kind::Remove(name)) => corpora.remove(&name),
        None => Ok(()),
    };
    match changed {
        Ok(()) => CorporaEdited {
            error: None,
            corpora: sizes(corpora),
        },
        Err(error) => refusal(&error),
    }
}

fn sizes(corpora: &Corpora) -> Vec<CorpusSize> {
    let all = corpora.list().into_iter();
    all.map(|corpus| CorpusSize {
        name: corpus.name,
        tokens: corpus.tokens as u64,
    })
    .collect()
}

fn refusal(error: &CorpusError) -> CorporaEdited {
    refused(error.to_string())
}

fn refused(message: String) -> CorporaEdited {
    CorporaEdited {
        error: Some(RequestError::new(ErrorKind::Invalid, message).into()),
        corpora: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_proto::pb::lockstep::Corpus;

    use super::*;

    fn add(name: &str, tokens: u32) -> CorporaEdit {
        CorporaEdit {
            kind: Some(corpora_edit::Kind::Add(Corpus {
                name: name.to_owned(),
                token_ids: (0..tokens).collect(),
            })),
        }
    }

    fn remove(name: &str) -> CorporaEdit {
        CorporaEdit {
            kind: Some(corpora_edit::Kind::Remove(name.to_owned())),
        }
    }

    fn sizes(edited: &CorporaEdited) -> Vec<(&str, u64)> {
        let all = edited.corpora.iter();
        all.map(|corpus| (corpus.name.as_str(), corpus.tokens))
            .collect()
    }

    #[test]
    fn changes_are_made_in_order_and_each_is_answered() {
        let (outgoing, mut answers) = tokio::sync::mpsc::channel(8);
        let librarian = Librarian::new(outgoing.downgrade());
        let corpora = Corpora::default();
        for edit in [
            add("a", 9),
            add("b", 5),
            add("short", 1),
            remove("a"),
            remove("a"),
            CorporaEdit::default(),
        ] {
            librarian.edit(Some(corpora.clone()), edit);
        }
        librarian.edit(None, CorporaEdit::default());
        let mut next = || match answers.blocking_recv() {
            Some(WorkerMessage {
                kind: Some(Kind::Corpora(edited)),
            }) => edited,
            other => panic!("{other:?}"),
        };
        assert_eq!(sizes(&next()), [("a", 9)]);
        assert_eq!(sizes(&next()), [("a", 9), ("b", 5)]);
        assert!(next().error.is_some(), "one token is nothing to draft from");
        assert_eq!(sizes(&next()), [("b", 5)]);
        assert!(next().error.is_some(), "it is gone");
        assert_eq!(sizes(&next()), [("b", 5)]);
        assert!(next().error.is_some(), "nothing drafts from texts");
        drop(librarian);
        drop(outgoing);
        assert!(answers.blocking_recv().is_none(), "the thread has ended");
    }
}
