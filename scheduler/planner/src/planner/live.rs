//! List of the requests that have not ended, for operators.

use crate::{
    Planner, RequestId,
    request::{RequestState, Stage},
};

/// A request that has not ended, without its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRequest {
    /// Id of the request.
    pub id: RequestId,
    /// DP rank that the request runs in; `None` = it waits.
    pub dp_rank: Option<u32>,
    /// True if the request had begun, and waits again.
    pub retracted: bool,
    /// Time since its arrival, milliseconds.
    pub age_ms: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens generated so far.
    pub output_tokens: u32,
    /// Most tokens that it may generate, cut to the context.
    pub max_new_tokens: u32,
    /// Prompt tokens from the prefix cache; `None` before it began.
    pub cached_tokens: Option<u32>,
}

impl Planner {
    /// Returns clients' requests that have not ended: first running ones, then waiting ones,
    /// each oldest first. Looks at all requests.
    pub fn live_requests(&self) -> Vec<LiveRequest> {
        let clients = self.requests.iter().map(|(_, request)| request);
        let mut live: Vec<_> = clients.filter(|of| !of.rest.is_probe).collect();
        live.sort_by_key(|of| (of.stage != Stage::Running, of.arrival));
        let now = self.admission.now().0;
        live.into_iter().map(|of| told(of, now)).collect()
    }

    /// Returns the state of a request; `None` if it has ended.
    pub fn live_request(&self, id: RequestId) -> Option<LiveRequest> {
        let index = self.requests.find(id)?;
        Some(told(&self.requests[index], self.admission.now().0))
    }
}

fn told(request: &RequestState, now: u64) -> LiveRequest {
    let runs = request.stage == Stage::Running;
    LiveRequest {
        id: request.id,
        dp_rank: runs.then_some(request.dp_rank),
        retracted: super::inspect::waits_again(request),
        age_ms: now.saturating_sub(request.rest.arrived.0),
        prompt_tokens: request.prompt_len,
        output_tokens: request.emitted(),
        max_new_tokens: request.max_new,
        cached_tokens: request.rest.cached_tokens,
    }
}
