//! Every kind of operation once, before anything is recorded or memory is measured.
//!
//! NCCL connects ranks when they first ask for an operation that needs it: a kind of
//! collective, or a letter from one rank to another. That takes memory of the device,
//! which the KV cache is sized around, and it is no work that a graph could record. So
//! ranks ask for a word of each as they start. What larger ones need besides, since NCCL
//! chooses algorithms by size, passes ask for by themselves: each runs once before it is
//! recorded.

use std::iter::repeat_n;

use lockstep_backend::{Axis, Owners};

use super::{CollectiveOptions, Plane};
use crate::error::CudaError;
use crate::floats::{Element, Floats};
use crate::memory::Buffer;
use crate::stream::Stream;

const WHAT: &str = "the first word of each collective";

impl Plane {
    /// Asks for each kind that ranks use in any group, and waits. All ranks call it
    /// together, with what `ranks` says of each axis: the rank's number and how many
    /// there are. That they connect is a part of their joining, and may take as long.
    /// Where it fails, its communicators are aborted.
    ///
    /// # Errors
    /// [`CudaError::Nccl`], [`CudaError::Peers`] where one does not come,
    /// [`CudaError::OutOfMemory`].
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
            // Before the room is given back, which waits for what the device waits for.
            Err(_) => self.abort(),
        }
        done
    }

    /// Asks for a word of each kind, with room for a float of each rank, that again, and a
    /// word.
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
        // What DP ranks bring to each other, and the columns of leads.
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
