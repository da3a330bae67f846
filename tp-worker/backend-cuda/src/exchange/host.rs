//! Collectives of a rank's data, by way of the host.
//!
//! A piece of the data is copied to pinned memory, ranks exchange the piece there, and the
//! result is copied back. This serves ranks that share a GPU, and ranks that cannot use NCCL.
//! The host waits for the device in each piece, so a device cannot repeat a pass with such an
//! exchange by itself.

mod pieces;

use std::ops::Range;
use std::sync::Arc;

use lockstep_backend::{Axis, BackendError, Groups, Owners, host};
use lockstep_collective::Collective;

use crate::error::CudaError;
use crate::runtime::{Context, Pinned, Staged, Stream};
use crate::tensors::{Element, Floats};
use pieces::pieces;

/// Bytes that pass through the host at a time.
pub(crate) const PIECE: usize = 4 << 20;
/// Bytes of the unit that pieces are exchanged in, whatever their elements are.
const WORD: usize = size_of::<f32>();

/// The groups that one rank is in, and the memory that its data passes through.
pub(crate) struct HostExchange {
    groups: Groups,
    /// Copies from the device: this rank's part of a piece, or its block of logits.
    own: Pinned<u8>,
    /// Copies to the device: the result of an exchange.
    all: Staged<u8>,
    /// Logits of all ranks, where they must be copied.
    gathered: Vec<f32>,
    /// Number of words that each rank brings to a piece.
    counts: Vec<usize>,
    /// Elements that each rank takes of a piece.
    ranges: Vec<Range<usize>>,
}

impl HostExchange {
    /// Allocates the pinned memory. A rank alone needs none, nor does a rank whose data is not
    /// `staged` in the host's memory.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub(crate) fn new(
        context: &Arc<Context>,
        groups: Groups,
        staged: bool,
    ) -> Result<Self, CudaError> {
        let (_, size) = groups.rank_and_size(Axis::World);
        let bytes = if staged { piece_bytes(size) } else { 0 };
        Ok(Self {
            groups,
            own: Pinned::new(context, bytes, WHAT)?,
            all: Staged::new(context, bytes, WHAT)?,
            gathered: Vec::new(),
            counts: vec![0; size],
            ranges: vec![0..0; size],
        })
    }

    /// Returns the bytes of host memory that one of `ranks` ranks takes. `own` is the number of
    /// elements in a block of its logits. `gathered` is the number of elements in all ranks'
    /// logits that it gets.
    pub(crate) fn host_bytes(ranks: usize, own: usize, gathered: usize) -> u64 {
        if ranks == 1 {
            return 0;
        }
        let logits = own.saturating_mul(WORD).max(PIECE);
        let all = gathered.saturating_mul(WORD).saturating_add(PIECE);
        logits.saturating_add(all) as u64
    }

    /// Makes room for blocks of `elements` logits of this rank.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub(crate) fn reserve_logits(
        &mut self,
        context: &Arc<Context>,
        elements: usize,
    ) -> Result<(), CudaError> {
        let bytes = elements.saturating_mul(WORD);
        if self.rank_and_size(Axis::World).1 > 1 && bytes > self.own.as_slice().len() {
            self.own = Pinned::new(context, bytes, WHAT)?;
        }
        Ok(())
    }

    pub(crate) fn rank_and_size(&self, axis: Axis) -> (usize, usize) {
        self.groups.rank_and_size(axis)
    }

    /// Number of DP ranks.
    pub(crate) fn dp_size(&self) -> usize {
        let size = |axis| self.rank_and_size(axis).1;
        size(Axis::World) / size(Axis::Attention)
    }

    /// The group of `axis`.
    pub(crate) fn of(&mut self, axis: Axis) -> &mut dyn Collective {
        self.groups.of(axis)
    }

    /// Sums the first `len` floats of `x` over the ranks of `axis`.
    ///
    /// # Errors
    /// [`BackendError::Collective`], [`BackendError::Device`].
    pub(crate) fn all_reduce(
        &mut self,
        stream: &Stream,
        axis: Axis,
        x: &mut Floats,
        len: usize,
    ) -> Result<(), BackendError> {
        x.expect(Element::F32, len, "what is summed over ranks");
        let Self { groups, all, .. } = self;
        let group = groups.of(axis);
        if group.size() == 1 {
            return Ok(());
        }
        for piece in pieces(len, PIECE / WORD) {
            let bytes = bytes(&piece, WORD);
            let part = &mut all.elements()?[..bytes.len()];
            x.download_bytes(stream, bytes.start, part)?;
            group.all_reduce_sum(bytemuck::cast_slice_mut(part))?;
            x.receive(stream, all, 0..bytes.len(), bytes.start)?;
        }
        Ok(())
    }

    /// Sums the first `len` floats of `x` over the ranks of `axis`; `x` is a matrix of `width`
    /// columns. Rows `rows[rank]` of the sum are written to its beginning. There must be
    /// several ranks.
    ///
    /// # Errors
    /// [`BackendError::Collective`], [`BackendError::Device`].
    pub(crate) fn reduce_scatter(
        &mut self,
        stream: &Stream,
        axis: Axis,
        x: &mut Floats,
        len: usize,
        rows: &[Range<usize>],
        width: usize,
    ) -> Result<(), BackendError> {
        x.expect(Element::F32, len, "what is summed over ranks");
        let (rank, _) = self.rank_and_size(axis);
        let group = self.groups.of(axis);
        // The writes never pass the current piece, so they overwrite elements that were read.
        let mut at = 0;
        for piece in pieces(len, PIECE / WORD) {
            let part = bytes(&piece, WORD);
            let own = &mut self.own.as_mut_slice()[..part.len()];
            x.download_bytes(stream, part.start, own)?;
            host::elements_of(&mut self.ranges, rows, width, &piece);
            let taken = self.ranges[rank].len() * WORD;
            let sum = &mut self.all.elements()?[..taken];
            let (own, sum) = (bytemuck::cast_slice(own), bytemuck::cast_slice_mut(sum));
            group.reduce_scatter_sum(own, &self.ranges, sum)?;
            x.receive(stream, &mut self.all, 0..taken, at)?;
            at += taken;
        }
        Ok(())
    }

    /// Gathers `lens[r]` floats of each rank's `x` into `out`, in rank order, bit for bit. This
    /// rank's floats begin at `first`. There must be several ranks.
    ///
    /// # Errors
    /// [`BackendError::Collective`], [`BackendError::Device`].
    pub(crate) fn all_gather(
        &mut self,
        stream: &Stream,
        axis: Axis,
        x: &Floats,
        first: usize,
        lens: &(impl Iterator<Item = usize> + Clone),
        out: &mut Floats,
    ) -> Result<(), BackendError> {
        let size = x.element().bytes();
        x.expect(out.element(), 0, "what is gathered");
        let (rank, ranks) = self.rank_and_size(axis);
        let group = self.groups.of(axis);
        let longest = lens.clone().max().unwrap_or(0);
        // Two elements of the smallest type make a word.
        let each = PIECE / ranks / WORD * WORD / size;
        for piece in pieces(longest, each) {
            // The part of a rank's data inside this piece, which is short or empty if the data
            // ends here or before.
            let inside = |len: usize| piece.start.min(len)..piece.end.min(len);
            self.counts.clear();
            let words = |len| bytes(&inside(len), size).len().div_ceil(WORD);
            self.counts.extend(lens.clone().map(words));
            let own_len = lens.clone().nth(rank).unwrap_or(0);
            let part = bytes(&inside(own_len), size);
            let own = &mut self.own.as_mut_slice()[..self.counts[rank] * WORD];
            x.download_bytes(stream, first * size + part.start, &mut own[..part.len()])?;
            let total: usize = self.counts.iter().sum();
            let all = &mut self.all.elements()?[..total * WORD];
            let (own, all) = (bytemuck::cast_slice(own), bytemuck::cast_slice_mut(all));
            group.all_gather(own, &self.counts, all)?;
            let (mut from, mut to) = (0, 0);
            for (words, len) in self.counts.iter().zip(lens.clone()) {
                let part = bytes(&inside(len), size);
                let source = from..from + part.len();
                out.receive(stream, &mut self.all, source, to + part.start)?;
                from += words * WORD;
                to += len * size;
            }
        }
        Ok(())
    }

    /// See [`lockstep_backend::Exchange::gather_to_host`]. The logits of several ranks are
    /// gathered from the first `len` floats of each rank's `x`.
    ///
    /// # Errors
    /// [`BackendError::Collective`], [`BackendError::Device`].
    pub(crate) fn gather_to_host<'a>(
        &mut self,
        stream: &Stream,
        axis: Axis,
        x: &Floats,
        len: usize,
        owners: Owners<'_>,
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError> {
        x.expect(Element::F32, len, "what is brought to the host");
        let (rank, _) = self.rank_and_size(axis);
        let own = &mut self.own.as_mut_slice()[..len * WORD];
        x.download_bytes(stream, 0, own)?;
        let own: &[f32] = bytemuck::cast_slice(own);
        let group = self.groups.of(axis);
        let parts = host::gather_columns(group, own, owners, &mut self.gathered)?;
        let width = owners.widths.iter().sum::<usize>();
        let space = host::grown(space, owners.rows[rank].len() * width);
        for (row, out) in space.chunks_exact_mut(width.max(1)).enumerate() {
            host::copy_row(&parts, owners.widths, row, out);
        }
        Ok(space)
    }
}

const WHAT: &str = "what ranks exchange";

/// Bytes of pinned memory for either direction, on one of `ranks` ranks.
fn piece_bytes(ranks: usize) -> usize {
    if ranks > 1 { PIECE } else { 0 }
}

/// Byte range of elements of `size` bytes each.
fn bytes(elements: &Range<usize>, size: usize) -> Range<usize> {
    elements.start * size..elements.end * size
}
