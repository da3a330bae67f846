//! The exchanges of a step on one rank.

use std::ops::Range;

use lockstep_adaptive::Row;
use lockstep_backend::{Axis, Groups, WorldRows};
use lockstep_collective::{CollectiveError, Owners};
use lockstep_model::{CollectiveKind, Exit, ForwardLimits, ModelError, Schedule, Shard, Topology};
use lockstep_tp_worker::worker::{DecodeStep, StepExchange};
use lockstep_types::ModelConfig;

use super::Ranks;

/// Kinds of exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Drafts,
    Opening,
    Sum,
    Rows,
    Shares,
    Logits,
    Outcomes,
}

/// All kinds.
pub const KINDS: [Kind; 7] = [
    Kind::Drafts,
    Kind::Opening,
    Kind::Sum,
    Kind::Rows,
    Kind::Shares,
    Kind::Logits,
    Kind::Outcomes,
];

impl Kind {
    /// The kind's name, for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drafts => "drafts",
            Self::Opening => "opening exchange",
            Self::Sum => "all-reduce",
            Self::Rows => "all-gather",
            Self::Shares => "reduce-scatter",
            Self::Logits => "gather of logits",
            Self::Outcomes => "outcomes",
        }
    }
}

/// A step's exchanges on one rank, with zeros as data.
pub struct Step {
    exchanges: Vec<Prepared>,
    /// The rank's row, which rides on the step's first exchange with all ranks.
    row: Row,
    words: Vec<u32>,
    own: Vec<f32>,
    all: Vec<f32>,
}

/// An exchange with the sizes that its operation takes.
struct Prepared {
    kind: Kind,
    axis: Axis,
    /// Elements that this rank brings.
    own: usize,
    /// Elements that this rank gets.
    all: usize,
    /// Elements that each rank brings, or columns.
    counts: Vec<usize>,
    /// Elements that each rank gets, or rows.
    ranges: Vec<Range<usize>>,
}

impl Step {
    /// The step of rank `rank`. In this step `requests` requests of all DP ranks decode with
    /// `drafts` drafts each.
    ///
    /// # Errors
    /// [`ModelError::Split`].
    pub fn new(
        model: &ModelConfig,
        rank: usize,
        ranks: Ranks,
        requests: usize,
        drafts: usize,
    ) -> Result<Self, ModelError> {
        let topology = Topology::new(rank, ranks.tp_size, ranks.dp_size);
        let widths = Shard::new(model, topology)?.vocab_widths(model);
        let share = |dp_rank| requests * dp_rank / ranks.dp_size;
        let tokens: Vec<_> = (0..ranks.dp_size)
            .map(|dp_rank| (share(dp_rank + 1) - share(dp_rank)) * (1 + drafts))
            .collect();
        let rows = WorldRows {
            wanted: tokens.clone(),
            tokens,
        };
        let block_rows = ForwardLimits::block_rows(model.vocab_size);
        let schedule = Schedule::new(model, topology, Axis::World, Exit::Logits, block_rows);
        let step = DecodeStep {
            rows: &rows,
            drafts,
        };
        let place = Placed {
            topology,
            rows: &rows,
            widths: &widths,
        };
        let exchanges: Vec<_> = StepExchange::of_step(&schedule, topology, step)
            .iter()
            .map(|exchange| place.prepare(exchange))
            .collect();
        let most = |of: fn(&Prepared) -> usize| exchanges.iter().map(of).max().unwrap_or(0);
        Ok(Self {
            row: Row {
                tokens: rows.tokens[topology.dp_rank()] as u32,
                ..Row::default()
            },
            words: vec![0; most(|one| one.own).max(ranks.tp_size * Row::WORDS)],
            own: vec![0.0; most(|one| one.own)],
            all: vec![0.0; most(|one| one.all)],
            exchanges,
        })
    }

    /// Exchanges of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.of(kind).count()
    }

    /// Bytes that this rank brings to the exchanges of a kind.
    pub fn bytes(&self, kind: Kind) -> usize {
        let bytes = |one: &Prepared| match one.kind {
            Kind::Opening => Row::WORDS * size_of::<u32>(),
            _ => one.own * size_of::<f32>(),
        };
        self.of(kind).map(bytes).sum()
    }

    /// Elements of the longest exchange.
    pub fn longest(&self) -> usize {
        self.own.len().max(self.all.len())
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = &Prepared> {
        self.exchanges.iter().filter(move |one| one.kind == kind)
    }

    /// Runs all exchanges; calls `done` after each.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn run(
        &mut self,
        groups: &mut Groups,
        mut done: impl FnMut(Kind),
    ) -> Result<(), CollectiveError> {
        self.row.step += 1;
        let row = self.row.to_words();
        groups.of(Axis::World).attach(Row::SHARED, &row)?;
        for one in &self.exchanges {
            let group = groups.of(one.axis);
            let (own, all) = (&mut self.own[..one.own], &mut self.all[..one.all]);
            match one.kind {
                Kind::Drafts | Kind::Outcomes => group.broadcast(0, &mut self.words[..one.own])?,
                Kind::Opening => group.barrier()?,
                Kind::Sum => group.all_reduce_sum(own)?,
                Kind::Rows => group.all_gather(own, &one.counts, all)?,
                Kind::Shares => group.reduce_scatter_sum(own, &one.ranges, all)?,
                Kind::Logits => {
                    let owners = Owners {
                        widths: &one.counts,
                        rows: &one.ranges,
                    };
                    group.gather(own, owners, all)?;
                }
            }
            done(one.kind);
        }
        let (_, size) = groups.rank_and_size(Axis::World);
        groups
            .of(Axis::World)
            .attached(&mut self.words[..size * Row::WORDS]);
        Ok(())
    }
}

/// The rows of a step, and the ranks that they belong to.
struct Placed<'a> {
    topology: Topology,
    rows: &'a WorldRows,
    /// Columns of the output head, by rank.
    widths: &'a [usize],
}

impl Placed<'_> {
    fn prepare(&self, exchange: &StepExchange) -> Prepared {
        let words = |kind, axis, own| Prepared {
            kind,
            axis,
            own,
            all: 0,
            counts: Vec::new(),
            ranges: Vec::new(),
        };
        match *exchange {
            StepExchange::Drafts { words: own } => words(Kind::Drafts, Axis::Attention, own),
            StepExchange::Outcomes { words: own } => words(Kind::Outcomes, Axis::Attention, own),
            StepExchange::Opening => words(Kind::Opening, Axis::World, 0),
            StepExchange::Pass { step, first, rows } => {
                let of = |kind| words(kind, step.axis, rows * step.width);
                let rank = self.topology.world.rank;
                match step.kind {
                    CollectiveKind::AllReduce => of(Kind::Sum),
                    CollectiveKind::AllGather => {
                        let counts = self.brought().map(|rows| rows * step.width);
                        let counts: Vec<_> = counts.collect();
                        Prepared {
                            own: counts[rank],
                            all: rows * step.width,
                            counts,
                            ..of(Kind::Rows)
                        }
                    }
                    CollectiveKind::ReduceScatter => {
                        let of_rows =
                            |rows: Range<usize>| rows.start * step.width..rows.end * step.width;
                        let ranges: Vec<_> = self.taken().map(of_rows).collect();
                        Prepared {
                            all: ranges[rank].len(),
                            ranges,
                            ..of(Kind::Shares)
                        }
                    }
                    CollectiveKind::Gather => self.logits(step.axis, first..first + rows),
                }
            }
        }
    }

    /// Prepares a gather of a block of logits. The logits of a DP rank's rows go to its
    /// lead.
    fn logits(&self, axis: Axis, block: Range<usize>) -> Prepared {
        let size = self.topology.attention.size;
        let inside = |row: usize| row.clamp(block.start, block.end) - block.start;
        let owned = |(rank, rows): (usize, Range<usize>)| match rank % size {
            0 => inside(rows.start)..inside(rows.end),
            _ => 0..0,
        };
        let ranges: Vec<_> = self.taken().enumerate().map(owned).collect();
        let rank = self.topology.world.rank;
        Prepared {
            kind: Kind::Logits,
            axis,
            own: block.len() * self.widths[rank],
            all: ranges[rank].len() * self.widths.iter().sum::<usize>(),
            counts: self.widths.to_vec(),
            ranges,
        }
    }

    /// Rows that each rank takes: the rows of its DP rank.
    fn taken(&self) -> impl Iterator<Item = Range<usize>> {
        let size = self.topology.attention.size;
        let mut start = 0;
        let of_dp_rank = move |rows: &usize| {
            let taken = start..start + rows;
            start = taken.end;
            std::iter::repeat_n(taken, size)
        };
        self.rows.tokens.iter().flat_map(of_dp_rank)
    }

    /// Number of rows that each rank brings: its share of the rows of its DP rank.
    fn brought(&self) -> impl Iterator<Item = usize> {
        let size = self.topology.attention.size;
        let share = move |(rank, rows): (usize, Range<usize>)| {
            let end = |member| rows.len() * member / size;
            end(rank % size + 1) - end(rank % size)
        };
        self.taken().enumerate().map(share)
    }
}
