//! The part of one DP rank in every step, made by hand.

use std::collections::VecDeque;

use lockstep_types::{
    EngineConfig,
    step::{PlanPart, SlotExtend, SlotOpen, SlotOutput, StateKeep},
};

use crate::conformance::{
    PAGE_SIZE, SLOTS,
    requests::{Fate, Request},
};

/// Most prompt tokens of one row in one step.
const CHUNK: usize = 33;

/// Requests of one DP rank between steps.
pub(super) struct DpRank {
    requests: Vec<Request>,
    waiting: VecDeque<usize>,
    running: Vec<Running>,
    /// Pages of each ended request, by request, for later requests that share its text.
    kept: Vec<Vec<u32>>,
    free_pages: Vec<u32>,
    /// Groups of layers; a request has the same pages in each.
    groups: usize,
    /// True if the model has recurrent layers. A slot's live state has the slot's number.
    recurrent: bool,
    free_slots: Vec<u32>,
    closes: Vec<u32>,
    /// Most positions that a decode step may write.
    reserve: usize,
    positions: usize,
    /// Tokens of each text, by request.
    texts: Vec<Vec<u32>>,
    /// Number of drafted tokens that became part of a text, or would have if it had not ended.
    accepted: usize,
}

/// A request in a slot.
struct Running {
    request: usize,
    slot: u32,
    /// Tokens known when the request got the slot.
    known: usize,
    prefilled: usize,
    /// Number of `pages` that the worker has been told.
    granted: usize,
    pages: Vec<u32>,
    /// Number of `pages`, from the start, that belong to another request.
    borrowed: usize,
}

impl DpRank {
    /// Makes a DP rank for the requests with indices in `own`.
    pub(super) fn new(
        config: &EngineConfig,
        requests: &[Request],
        own: impl Iterator<Item = usize>,
    ) -> Self {
        let speculation = &config.speculation;
        let nodes = speculation.num_steps * speculation.topk;
        Self {
            requests: requests.to_vec(),
            waiting: own.collect(),
            running: Vec::new(),
            kept: vec![Vec::new(); requests.len()],
            // Page 0 belongs to no request. The others are handed out from the end, so that
            // page tables are out of order.
            free_pages: (1..config.kv_pages().window as u32).collect(),
            groups: config.model.kv_groups().len(),
            recurrent: config.model.has_states(),
            free_slots: (0..SLOTS as u32).collect(),
            closes: Vec::new(),
            reserve: speculation
                .max_speculative_num_draft_tokens
                .max(nodes)
                .max(1),
            positions: config.step_limits().positions,
            texts: vec![Vec::new(); requests.len()],
            accepted: 0,
        }
    }

    /// Returns true if all requests of the DP rank have ended and closed.
    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.closes.is_empty()
    }

    /// Makes the DP rank's part of the next step, without the rows `left_out`.
    pub(super) fn part(&mut self, left_out: impl Fn(usize) -> bool) -> PlanPart {
        let mut part = PlanPart {
            closes: std::mem::take(&mut self.closes),
            ..PlanPart::default()
        };
        while let Some(open) = self.open() {
            part.opens.push(open);
        }
        for at in (0..self.running.len()).filter(|at| !left_out(*at)) {
            let extend = self.extend(at);
            part.extends.push(extend);
        }
        part
    }

    /// Takes the outputs of a step, and ends the requests that reach their end by them.
    pub(super) fn take(&mut self, outputs: Vec<SlotOutput>) {
        for output in outputs {
            self.append(output);
        }
        self.end();
    }

    /// Returns the texts by request, empty for requests of other DP ranks, and the number of
    /// accepted tokens.
    pub(super) fn outcome(self) -> (Vec<Vec<u32>>, usize) {
        (self.texts, self.accepted)
    }

    /// Gives a slot to the first waiting request. Returns `None` if no request waits, if no
    /// slot is free, or if the pages that the request shares are not ready.
    fn open(&mut self) -> Option<SlotOpen> {
        let request = *self.waiting.front()?;
        let Request { prompt, shares, .. } = &self.requests[request];
        let emitted = &self.texts[request];
        let tokens = [&prompt[..], emitted].concat();
        // After a retraction none of the request's pages is in the cache.
        let shared = shares
            .filter(|_| emitted.is_empty())
            .map(|other| self.shared(other));
        let pages = match shared {
            Some(None) => return None,
            Some(Some((theirs, pages))) => pages[..shared_pages(theirs, &tokens)].to_vec(),
            None => Vec::new(),
        };
        let slot = self.free_slots.pop()?;
        self.waiting.pop_front();
        let request_of = &self.requests[request];
        let cached = pages.len() * PAGE_SIZE;
        let open = SlotOpen {
            prompt_len: request_of.prompt.len() as u32,
            cached_len: cached as u32,
            generation: request_of.generation.clone(),
            state: self.recurrent.then_some(slot),
            restore: (self.recurrent && cached > 0).then_some(copy_for(request)),
            ..SlotOpen::new(slot, tokens)
        };
        self.running.push(Running {
            request,
            slot,
            known: open.token_ids.len(),
            prefilled: cached,
            granted: 0,
            borrowed: pages.len(),
            pages,
        });
        Some(open)
    }

    /// Returns a request's prompt and its pages, once the pages hold all of the prompt.
    fn shared(&self, other: usize) -> Option<(&[u32], &[u32])> {
        let running = self.running.iter().find(|row| row.request == other);
        let pages = running.map_or(&self.kept[other], |row| &row.pages);
        let ready = self.texts[other].len() > 3;
        ready.then_some((&self.requests[other].prompt[..], &pages[..]))
    }

    /// Makes the next row of a running request, with pages for all that the row may write.
    fn extend(&mut self, at: usize) -> SlotExtend {
        let row = &mut self.running[at];
        let chunk = CHUNK.min(row.known - row.prefilled);
        let before = row.prefilled;
        row.prefilled += chunk;
        let request = &self.requests[row.request];
        let tokens = request.prompt.len() + self.texts[row.request].len();
        let end = match chunk {
            0 => (tokens - 1 + self.reserve).min(self.positions),
            _ => row.prefilled,
        };
        let missing = end.div_ceil(PAGE_SIZE).saturating_sub(row.pages.len());
        let fresh = self.free_pages.split_off(self.free_pages.len() - missing);
        row.pages.extend(fresh);
        let fresh = row.pages[row.granted..].iter().copied();
        let new_pages = SlotExtend::pages_of_all(fresh, self.groups);
        row.granted = row.pages.len();
        let passed = before as u32 + 1..=row.prefilled as u32;
        let mut keeps = match self.recurrent {
            true => copies_of(&self.requests, row.request),
            false => Vec::new(),
        };
        keeps.retain(|keep| passed.contains(&keep.position));
        SlotExtend {
            slot: row.slot,
            prefill_len: chunk as u32,
            sample: row.prefilled == row.known,
            new_pages,
            keeps,
        }
    }

    /// Appends a slot's tokens to the text of its request, cut where the request ends.
    fn append(&mut self, output: SlotOutput) {
        let row = self.running.iter().find(|row| row.slot == output.slot);
        let Some(Running { request, .. }) = row else {
            return;
        };
        self.accepted += output.token_ids.len().saturating_sub(1);
        let most = match self.requests[*request].fate {
            Fate::Aborted(tokens) => tokens,
            Fate::Finishes | Fate::Retracted(_) => self.requests[*request].tokens,
        };
        let text = &mut self.texts[*request];
        text.extend(output.token_ids);
        text.truncate(most);
    }

    /// Closes the slots of requests that end or are retracted.
    fn end(&mut self) {
        for at in (0..self.running.len()).rev() {
            let request = self.running[at].request;
            let Request { tokens, fate, .. } = &self.requests[request];
            let emitted = self.texts[request].len();
            let ends = match *fate {
                Fate::Finishes => emitted >= *tokens,
                Fate::Aborted(at) | Fate::Retracted(at) => emitted >= at,
            };
            if !ends {
                continue;
            }
            let row = self.running.remove(at);
            self.closes.push(row.slot);
            self.free_slots.insert(0, row.slot);
            if self
                .requests
                .iter()
                .any(|other| other.shares == Some(request))
            {
                self.kept[request] = row.pages;
            } else {
                self.free_pages.extend(&row.pages[row.borrowed..]);
            }
            if let Fate::Retracted(_) = self.requests[request].fate
                && emitted < self.requests[request].tokens
            {
                self.requests[request].fate = Fate::Finishes;
                self.waiting.push_front(request);
            }
        }
    }
}

/// Returns how many pages of a text `theirs` another request with `tokens` may read.
fn shared_pages(theirs: &[u32], tokens: &[u32]) -> usize {
    let pairs = theirs.iter().zip(tokens);
    let common = pairs.take_while(|(one, other)| one == other).count();
    // A draft head's keys and values at a position depend on the next token too.
    (common - 1) / PAGE_SIZE
}

/// Returns the number of the state from which a request goes on that shares another one's pages.
fn copy_for(request: usize) -> u32 {
    (SLOTS + request) as u32
}

/// Returns the states that a request keeps for those that share its pages, in the order of their
/// positions. No two of those may go on from one position.
fn copies_of(requests: &[Request], request: usize) -> Vec<StateKeep> {
    let sharing = requests.iter().enumerate();
    let sharing = sharing.filter(|(_, other)| other.shares == Some(request));
    let copy = |(number, other): (usize, &Request)| StateKeep {
        position: (shared_pages(&requests[request].prompt, &other.prompt) * PAGE_SIZE) as u32,
        state: copy_for(number),
    };
    let mut copies: Vec<StateKeep> = sharing.map(copy).collect();
    copies.sort_unstable_by_key(|copy| copy.position);
    assert!(
        copies.is_sorted_by(|one, next| one.position < next.position),
        "two requests go on from one position of request {request}"
    );
    copies
}
