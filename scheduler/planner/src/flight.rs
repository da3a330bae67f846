//! Steps that are planned and not completed, and the buffers they reuse.

use std::collections::VecDeque;

use lockstep_types::step::{SlotExtend, StepPlan};

/// What the planner must know of one extend until its result is back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Table index, with `arrival` to tell whether the request still lives.
    pub index: u32,
    pub arrival: u64,
    pub slot: u32,
    /// KV length after this prefill chunk; `None` for a decode row.
    pub prefill_to: Option<u32>,
    /// Brings tokens.
    pub sample: bool,
    /// Draft steps it may take.
    pub depth: u32,
    /// Tokens that it brings at the most.
    pub most: u32,
    /// The prompt ends here: prompt log-probabilities are complete.
    pub last_chunk: bool,
}

/// One step on its way.
#[derive(Debug)]
pub(crate) struct StepInFlight {
    pub step: u64,
    pub rows: Vec<Row>,
}

/// A plan in the making.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub plan: StepPlan,
    pub rows: Vec<Row>,
    /// Prompt tokens that still fit.
    pub budget: u32,
    /// A prompt brings tokens already.
    pub has_prefill: bool,
}

impl Draft {
    pub fn push(&mut self, row: Row, prefill_len: u32, new_pages: Vec<u32>) {
        self.plan.extends.push(SlotExtend {
            slot: row.slot,
            prefill_len,
            sample: row.sample,
            new_pages,
        });
        self.rows.push(row);
    }
}

/// Steps in flight, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    pub steps: VecDeque<StepInFlight>,
    last_step: u64,
    plans: Vec<StepPlan>,
    rows: Vec<Vec<Row>>,
    lists: Vec<Vec<u32>>,
}

/// More spare buffers than this are of no use: two steps in flight, one in the
/// making, one on its way back.
const SPARE_PLANS: usize = 4;

impl Flight {
    /// An empty draft in reused buffers.
    pub fn draft(&mut self) -> Draft {
        Draft {
            plan: self.plans.pop().unwrap_or_default(),
            rows: self.rows.pop().unwrap_or_default(),
            budget: 0,
            has_prefill: false,
        }
    }

    /// Numbers the draft and remembers its rows.
    pub fn launch(&mut self, draft: Draft) -> StepPlan {
        self.last_step += 1;
        let mut plan = draft.plan;
        plan.step = self.last_step;
        self.steps.push_back(StepInFlight {
            step: plan.step,
            rows: draft.rows,
        });
        plan
    }

    /// Keeps a plan's buffers for later.
    pub fn recycle(&mut self, mut plan: StepPlan) {
        let most_lists = plan.extends.capacity().max(64);
        for extend in plan.extends.drain(..) {
            if extend.new_pages.capacity() > 0 && self.lists.len() < most_lists {
                self.lists.push(extend.new_pages);
            }
        }
        if self.plans.len() < SPARE_PLANS {
            plan.closes.clear();
            plan.opens.clear();
            self.plans.push(plan);
        }
    }

    pub fn recycle_rows(&mut self, mut rows: Vec<Row>) {
        if self.rows.len() < SPARE_PLANS {
            rows.clear();
            self.rows.push(rows);
        }
    }

    /// A list with these pages, in a reused buffer if there are any.
    pub fn page_list(&mut self, pages: &[u32]) -> Vec<u32> {
        if pages.is_empty() {
            return Vec::new();
        }
        let mut list = self.lists.pop().unwrap_or_default();
        list.clear();
        list.extend_from_slice(pages);
        list
    }

    /// Forgets all steps; the next one is number 1 again.
    pub fn reset(&mut self) {
        self.steps.clear();
        self.last_step = 0;
    }
}
