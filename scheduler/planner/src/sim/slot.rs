//! One slot of the simulated worker.

use lockstep_types::{
    sampling::TokenLogprob,
    step::{SlotExtend, SlotOpen, SlotOutput},
};

use super::SimModel;

/// An open request: its tokens, its page table, and the lengths of its KV.
#[derive(Debug)]
pub(super) struct SimSlot {
    open: SlotOpen,
    /// For each block of positions in turn, a page of each group.
    pub pages: Vec<u32>,
    pub kv_len: u32,
    /// Number of its live state, and the position that this state has come to.
    pub state: Option<u32>,
    pub state_position: u32,
    /// Length of the drafter's KV from the beginning.
    pub drafted: u32,
    /// True if the slot was opened without the drafter's KV. Then the drafter's KV never
    /// reaches from the beginning.
    pub has_hole: bool,
    /// Hashes of the first tokens, from none up to `kv_len` of them.
    contexts: Vec<u64>,
}

impl SimSlot {
    pub fn new(open: &SlotOpen) -> Self {
        let mut contexts = vec![SimModel::EMPTY];
        for (at, token) in open.token_ids[..open.cached_len as usize]
            .iter()
            .enumerate()
        {
            contexts.push(SimModel::absorb(contexts[at], *token));
        }
        Self {
            open: open.clone(),
            pages: Vec::new(),
            kv_len: open.cached_len,
            state: open.state,
            state_position: open.cached_len,
            drafted: if open.drafted { open.cached_len } else { 0 },
            has_hole: !open.drafted,
            contexts,
        }
    }

    pub fn tokens(&self) -> &[u32] {
        &self.open.token_ids
    }

    /// Returns the hash of the first `len` tokens, at most `kv_len`.
    pub fn context(&self, len: u32) -> u64 {
        self.contexts[len as usize]
    }

    /// Checks that the row fits the slot's position.
    pub fn accepts(&self, row: &SlotExtend) -> Result<(), String> {
        let known = self.open.token_ids.len();
        let to = self.kv_len as usize + row.prefill_len as usize;
        if row.prefill_len > 0 && to > known {
            Err(format!("prefill to {to} of {known} tokens"))
        } else if row.prefill_len > 0 && row.sample && to != known {
            Err("samples in the middle of the prompt".into())
        } else if row.prefill_len == 0 && self.kv_len as usize + 1 != known {
            Err(format!("decode at {} of {known} tokens", self.kv_len))
        } else if row.prefill_len == 0 && !row.sample {
            Err("a decode row must sample".into())
        } else {
            Ok(())
        }
    }

    /// Moves the KV length over `count` known tokens. Scores the token after each of them, if
    /// it belongs to the prompt.
    pub fn advance(&mut self, count: u32, model: SimModel, out: &mut SlotOutput) {
        for _ in 0..count {
            self.score_prompt(model, out);
            let token = self.open.token_ids[self.kv_len as usize];
            let context = SimModel::absorb(self.context(self.kv_len), token);
            self.contexts.push(context);
            self.kv_len += 1;
        }
    }

    /// Reports the log-probability of the token at `kv_len + 1`, and of the very first.
    fn score_prompt(&self, model: SimModel, out: &mut SlotOutput) {
        let Some(start) = self.open.generation.logprobs.prompt_start else {
            return;
        };
        let mut report = |at: u32, logprob| {
            if at >= start && at < self.open.prompt_len {
                out.prompt_logprobs.push(TokenLogprob {
                    token_id: self.open.token_ids[at as usize],
                    logprob,
                    top: Vec::new(),
                });
            }
        };
        if self.kv_len == 0 {
            report(0, None);
        }
        let next = self.kv_len + 1;
        if let Some(token) = self.open.token_ids.get(next as usize) {
            let context = SimModel::absorb(
                self.context(self.kv_len),
                self.open.token_ids[self.kv_len as usize],
            );
            report(next, Some(model.logprob(context, *token)));
        }
    }

    /// Samples the token after the last position and appends it.
    pub fn sample(&mut self, model: SimModel, out: &mut SlotOutput) {
        let known = u32::try_from(self.open.token_ids.len()).unwrap_or(u32::MAX);
        let position = known - self.open.prompt_len;
        let token = model.sample(
            self.context(self.kv_len),
            &self.open.generation.sampling,
            position,
        );
        self.open.token_ids.push(token);
        out.token_ids.push(token);
        if self.open.generation.logprobs.output {
            out.logprobs.push(TokenLogprob {
                token_id: token,
                logprob: Some(model.logprob(self.context(self.kv_len), token)),
                top: Vec::new(),
            });
        }
    }

    /// Returns the draft steps of a decode row in a plan of `steps` draft steps.
    pub fn depth(&self, steps: u32) -> u32 {
        let most = self.open.generation.max_draft_steps;
        most.map_or(steps, |most| most.min(steps))
    }

    /// Returns the number of drafted positions, at most `most`, and the number of tokens that
    /// their verification brings. Only the context decides.
    pub fn speculates(&self, most: u32) -> (u32, u32) {
        let context = self.context(self.kv_len);
        let proposed = ((context >> 23) as u32 % (most + 2)).min(most);
        (proposed, 1 + (context >> 7) as u32 % (proposed + 1))
    }
}
