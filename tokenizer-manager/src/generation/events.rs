//! Filters between the tokens of one choice and its events.
//!
//! ```text
//! token ids ──▶ OutputText ──▶ Parts ─────────▶ Pending ──▶ Event
//!               text, up to    reasoning,       each token beside
//!               a stop string  calls, text      its text
//! ```
//!
//! A request that wants no parts told apart has no [`Parts`]: all its output is text.
//!
//! Joined, a choice's events do not depend on how its tokens arrive in steps.

use std::{mem, sync::Arc};

use lockstep_text::{OutputText, StopMatch};
use lockstep_types::{
    request::{Finish, FinishReason, Usage},
    sampling::TokenLogprob,
};

use super::{
    event::{End, Event, Matched, TextDelta},
    parts::Parts,
    pending::Pending,
};
use crate::error::ApiResult;

/// A token that counts but is not shown, and its log-probability.
type HiddenToken = (u32, Option<TokenLogprob>);

/// The filters between a choice's tokens and its events.
#[derive(Debug)]
pub(super) struct FilterChain {
    text: OutputText,
    parts: Option<Parts>,
    pending: Pending,
    prompt_tokens: usize,
    stops: Arc<[String]>,
    include_stop: bool,
    /// Text that shows with the next events.
    shown: String,
    /// The stop string that the text has reached.
    stop: Option<StopMatch>,
    /// The end or stop token that ended the output.
    hidden: Option<HiddenToken>,
    /// True if a token that is not in the text ended the choice. That token counts too.
    ended_by_token: bool,
}

impl FilterChain {
    /// Makes the chain of a choice that has no tokens yet.
    pub(super) fn new(
        text: OutputText,
        parts: Option<Parts>,
        prompt_tokens: usize,
        (stops, include_stop): (Arc<[String]>, bool),
    ) -> Self {
        Self {
            text,
            parts,
            pending: Pending::default(),
            prompt_tokens,
            stops,
            include_stop,
            shown: String::new(),
            stop: None,
            hidden: None,
            ended_by_token: false,
        }
    }

    /// Adds the tokens of a step, up to the one that completes a stop string. `finish`
    /// is the scheduler's end, if it came with them. Returns true if a stop string ends
    /// the choice.
    pub(super) fn push(
        &mut self,
        mut token_ids: Vec<u32>,
        mut logprobs: Vec<TokenLogprob>,
        finish: Option<&Finish>,
    ) -> bool {
        self.hidden = self.hide(finish, &mut token_ids, &mut logprobs);
        let mut logprobs = logprobs.into_iter();
        for id in token_ids {
            if let Some(parts) = &self.parts {
                self.text.scope_stops(parts.stop_scope());
            }
            let token = self.text.push(id);
            self.pending.push(id, token.text_offset, logprobs.next());
            match &mut self.parts {
                Some(parts) => parts.token(id, token, &mut self.pending),
                None => self.shown.push_str(token.text),
            }
            if token.stop.is_some() {
                self.stop = token.stop;
                break;
            }
        }
        self.stop.is_some()
    }

    /// Removes the end or stop token that ended the output from the tokens. The token
    /// counts, but its text is never shown, whatever its kind.
    fn hide(
        &self,
        finish: Option<&Finish>,
        token_ids: &mut Vec<u32>,
        logprobs: &mut Vec<TokenLogprob>,
    ) -> Option<HiddenToken> {
        let matched = finish?.matched_token?;
        if self.include_stop || token_ids.last() != Some(&matched) {
            return None;
        }
        let has_logprob = logprobs.len() == token_ids.len();
        token_ids.pop();
        Some((matched, logprobs.pop().filter(|_| has_logprob)))
    }

    /// Returns the events of the tokens added since the last call: a text, and the end
    /// after a stop string or with the scheduler's `finish`.
    ///
    /// # Errors
    /// The scheduler's error.
    pub(super) fn events(&mut self, finish: Option<Finish>) -> ApiResult<Vec<Event>> {
        self.pending.showed(&self.shown);
        let cuts_call = self.stop.is_some() && self.parts.as_ref().is_some_and(Parts::is_in_call);
        let (end, rest) = match (self.stop, finish) {
            (Some(stop), finish) => (Some(self.stopped(stop, finish)), false),
            (None, Some(finish)) => (Some(self.finished(finish)?), true),
            (None, None) => (None, false),
        };
        let end = end.map(|end| End { cuts_call, ..end });
        let mut events = match (&mut self.parts, &end) {
            (Some(parts), Some(end)) => {
                let cut = self.stop.is_some() || end.reason != FinishReason::Stop;
                parts.rest(cut, &mut self.pending)
            }
            (Some(parts), None) => parts.take(),
            (None, _) => Vec::with_capacity(2),
        };
        let tokens = match (rest, &self.parts) {
            (true, _) => self.pending.rest(),
            (false, None) => self.pending.take(),
            (false, Some(_)) => Vec::new(),
        };
        let text = TextDelta {
            text: mem::take(&mut self.shown),
            tokens,
        };
        // Every step has an event.
        if events.is_empty() || !text.is_empty() {
            events.push(Event::Text(text));
        }
        events.extend(end.map(Event::End));
        Ok(events)
    }

    /// Returns the end after a stop string; `finish` has the scheduler's counts, if
    /// they came.
    fn stopped(&self, stop: StopMatch, finish: Option<Finish>) -> End {
        let cached = finish.as_ref().map_or(0, |end| end.usage.cached_tokens);
        End {
            reason: FinishReason::Stop,
            matched: self.stops.get(stop.index).cloned().map(Matched::Text),
            usage: self.usage(cached),
            reasoning_tokens: self.reasoning_tokens(),
            cuts_call: false,
            speculation: finish.and_then(|finish| finish.speculation),
        }
    }

    /// Shows the rest of the text, and returns the scheduler's end.
    fn finished(&mut self, finish: Finish) -> ApiResult<End> {
        let reason = finish.outcome?;
        let rest = self.text.finish();
        match &mut self.parts {
            Some(parts) => parts.text(rest, &mut self.pending),
            None => {
                self.shown.push_str(rest);
                self.pending.showed(rest);
            }
        }
        if let Some((id, logprob)) = self.hidden.take() {
            self.pending.push_last(id, logprob);
            self.ended_by_token = true;
        }
        Ok(End {
            reason,
            matched: finish.matched_token.map(Matched::Token),
            usage: self.usage(finish.usage.cached_tokens),
            reasoning_tokens: self.reasoning_tokens(),
            cuts_call: false,
            speculation: finish.speculation,
        })
    }

    fn reasoning_tokens(&self) -> Option<u32> {
        self.parts.as_ref().and_then(Parts::reasoning_tokens)
    }

    fn usage(&self, cached_tokens: u32) -> Usage {
        Usage {
            prompt_tokens: u32::try_from(self.prompt_tokens).unwrap_or(u32::MAX),
            completion_tokens: self.completion_tokens(),
            cached_tokens,
        }
    }

    /// Approximate bytes of the log-probabilities of tokens that do not show yet.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending.logprob_bytes()
    }

    /// Number of tokens that the choice has so far.
    pub(super) fn completion_tokens(&self) -> u32 {
        let tokens = self.text.tokens() + usize::from(self.ended_by_token);
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests;
