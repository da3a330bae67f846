//! The rows that all ranks bring to a step, and what each rank learns from them.

use lockstep_adaptive::Row;
use lockstep_backend::{Axis, Backend, NoteShape, PassKey, WorldRows};
use lockstep_types::{
    ParallelConfig,
    step::{PartBounds, StepPlan},
};

use crate::worker::{PlanError, WorkerError};

/// Every rank's row of a step.
#[derive(Debug)]
pub struct StepRows {
    /// The row of this rank.
    pub own: Row,
    /// The row of this rank in the step before, for planted faults.
    pub last: Row,
    words: Vec<u32>,
    rows: Vec<Row>,
    /// Number of ranks of a DP rank. The first of them leads it.
    attn_tp_size: usize,
    world: WorldRows,
}

impl StepRows {
    /// Shape of a row that travels with a pass.
    pub const NOTE: NoteShape = NoteShape {
        words: Row::WORDS,
        shared: Row::SHARED,
        of_dp_rank: Row::OF_DP_RANK,
    };

    /// Makes the rows of the ranks of a group.
    pub fn new(parallel: &ParallelConfig) -> Self {
        Self {
            own: Row::default(),
            last: Row::default(),
            words: vec![0; parallel.tp_size * Row::WORDS],
            rows: Vec::with_capacity(parallel.tp_size),
            attn_tp_size: parallel.attn_tp_size(),
            world: WorldRows {
                tokens: vec![0; parallel.dp_size],
                wanted: vec![0; parallel.dp_size],
            },
        }
    }

    /// Begins a step, of which no row has come.
    pub fn begin(&mut self) {
        self.rows.clear();
    }

    /// Attaches this rank's row to its next operation with all other ranks.
    ///
    /// # Errors
    /// [`WorkerError::Backend`] when the group is broken.
    pub fn attach<B: Backend>(&self, backend: &mut B, row: &Row) -> Result<(), WorkerError> {
        let control = backend.control(Axis::World);
        Ok(control.attach(Row::SHARED, &row.to_words())?)
    }

    /// Attaches only the part that is equal on all ranks. The rest travels with the pass.
    ///
    /// # Errors
    /// [`WorkerError::Backend`] when the group is broken.
    pub fn attach_shared<B: Backend>(&self, backend: &mut B, row: &Row) -> Result<(), WorkerError> {
        let control = backend.control(Axis::World);
        Ok(control.attach(Row::SHARED, &row.to_words()[..Row::SHARED])?)
    }

    /// Takes the rows that have travelled with the pass.
    pub fn take(&mut self, words: &[u32]) {
        let (rows, _) = words.as_chunks::<{ Row::WORDS }>();
        self.rows.clear();
        self.rows.extend(rows.iter().map(Row::from_words));
    }

    /// Returns all rows of the step, if they have travelled.
    pub fn all(&self) -> Option<&[Row]> {
        (!self.rows.is_empty()).then_some(&self.rows)
    }

    /// Returns an error with two ranks whose rows differ in words that must be equal. Called
    /// after the devices found a difference.
    pub fn difference(&self) -> Option<WorkerError> {
        let shared = |row: &Row| (row.step, row.depth, row.digest);
        let other = |row: &Row| shared(row) != shared(&self.rows[0]);
        match self.rows.iter().position(other) {
            Some(peer) => Some(WorkerError::RowsDiffer {
                rank: 0,
                ours: Box::new(self.rows[0]),
                peer,
                theirs: Box::new(self.rows[peer]),
            }),
            None => self.check_groups().err(),
        }
    }

    /// Returns all rows, if they have travelled with a collective. A step without a collective
    /// brings no rows, on any rank.
    pub fn arrived<B: Backend>(&mut self, backend: &mut B) -> Option<&[Row]> {
        if !backend.control(Axis::World).attached(&mut self.words) {
            return None;
        }
        let words = std::mem::take(&mut self.words);
        self.take(&words);
        self.words = words;
        Some(&self.rows)
    }

    /// Runs the opening exchange of a step whose attention is data-parallel. All ranks run it,
    /// also ranks without work, because only by it do they know each other's rows. After
    /// [`Self::check`], [`Self::world`] and [`Self::key`] describe the pass.
    ///
    /// # Errors
    /// [`WorkerError::Backend`] if the group is broken, or if ranks differ in the part that all
    /// share.
    pub fn open<B: Backend>(&mut self, backend: &mut B, own: &Row) -> Result<(), WorkerError> {
        self.attach(backend, own)?;
        backend.control(Axis::World).barrier()?;
        self.arrived(backend);
        Ok(())
    }

    /// Checks the rows of a step whose attention is data-parallel, once they have arrived.
    ///
    /// # Errors
    /// [`WorkerError::GroupRowsDiffer`] if ranks of one DP rank differ; [`WorkerError::Plan`]
    /// if no rows have come, or if a DP rank brings more than `plan` allows, with at most
    /// `drafts` drafts in a row.
    pub fn check(&mut self, plan: &StepPlan, drafts: u32) -> Result<(), WorkerError> {
        let came = self.rows.iter().filter(|row| row.step == plan.step).count();
        if came * Row::WORDS != self.words.len() {
            let reason = PlanError::NoRows;
            return Err(WorkerError::Plan {
                step: plan.step,
                reason,
            });
        }
        self.check_groups()?;
        let leads = self.rows.iter().step_by(self.attn_tp_size);
        for (dp_rank, lead) in leads.enumerate() {
            let part = plan.parts.get(dp_rank);
            let most = part.map(|part| part.bounds(drafts)).unwrap_or_default();
            let row = PartBounds {
                requests: lead.requests,
                tokens: lead.tokens,
                longest: lead.longest,
            };
            if !most.hold(row) || lead.wanted > lead.tokens {
                let reason = PlanError::BeyondPart { dp_rank, most, row };
                let step = plan.step;
                return Err(WorkerError::Plan { step, reason });
            }
            self.world.tokens[dp_rank] = lead.tokens as usize;
            self.world.wanted[dp_rank] = lead.wanted as usize;
        }
        Ok(())
    }

    /// Sets the rows as if no other DP rank had work. A rank that skips the opening exchange
    /// knows no more.
    pub fn alone(&mut self, dp_rank: usize, own: &Row) {
        self.world.tokens.fill(0);
        self.world.wanted.fill(0);
        self.world.tokens[dp_rank] = own.tokens as usize;
        self.world.wanted[dp_rank] = own.wanted as usize;
        self.rows.clear();
        self.rows.push(*own);
    }

    /// Checks that the ranks of a DP rank have brought the same. Every rank sees all rows, and
    /// finds the same two that differ.
    fn check_groups(&self) -> Result<(), WorkerError> {
        let groups = self.rows.chunks(self.attn_tp_size).enumerate();
        for (number, group) in groups {
            let lead = number * self.attn_tp_size;
            let same = |row: &Row| group_view(row) == group_view(&group[0]);
            if let Some(at) = group.iter().position(|row| !same(row)) {
                return Err(WorkerError::GroupRowsDiffer {
                    dp_rank: number,
                    lead,
                    ours: Box::new(group[0]),
                    peer: lead + at,
                    theirs: Box::new(group[at]),
                });
            }
        }
        Ok(())
    }

    /// Returns the rows of the step's pass, by DP rank.
    pub fn world(&self) -> &WorldRows {
        &self.world
    }

    /// Returns the size of the step's pass, equal on every rank: of each number the largest of
    /// any DP rank. A device that records passes pads each DP rank's rows to it, so that all
    /// ranks replay the same pass. Example: DP ranks with 3 rows of 3 tokens and 1 row of 8
    /// tokens have a pass of 3 rows and 8 tokens.
    pub fn key(&self) -> PassKey {
        let most = |of: fn(&Row) -> u32| self.rows.iter().map(of).max().unwrap_or(0) as usize;
        PassKey {
            requests: most(|row| row.requests),
            tokens: most(|row| row.tokens),
            max_q_len: most(|row| row.longest),
        }
    }
}

/// Returns the part of a row that the ranks of a DP rank share.
fn group_view(row: &Row) -> [u64; 5] {
    let counts = [row.tokens, row.requests, row.wanted, row.longest].map(u64::from);
    let [tokens, requests, wanted, longest] = counts;
    [row.group_digest, tokens, requests, wanted, longest]
}
