//! The exchanges of ranks in a step, known before it runs; for benchmarks.

use lockstep_backend::{Axis, WorldRows};
use lockstep_model::{CollectiveStep, CountedRows, Schedule, Topology};

/// One exchange of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepExchange {
    /// The lead of a DP rank tells its ranks the drafts.
    Drafts {
        /// Number of 32-bit words of the message.
        words: usize,
    },
    /// The opening exchange, where attention is data-parallel. It carries every rank's row
    /// ([`lockstep_adaptive::Row`]) and follows the drafts. Without data-parallel attention,
    /// rows ride on the pass's first collective.
    Opening,
    /// A collective of the pass.
    Pass {
        /// The collective.
        step: CollectiveStep,
        /// Index of its first row. For a block of logits, it counts among the wanted logits.
        first: usize,
        /// Number of its rows, of all DP ranks or of this one.
        rows: usize,
    },
    /// The lead of a DP rank tells its ranks the step's outcomes.
    Outcomes {
        /// Number of 32-bit words of the message.
        words: usize,
    },
}

/// A step in which every request decodes.
#[derive(Debug, Clone, Copy)]
pub struct DecodeStep<'a> {
    /// Rows of each DP rank. Every token's logits are wanted.
    pub rows: &'a WorldRows,
    /// Number of draft tokens of each request; at 0 nothing is drafted.
    pub drafts: usize,
}

impl StepExchange {
    /// Returns the exchanges of a decode step on the rank at `topology`, in order.
    pub fn of_step(schedule: &Schedule, topology: Topology, step: DecodeStep<'_>) -> Vec<Self> {
        let DecodeStep { rows, drafts } = step;
        let [tokens, wanted] = [&rows.tokens, &rows.wanted].map(|rows| {
            let all = rows.iter().sum::<usize>();
            (rows[topology.dp_rank()], all)
        });
        let requests = tokens.0 / (1 + drafts);
        let of_axis = |axis| match axis {
            Axis::World => topology.world.size > 1,
            Axis::Attention => topology.attention.size > 1,
            Axis::Alone => false,
        };
        let of = |steps: &[CollectiveStep], (own, all): (usize, usize), first| {
            let pass = |step: &CollectiveStep| Self::Pass {
                step: *step,
                first,
                rows: match step.rows {
                    CountedRows::DpRank => own,
                    CountedRows::World => all,
                },
            };
            let run = steps.iter().filter(|step| of_axis(step.axis));
            run.map(pass).collect::<Vec<_>>()
        };
        let mut all = Vec::new();
        if drafts > 0 && requests > 0 && of_axis(Axis::Attention) {
            let words = requests * (1 + 2 * drafts);
            all.push(Self::Drafts { words });
        }
        if topology.dp_size() > 1 {
            all.push(Self::Opening);
        }
        if tokens.1 > 0 {
            all.extend(of(&schedule.tokens, tokens, 0));
        }
        if wanted.1 > 0 {
            all.extend(of(&schedule.logit_tokens, wanted, 0));
        }
        for first in (0..wanted.1).step_by(schedule.block_rows) {
            let block = schedule.block_rows.min(wanted.1 - first);
            all.extend(of(&schedule.block, (block, block), first));
        }
        if requests > 0 && of_axis(Axis::Attention) {
            let words = requests * 2 * (1 + drafts);
            all.push(Self::Outcomes { words });
        }
        all
    }
}
