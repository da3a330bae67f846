//! Reaction to failures: another try after a pause, or an error with its remedy.

use std::time::Duration;

use hyper::StatusCode;
use lockstep_files::shown;

use crate::client::{Client, Failure, Refusal};
use crate::progress::{Event, EventSink};
use crate::{HubError, Name, Revision, Settings, TransferLimits};

/// Facts about a request, for errors.
#[derive(Clone)]
pub(crate) struct RequestContext {
    pub(crate) name: Name,
    pub(crate) revision: Revision,
    pub(crate) endpoint: String,
    /// The model or one of its files.
    pub(crate) what: String,
    pub(crate) with_token: bool,
}

impl RequestContext {
    pub(crate) fn new(
        name: &Name,
        revision: &Revision,
        settings: &Settings,
        client: &Client,
    ) -> Self {
        Self {
            name: name.clone(),
            revision: revision.clone(),
            endpoint: settings.endpoint.clone(),
            what: name.to_string(),
            with_token: client.has_token(),
        }
    }

    pub(crate) fn for_file(&self, file: &str) -> Self {
        let mut context = self.clone();
        context.what = format!("{file} of {}", self.name);
        context
    }

    pub(crate) fn wrong(&self, why: impl Into<String>) -> HubError {
        HubError::Answer {
            endpoint: self.endpoint.clone(),
            what: self.what.clone(),
            why: shown(&why.into()),
        }
    }

    pub(crate) fn unreachable(&self, why: &str) -> HubError {
        HubError::Unreachable {
            endpoint: self.endpoint.clone(),
            what: self.what.clone(),
            why: shown(why),
        }
    }

    /// The error for one of the hub's refusals. The hub gives the same answer for a model
    /// that needs a token and for a model that does not exist.
    fn refused(&self, refusal: Refusal) -> HubError {
        let Refusal {
            status,
            code,
            message,
        } = refusal;
        let message = shown(&message);
        let (name, endpoint) = (self.name.clone(), self.endpoint.clone());
        let with_token = self.with_token;
        let missing = |name, endpoint| HubError::Missing {
            name,
            endpoint,
            with_token,
        };
        match (code.as_str(), status) {
            ("GatedRepo", _) => HubError::Gated {
                name,
                endpoint,
                reason: message,
                with_token,
            },
            // A mirror may leave the code out, but not the message.
            ("", StatusCode::FORBIDDEN) if message.to_lowercase().contains("gated") => {
                HubError::Gated {
                    name,
                    endpoint,
                    reason: message,
                    with_token,
                }
            }
            (_, StatusCode::FORBIDDEN) => HubError::Forbidden {
                endpoint,
                what: self.what.clone(),
                reason: message,
                with_token,
            },
            ("RevisionNotFound", _) => HubError::MissingRevision {
                name,
                revision: self.revision.clone(),
                endpoint,
            },
            ("RepoNotFound", _) => missing(name, endpoint),
            (_, StatusCode::UNAUTHORIZED) if with_token => {
                HubError::TokenRefused { name, endpoint }
            }
            (_, StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND) => missing(name, endpoint),
            _ => HubError::Status {
                endpoint,
                status: status.as_u16(),
                what: self.what.clone(),
                reason: message,
            },
        }
    }
}

/// Counts failures in a row.
pub(crate) struct Retries {
    limits: TransferLimits,
    events: EventSink,
    /// Most failed tries to connect.
    most_connects: u32,
    failed: u32,
}

impl Retries {
    pub(crate) fn new(limits: TransferLimits, events: &EventSink) -> Self {
        Self {
            limits,
            events: events.clone(),
            most_connects: limits.attempts,
            failed: 0,
        }
    }

    /// Tries with less patience for a hub that is away: the cache may do instead.
    pub(crate) fn at_first(limits: TransferLimits, events: &EventSink) -> Self {
        Self {
            most_connects: limits.attempts.min(2),
            ..Self::new(limits, events)
        }
    }

    /// Forgets earlier failures, as enough bytes came.
    pub(crate) fn advanced(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// Fails when another try would not help, or when enough tries have failed.
    pub(crate) async fn after(
        &mut self,
        failure: Failure,
        context: &RequestContext,
    ) -> Result<(), HubError> {
        self.failed += 1;
        let is_last = self.failed >= self.limits.attempts;
        let pause = self.limits.pause * 2_u32.saturating_pow(self.failed - 1);
        let (why, pause) = match failure {
            Failure::Away(why) if self.failed >= self.most_connects => {
                return Err(context.unreachable(&why));
            }
            Failure::Broken(why) if is_last => return Err(context.unreachable(&why)),
            Failure::Away(why) | Failure::Broken(why) => (why, pause),
            Failure::Busy(after) => (
                "the hub asks for a pause".to_owned(),
                self.asked_for(after, is_last, pause, context)?,
            ),
            Failure::Status(refusal) => return Err(context.refused(refusal)),
            Failure::Wrong(why) => return Err(context.wrong(why)),
        };
        let pause = pause.min(self.limits.longest_pause);
        let text = format!(
            "{}: {}. Trying again in {pause:?}.",
            context.what,
            shown(&why)
        );
        (self.events)(Event::Note(&text));
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// The pause that the hub asks for, if it is not too long.
    fn asked_for(
        &self,
        after: Option<Duration>,
        is_last: bool,
        pause: Duration,
        context: &RequestContext,
    ) -> Result<Duration, HubError> {
        let too_long = after.is_some_and(|after| after > self.limits.longest_pause);
        match is_last || too_long {
            true => Err(HubError::RateLimited {
                endpoint: context.endpoint.clone(),
                after,
                with_token: context.with_token,
            }),
            false => Ok(after.unwrap_or(pause)),
        }
    }
}
