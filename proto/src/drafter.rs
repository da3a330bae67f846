//! Commands to the drafter on the wire.

use lockstep_types::{
    drafter::{CorpusCommand, CorpusSize, DrafterCommand, DrafterReply, DrafterResult},
    request::{ErrorKind, RequestError},
};

use crate::{WireError, mirror::mirror, pb::lockstep as pb};

mirror!(CorpusSize { name, tokens });

impl From<DrafterCommand> for pb::DrafterCommand {
    fn from(command: DrafterCommand) -> Self {
        let DrafterCommand::Corpora(command) = command;
        let kind = match command {
            CorpusCommand::List => None,
            CorpusCommand::Add { name, token_ids } => {
                Some(pb::corpus_command::Kind::Add(pb::Corpus {
                    name,
                    token_ids,
                }))
            }
            CorpusCommand::Remove { name } => Some(pb::corpus_command::Kind::Remove(name)),
        };
        Self {
            kind: Some(pb::drafter_command::Kind::Corpora(pb::CorpusCommand {
                kind,
            })),
        }
    }
}

impl TryFrom<pb::DrafterCommand> for DrafterCommand {
    type Error = WireError;

    fn try_from(wire: pb::DrafterCommand) -> Result<Self, WireError> {
        let pb::drafter_command::Kind::Corpora(command) = wire
            .kind
            .ok_or(WireError::Missing("drafter_command.kind"))?;
        Ok(Self::Corpora(match command.kind {
            None => CorpusCommand::List,
            Some(pb::corpus_command::Kind::Add(pb::Corpus { name, token_ids })) => {
                CorpusCommand::Add { name, token_ids }
            }
            Some(pb::corpus_command::Kind::Remove(name)) => CorpusCommand::Remove { name },
        }))
    }
}

impl From<DrafterResult> for pb::DrafterReply {
    fn from(result: DrafterResult) -> Self {
        let kind = match result {
            Ok(DrafterReply::Corpora(corpora)) => {
                let corpora = corpora.into_iter().map(Into::into).collect();
                pb::drafter_reply::Kind::Corpora(pb::CorpusList { corpora })
            }
            Err(error) => pb::drafter_reply::Kind::Error(error.into()),
        };
        Self { kind: Some(kind) }
    }
}

impl From<pb::DrafterReply> for DrafterResult {
    fn from(wire: pb::DrafterReply) -> Self {
        match wire.kind {
            Some(pb::drafter_reply::Kind::Corpora(list)) => {
                let corpora = list.corpora.into_iter().map(Into::into).collect();
                Ok(DrafterReply::Corpora(corpora))
            }
            Some(pb::drafter_reply::Kind::Error(error)) => Err(error.into()),
            None => Err(RequestError::new(
                ErrorKind::Internal,
                "The drafter's answer is empty.",
            )),
        }
    }
}
