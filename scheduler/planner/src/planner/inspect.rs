//! Loads, counters and checks of the planner.

use crate::{
    CacheEvent, Counters, DpRankLoad, IntegrityError, Load, Planner, SpeculationCounters,
    dp_rank::DpRank,
    kv::KvUsage,
    request::{RequestState, Stage},
};

impl Planner {
    /// Drains the changes of each DP rank's prefix cache since the last call, oldest first,
    /// with the DP rank's number. Empty unless `kv_events` is set.
    pub fn cache_events(&mut self) -> impl Iterator<Item = (u32, Vec<CacheEvent>)> + '_ {
        let ranks = (0..).zip(&mut self.ranks);
        ranks.map(|(at, rank)| (at, rank.kv.cache_events().collect()))
    }

    /// Returns each DP rank's whole prefix cache as events, for a subscriber that comes late.
    /// The subscriber must get them before the events that are drained from now on. Empty
    /// unless `kv_events` is set.
    pub fn cache_snapshot(&self) -> impl Iterator<Item = (u32, Vec<CacheEvent>)> + '_ {
        let ranks = (0..).zip(&self.ranks);
        ranks.map(|(at, rank)| (at, rank.kv.cache_snapshot()))
    }

    /// Returns the counts of speculation since the start.
    pub fn speculation(&self) -> &SpeculationCounters {
        &self.speculation
    }

    /// Gauges and counters; cheap enough for every step.
    pub fn load(&self) -> Load {
        let usage = |rank: &DpRank| rank.kv_usage(&self.requests);
        let kv: KvUsage = self.ranks.iter().map(usage).sum();
        let [running, waiting] = self.of_clients();
        Load {
            running_requests: running,
            waiting_requests: waiting,
            waiting_tokens: self.admission.waiting_tokens() - self.waiting_tokens_of_probes(),
            kv_tokens_used: kv.used,
            kv_tokens_cached: kv.evictable,
            kv_tokens_total: kv.total,
            kv_window_tokens_used: kv.windows.used,
            kv_window_tokens_cached: kv.windows.evictable,
            kv_window_tokens_total: kv.windows.total,
            kv_states_used: kv.states.used,
            kv_states_cached: kv.states.cached,
            kv_states_total: kv.states.total,
            leaked_pages: kv.leaked_pages,
            leaked_states: kv.states.leaked,
            steps_in_flight: u32::try_from(self.in_flight()).unwrap_or(u32::MAX),
            counters: Counters {
                evicted_tokens: kv.evicted,
                ..self.counters
            },
        }
    }

    /// Returns the numbers of clients' requests that run and that wait. Here and below,
    /// requests are looked at only while the engine has a request of its own.
    fn of_clients(&self) -> [u32; 2] {
        let running = self.running_count();
        let mut counts = [running, self.requests.len() - running];
        for probe in self.own() {
            counts[usize::from(probe.stage != Stage::Running)] -= 1;
        }
        counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Returns the waiting tokens of the engine's own requests.
    fn waiting_tokens_of_probes(&self) -> u64 {
        let waiting = self.own().filter(|probe| probe.stage == Stage::Waiting);
        waiting.map(|probe| u64::from(probe.len())).sum()
    }

    /// Returns the engine's own requests that have not ended.
    pub(super) fn own(&self) -> impl Iterator<Item = &RequestState> {
        let probes = (self.probes > 0).then(|| self.requests.iter().map(|(_, request)| request));
        let probes = probes.into_iter().flatten();
        probes.filter(|request| request.rest.is_probe)
    }

    /// Returns the load of each DP rank; looks at all requests.
    pub fn dp_rank_loads(&self) -> Vec<DpRankLoad> {
        let load = |rank: &DpRank| {
            let kv = rank.kv_usage(&self.requests);
            DpRankLoad {
                running_requests: u32::try_from(rank.batch.len()).unwrap_or(u32::MAX),
                kv_tokens_used: kv.used,
                kv_tokens_cached: kv.evictable,
                kv_tokens_total: kv.total,
                counters: rank.counters,
                ..DpRankLoad::default()
            }
        };
        let mut loads: Vec<_> = self.ranks.iter().map(load).collect();
        for (_, request) in self.requests.iter() {
            if request.rest.is_probe {
                if request.stage == Stage::Running {
                    loads[request.dp_rank as usize].running_requests -= 1;
                }
                continue;
            }
            let Some(at) = waits_for(request) else {
                continue;
            };
            let load = &mut loads[at as usize];
            load.waiting_requests += 1;
            load.retracted_requests += u32::from(waits_again(request));
            // A request that still drains is not in the queue yet.
            if request.stage == Stage::Waiting {
                load.waiting_tokens += u64::from(request.len());
            }
        }
        loads
    }

    /// Returns the number of waiting requests that had begun; looks at all requests.
    pub fn retracted_requests(&self) -> u32 {
        let requests = self.requests.iter();
        let count = requests.filter(|(_, request)| waits_again(request)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Returns the number of requests, waiting or running, whose adapter has this place. Without
    /// one, no later plan has a row that needs the adapter.
    pub fn adapter_requests(&self, place: u16) -> u32 {
        self.adapters.requests(place)
    }

    /// Checks that all parts of the state agree. Every page of a DP rank is in exactly one of
    /// free list, cache and requests. Cache locks are those of running requests. Every slot is
    /// free or held once. Requests run only where they may. All counters are right.
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn check_integrity(&self) -> Result<(), IntegrityError> {
        for (at, rank) in (0..).zip(&self.ranks) {
            rank.check(&self.requests, at)?;
        }
        self.admission.check(&self.requests)?;
        self.adapters.check(&self.requests)?;
        for (index, request) in self.requests.iter() {
            let kv = &self.ranks[request.dp_rank as usize].kv;
            kv.check_request(request)
                .and_then(|()| self.steps.check_request(index, request))
                .map_err(|message| IntegrityError::Request {
                    id: request.id.0,
                    message: message.into(),
                })?;
        }
        Ok(())
    }
}

/// Returns true if a request had begun and waits to go on.
pub(super) fn waits_again(request: &RequestState) -> bool {
    match request.stage {
        Stage::Waiting => request.retracted,
        Stage::Running => false,
        Stage::Draining => true,
    }
}

/// Returns the DP rank in whose load a waiting request counts: the named one, else the last one
/// that it ran in. `None` if it may begin anywhere, or runs.
fn waits_for(request: &RequestState) -> Option<u32> {
    let named = request.rest.data_parallel_rank;
    match request.stage {
        Stage::Running => None,
        _ => named.or_else(|| waits_again(request).then_some(request.dp_rank)),
    }
}

/// Access for tests.
#[cfg(test)]
impl Planner {
    pub(crate) fn any_retracted(&self) -> bool {
        self.requests.iter().any(|(_, request)| request.retracted)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.admission.is_held()
    }

    pub(crate) fn set_grant(&mut self, grant: crate::batch::Grant) {
        for rank in &mut self.ranks {
            rank.batch.grant = grant;
        }
    }
}
