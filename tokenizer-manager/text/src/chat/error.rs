//! What can go wrong between messages and a prompt.

use std::error::Error as _;

use minijinja::ErrorKind;

use super::meter::Exceeded;

/// Why a chat template could not be loaded or rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template called `raise_exception`: it refuses these messages. Its own words are for the
    /// client.
    #[error("{message}")]
    Raised {
        /// The text the template gave.
        message: String,
    },
    /// The request itself is at fault, whatever the template.
    #[error("{message}")]
    InvalidRequest {
        /// What is wrong and how to put it right.
        message: String,
    },
    /// The template renders an ordinary conversation, but not these messages; mostly because a
    /// message lacks a field or has one of another type than the template works with.
    #[error("the model's chat template cannot render these messages: {message}")]
    Unsuitable {
        /// The template engine's words, with the line.
        message: String,
    },
    /// The rendering exceeded one of [`TemplateLimits`](crate::TemplateLimits).
    #[error("rendering the chat template takes too much: more than {limit}")]
    TooExpensive {
        /// The limit that was hit, with its value and unit.
        limit: String,
    },
    /// The template is faulty: a syntax error (found when it is loaded), or it fails even on an
    /// ordinary conversation.
    #[error("the chat template is broken: {message}")]
    Broken {
        /// The template engine's words, with the line.
        message: String,
    },
}

impl TemplateError {
    /// True where the request is at fault (HTTP 400, gRPC `INVALID_ARGUMENT`), false where the
    /// server or its model is (HTTP 500, gRPC `INTERNAL`). Too expensive counts as the request's
    /// fault: the limits are generous for any conversation that fits a context.
    #[must_use]
    pub fn is_client_error(&self) -> bool {
        !matches!(self, Self::Broken { .. })
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidRequest {
            message: message.into(),
        }
    }

    /// Classifies an error of the engine; the output limit is the caller's to recognise.
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

/// The mark that `raise_exception` leaves in the engine's error chain.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct RaisedByTemplate(pub String);
