//! Paged keys and values of all layers.
//!
//! `[layer][keys, values][page][kv head][offset in page][head_dim]`: a head's
//! part of a page is contiguous, so that a long page streams and a page of one
//! token still reads whole rows. Blocks of positions are repacked into the
//! matrix kernels' panels when they are read; one repacked block serves a whole
//! group of queries.

use lockstep_backend::{AttentionShape, BackendError, KvDType, KvShape};

use crate::gemm::{Element, PANEL};
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::multiversion::multiversion;
use crate::number::{bf16_value, to_bf16};
use crate::partition::{Shared, share};
use crate::pool::Pool;

/// Positions of a block: the unit of the online softmax.
pub(crate) const BLOCK: usize = 64;
/// Below this many elements the caller writes keys and values alone.
const WRITE_ALONE: usize = 8_192;

/// Bytes of one head's part of a page from which on reading it is a stream.
const LONG_PAGE: usize = 4_096;

/// Paged keys and values; memory is committed as pages are first written.
pub struct CpuKvCache {
    pub(crate) shape: KvShape,
    data: Data,
}

enum Data {
    Bf16(Buffer<u16>),
    F32(Buffer<f32>),
}

/// Where one head of one layer begins, and how its pages lie.
#[derive(Clone, Copy)]
pub(crate) struct Plane {
    start: usize,
    page_stride: usize,
    page_size: usize,
    head_dim: usize,
}

impl Plane {
    /// First element of a cell.
    fn row(&self, page: usize, offset: usize) -> usize {
        self.start + page * self.page_stride + offset * self.head_dim
    }
}

impl CpuKvCache {
    pub(crate) fn new(shape: &KvShape) -> Result<Self, BackendError> {
        const WHAT: &str = "the KV cache";
        let fits = shape.head_dim.is_multiple_of(2) && shape.head_dim <= MAX_HEAD_DIM;
        if !fits || shape.page_size == 0 {
            return Err(BackendError::Unsupported(format!(
                "the CPU backend needs an even head size of at most {MAX_HEAD_DIM} and pages of \
                 at least one token, not head_dim {} and page_size {}",
                shape.head_dim, shape.page_size
            )));
        }
        let factors = [
            2,
            shape.layers,
            shape.pages,
            shape.kv_heads,
            shape.page_size,
        ];
        let elements = factors
            .iter()
            .try_fold(shape.head_dim, |n, &factor| n.checked_mul(factor));
        let elements = elements.ok_or(BackendError::OutOfMemory {
            what: WHAT,
            bytes: usize::MAX,
        })?;
        let data = match shape.dtype {
            KvDType::Bf16 => Data::Bf16(Buffer::zeroed(elements, WHAT)?),
            KvDType::F32 => Data::F32(Buffer::zeroed(elements, WHAT)?),
        };
        Ok(Self {
            shape: *shape,
            data,
        })
    }

    /// Panics unless the cache holds heads of this shape: models size caches,
    /// so a mismatch is a bug in one.
    pub(crate) fn expect(&self, shape: &AttentionShape) {
        assert!(
            (self.shape.kv_heads, self.shape.head_dim) == (shape.kv_heads, shape.head_dim)
                && shape.heads.is_multiple_of(shape.kv_heads),
            "attention of {} heads, {} key heads of {} does not fit a cache of {} heads of {}",
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            self.shape.kv_heads,
            self.shape.head_dim
        );
    }

    /// How blocks are repacked for a machine that computes in `compute`: pairs
    /// of bf16 only where keys, values and arithmetic all are bf16.
    pub(crate) fn element(&self, compute: Element) -> Element {
        match (&self.data, compute) {
            (Data::Bf16(_), Element::Bf16) => Element::Bf16,
            _ => Element::F32,
        }
    }

    /// Keys (`part` 0) or values (1) of one head.
    pub(crate) fn plane(&self, layer: usize, part: usize, head: usize) -> Plane {
        let shape = &self.shape;
        let page = shape.page_size * shape.head_dim;
        Plane {
            start: ((layer * 2 + part) * shape.pages * shape.kv_heads + head) * page,
            page_stride: shape.kv_heads * page,
            page_size: shape.page_size,
            head_dim: shape.head_dim,
        }
    }

    /// Stores keys and values of `qkv` rows at `cells`. Threads split by head,
    /// so a cell named twice holds its last row whole.
    pub(crate) fn write(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        layer: usize,
        qkv: &[f32],
        width: usize,
        cells: &[u32],
    ) {
        let (kv_heads, head_dim) = (self.shape.kv_heads, self.shape.head_dim);
        let capacity = self.shape.pages * self.shape.page_size;
        assert!(layer < self.shape.layers, "layer {layer} has no cache");
        assert!(
            cells.iter().all(|&cell| (cell as usize) < capacity),
            "a cache cell lies outside the {capacity} allocated"
        );
        let planes = 2 * kv_heads;
        let first_key = width - planes * head_dim;
        let targets: [Plane; 2] = [0, 1].map(|part| self.plane(layer, part, 0));
        let plane = |index: usize| {
            let (part, head) = (index / kv_heads, index % kv_heads);
            let base = targets[part];
            Plane {
                start: base.start + head * base.page_size * head_dim,
                ..base
            }
        };
        let source = |token: usize, index: usize| {
            let start = token * width + first_key + index * head_dim;
            &qkv[start..start + head_dim]
        };
        let shares = if cells.len() * planes * head_dim <= WRITE_ALONE {
            1
        } else {
            pool.threads()
        };
        match &mut self.data {
            Data::Bf16(data) => {
                let data = Shared::new(data);
                scatter(pool, shares, planes, cells, plane, |token, index, row| {
                    // SAFETY: planes are disjoint and each belongs to one thread.
                    to_bf16(isa, source(token, index), unsafe {
                        data.slice(row..row + head_dim)
                    });
                });
            }
            Data::F32(data) => {
                let data = Shared::new(data);
                scatter(pool, shares, planes, cells, plane, |token, index, row| {
                    // SAFETY: as above.
                    let row = unsafe { data.slice(row..row + head_dim) };
                    row.copy_from_slice(source(token, index));
                });
            }
        }
    }

    /// Brings a block that will be repacked soon nearer. Long pages are left to
    /// the processor, which sees them coming.
    pub(crate) fn prefetch(&self, plane: &Plane, block: &Block<'_>) {
        let (start, size) = match &self.data {
            Data::Bf16(data) => (data.as_ptr().cast::<u8>(), 2),
            Data::F32(data) => (data.as_ptr().cast::<u8>(), 4),
        };
        if plane.page_size * plane.head_dim * size >= LONG_PAGE {
            return;
        }
        block.rows(plane, |_, row| {
            prefetch(start.wrapping_add(row * size), plane.head_dim * size);
        });
    }

    /// Repacks keys at positions `from..from + count` of one request as panels
    /// `[2][steps][32 positions]`; `count ≤ 64`.
    pub(crate) fn pack_keys(
        &self,
        isa: Isa,
        element: Element,
        plane: &Plane,
        block: &Block<'_>,
        out: &mut [u32],
    ) {
        let panel_len = element.steps(plane.head_dim) * PANEL;
        block.rows(plane, |i, row| {
            let out = &mut out[i / PANEL * panel_len + i % PANEL..];
            let end = row + plane.head_dim;
            match (&self.data, element) {
                (Data::Bf16(data), Element::Bf16) => {
                    transpose(isa, bytemuck::cast_slice(&data[row..end]), out);
                }
                (Data::F32(data), _) => {
                    transpose(isa, bytemuck::cast_slice(&data[row..end]), out);
                }
                (Data::Bf16(data), Element::F32) => {
                    for (slot, &bits) in out.iter_mut().step_by(PANEL).zip(&data[row..end]) {
                        *slot = bf16_value(bits).to_bits();
                    }
                }
            }
        });
    }

    /// Repacks values as panels `[⌈head_dim / 32⌉][steps][32 columns]`, zero
    /// past `block.count` up to a whole step.
    pub(crate) fn pack_values(
        &self,
        isa: Isa,
        element: Element,
        plane: &Plane,
        block: &Block<'_>,
        out: &mut [u32],
    ) {
        let head_dim = plane.head_dim;
        let panel_len = element.steps(BLOCK) * PANEL;
        match (&self.data, element) {
            (Data::Bf16(data), Element::Bf16) => {
                let zeros = [0u16; MAX_HEAD_DIM];
                let mut even = 0;
                block.rows(plane, |i, row| {
                    if i.is_multiple_of(2) {
                        even = row;
                    }
                    let last = i + 1 == block.count;
                    if i.is_multiple_of(2) && !last {
                        return;
                    }
                    let first = &data[even..even + head_dim];
                    let second = if i.is_multiple_of(2) {
                        &zeros[..head_dim]
                    } else {
                        &data[row..row + head_dim]
                    };
                    interleave(isa, first, second, &mut out[i / 2 * PANEL..], panel_len);
                });
            }
            (Data::F32(data), _) => block.rows(plane, |i, row| {
                let columns = data[row..row + head_dim].chunks(PANEL);
                for (panel, columns) in columns.enumerate() {
                    let start = panel * panel_len + i * PANEL;
                    out[start..start + columns.len()]
                        .copy_from_slice(bytemuck::cast_slice(columns));
                }
            }),
            (Data::Bf16(data), Element::F32) => block.rows(plane, |i, row| {
                let columns = data[row..row + head_dim].chunks(PANEL);
                for (panel, columns) in columns.enumerate() {
                    let out = &mut out[panel * panel_len + i * PANEL..];
                    for (slot, &bits) in out.iter_mut().zip(columns) {
                        *slot = bf16_value(bits).to_bits();
                    }
                }
            }),
        }
    }
}

/// The widest head the kernels take.
pub(crate) const MAX_HEAD_DIM: usize = 512;

/// Up to [`BLOCK`] positions of one request, through its page table.
pub(crate) struct Block<'a> {
    pub pages: &'a [u32],
    pub from: usize,
    pub count: usize,
}

impl Block<'_> {
    /// Calls `body(i, first element)` for each position.
    fn rows(&self, plane: &Plane, mut body: impl FnMut(usize, usize)) {
        let (mut page, mut offset) = (self.from / plane.page_size, self.from % plane.page_size);
        for i in 0..self.count {
            body(i, plane.row(self.pages[page] as usize, offset));
            offset += 1;
            if offset == plane.page_size {
                (page, offset) = (page + 1, 0);
            }
        }
    }
}

/// Asks for the `bytes` from `start` on ahead of use.
#[inline(always)]
fn prefetch(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch touches nothing and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}

fn scatter(
    pool: &mut Pool,
    shares: usize,
    planes: usize,
    cells: &[u32],
    plane: impl Fn(usize) -> Plane + Sync,
    store: impl Fn(usize, usize, usize) + Sync,
) {
    let work = |thread: usize| {
        for index in share(planes, shares, thread) {
            let plane = plane(index);
            for (token, &cell) in cells.iter().enumerate() {
                let (page, offset) = (
                    cell as usize / plane.page_size,
                    cell as usize % plane.page_size,
                );
                store(token, index, plane.row(page, offset));
            }
        }
    };
    if shares == 1 { work(0) } else { pool.run(work) }
}

multiversion! {
    /// One row of steps down a panel's column.
    fn transpose(row: &[u32], out: &mut [u32]) {
        for (slot, step) in out.iter_mut().step_by(PANEL).zip(row) {
            *slot = *step;
        }
    }
}

multiversion! {
    /// Pairs of two rows' values, 32 columns per panel.
    fn interleave(first: &[u16], second: &[u16], out: &mut [u32], panel_len: usize) {
        let columns = first.chunks(PANEL).zip(second.chunks(PANEL));
        for (panel, (first, second)) in columns.enumerate() {
            let out = &mut out[panel * panel_len..][..first.len()];
            for ((slot, low), high) in out.iter_mut().zip(first).zip(second) {
                *slot = u32::from(*low) | (u32::from(*high) << 16);
            }
        }
    }
}
