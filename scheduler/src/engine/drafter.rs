//! Commands to the drafters. The lead of every DP rank has a drafter.

use std::collections::VecDeque;

use lockstep_proto::pb::lockstep::{DrafterCommand, DrafterReply, drafter_reply::Kind};
use lockstep_types::{
    drafter::DrafterResult,
    request::{ErrorKind, RequestError},
};
use tokio::sync::oneshot;

use super::{Engine, Phase, requests::unavailable};
use crate::error::RunError;

/// Most commands that wait for answers: each may be tens of megabytes.
const MOST_WAITING: usize = 4;

/// Commands that wait for the drafters' answers.
#[derive(Default)]
pub(super) struct Waiting {
    /// Commands in the order in which they came.
    commands: VecDeque<Command>,
}

/// A command that is under way.
struct Command {
    reply: oneshot::Sender<DrafterReply>,
    /// Answers by DP rank.
    answers: Vec<Option<DrafterReply>>,
}

impl Waiting {
    /// Returns true if no more commands are taken.
    fn is_full(&self) -> bool {
        self.commands.len() >= MOST_WAITING
    }

    /// Adds a command that has gone to the leads of all `dp_size` DP ranks.
    fn push(&mut self, dp_size: usize, reply: oneshot::Sender<DrafterReply>) {
        let answers = vec![None; dp_size];
        self.commands.push_back(Command { reply, answers });
    }

    /// Takes an answer of DP rank `dp_rank`, whose answers arrive in the order of the commands.
    /// When all answers to a command are here, the command's caller gets the first one that is
    /// an error, else the first of all. Drafters are alike, so they refuse the same commands.
    fn answered(&mut self, dp_rank: usize, answer: DrafterReply) {
        let mut open = self.commands.iter_mut();
        let Some(command) = open.find(|command| command.answers[dp_rank].is_none()) else {
            return;
        };
        command.answers[dp_rank] = Some(answer);
        while let Some(command) = self.commands.front() {
            if command.answers.iter().any(Option::is_none) {
                return;
            }
            let Some(Command { reply, answers }) = self.commands.pop_front() else {
                return;
            };
            let failed = |answer: &DrafterReply| matches!(answer.kind, Some(Kind::Error(_)));
            let mut answers: Vec<_> = answers.into_iter().flatten().collect();
            let shown = answers.iter().position(failed).unwrap_or(0);
            // The client may have given up.
            let _ = reply.send(answers.swap_remove(shown));
        }
    }
}

impl Engine {
    /// Sends a command to the drafters, or answers with the reason why not.
    pub(super) fn command_drafters(
        &mut self,
        command: &DrafterCommand,
        reply: oneshot::Sender<DrafterReply>,
    ) -> Result<(), RunError> {
        let error = if !matches!(self.phase, Phase::Serving | Phase::Draining) {
            unavailable("The engine is starting.".to_owned(), self.served_in())
        } else if self.drafter_commands.is_full() {
            let message = "Other changes of the corpora are under way; try again later.";
            RequestError::new(ErrorKind::Overloaded, message)
        } else {
            self.group
                .command_drafters(command)
                .map_err(RunError::Group)?;
            let dp_size = self.config.parallel.dp_size;
            self.drafter_commands.push(dp_size, reply);
            return Ok(());
        };
        // The client may have given up.
        let _ = reply.send(DrafterResult::Err(error).into());
        Ok(())
    }

    /// Takes the answer of a rank; only leads draft.
    pub(super) fn drafter_answered(&mut self, rank: usize, answer: DrafterReply) {
        if !self.config.parallel.leads(rank) {
            return;
        }
        let dp_rank = self.config.parallel.dp_rank(rank);
        self.drafter_commands.answered(dp_rank, answer);
    }
}

#[cfg(test)]
mod tests {
    use lockstep_proto::pb::lockstep::{CorpusList, CorpusSize};

    use super::*;

    fn corpora(tokens: u64) -> DrafterReply {
        let name = "poems".to_owned();
        let list = CorpusList {
            corpora: vec![CorpusSize { name, tokens }],
        };
        DrafterReply {
            kind: Some(Kind::Corpora(list)),
        }
    }

    fn error() -> DrafterReply {
        DrafterResult::Err(RequestError::new(ErrorKind::Invalid, "no room")).into()
    }

    /// DP rank 1 is ahead by a command.
    #[test]
    fn a_command_is_answered_when_all_drafters_have_answered_it() {
        let mut waiting = Waiting::default();
        let (first, mut first_reply) = oneshot::channel();
        let (second, mut second_reply) = oneshot::channel();
        waiting.push(2, first);
        waiting.push(2, second);
        waiting.answered(1, corpora(1));
        waiting.answered(1, corpora(2));
        assert!(first_reply.try_recv().is_err());
        waiting.answered(0, corpora(1));
        assert_eq!(first_reply.try_recv(), Ok(corpora(1)));
        assert!(second_reply.try_recv().is_err());
        waiting.answered(0, corpora(2));
        assert_eq!(second_reply.try_recv(), Ok(corpora(2)));
        // No command waits for this answer.
        waiting.answered(0, corpora(3));
        assert!(waiting.commands.is_empty());
    }

    #[test]
    fn one_drafters_error_is_the_answer() {
        for at in 0..2 {
            let mut waiting = Waiting::default();
            let (reply, mut answer) = oneshot::channel();
            waiting.push(2, reply);
            for dp_rank in 0..2 {
                let own = if dp_rank == at { error() } else { corpora(1) };
                waiting.answered(dp_rank, own);
            }
            assert_eq!(answer.try_recv(), Ok(error()));
        }
    }

    #[test]
    fn no_more_than_a_few_commands_wait() {
        let mut waiting = Waiting::default();
        for _ in 0..MOST_WAITING {
            assert!(!waiting.is_full());
            waiting.push(1, oneshot::channel().0);
        }
        assert!(waiting.is_full());
    }
}
