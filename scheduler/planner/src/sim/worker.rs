//! A worker whose KV cells hold tokens.

use std::ops::Range;

use lockstep_adaptive::Agreed;
use lockstep_types::step::{PlanPart, RankResult, SlotExtend, SlotOutput, StepPlan};

use super::{SimModel, cells::Cells, slot::SimSlot, states::SimStates};
use crate::{DraftKv, PlannerConfig};

/// A plan that a worker could not have executed, or that broke its memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("step {step}: {message}")]
pub struct SimError {
    /// The plan's number.
    pub step: u64,
    /// The fault.
    pub message: String,
}

/// Writes and output of one row.
struct Written {
    slot: u32,
    /// Positions that the target wrote.
    positions: Range<u32>,
    /// Positions at which the drafter took in tokens that it had missed.
    drafted: Range<u32>,
    output: Option<SlotOutput>,
}

/// Executes one DP rank's parts of plans, as the DP rank's lead does.
#[derive(Debug)]
pub struct SimWorker {
    config: PlannerConfig,
    dp_rank: usize,
    model: SimModel,
    /// True to check all memory at each step; costs time in proportion to all contexts.
    verify: bool,
    cells: Cells,
    states: SimStates,
    slots: Vec<Option<SimSlot>>,
    last_step: u64,
    agreed: Agreed,
    /// Depths that the worker agrees on with its peers, one per step, repeated from the start.
    decisions: Vec<Option<u32>>,
}

impl SimWorker {
    /// Makes the worker of DP rank 0 for plans made under `config`. With `verify` it checks
    /// every cell that a row reads; benches go without.
    pub fn new(config: &PlannerConfig, model: SimModel, verify: bool) -> Self {
        Self {
            dp_rank: 0,
            model,
            verify,
            cells: Cells::new(config),
            states: SimStates::new(config.states),
            slots: (0..config.max_running_requests).map(|_| None).collect(),
            last_step: 0,
            agreed: Agreed::new(config.initial_depth),
            decisions: vec![None],
            config: config.clone(),
        }
    }

    /// Makes it the worker of another DP rank.
    #[must_use]
    pub fn of_dp_rank(mut self, dp_rank: usize) -> Self {
        self.dp_rank = dp_rank;
        self
    }

    /// Sets the depths that the worker agrees on, one per step, repeated from the start. `None`
    /// decides nothing.
    #[must_use]
    pub fn agreeing_on(mut self, decisions: Vec<Option<u32>>) -> Self {
        self.decisions = decisions;
        self
    }

    /// Resets the worker as a restart does: no open slot, no stored KV, and step 1 is next.
    pub fn reset(&mut self) {
        self.cells.forget();
        self.states.forget();
        self.slots.fill_with(|| None);
        self.last_step = 0;
        self.agreed.reset();
    }

    /// Runs the worker's part of one plan.
    ///
    /// # Errors
    /// [`SimError`] for a plan that no worker could execute.
    pub fn execute(&mut self, plan: &StepPlan) -> Result<RankResult, SimError> {
        self.run(plan).map_err(|message| SimError {
            step: plan.step,
            message,
        })
    }

    fn run(&mut self, plan: &StepPlan) -> Result<RankResult, String> {
        self.last_step += 1;
        ensure(plan.step == self.last_step, || {
            format!("expected step {}", self.last_step)
        })?;
        let part = plan.parts.get(self.dp_rank);
        let part = part.ok_or_else(|| format!("no part for DP rank {}", self.dp_rank))?;
        self.close_and_open(part)?;
        let mut tokens = 0;
        for (at, row) in part.extends.iter().enumerate() {
            let unique = part.extends[..at]
                .iter()
                .all(|other| other.slot != row.slot);
            ensure(!self.verify || unique, || {
                format!("slot {} twice", row.slot)
            })?;
            self.append_pages(row)?;
            tokens += row.prefill_len.max(1);
        }
        self.states.check_keeps(part, &self.slots)?;
        let most = self.config.max_step_tokens();
        ensure(plan.rows().next().is_some(), || "no rows".into())?;
        ensure(tokens <= most, || {
            format!("{tokens} tokens, at most {most}")
        })?;
        let steps = self.agreed.depth().min(self.config.reserve.steps);
        self.agreed.begin();
        ensure(plan.draft_steps <= steps, || {
            format!("{} draft steps, at most {steps}", plan.draft_steps)
        })?;
        // All rows of a pass write before any is certain to have read.
        let mut written = Vec::with_capacity(part.extends.len());
        for row in &part.extends {
            written.push(self.write_row(row, plan.draft_steps)?);
        }
        if self.verify {
            let mut rows = written.iter();
            rows.try_for_each(|row| self.check_row(row))?;
            self.check_writers(&written)?;
        }
        for row in &written {
            if let Some(Some(slot)) = self.slots.get_mut(row.slot as usize) {
                self.cells.forget_behind(slot);
            }
        }
        let turn = (plan.step - 1) as usize % self.decisions.len().max(1);
        let agreed_depth = self.decisions.get(turn).copied().flatten();
        if let Some(depth) = agreed_depth {
            self.agreed.decide(plan.step, depth);
        }
        Ok(RankResult {
            step: plan.step,
            agreed_depth,
            outputs: written.into_iter().filter_map(|row| row.output).collect(),
            ..RankResult::default()
        })
    }

    fn close_and_open(&mut self, part: &PlanPart) -> Result<(), String> {
        for slot in &part.closes {
            let closed = self.slots.get_mut(*slot as usize).and_then(Option::take);
            ensure(closed.is_some(), || format!("slot {slot} is not open"))?;
        }
        for open in &part.opens {
            let slot = self.slots.get(open.slot as usize);
            let slot = slot.ok_or_else(|| format!("no slot {}", open.slot))?;
            ensure(slot.is_none(), || format!("slot {} is open", open.slot))?;
            let known = open.token_ids.len();
            ensure((open.cached_len as usize) < known, || {
                format!("slot {} has nothing to compute", open.slot)
            })?;
            self.states.open(open, &self.slots)?;
            self.slots[open.slot as usize] = Some(SimSlot::new(open));
        }
        Ok(())
    }

    fn slot(&self, slot: u32) -> Result<&SimSlot, String> {
        let open = self.slots.get(slot as usize).and_then(Option::as_ref);
        open.ok_or_else(|| format!("slot {slot} is not open"))
    }

    fn append_pages(&mut self, row: &SlotExtend) -> Result<(), String> {
        let slot = self.slot(row.slot)?;
        slot.accepts(row)?;
        let groups = self.config.groups();
        ensure(row.new_pages.len().is_multiple_of(groups), || {
            format!("slot {} gets not as many pages of each group", row.slot)
        })?;
        let from = slot.pages.len() / groups;
        for (at, block) in (from as u32..).zip(row.new_pages.chunks(groups)) {
            let end = (at + 1) * self.config.page_size;
            for (group, page) in block.iter().enumerate() {
                let pages = self.config.pages_of_group(group);
                let unseen = end <= self.cells.first_seen(group, slot.kv_len);
                ensure(*page < pages && (*page != 0 || unseen), || {
                    format!("page {page} of group {group} is none of 1..{pages}")
                })?;
            }
        }
        if let Some(Some(slot)) = self.slots.get_mut(row.slot as usize) {
            slot.pages.extend_from_slice(&row.new_pages);
        }
        Ok(())
    }

    fn write_row(&mut self, row: &SlotExtend, steps: u32) -> Result<Written, String> {
        let (model, reserve) = (self.model, self.config.reserve);
        let Some(Some(slot)) = self.slots.get_mut(row.slot as usize) else {
            return Err(format!("slot {} is not open", row.slot));
        };
        let mut out = SlotOutput {
            slot: row.slot,
            ..SlotOutput::default()
        };
        let (from, drafted) = (slot.kv_len, slot.drafted);
        let left = match self.config.draft_kv {
            DraftKv::Tokens => reserve.left_by_draft_model(),
            DraftKv::None | DraftKv::Pairs => 0,
        };
        let window = self.config.pause_window;
        let in_reach = window == 0 || steps > 0 && from - drafted <= window + left;
        let has_kv = self.config.draft_kv != DraftKv::None;
        let takes_in = in_reach && has_kv && !slot.has_hole;
        let (to, state_to);
        if row.prefill_len > 0 {
            to = from + row.prefill_len;
            ensure_held(&self.config, slot, to)?;
            slot.advance(row.prefill_len, model, &mut out);
            state_to = to;
            if row.sample {
                slot.sample(model, &mut out);
            }
            // A draft model may leave a few tokens to its next pass.
            if takes_in && slot.kv_len - drafted > left {
                slot.drafted = slot.kv_len;
            }
        } else {
            let depth = slot.depth(steps);
            // A step may write all these slots, however many drafts are accepted.
            to = from + reserve.alloc_len_at(depth);
            ensure_held(&self.config, slot, to)?;
            self.cells.spoil(slot, from..to);
            let (proposed, brought) = slot.speculates(reserve.max_commit_at(depth) - 1);
            // Which drafts are accepted is not known in the pass, so the state waits for the next.
            state_to = from + u32::from(proposed == 0);
            for _ in 0..brought {
                slot.advance(1, model, &mut out);
                slot.sample(model, &mut out);
            }
            out.draft_depth = proposed;
            out.draft_tokens = match proposed {
                0 => 0,
                depth => (depth * reserve.topk)
                    .min(reserve.draft_tokens - 1)
                    .max(depth),
            };
            // A draft model need not have read the last tokens that were accepted.
            if takes_in {
                slot.drafted = slot.drafted.max(slot.kv_len.saturating_sub(left));
            }
        }
        self.states.pass(slot, state_to, &row.keeps)?;
        self.cells.store_target(slot, from);
        self.cells.store_draft(slot, drafted);
        let says = row.sample || !out.prompt_logprobs.is_empty();
        Ok(Written {
            slot: row.slot,
            positions: from..to,
            drafted: drafted..slot.drafted,
            output: says.then_some(out),
        })
    }

    /// Checks that the cells a slot has read hold exactly its request's tokens.
    fn check_row(&self, row: &Written) -> Result<(), String> {
        let slot = self.slot(row.slot)?;
        let checked = self.cells.check(slot, row.positions.start);
        checked.map_err(|message| format!("slot {} {message}", row.slot))
    }

    /// Checks that each page written has one user. A page that the target writes is in no other
    /// open slot's table. A page that the drafter writes is in no table of another slot with a
    /// drafter.
    fn check_writers(&self, written: &[Written]) -> Result<(), String> {
        let groups = self.config.groups();
        for group in 0..groups {
            let mut users = vec![0u32; self.config.pages_of_group(group) as usize];
            let mut drafters = users.clone();
            for slot in self.slots.iter().flatten() {
                for page in slot.pages.iter().skip(group).step_by(groups) {
                    // Page 0 stands where there is none.
                    if *page == 0 {
                        continue;
                    }
                    users[*page as usize] += 1;
                    let reads = self.config.draft_kv != DraftKv::None && !slot.has_hole;
                    drafters[*page as usize] += u32::from(reads);
                }
            }
            for row in written {
                self.check_alone(row.slot, &row.positions, group, &users)?;
                if group == 0 {
                    self.check_alone(row.slot, &row.drafted, group, &drafters)?;
                }
            }
        }
        Ok(())
    }

    /// Checks that every page of a group at the positions `at` of a slot has one reader.
    fn check_alone(
        &self,
        slot: u32,
        at: &Range<u32>,
        group: usize,
        readers: &[u32],
    ) -> Result<(), String> {
        if at.is_empty() {
            return Ok(());
        }
        let page_size = self.config.page_size;
        let blocks = (at.start / page_size) as usize..at.end.div_ceil(page_size) as usize;
        let groups = self.config.groups();
        for block in blocks {
            let page = self.slot(slot)?.pages[block * groups + group];
            ensure(readers[page as usize] == 1, || {
                format!("slot {slot} writes on page {page} of group {group}, which others read")
            })?;
        }
        Ok(())
    }
}

/// Checks that the slot's pages, and its row of the page table, reach up to `to`.
fn ensure_held(config: &PlannerConfig, slot: &SimSlot, to: u32) -> Result<(), String> {
    let blocks = slot.pages.len() as u32 / config.groups() as u32;
    let held = blocks * config.page_size;
    ensure(to <= held, || {
        format!("a slot writes up to {to}, its pages hold {held}")
    })?;
    let extra = config
        .reserve
        .req_to_token_extra_context_len(config.overlap);
    let width = config.context_length + extra;
    let most = width.div_ceil(config.page_size);
    ensure(to <= width && blocks <= most, || {
        format!("a slot writes up to {to}, its row holds {width}")
    })
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}
