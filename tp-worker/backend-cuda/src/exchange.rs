//! Exchange of ranks' data, from device to device or through the host.

pub(crate) mod host;
pub(crate) mod nccl;
pub(crate) mod notes;
mod progress;
mod watchdog;

use std::ops::Range;
use std::sync::Arc;

use lockstep_backend::{Axis, BackendError, CollectiveCall, Groups, Owners};
use lockstep_collective::Collective;

use crate::error::CudaError;
use crate::runtime::{Buffer, Context, Stream};
use crate::tensors::Floats;
pub(crate) use host::HostExchange;
pub(crate) use nccl::Communicator;
pub use nccl::{CollectiveOptions, Nccl};
use nccl::{Farewell, NcclExchange};
pub(crate) use notes::NoteBuffers;

/// Exchange of data between ranks, in one of two ways. NCCL carries the data from device to
/// device, in the stream's order. Otherwise the data passes through the host, which waits.
/// Operations call the same functions for both.
pub(crate) struct RankExchange {
    /// Dropped first, so that peers see a rank leave only after its data is done.
    device: Option<NcclExchange>,
    host: HostExchange,
    /// The reason why there is no exchange from device to device.
    why: String,
    /// Memory of the GPU, in bytes, that NCCL was seen to take.
    taken: u64,
    /// Dropped last: this rank's NCCL may wait for operations of its peers. Peers end these when
    /// they see this rank leave.
    _farewell: Option<Farewell>,
}

impl RankExchange {
    /// Agrees with all ranks on the way of their data.
    ///
    /// # Errors
    /// [`CudaError`]: no memory, a peer that is gone, or a requested backend that can't be
    /// used.
    pub(crate) fn new(
        stream: &mut Stream,
        mut groups: Groups,
        options: &CollectiveOptions,
    ) -> Result<Self, CudaError> {
        let context = stream.context().clone();
        let (before, _) = context.memory()?;
        let agreed = nccl::agreed(stream, &mut groups, options)?;
        let (device, why) = match agreed {
            Ok(nccl) => (Some(nccl), String::new()),
            Err(why) => (None, why),
        };
        let mut taken = 0;
        if device.is_some() {
            let (after, _) = context.memory()?;
            taken = before.saturating_sub(after) as u64;
        } else if groups.rank_and_size(Axis::World).1 > 1 {
            tracing::info!("data of ranks passes through the host's memory: {why}");
        }
        let staged = device.is_none();
        Ok(Self {
            _farewell: device.as_ref().map(NcclExchange::farewell),
            device,
            host: HostExchange::new(&context, groups, staged)?,
            why,
            taken,
        })
    }

    /// True if data goes in the stream's order, without the host.
    pub(crate) fn on_stream(&self) -> bool {
        self.device.is_some()
    }

    /// Communicators, which recorded passes hold as long as they live.
    pub(crate) fn communicators(&self) -> [Option<Arc<Communicator>>; 2] {
        self.device
            .as_ref()
            .map_or([None, None], NcclExchange::communicators)
    }

    /// Loss of the GPU's free memory, in bytes, while ranks joined and used each operation once.
    /// It includes memory that other users of the GPU took meanwhile.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Describes the exchange for people; `None` for a rank alone.
    pub(crate) fn describe(&self) -> Option<String> {
        match (&self.device, self.rank_and_size(Axis::World).1) {
            (_, 1) => None,
            (Some(nccl), ranks) => {
                let mib = self.taken as f64 / f64::from(1 << 20);
                let name = nccl.describe();
                Some(format!("{name} between {ranks} ranks ({mib:.1} MiB)"))
            }
            (None, _) => Some(format!("data through the host ({})", self.why)),
        }
    }

    /// Ends a pass without results for the host. Waits for data on its way, so that a lost peer
    /// is an error of this step.
    ///
    /// # Errors
    /// [`CudaError::Peers`], [`CudaError::Driver`].
    pub(crate) fn arrive(&self, stream: &Stream) -> Result<(), CudaError> {
        match &self.device {
            Some(_) => stream.synchronize(),
            None => Ok(()),
        }
    }

    /// Tells the watch that a recorded pass with these collectives is about to be launched.
    pub(crate) fn begin(&self, exchanges: &[CollectiveCall]) {
        if let Some(nccl) = &self.device {
            nccl.watched().begin(exchanges);
        }
    }

    /// See [`Exchange::reserve_logits`].
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub(crate) fn reserve_logits(
        &mut self,
        context: &Arc<Context>,
        elements: usize,
    ) -> Result<(), CudaError> {
        match &self.device {
            Some(_) => Ok(()),
            None => self.host.reserve_logits(context, elements),
        }
    }

    pub(crate) fn rank_and_size(&self, axis: Axis) -> (usize, usize) {
        self.host.rank_and_size(axis)
    }

    /// Number of DP ranks.
    pub(crate) fn dp_size(&self) -> usize {
        self.host.dp_size()
    }

    /// The hosts' group of `axis`.
    pub(crate) fn of(&mut self, axis: Axis) -> &mut dyn Collective {
        self.host.of(axis)
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
        let (_, size) = self.rank_and_size(axis);
        match &self.device {
            Some(nccl) if size > 1 => Ok(nccl.all_reduce(stream, axis, x, len)?),
            _ => self.host.all_reduce(stream, axis, x, len),
        }
    }

    /// Sums the first `len` floats of `x` over the ranks of `axis`; `x` is a matrix of `width`
    /// columns. Returns the index in `x` at which rows `rows[rank]` of the sum begin. There
    /// must be several ranks.
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
    ) -> Result<usize, BackendError> {
        let (rank, _) = self.rank_and_size(axis);
        match &self.device {
            Some(nccl) => {
                let of = (axis, rank);
                Ok(nccl.reduce_scatter(stream, of, x, len, rows, width)?)
            }
            None => {
                let host = &mut self.host;
                host.reduce_scatter(stream, axis, x, len, rows, width)?;
                Ok(0)
            }
        }
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
        let (rank, _) = self.rank_and_size(axis);
        match &self.device {
            Some(nccl) => {
                let of = (axis, rank);
                Ok(nccl.all_gather(stream, of, x, first, lens, out)?)
            }
            None => self.host.all_gather(stream, axis, x, first, lens, out),
        }
    }

    /// Gathers the `words` of each rank in `all`, in rank order. There must be several ranks,
    /// and their data goes in the stream's order.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    pub(crate) fn gather_words(
        &self,
        stream: &Stream,
        words: &Buffer<u32>,
        all: &mut Buffer<u32>,
    ) -> Result<(), CudaError> {
        let nccl = self.device.as_ref();
        nccl.map_or(Ok(()), |nccl| nccl.gather_words(stream, words, all))
    }

    /// See [`NcclExchange::collect`]. There must be several ranks, and their data goes in the
    /// stream's order.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    pub(crate) fn collect(
        &self,
        stream: &Stream,
        axis: Axis,
        x: &Floats,
        owners: Owners<'_>,
        parts: Option<&mut Floats>,
    ) -> Result<(), CudaError> {
        let (rank, _) = self.rank_and_size(axis);
        let nccl = self.device.as_ref();
        nccl.map_or(Ok(()), |nccl| {
            nccl.collect(stream, (axis, rank), x, owners, parts)
        })
    }

    /// See [`NcclExchange::tell`]. There must be several ranks, and their data goes in the
    /// stream's order.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    pub(crate) fn tell(
        &self,
        stream: &Stream,
        axis: Axis,
        words: &mut Buffer<u32>,
        told: Range<usize>,
    ) -> Result<(), CudaError> {
        let nccl = self.device.as_ref();
        nccl.map_or(Ok(()), |nccl| nccl.tell(stream, axis, words, told))
    }

    /// See [`lockstep_backend::Exchange::gather_to_host`]. Logits are gathered from the first
    /// `len` floats of `x`, which has room for `capacity` rows. There must be several ranks.
    ///
    /// # Errors
    /// [`BackendError::Collective`], [`BackendError::Device`].
    pub(crate) fn gather_to_host<'a>(
        &mut self,
        stream: &Stream,
        axis: Axis,
        (x, len, capacity): (&Floats, usize, usize),
        owners: Owners<'_>,
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError> {
        let (rank, _) = self.rank_and_size(axis);
        match &mut self.device {
            Some(nccl) => nccl.gather_to_host(stream, (axis, rank), (x, capacity), owners, space),
            None => {
                let host = &mut self.host;
                host.gather_to_host(stream, axis, x, len, owners, space)
            }
        }
    }
}
