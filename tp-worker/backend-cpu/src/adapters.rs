//! Adapters beside a projection: rows are put in the order of their adapters' places, and the rows
//! of all places are multiplied as one job, each by the matrices of its own.

use lockstep_backend::{AdaptedLinear, AdaptedPart, BackendError};

use crate::formats::{CpuMatrix, Format};
use crate::gemm::{Groups, Inputs, Scratch, grouped_matmul, grouped_words};
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::multiversion::multiversion;
use crate::partition::{MIN_ELEMENTS, Shared, share};
use crate::pool::Pool;

/// Rows with adapters that are multiplied at a time. It bounds the working memory; no bit depends
/// on it.
const ROWS: usize = 256;
/// Chunks for each thread of the last addition.
const CHUNKS_PER_THREAD: usize = 4;

/// Working memory of an operation.
pub(crate) struct Space<'a> {
    /// Packed inputs of products.
    pub packed: &'a mut Buffer<u32>,
    /// Rows in the order of their places; grows to [`list_words`].
    pub lists: &'a mut Buffer<u32>,
    /// Results of products; grows to [`values`].
    pub values: &'a mut Buffer<f32>,
}

/// See [`lockstep_backend::Adapt::add_adapters`]. `x` and `out` have as many rows as `places`.
pub(crate) fn add(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    w: &AdaptedLinear<CpuMatrix>,
    places: &[f32],
    space: Space<'_>,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let (count, rows) = (w.down.len(), places.len());
    let adapted = |place: &f32| (*place >= 0.0).then_some(*place as usize);
    if !places.iter().filter_map(adapted).any(|at| w.adapts(at)) {
        return Ok(());
    }
    let Space {
        packed,
        lists,
        values,
    } = space;
    lists.grow(list_words(rows, count), "rows of adapters")?;
    let mut lists = Lists::new(lists, rows, count);
    let all = lists.sort(places, |at| w.adapts(at));
    let widest = w.parts.iter().map(|part| part.outputs.len()).max();
    let most = all.min(ROWS);
    let [low, scaled, high] = widths(w.rank, w.parts.len(), widest.unwrap_or(0));
    values.grow(most * (low + scaled + high), "results of adapters")?;
    let (lowered, rest) = values.split_at_mut(most * low);
    let (scaled, raised) = rest.split_at_mut(most * scaled);
    let width = out.len() / rows;
    for first in (0..all).step_by(ROWS) {
        let taken = lists.take(first, all.min(first + ROWS));
        let inputs = Inputs::ordered(x, Some(&lists.order[first..first + taken]));
        let groups = groups(&w.down, lists.own);
        let scratch = Scratch {
            packed,
            firsts: lists.firsts,
        };
        grouped_matmul(
            pool,
            isa,
            inputs,
            groups,
            scratch,
            &mut lowered[..taken * low],
        )?;
        for (number, part) in w.parts.iter().enumerate() {
            let columns = [number * w.rank, w.rank];
            let chosen = lists.choose(first, part, lowered, columns, low, scaled);
            if chosen == 0 {
                continue;
            }
            let raised = &mut raised[..chosen * part.outputs.len()];
            let inputs = Inputs::ordered(scaled, None);
            let scratch = Scratch {
                packed,
                firsts: lists.firsts,
            };
            let groups = self::groups(&part.up, lists.chosen);
            grouped_matmul(pool, isa, inputs, groups, scratch, raised)?;
            let targets = Targets {
                rows: &lists.picks[..chosen],
                width,
                first: part.outputs.start,
            };
            add_rows(pool, isa, raised, &targets, out);
        }
    }
    Ok(())
}

fn groups<'a>(matrices: &'a [CpuMatrix], starts: &'a [u32]) -> Groups<'a> {
    Groups {
        matrices,
        biases: None,
        starts,
        placed: None,
    }
}

/// Columns of the results: before the rank of all parts, of one part times its factor, and behind
/// the rank of the part with the most outputs.
fn widths(rank: usize, parts: usize, widest: usize) -> [usize; 3] {
    [parts * rank, rank, widest]
}

/// Lists of rows, in one buffer.
struct Lists<'a> {
    /// First row of each place in `order`, and behind the last place the number of all rows.
    starts: &'a mut [u32],
    /// First rows as in `starts`, of the rows that are multiplied now.
    own: &'a mut [u32],
    /// First rows as in `starts`, of the rows whose adapters add to a part.
    chosen: &'a mut [u32],
    /// Space of products.
    firsts: &'a mut [u32],
    /// Rows with adapters, place after place.
    order: &'a mut [u32],
    /// Rows whose adapters add to a part, among those that are multiplied now.
    picks: &'a mut [u32],
}

impl<'a> Lists<'a> {
    fn new(words: &'a mut [u32], rows: usize, places: usize) -> Self {
        let (starts, rest) = words.split_at_mut(places + 1);
        let (own, rest) = rest.split_at_mut(places + 1);
        let (chosen, rest) = rest.split_at_mut(places + 1);
        let (firsts, rest) = rest.split_at_mut(places + 1);
        let (order, rest) = rest.split_at_mut(rows);
        Self {
            starts,
            own,
            chosen,
            firsts,
            order,
            picks: &mut rest[..rows.min(ROWS)],
        }
    }

    /// Sorts the rows whose place is `adapted` by their places, and returns their number.
    fn sort(&mut self, places: &[f32], adapted: impl Fn(usize) -> bool) -> usize {
        let adapted = |place: &f32| {
            let at = (*place >= 0.0).then_some(*place as usize);
            at.filter(|at| adapted(*at))
        };
        self.starts.fill(0);
        for place in places.iter().filter_map(adapted) {
            self.starts[place + 1] += 1;
        }
        for place in 1..self.starts.len() {
            self.starts[place] += self.starts[place - 1];
        }
        self.own.copy_from_slice(self.starts);
        for (row, place) in places.iter().enumerate() {
            if let Some(place) = adapted(place) {
                self.order[self.own[place] as usize] = row as u32;
                self.own[place] += 1;
            }
        }
        self.starts.last().map_or(0, |all| *all as usize)
    }

    /// Takes the rows `first..end` of the order to be multiplied now, and returns their number.
    fn take(&mut self, first: usize, end: usize) -> usize {
        for (own, start) in self.own.iter_mut().zip(&*self.starts) {
            *own = (*start).clamp(first as u32, end as u32) - first as u32;
        }
        end - first
    }

    /// Lists the rows whose adapters add to `part`, of those that are taken from `first` on. Writes
    /// the part's columns of their results, times the adapter's factor, to `scaled`. Returns their
    /// number.
    fn choose(
        &mut self,
        first: usize,
        part: &AdaptedPart<CpuMatrix>,
        lowered: &[f32],
        [column, rank]: [usize; 2],
        width: usize,
        scaled: &mut [f32],
    ) -> usize {
        let mut next = 0;
        for (place, scale) in part.scales.iter().enumerate() {
            self.chosen[place] = next as u32;
            let Some(scale) = scale else {
                continue;
            };
            for row in self.own[place] as usize..self.own[place + 1] as usize {
                let from = &lowered[row * width + column..][..rank];
                let to = &mut scaled[next * rank..][..rank];
                to.iter_mut()
                    .zip(from)
                    .for_each(|(to, from)| *to = scale * from);
                self.picks[next] = self.order[first + row];
                next += 1;
            }
        }
        self.chosen[part.scales.len()] = next as u32;
        next
    }
}

/// Rows that are added to, and the columns of them.
struct Targets<'a> {
    rows: &'a [u32],
    /// Columns of a whole row.
    width: usize,
    /// First column that is added to.
    first: usize,
}

/// Adds each row of `from` to some columns of its target.
fn add_rows(pool: &mut Pool, isa: Isa, from: &[f32], targets: &Targets<'_>, out: &mut [f32]) {
    let count = targets.rows.len();
    let width = from.len() / count;
    let chunks = (pool.threads() * CHUNKS_PER_THREAD)
        .min(from.len().div_ceil(MIN_ELEMENTS))
        .min(count);
    let out = Shared::new(out);
    let run = |chunk: usize| {
        for row in share(count, chunks, chunk) {
            let start = targets.rows[row] as usize * targets.width + targets.first;
            // SAFETY: no row is a target twice, and each row belongs to one chunk.
            let out = unsafe { out.slice(start..start + width) };
            add_row(isa, &from[row * width..][..width], out);
        }
    };
    match chunks {
        1 => run(0),
        _ => pool.for_chunks(chunks, |_, chunk| run(chunk)),
    }
}

multiversion! {
    fn add_row(x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out += x;
        }
    }
}

/// Words of lists for `rows` rows and adapters at `places` places.
pub(crate) fn list_words(rows: usize, places: usize) -> usize {
    let starts = 4 * (places + 1);
    rows.saturating_add(starts + rows.min(ROWS))
}

/// Results that are kept for `rows` rows of adapters of a `rank`, whose projection has `parts` parts
/// of up to `widest` outputs.
pub(crate) fn values(rows: usize, rank: usize, parts: usize, widest: usize) -> usize {
    rows.min(ROWS) * widths(rank, parts, widest).iter().sum::<usize>()
}

/// Words of packed inputs for `rows` rows of adapters with `inputs` inputs and a `rank`.
pub(crate) fn packed_words(
    isa: Isa,
    rows: usize,
    format: &dyn Format,
    [inputs, rank]: [usize; 2],
) -> usize {
    let words = [inputs, rank].map(|cols| grouped_words(format, isa, rows.min(ROWS), cols));
    words[0].max(words[1])
}
