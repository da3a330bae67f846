//! A worker whose KV cells hold tokens.

use lockstep_proto::step::{SlotExtend, SlotOutput, StepPlan, StepResult};

use super::{SimModel, slot::SimSlot};
use crate::PlannerConfig;

/// A plan that a worker could not have executed, or that broke its memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("step {step}: {message}")]
pub struct SimError {
    /// The plan's number.
    pub step: u64,
    /// What is wrong.
    pub message: String,
}

/// What a rejected draft leaves behind.
const GARBAGE: u32 = u32::MAX;

/// Executes plans as rank 0 does.
#[derive(Debug)]
pub struct SimWorker {
    config: PlannerConfig,
    model: SimModel,
    /// Check all memory at each step; costs time in proportion to all contexts.
    verify: bool,
    cells: Vec<Option<u32>>,
    slots: Vec<Option<SimSlot>>,
    last_step: u64,
}

impl SimWorker {
    /// A worker for plans made under `config`. With `verify` it checks every
    /// cell that a row reads; benches go without.
    pub fn new(config: &PlannerConfig, model: SimModel, verify: bool) -> Self {
        let cells = config.num_pages as usize * config.page_size as usize;
        Self {
            model,
            verify,
            cells: vec![None; cells],
            slots: (0..config.max_running_requests).map(|_| None).collect(),
            last_step: 0,
            config: config.clone(),
        }
    }

    /// As after a restart: nothing open, nothing stored, next is step 1.
    pub fn reset(&mut self) {
        self.cells.fill(None);
        self.slots.fill_with(|| None);
        self.last_step = 0;
    }

    /// Runs one plan.
    ///
    /// # Errors
    /// [`SimError`] says what no worker could have done.
    pub fn execute(&mut self, plan: &StepPlan) -> Result<StepResult, SimError> {
        self.run(plan).map_err(|message| SimError {
            step: plan.step,
            message,
        })
    }

    fn run(&mut self, plan: &StepPlan) -> Result<StepResult, String> {
        self.last_step += 1;
        ensure(plan.step == self.last_step, || {
            format!("expected step {}", self.last_step)
        })?;
        self.close_and_open(plan)?;
        let mut tokens = 0;
        for (at, row) in plan.extends.iter().enumerate() {
            let unique = plan.extends[..at]
                .iter()
                .all(|other| other.slot != row.slot);
            ensure(!self.verify || unique, || {
                format!("slot {} twice", row.slot)
            })?;
            self.append_pages(row)?;
            tokens += row.prefill_len.max(1);
        }
        let most = self.config.max_step_tokens();
        ensure(tokens > 0 && tokens <= most, || {
            format!("{tokens} tokens, at most {most}")
        })?;
        // All rows of a pass write before any is sure to have read.
        let mut outputs = Vec::with_capacity(plan.extends.len());
        for row in &plan.extends {
            outputs.extend(self.write_row(row)?);
        }
        if self.verify {
            plan.extends
                .iter()
                .try_for_each(|row| self.check_row(row))?;
            self.check_writers(plan)?;
        }
        Ok(StepResult {
            step: plan.step,
            outputs,
            ..StepResult::default()
        })
    }

    fn close_and_open(&mut self, plan: &StepPlan) -> Result<(), String> {
        for slot in &plan.closes {
            let closed = self.slots.get_mut(*slot as usize).and_then(Option::take);
            ensure(closed.is_some(), || format!("slot {slot} is not open"))?;
        }
        for open in &plan.opens {
            let slot = self.slots.get_mut(open.slot as usize);
            let slot = slot.ok_or_else(|| format!("no slot {}", open.slot))?;
            ensure(slot.is_none(), || format!("slot {} is open", open.slot))?;
            let known = open.token_ids.len();
            ensure((open.cached_len as usize) < known, || {
                format!("slot {} has nothing to compute", open.slot)
            })?;
            *slot = Some(SimSlot::new(open));
        }
        Ok(())
    }

    fn slot(&self, slot: u32) -> Result<&SimSlot, String> {
        let open = self.slots.get(slot as usize).and_then(Option::as_ref);
        open.ok_or_else(|| format!("slot {slot} is not open"))
    }

    fn append_pages(&mut self, row: &SlotExtend) -> Result<(), String> {
        self.slot(row.slot)?.accepts(row)?;
        let pages = self.config.num_pages;
        let bad = row
            .new_pages
            .iter()
            .find(|page| **page == 0 || **page >= pages);
        if let Some(page) = bad {
            return Err(format!("page {page} is none of 1..{pages}"));
        }
        if let Some(Some(slot)) = self.slots.get_mut(row.slot as usize) {
            slot.pages.extend_from_slice(&row.new_pages);
        }
        Ok(())
    }

    fn write_row(&mut self, row: &SlotExtend) -> Result<Option<SlotOutput>, String> {
        let model = self.model;
        let Some(Some(slot)) = self.slots.get_mut(row.slot as usize) else {
            return Err(format!("slot {} is not open", row.slot));
        };
        let from = slot.kv_len;
        let mut out = SlotOutput {
            slot: row.slot,
            ..SlotOutput::default()
        };
        let mut garbage = 0;
        if row.prefill_len > 0 {
            slot.advance(row.prefill_len, model, &mut out);
            if row.sample {
                slot.sample(model, &mut out);
            }
        } else {
            let reserve = &self.config.reserve;
            garbage = reserve.alloc_len_per_decode(self.config.page_size);
            let most = reserve.max_commit_per_decode();
            for _ in 0..slot.accepted(most) {
                slot.advance(1, model, &mut out);
                slot.sample(model, &mut out);
            }
        }
        let to = slot.kv_len.max(from + garbage);
        self.write(row.slot, from, to)?;
        let says = row.sample || !out.prompt_logprobs.is_empty();
        Ok(says.then_some(out))
    }

    /// Stores the slot's tokens at positions `from..kv_len`, garbage up to `to`.
    fn write(&mut self, slot: u32, from: u32, to: u32) -> Result<(), String> {
        let page_size = self.config.page_size;
        let Some(Some(open)) = self.slots.get(slot as usize) else {
            return Err(format!("slot {slot} is not open"));
        };
        let held = open.pages.len() as u32 * page_size;
        ensure(to <= held, || {
            format!("slot {slot} writes up to {to}, its pages hold {held}")
        })?;
        for position in from..to {
            let token = if position < open.kv_len {
                open.tokens()[position as usize]
            } else {
                GARBAGE
            };
            let page = open.pages[(position / page_size) as usize];
            self.cells[(page * page_size + position % page_size) as usize] = Some(token);
        }
        Ok(())
    }

    /// What the row has read is exactly its request's tokens.
    fn check_row(&self, row: &SlotExtend) -> Result<(), String> {
        let slot = self.slot(row.slot)?;
        let page_size = self.config.page_size;
        for position in 0..slot.kv_len {
            let page = slot.pages[(position / page_size) as usize];
            let cell = self.cells[(page * page_size + position % page_size) as usize];
            let token = slot.tokens()[position as usize];
            ensure(cell == Some(token), || {
                format!(
                    "slot {} position {position} on page {page}: {cell:?}, not {token}",
                    row.slot
                )
            })?;
        }
        Ok(())
    }

    /// No page that a row writes to is in another open slot's table.
    fn check_writers(&self, plan: &StepPlan) -> Result<(), String> {
        let mut users = vec![0u32; self.config.num_pages as usize];
        let pages = self.slots.iter().flatten().flat_map(|slot| &slot.pages);
        pages.for_each(|page| users[*page as usize] += 1);
        for row in &plan.extends {
            let slot = self.slot(row.slot)?;
            // The row's last position is in the page it has certainly written.
            let last = slot.kv_len.saturating_sub(1) / self.config.page_size;
            let page = slot.pages[last as usize];
            ensure(users[page as usize] == 1, || {
                format!("slot {} writes on page {page}, which others read", row.slot)
            })?;
        }
        Ok(())
    }
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}
