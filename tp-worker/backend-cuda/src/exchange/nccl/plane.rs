//! Exchange of ranks' data from device to device, in the stream's order.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lockstep_backend::{Axis, ExchangeKind, Exchanged, Groups};

use super::library::{BF16, F32, Library};
use super::{Communicator, Farewell};
use crate::error::CudaError;
use crate::exchange::watch::{Watch, Watched, Way};
use crate::runtime::{Buffer, Context, Pinned, Stream};
use crate::tensors::{Element, Floats};

/// A rank's communicators, and the thread that watches them.
///
/// Operations are queued and return. Only [`Self::gather_to_host`] waits.
pub(crate) struct Plane {
    library: Arc<Library>,
    /// Dropped before the communicators.
    _watch: Watch,
    /// Communicators of all ranks and of the DP rank; `None` for a group of one rank.
    communicators: [Option<Arc<Communicator>>; 2],
    watched: Arc<Watched>,
    ranks: usize,
    /// All ranks' columns of a block of logits whose rows this rank owns, on the device and on
    /// the host.
    pub(super) logits: Option<(Buffer<f32>, Pinned<f32>)>,
}

impl Plane {
    /// # Errors
    /// [`CudaError::Unsupported`] if no thread can be started that watches.
    pub(super) fn new(
        groups: &mut Groups,
        library: &Arc<Library>,
        communicators: [Option<Arc<Communicator>>; 2],
        patience: Duration,
    ) -> Result<Self, CudaError> {
        let (_, ranks) = groups.rank_and_size(Axis::World);
        let [world, attention] = &communicators;
        let shared = matches!((world, attention), (Some(a), Some(b)) if Arc::ptr_eq(a, b));
        let own = attention.iter().filter(|_| !shared);
        let all = world.iter().chain(own);
        let all = all.map(|one| one.clone() as Arc<dyn Way>).collect();
        let watched = Watched::new(groups, patience);
        Ok(Self {
            library: library.clone(),
            _watch: Watch::over(all, watched.clone())?,
            communicators,
            watched,
            ranks,
            logits: None,
        })
    }

    /// The watch, which knows whether the contents of a stream are data.
    pub(crate) fn watched(&self) -> &Arc<Watched> {
        &self.watched
    }

    /// Guard that waits for the end of the communicators.
    pub(crate) fn farewell(&self) -> Farewell {
        let all = self.communicators.iter().flatten();
        Farewell::of(all.map(|one| one.ending().clone()).collect())
    }

    /// Aborts the communicators, and thereby the operations that the device waits for.
    pub(super) fn abort(&self) {
        let all = self.communicators.iter().flatten();
        all.for_each(|one| one.abort());
    }

    /// Communicators, which recorded passes hold as long as they live.
    pub(crate) fn communicators(&self) -> [Option<Arc<Communicator>>; 2] {
        self.communicators.clone()
    }

    /// Name and version: "NCCL 2.28.3".
    pub(crate) fn describe(&self) -> String {
        format!("NCCL {}", self.library.version())
    }

    /// The communicator of `axis`, which has several ranks.
    pub(super) fn of(&self, axis: Axis) -> &Communicator {
        let number = match axis {
            Axis::World => 0,
            Axis::Attention | Axis::Alone => 1,
        };
        let found = self.communicators[number].as_ref();
        found.unwrap_or_else(|| panic!("{axis:?} has several ranks"))
    }

    /// Notes a collective on the stream's tape; returns true if the collective is to run.
    pub(super) fn note(&self, stream: &Stream, exchanged: &Exchanged, places: [u64; 2]) -> bool {
        let asked = stream.tape().note_exchange(exchanged, places);
        // A recorded collective is not under way yet.
        if asked && !stream.tape().records() {
            self.watched.begin(&[*exchanged]);
        }
        asked
    }

    /// Sums the first `len` floats of `x` over the ranks of `axis`.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    pub(crate) fn all_reduce(
        &self,
        stream: &Stream,
        axis: Axis,
        x: &mut Floats,
        len: usize,
    ) -> Result<(), CudaError> {
        x.expect(Element::F32, len, "what is summed over ranks");
        let at = x.address();
        let exchanged = Exchanged::sum(axis, len);
        if !exchanged.is_some_and(|one| self.note(stream, &one, [at, at])) {
            return Ok(());
        }
        // SAFETY: `x` has as many floats, and memory is freed behind the stream.
        let ask = |nccl: &Library, raw| unsafe { nccl.sum(raw, at, len, stream.raw()) };
        self.of(axis).ask("ncclAllReduce", ask)
    }

    /// Sums the first `len` floats of `x` over the ranks of `axis`; `x` is a matrix of `width`
    /// columns. Returns the index in `x` at which rows `rows[rank]` of the sum begin.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    pub(crate) fn reduce_scatter(
        &self,
        stream: &Stream,
        (axis, rank): (Axis, usize),
        x: &mut Floats,
        len: usize,
        rows: &[Range<usize>],
        width: usize,
    ) -> Result<usize, CudaError> {
        let own = rows[rank].start * width;
        let exchanged = match Exchanged::scatter(axis, len, rows, width) {
            Some(parts) if parts.kind == ExchangeKind::ReduceScatter => parts,
            // Several ranks take the same rows, or the ranks take different numbers of rows.
            _ => {
                self.all_reduce(stream, axis, x, len)?;
                return Ok(own);
            }
        };
        x.expect(Element::F32, len, "what is summed over ranks");
        let (from, count) = (x.address(), exchanged.elements);
        let to = from + (own * Element::F32.bytes()) as u64;
        if !self.note(stream, &exchanged, [from, to]) {
            return Ok(own);
        }
        let places = (from, to);
        // SAFETY: as above; the part that is written is where NCCL wants it.
        let ask = |nccl: &Library, raw| unsafe { nccl.scatter(raw, places, count, stream.raw()) };
        self.of(axis).ask("ncclReduceScatter", ask)?;
        Ok(own)
    }

    /// Gathers `lens[r]` floats of each rank's `x` into `out`, in rank order, bit for bit. This
    /// rank's floats begin at `first`.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    pub(crate) fn all_gather(
        &self,
        stream: &Stream,
        (axis, rank): (Axis, usize),
        x: &Floats,
        first: usize,
        lens: &(impl Iterator<Item = usize> + Clone),
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        let element = x.element();
        let (own, total) = (lens.clone().nth(rank).unwrap_or(0), lens.clone().sum());
        x.expect(element, first + own, "what is gathered");
        out.expect(element, total, "what is gathered in");
        let from = x.address() + (first * element.bytes()) as u64;
        // SAFETY: the sizes were checked just now.
        unsafe { self.gather(stream, axis, (from, out.address()), element, lens) }
    }

    /// Gathers the `words` of each rank in `all`, in rank order.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    ///
    /// # Panics
    /// Panics if `all` has no room for the words of all ranks.
    pub(crate) fn gather_words(
        &self,
        stream: &Stream,
        words: &Buffer<u32>,
        all: &mut Buffer<u32>,
    ) -> Result<(), CudaError> {
        let (places, len) = ((words.address(), all.address()), words.len());
        assert!(self.ranks * len <= all.len(), "there is room for all words");
        let lens = std::iter::repeat_n(len, self.ranks);
        // The words go as floats; a gather changes no bit of them.
        // SAFETY: the sizes were checked just now.
        unsafe { self.gather(stream, Axis::World, places, Element::F32, &lens) }
    }

    /// Gathers `lens[r]` elements of each rank: in one collective if all lengths are equal,
    /// otherwise by one broadcast after another.
    ///
    /// # Safety
    /// This rank's elements lie at `from`, and there is room for the elements of all ranks at
    /// `to`.
    unsafe fn gather(
        &self,
        stream: &Stream,
        axis: Axis,
        (from, to): (u64, u64),
        element: Element,
        lens: &(impl Iterator<Item = usize> + Clone),
    ) -> Result<(), CudaError> {
        let kind = match element {
            Element::F32 => F32,
            Element::Bf16 => BF16,
        };
        let (raw, size) = (stream.raw(), element.bytes() as u64);
        let all = Exchanged::gather(axis, lens.clone(), element.dtype());
        let starts = lens.clone().scan(0, |start, len| {
            *start += len as u64;
            Some(*start - len as u64)
        });
        let place = |one: &Exchanged| match one.kind {
            ExchangeKind::Broadcast => to + starts.clone().nth(one.root).unwrap_or(0) * size,
            _ => to,
        };
        // All collectives are noted, whether they run or not.
        let noted = all
            .clone()
            .map(|one| self.note(stream, &one, [from, place(&one)]));
        if !noted.fold(true, |all, runs| all & runs) {
            return Ok(());
        }
        let ask = |nccl: &Library, group| {
            nccl.grouped(|| {
                let codes = all.clone().map(|one| {
                    let (places, what) = ((from, place(&one)), (one.elements, kind));
                    // SAFETY: the caller's; nothing is read at `from` on ranks that don't send.
                    unsafe {
                        match one.kind {
                            ExchangeKind::Broadcast => {
                                nccl.broadcast(group, places, what, one.root, raw)
                            }
                            _ => nccl.gather(group, places, what, raw),
                        }
                    }
                });
                codes.fold(0, |all, code| if all == 0 { code } else { all })
            })
        };
        match all.clone().next() {
            Some(_) => self.of(axis).ask("ncclAllGather", ask),
            None => Ok(()),
        }
    }

    /// Makes room for `elements` logits, here and on the host.
    pub(super) fn reserve(
        &mut self,
        context: &Arc<Context>,
        elements: usize,
    ) -> Result<(), CudaError> {
        let room = self.logits.as_ref().map_or(0, |(all, _)| all.len());
        if self.logits.is_none() || room < elements {
            self.logits = None;
            let (what, on_host) = ("all ranks' logits", "all ranks' logits on the host");
            let all = Buffer::new(context, elements, what)?;
            self.logits = Some((all, Pinned::new(context, elements, on_host)?));
        }
        Ok(())
    }
}
