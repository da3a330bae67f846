//! Products of groups of rows, each with a matrix of its own, as one job: the experts of a
//! mixture, each with the rows that are routed to it.
//!
//! One job for all groups has one wait, however few rows a group has. Rows are multiplied as in
//! [`super::matmul`], so a row's result depends neither on the other rows of its group nor on
//! the sizes of groups.

use lockstep_backend::BackendError;

use super::cut::{Cut, block_height};
use super::product::Product;
use super::{PACK_ALONE, PACK_COLUMNS, Tiles, pack_block};
use crate::formats::{CpuMatrix, Format};
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::partition::Shared;
use crate::pool::Pool;

/// Rows in the order of their matrices, which are all of one shape. A checkpoint may hold some of
/// them in another format than the others.
#[derive(Clone, Copy)]
pub(crate) struct Groups<'a> {
    pub matrices: &'a [CpuMatrix],
    /// Biases of all matrices, one behind the other.
    pub biases: Option<&'a [f32]>,
    /// First row of each matrix, and behind the last matrix the number of all rows.
    pub starts: &'a [u32],
    /// Places of results; `None` puts rows one behind the other, group after group.
    pub placed: Option<Apart>,
}

/// Distances between rows of groups which all have as many rows. Such groups are heads, whose columns
/// lie beside each other in the rows of tokens.
#[derive(Clone, Copy)]
pub(crate) struct Apart {
    /// Elements from a row of a group to the next.
    pub row: usize,
    /// Elements from a row of a group to that row of the next group.
    pub group: usize,
}

/// Inputs of the rows of all groups.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// Rows of inputs, as wide as the matrices.
    pub values: &'a [f32],
    /// Row of `values` that each row of the groups reads; `None` if it is the row itself.
    pub order: Option<&'a [u32]>,
    /// Places of rows; `None` if rows are as wide as the matrices, one behind the other.
    pub apart: Option<Apart>,
}

impl<'a> Inputs<'a> {
    /// Rows that lie one behind the other, read in an `order` if there is one.
    pub(crate) fn ordered(values: &'a [f32], order: Option<&'a [u32]>) -> Self {
        Self {
            values,
            order,
            apart: None,
        }
    }
}

/// Working memory of [`grouped_matmul`].
pub(crate) struct Scratch<'a> {
    /// Packed inputs; grows to [`grouped_words`].
    pub packed: &'a mut Buffer<u32>,
    /// As many words as [`Groups::starts`] has.
    pub firsts: &'a mut [u32],
}

/// Multiplies the rows of each group by its matrix's transpose into `out` `[rows, out]`.
///
/// # Errors
/// [`BackendError::OutOfMemory`].
pub(crate) fn grouped_matmul(
    pool: &mut Pool,
    isa: Isa,
    inputs: Inputs<'_>,
    groups: Groups<'_>,
    scratch: Scratch<'_>,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let (Some(w), Some(&rows)) = (groups.matrices.first(), groups.starts.last()) else {
        return Ok(());
    };
    let Scratch { packed, firsts } = scratch;
    let row_words = widest(groups.matrices, isa, rows as usize, w.cols);
    let words = (rows as usize).saturating_mul(row_words);
    packed.grow(words, "packed activations of experts")?;
    let packed = &mut packed[..words];
    let job = Job {
        isa,
        groups,
        row_words,
        threads: pool.threads().div_ceil(groups.busy().max(1)),
    };
    job.pack(pool, inputs, firsts, packed);
    job.multiply(pool, firsts, packed, out);
    Ok(())
}

/// Words of packed inputs for `rows` rows in groups of any size, and matrices with `cols` inputs.
pub(crate) fn grouped_words(format: &dyn Format, isa: Isa, rows: usize, cols: usize) -> usize {
    rows.saturating_mul(row_words(format, isa, rows, cols))
}

/// Most words of a packed row of any of `matrices`, with `cols` inputs.
fn widest(matrices: &[CpuMatrix], isa: Isa, rows: usize, cols: usize) -> usize {
    let same = |one: &CpuMatrix, other: &CpuMatrix| one.format.name() == other.format.name();
    let runs = matrices.chunk_by(same).filter_map(|run| run.first());
    let words = runs.map(|w| row_words(w.format, isa, rows, cols));
    words.max().unwrap_or(0)
}

/// Most words of a packed row. The form of inputs depends on the rows of a group: one form for
/// few rows, and perhaps another for many.
fn row_words(format: &dyn Format, isa: Isa, rows: usize, cols: usize) -> usize {
    let words = |rows| format.tiles(isa, rows).input.len(cols);
    words(1).max(words(rows.max(1)))
}

impl Groups<'_> {
    /// Number of groups that have rows.
    fn busy(&self) -> usize {
        let busy = self.starts.windows(2).filter(|pair| pair[0] < pair[1]);
        busy.count()
    }
}

/// One call for all groups.
struct Job<'a> {
    isa: Isa,
    groups: Groups<'a>,
    /// Words of packed inputs from one row to the next, over groups.
    row_words: usize,
    /// Threads that each group's product is cut for.
    threads: usize,
}

/// The rows of one matrix.
struct Group<'a> {
    w: &'a CpuMatrix,
    bias: Option<&'a [f32]>,
    tiles: &'static Tiles,
    first: usize,
    rows: usize,
    /// Rows of every block but the last.
    height: usize,
}

impl Group<'_> {
    fn blocks(&self) -> usize {
        self.rows.div_ceil(self.height.max(1))
    }
}

impl<'a> Job<'a> {
    fn group(&self, number: usize) -> Group<'a> {
        let (w, starts) = (&self.groups.matrices[number], self.groups.starts);
        let [first, end] = [starts[number], starts[number + 1]].map(|at| at as usize);
        let rows = end - first;
        let tiles = w.format.tiles(self.isa, rows.max(1));
        let outputs = number * w.rows..(number + 1) * w.rows;
        Group {
            w,
            bias: self.groups.biases.map(|biases| &biases[outputs]),
            tiles,
            first,
            rows,
            height: if rows == 0 {
                0
            } else {
                block_height(tiles, rows)
            },
        }
    }

    /// Packs all rows, one block of a group at a time.
    fn pack(&self, pool: &mut Pool, inputs: Inputs<'_>, firsts: &mut [u32], packed: &mut [u32]) {
        let cols = self.groups.matrices[0].cols;
        let parts = cols.div_ceil(PACK_COLUMNS);
        let units = number(firsts, |number| self.group(number).blocks() * parts);
        let (words, packed) = (packed.len(), Shared::new(packed));
        let firsts = &*firsts;
        let row = |number: usize, group: &Group<'_>, row: usize| {
            let start = match inputs.apart {
                Some(apart) => row * apart.row + number * apart.group,
                None => {
                    let row = group.first + row;
                    inputs.order.map_or(row, |order| order[row] as usize) * cols
                }
            };
            &inputs.values[start..start + cols]
        };
        let pack = |unit: usize| {
            let (number, unit) = find(firsts, unit);
            let group = self.group(number);
            let (block, part) = (unit / parts, unit % parts);
            let (input, first) = (group.tiles.input, block * group.height);
            let count = group.height.min(group.rows - first);
            let columns = part * PACK_COLUMNS..cols.min((part + 1) * PACK_COLUMNS);
            let start = group.first * self.row_words + first * input.len(cols);
            let words = input.len(columns.start) * count..input.len(columns.end) * count;
            // SAFETY: each unit is packed once, and units' words are disjoint: those of a group
            // begin where its rows do, and take no more than `row_words` for each.
            let out = unsafe { packed.slice(start + words.start..start + words.end) };
            let rows = (first..first + count).map(|at| row(number, &group, at));
            pack_block(self.isa, input, rows, &columns, out);
        };
        if words <= PACK_ALONE {
            return (0..units).for_each(pack);
        }
        pool.for_chunks(units, |_, unit| pack(unit));
    }

    /// Multiplies all groups, in chunks of some panels and blocks of one group.
    fn multiply(&self, pool: &mut Pool, firsts: &mut [u32], packed: &[u32], out: &mut [f32]) {
        let out = Shared::new(out);
        let cut = |number: usize| {
            let group = self.group(number);
            let blocks = group.blocks();
            (blocks > 0).then(|| {
                let product = self.product(number, &group, packed, &out);
                let passes = product.passes(self.threads, blocks);
                let cut = Cut::new(self.threads, group.w.panels(), blocks, passes);
                (product, cut)
            })
        };
        let chunks = number(firsts, |number| {
            cut(number).map_or(0, |(_, cut)| cut.chunks())
        });
        let firsts = &*firsts;
        pool.for_chunks(chunks, |thread, chunk| {
            let (number, chunk) = find(firsts, chunk);
            if let Some((product, cut)) = cut(number) {
                product.run(thread, cut.chunk(chunk));
            }
        });
    }

    /// The product of one group.
    fn product<'p>(
        &self,
        number: usize,
        group: &Group<'p>,
        packed: &'p [u32],
        out: &Shared<'p, f32>,
    ) -> Product<'p>
    where
        'a: 'p,
    {
        let (w, tiles) = (group.w, group.tiles);
        let start = group.first * self.row_words;
        let (outputs, out_stride) = match self.groups.placed {
            None => {
                let end = group.first + group.rows;
                (group.first * w.rows..end * w.rows, w.rows)
            }
            Some(Apart { row, group: apart }) => {
                let first = number * apart;
                (first..first + (group.rows - 1) * row + w.rows, row)
            }
        };
        Product {
            isa: self.isa,
            tiles,
            w,
            bias: group.bias,
            rows: group.rows,
            height: group.height,
            a: &packed[start..start + group.rows * tiles.input.len(w.cols)],
            out: out.part(outputs),
            out_stride,
            sums: None,
        }
    }
}

/// Numbers units group by group: sets `firsts` to the first unit of each group, and behind the
/// last group to the number of all units, which is returned.
fn number(firsts: &mut [u32], units: impl Fn(usize) -> usize) -> usize {
    let mut next = 0;
    let groups = firsts.len().saturating_sub(1);
    for (group, first) in firsts.iter_mut().enumerate() {
        *first = next as u32;
        if group < groups {
            next += units(group);
        }
    }
    next
}

/// Returns the group of a unit, and the unit's number in the group.
fn find(firsts: &[u32], unit: usize) -> (usize, usize) {
    // Groups without units begin where the next one does, so the last that fits has the unit.
    let group = firsts.partition_point(|first| *first as usize <= unit) - 1;
    (group, unit - firsts[group] as usize)
}
