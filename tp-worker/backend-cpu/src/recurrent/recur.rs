//! The recurrence, in jobs of one row, one value head and some tiles of its matrix.

use lockstep_backend::{DeltaShape, Row, RowState, StateKeep};

use super::columns::commit;
use super::convolution::Columns;
use super::states::{Places, tile_width};
use super::step::{Token, replay_16, replay_32, scan_16, scan_32, step_16, step_32};
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::partition::Shared;
use crate::pool::Pool;

/// Mean number of tokens of a row from which on each tile is a job of its own.
const LONG: usize = 4;
/// Columns of the widest tile.
const WIDEST: usize = 32;

/// Change of a matrix by a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// The gated delta rule, whose updates depend on the matrix.
    Delta,
    /// Mamba-2's, whose updates stand where the delta rule has values.
    Mamba2,
}

/// Runs all rows. `gates` are strengths and decays, or decays alone; `space` are queries, keys, and
/// values or updates; `tiles` are space for a tile of each thread. Mamba-2's output is added to
/// `out`.
#[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
pub(super) fn run(
    pool: &mut Pool,
    isa: Isa,
    places: &Places<'_>,
    rule: Rule,
    [projected, gates, space]: [&[f32]; 3],
    tiles: &mut [f32],
    out: &mut [f32],
    inputs: &CpuInputs,
) {
    let (shape, width) = (places.heads, tile_width(&places.heads));
    let in_head = shape.value_dim / width;
    let long = inputs.tokens.len() >= LONG * inputs.rows.len();
    let (parts, each) = if long { (in_head, 1) } else { (1, in_head) };
    let jobs = shape.value_heads * parts;
    let room = shape.key_dim * width;
    let (tiles, out) = (Shared::new(tiles), Shared::new(out));
    let rows = inputs.rows.len();
    let columns = Columns {
        values: projected,
        width: shape.channels() + shape.value_width(),
    };
    pool.for_chunks(rows * (jobs + 1), |thread, chunk| {
        let (index, job) = (chunk / (jobs + 1), chunk % (jobs + 1));
        let (row, state) = (&inputs.rows[index], &inputs.states[index]);
        if job == jobs {
            return commit(places, columns, row, state, inputs);
        }
        let first = job % parts * each;
        for tile in first..first + each {
            let job = Job {
                isa,
                places,
                rule,
                gates,
                space,
                out: &out,
                row,
                state,
                inputs,
                head: job / parts,
                tile,
            };
            // SAFETY: no two calls at a time have the same thread.
            job.run(unsafe { tiles.slice(thread * room..(thread + 1) * room) });
        }
    });
}

/// One tile of one head's matrix in one row.
struct Job<'a> {
    isa: Isa,
    places: &'a Places<'a>,
    rule: Rule,
    gates: &'a [f32],
    space: &'a [f32],
    out: &'a Shared<'a, f32>,
    row: &'a Row,
    state: &'a RowState,
    inputs: &'a CpuInputs,
    head: usize,
    tile: usize,
}

impl Job<'_> {
    /// Runs the row's tokens. `work` is space for a tile.
    fn run(&self, work: &mut [f32]) {
        let state = self.state;
        let place = self.places.tile(state.state, self.head, self.tile);
        // SAFETY: rows have states of their own, in which nothing is kept; a job has the tile alone.
        let live = unsafe { self.places.matrices.slice(place) };
        if state.fresh {
            live.fill(0.0);
        }
        let replays = state.replays.of(&self.inputs.replays);
        let mut keeps = state.keeps.of(&self.inputs.keeps).iter().peekable();
        let mut stand = 0;
        let mut keep = |live: &[f32], stand: u32| {
            while let Some(keep) = keeps.next_if(|keep| keep.after == stand) {
                self.keep(live, keep);
            }
        };
        keep(live, stand);
        for node in replays {
            let record = self.places.replayed(state, *node);
            // SAFETY: nobody writes this half of the records in this call.
            let [keys, updates, decays] = [record.keys, record.updates, record.decays]
                .map(|part| unsafe { self.places.records.read(part) });
            let (keys, updates) = (self.of_key(keys), self.of_tile(updates));
            self.replay(live, keys, decays[self.head], updates);
            stand += 1;
            keep(live, stand);
        }
        if !state.commits {
            return self.verify(live, work);
        }
        let mut update = [0.0; WIDEST];
        for token in 0..self.row.q_len as usize {
            self.step(live, token, &mut update);
            stand += 1;
            keep(live, stand);
        }
    }

    /// Runs the row's tokens as nodes that are to be verified: `live` stays, and each node leaves its
    /// update in its record. A node goes on from the node before it where that is its parent, and
    /// else from the live state, through its ancestors' records.
    fn verify(&self, live: &[f32], work: &mut [f32]) {
        let mut last = None;
        for node in 0..self.row.q_len as usize {
            let parent = self.inputs.ancestor(self.row, node, node);
            if parent.is_none() || parent != last {
                work.copy_from_slice(live);
                self.descend(node, parent, work);
            }
            let update = self.update(node);
            self.step(work, node, update);
            last = Some(node);
        }
    }

    /// Replays all ancestors of `node` up to `parent` onto the live state in `work`.
    fn descend(&self, node: usize, parent: Option<usize>, work: &mut [f32]) {
        let Some(parent) = parent else {
            return;
        };
        for ancestor in 0..=parent {
            let seen = self.inputs.ancestor(self.row, node, ancestor + 1);
            if seen != Some(ancestor) {
                continue;
            }
            let (keys, _) = self.key_and_query(ancestor);
            let decay = self.decay(ancestor);
            self.replay(work, keys, decay, self.update(ancestor));
        }
    }

    /// Writes a copy of the tile to the state of `keep`.
    fn keep(&self, live: &[f32], keep: &StateKeep) {
        let place = self.places.tile(keep.state, self.head, self.tile);
        // SAFETY: nothing else of this batch has that state; a job has the tile alone.
        unsafe { self.places.matrices.slice(place) }.copy_from_slice(live);
    }

    /// Part of a record in which this job's node leaves its update.
    #[expect(clippy::mut_from_ref, reason = "each node has a place of its own")]
    fn update(&self, node: usize) -> &mut [f32] {
        let record = self.places.record(self.state, self.state.side, node as u32);
        let width = tile_width(&self.places.heads);
        let first = record.updates.start + self.column();
        // SAFETY: a job has the columns of its tile alone, and takes one node at a time.
        unsafe { self.places.records.slice(first..first + width) }
    }

    /// First column of the tile among those of all heads.
    fn column(&self) -> usize {
        self.head * self.places.heads.value_dim + self.tile * tile_width(&self.places.heads)
    }

    /// The tile's columns of those of all heads.
    fn of_tile<'a>(&self, values: &'a [f32]) -> &'a [f32] {
        &values[self.column()..][..tile_width(&self.places.heads)]
    }

    /// The head's part of the keys, or of the queries, of all heads.
    fn of_key<'a>(&self, keys: &'a [f32]) -> &'a [f32] {
        let DeltaShape {
            key_heads,
            value_heads,
            key_dim,
            ..
        } = self.places.heads;
        let head = self.head / (value_heads / key_heads);
        &keys[head * key_dim..(head + 1) * key_dim]
    }

    /// Key and query of a token.
    fn key_and_query(&self, token: usize) -> (&[f32], &[f32]) {
        let (queries, keys) = self.token(token).split_at(self.places.heads.key_width());
        (self.of_key(keys), self.of_key(queries))
    }

    /// Queries, keys and values of a token.
    fn token(&self, token: usize) -> &[f32] {
        let channels = self.places.heads.channels();
        &self.space[(self.row.start as usize + token) * channels..][..channels]
    }

    /// Gates of a token.
    fn gates(&self, token: usize) -> &[f32] {
        let each = match self.rule {
            Rule::Delta => 2 * self.places.heads.value_heads,
            Rule::Mamba2 => self.places.heads.value_heads,
        };
        &self.gates[(self.row.start as usize + token) * each..][..each]
    }

    /// Decay before a token: the gates of all heads end in decays.
    fn decay(&self, token: usize) -> f32 {
        let gates = self.gates(token);
        gates[gates.len() - self.places.heads.value_heads + self.head]
    }

    fn replay(&self, tile: &mut [f32], keys: &[f32], decay: f32, update: &[f32]) {
        match tile_width(&self.places.heads) {
            WIDEST => replay_32(self.isa, tile, keys, decay, update),
            _ => replay_16(self.isa, tile, keys, decay, update),
        }
    }

    /// Runs a token in `tile`, and writes its output. Leaves its update in `update`, where that
    /// depends on the matrix.
    fn step(&self, tile: &mut [f32], token: usize, update: &mut [f32]) {
        let shape = &self.places.heads;
        let (key, query) = self.key_and_query(token);
        let values = self.of_tile(&self.token(token)[2 * shape.key_width()..]);
        let decay = self.decay(token);
        let width = tile_width(shape);
        let first = (self.row.start as usize + token) * shape.value_width() + self.column();
        // SAFETY: a job has the columns of its tile alone.
        let out = unsafe { self.out.slice(first..first + width) };
        let mut operands = Token {
            query,
            key,
            value: values,
            strength: 1.0,
            decay,
        };
        match (self.rule, width) {
            (Rule::Mamba2, WIDEST) => scan_32(self.isa, tile, operands, out),
            (Rule::Mamba2, _) => scan_16(self.isa, tile, operands, out),
            (Rule::Delta, _) => {
                operands.strength = self.gates(token)[self.head];
                match width {
                    WIDEST => step_32(self.isa, tile, operands, update, out),
                    _ => step_16(self.isa, tile, operands, update, out),
                }
            }
        }
    }
}
