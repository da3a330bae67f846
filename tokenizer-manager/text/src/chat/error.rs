//! Errors between messages and a prompt.

use std::error::Error as _;

use minijinja::ErrorKind;

use super::meter::Exceeded;
use crate::answer::UnknownParser;
use crate::tokenizer::TokenizerError;

/// Reason why a model's tokenizer or chat template could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file of the tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A parser of answers does not exist.
    #[error(transparent)]
    Parser(#[from] UnknownParser),
    /// The chat template is faulty.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// Reason why a chat template could not be loaded or rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template called `raise_exception`: it refuses these messages. Its message is shown to
    /// the client.
    #[error("{message}")]
    Raised {
        /// The text that the template gave.
        message: String,
    },
    /// The request itself is at fault, whatever the template.
    #[error("{message}")]
    InvalidRequest {
        /// The problem, and how to correct it.
        message: String,
    },
    /// The template renders an ordinary conversation, but not these messages. Mostly a message
    /// lacks a field, or has a field of a type that the template does not expect.
    #[error("the model's chat template cannot render these messages: {message}")]
    Unsuitable {
        /// The template engine's message, with the line.
        message: String,
    },
    /// The rendering exceeded one of [`TemplateLimits`](crate::TemplateLimits).
    #[error("rendering the chat template takes too much: more than {limit}")]
    TooExpensive {
        /// The exceeded limit, with its value and unit.
        limit: String,
    },
    /// The template is faulty: it has a syntax error (found when it is loaded), or it fails even
    /// on an ordinary conversation.
    #[error("the chat template is broken: {message}")]
    Broken {
        /// The template engine's message, with the line.
        message: String,
    },
}

impl TemplateError {
    /// Returns true if the request is at fault (HTTP 400, gRPC `INVALID_ARGUMENT`), and false if
    /// the server or its model is (HTTP 500, gRPC `INTERNAL`). Too expensive counts as the
    /// request's fault: the limits are generous for any conversation that fits a context.
    #[must_use]
    pub fn is_client_error(&self) -> bool {
        !matches!(self, Self::Broken { .. })
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidRequest {
            message: message.into(),
        }
    }

    /// Classifies an error of the engine. The caller must check the output limit itself.
    pub(super) fn from_engine(error: &minijinja::Error, fuel: u64) -> Self {
        let mut out_of_fuel = false;
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(current) = cause {
            if let Some(raised) = current.downcast_ref::<RaisedByTemplate>() {
                return Self::Raised {
                    message: raised.0.clone(),
                };
            }
            if let Some(Exceeded(limit)) = current.downcast_ref::<Exceeded>() {
                return Self::TooExpensive {
                    limit: limit.clone(),
                };
            }
            let kind = current
                .downcast_ref::<minijinja::Error>()
                .map(minijinja::Error::kind);
            out_of_fuel |= kind == Some(ErrorKind::OutOfFuel);
            cause = current.source();
        }
        if out_of_fuel {
            return Self::TooExpensive {
                limit: format!("{fuel} template instructions"),
            };
        }
        let mut message = error.to_string();
        if let Some(source) = error.source() {
            message = format!("{message}: {source}");
        }
        Self::Broken { message }
    }
}

/// The error that `raise_exception` leaves in the engine's error chain.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct RaisedByTemplate(pub String);
