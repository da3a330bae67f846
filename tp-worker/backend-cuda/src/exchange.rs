//! Collectives of a rank's data, by way of the host.
//!
//! A piece of the data is copied to pinned memory, ranks exchange it there, and
//! what comes of it is copied back: for ranks that share a GPU, and for those
//! whose GPUs have no way of their own to each other. The host waits for the
//! device in each piece, so that a pass with an exchange is none that a device
//! could repeat by itself.

mod pieces;

use std::ops::Range;
use std::sync::Arc;

use lockstep_backend::{Axis, BackendError, Groups, Owners, host};
use lockstep_collective::Collective;

use crate::context::Context;
use crate::error::CudaError;
use crate::floats::{Element, Floats};
use crate::memory::Pinned;
use crate::staged::Staged;
use crate::stream::Stream;
use pieces::pieces;

/// Bytes that are brought through the host at a time.
pub(crate) const PIECE: usize = 4 << 20;
/// What pieces are exchanged in, whatever they hold.
const WORD: usize = size_of::<f32>();

/// The groups that one rank is in, and the memory that its data passes through.
pub(crate) struct Exchange {
    groups: Groups,
    /// From the device: this rank's part, and logits of a block.
    own: Pinned<u8>,
    /// To the device: what the ranks' parts have become.
    all: Staged<u8>,
    /// Logits of all ranks, where they must be copied.
    gathered: Vec<f32>,
    /// Words that each rank brings to a piece.
    counts: Vec<usize>,
    /// Elements that each rank takes of a piece.
    ranges: Vec<Range<usize>>,
}

impl Exchange {
    /// Takes the pinned memory, of which a rank that is alone needs none, nor one whose
    /// data is not `staged` here.
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

    /// Bytes of the host's memory that a rank of `ranks` takes, whose blocks of
    /// logits have `own` elements, and those of all ranks that it gets `gathered`.
    pub(crate) fn host_bytes(ranks: usize, own: usize, gathered: usize) -> u64 {
        if ranks == 1 {
            return 0;
        }
        let logits = own.saturating_mul(WORD).max(PIECE);
        let all = gathered.saturating_mul(WORD).saturating_add(PIECE);
        logits.saturating_add(all) as u64
    }

    /// Takes room for blocks of `elements` logits of this rank's.
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

    /// DP ranks.
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

    /// Sums the first `len` floats of `x`, a matrix `width` wide, over the ranks of
    /// `axis`, of which there are several; rows `rows[rank]` of the sum come to its
    /// beginning.
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
        // It never passes the piece, so that what is written there has been read.
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

    /// Gathers `lens[r]` floats of each rank's `x`, this one's from `first` on, in
    /// `out`, in rank order, bit for bit; there are several ranks.
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
            // A rank whose data ends in this piece, or has ended before.
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

    /// See [`lockstep_backend::Backend::gather_to_host`]; the first `len` floats of
    /// `x` are what several ranks' logits are gathered from.
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

/// Bytes of pinned memory for either way, on one of `ranks` ranks.
fn piece_bytes(ranks: usize) -> usize {
    if ranks > 1 { PIECE } else { 0 }
}

/// Where elements of `size` bytes lie.
fn bytes(elements: &Range<usize>, size: usize) -> Range<usize> {
    elements.start * size..elements.end * size
}
