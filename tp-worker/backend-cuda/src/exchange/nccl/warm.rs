//! First use of every kind of operation, before memory is measured and passes are recorded.
//!
//! NCCL connects ranks at the first operation that needs the connection: a kind of collective,
//! or a letter from one rank to another. Connecting takes memory of the device, which the KV
//! cache is sized around, and a graph can't record it. So ranks exchange a word by each kind as
//! they start. NCCL chooses algorithms by size, so larger operations may need more. Passes get
//! that by themselves, since each runs once before it is recorded.

use std::iter::repeat_n;

use lockstep_backend::{Axis, Owners};

use super::{CollectiveOptions, Plane};
use crate::error::CudaError;
use crate::runtime::{Buffer, Stream};
use crate::tensors::{Element, Floats};

const WHAT: &str = "the first word of each collective";

impl Plane {
    /// Uses each kind of operation that ranks use in any group, and waits. All ranks call this
    /// together. `ranks` gives the rank's number and the number of ranks of an axis. Connecting
    /// is part of joining and may take as long. If it fails, the communicators are aborted.
    ///
    /// # Errors
    /// [`CudaError::Nccl`], [`CudaError::OutOfMemory`]; [`CudaError::Peers`] if a peer does not
    /// come.
    pub(super) fn warm_up(
        &self,
        stream: &Stream,
        options: &CollectiveOptions,
        ranks: impl Fn(Axis) -> (usize, usize),
    ) -> Result<(), CudaError> {
        let [(_, all), _] = [Axis::World, Axis::Attention].map(&ranks);
        let context = stream.context();
        let floats = |len| Floats::new(context, Element::F32, len, WHAT);
        let (mut own, mut every) = (floats(all)?, floats(all)?);
        let mut words = Buffer::new(context, 1, WHAT)?;
        let CollectiveOptions {
            joining, patience, ..
        } = options;
        self.watched().wait_for(*joining.max(patience));
        let asked = self.first_words(stream, ranks, (&mut own, &mut every, &mut words));
        let done = asked.and_then(|()| stream.synchronize());
        match done {
            Ok(()) => self.watched().wait_for(*patience),
            // The abort comes before the buffers are freed: freeing waits for the device.
            Err(_) => self.abort(),
        }
        done
    }

    /// Exchanges a word by each kind of operation. `own` and `every` have a float for each
    /// rank, and `words` has one word.
    fn first_words(
        &self,
        stream: &Stream,
        ranks: impl Fn(Axis) -> (usize, usize),
        (own, every, words): (&mut Floats, &mut Floats, &mut Buffer<u32>),
    ) -> Result<(), CudaError> {
        let [(rank, all), (_, near)] = [Axis::World, Axis::Attention].map(ranks);
        let axes = match near {
            1 => &[Axis::World][..],
            same if same == all => &[Axis::World],
            _ => &[Axis::World, Axis::Attention],
        };
        own.fill(stream, 0)?;
        every.fill(stream, 0)?;
        stream.fill(words, 0)?;
        for axis in axes {
            self.all_reduce(stream, *axis, own, 1)?;
            self.tell(stream, *axis, words, 0..1)?;
        }
        // The exchanges between DP ranks, and the columns of leads.
        let world = (Axis::World, rank);
        let ones = repeat_n(1, all);
        self.all_gather(stream, world, own, 0, &ones, every)?;
        let rows: Vec<_> = (0..all).map(|rank| rank..rank + 1).collect();
        self.reduce_scatter(stream, world, every, all, &rows, 1)?;
        let lead = |rank: usize| match rank % near {
            0 => rank / near..rank / near + 1,
            _ => 0..0,
        };
        let (widths, leads): (Vec<_>, Vec<_>) = (0..all).map(|rank| (1, lead(rank))).unzip();
        let owners = Owners {
            widths: &widths,
            rows: &leads,
        };
        let takes = (rank % near == 0).then_some(every);
        self.collect(stream, world, own, owners, takes)
    }
}
