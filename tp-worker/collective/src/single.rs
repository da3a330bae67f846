//! The group of one rank.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::arguments::Arguments;
use crate::attachment::Attachments;
use crate::membership::{Alone, Membership};
use crate::{AbortHandle, Collective, CollectiveError, Owners, Parts};

/// A group of one rank: sums and broadcasts leave the data as it is.
pub struct Single {
    membership: Arc<Membership>,
    crowded: bool,
    attachments: Attachments,
    /// This rank's part of the next sum, if it was asked for.
    lent: Vec<f32>,
}

impl Single {
    /// Makes a first group of one rank.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Membership::new(0, Arc::new(Alone::default())), false)
    }

    /// Makes a group of one rank that is split off from the groups of `membership`. Their ranks
    /// may crowd the machine.
    pub(crate) fn of(membership: Arc<Membership>, crowded: bool) -> Self {
        Self {
            membership,
            crowded,
            attachments: Attachments::new(1),
            lent: Vec::new(),
        }
    }

    fn check(&self) -> Result<(), CollectiveError> {
        self.membership.check_aborted()
    }

    fn arguments(&self) -> Arguments {
        Arguments {
            rank: 0,
            size: 1,
            name: self.membership.name,
        }
    }

    /// Checks the group, and fails if `checked` does.
    fn settle(
        &self,
        checked: impl FnOnce(Arguments) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        self.check()?;
        self.membership.settle(checked(self.arguments()))
    }
}

impl Default for Single {
    fn default() -> Self {
        Self::new()
    }
}

impl Collective for Single {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    /// Returns the value of the group that the rank was split off from. A rank without peers
    /// knows its number of threads itself.
    fn is_crowded(&self) -> bool {
        self.crowded
    }

    fn all_reduce_sum(&mut self, _data: &mut [f32]) -> Result<(), CollectiveError> {
        self.check()
    }

    fn sum_capacity(&self) -> usize {
        0
    }

    fn sum_buffer(&mut self, length: usize) -> Result<&mut [f32], CollectiveError> {
        self.check()?;
        // The buffer never shrinks, so that growing again does not fill it with zeros.
        if self.lent.len() < length {
            self.lent.resize(length, 0.0);
        }
        Ok(&mut self.lent[..length])
    }

    fn sum_parts(&mut self, length: usize) -> Result<Parts<'_>, CollectiveError> {
        self.settle(|arguments| arguments.fits(length, 0))?;
        Ok(Parts::new(1, |_| &[]))
    }

    fn reduce_scatter_sum(
        &mut self,
        data: &[f32],
        ranges: &[Range<usize>],
        own: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.settle(|arguments| {
            arguments.ranges(data.len(), ranges)?;
            arguments.range(&ranges[0], own.len())
        })?;
        own.copy_from_slice(&data[ranges[0].clone()]);
        Ok(())
    }

    fn reduce_scatter_parts(
        &mut self,
        length: usize,
        ranges: &[Range<usize>],
    ) -> Result<Parts<'_>, CollectiveError> {
        let lent = self.lent.len();
        self.settle(|arguments| {
            arguments.fits(length, lent)?;
            arguments.ranges(length, ranges)
        })?;
        Ok(Parts::new(1, |_| &self.lent[ranges[0].clone()]))
    }

    fn all_gather(
        &mut self,
        own: &[f32],
        counts: &[usize],
        all: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.settle(|arguments| arguments.all_gather(own.len(), counts, all.len()))?;
        all.copy_from_slice(own);
        Ok(())
    }

    fn exchange(&mut self, words: &[u32], all: &mut [u32]) -> Result<(), CollectiveError> {
        self.settle(|arguments| arguments.equal_parts(words.len(), all.len()))?;
        all.copy_from_slice(words);
        Ok(())
    }

    fn agree(&mut self, _words: &[u32]) -> Result<(), CollectiveError> {
        self.check()
    }

    fn gather(
        &mut self,
        send: &[f32],
        owners: Owners<'_>,
        recv: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.settle(|arguments| {
            arguments.sends(send.len(), owners)?;
            arguments.receives(recv.len(), owners)
        })?;
        recv.copy_from_slice(&send[owners.part(0, 0)]);
        Ok(())
    }

    fn gather_parts<'a>(
        &'a mut self,
        send: &'a [f32],
        owners: Owners<'_>,
    ) -> Result<Parts<'a>, CollectiveError> {
        self.settle(|arguments| arguments.sends(send.len(), owners))?;
        Ok(Parts::new(1, |_| &send[owners.part(0, 0)]))
    }

    /// Returns no limit: the rank's own part needs no room.
    fn parts_capacity(&self) -> usize {
        usize::MAX
    }

    fn broadcast(&mut self, root: usize, _data: &mut [u32]) -> Result<(), CollectiveError> {
        self.settle(|arguments| arguments.root(root))
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.check()
    }

    fn attach(&mut self, shared: usize, words: &[u32]) -> Result<(), CollectiveError> {
        self.check()?;
        let checked = self.arguments().attachment(shared, words);
        let own = self.membership.settle(checked)?;
        self.attachments.travelled(1, |_| own);
        Ok(())
    }

    fn attached(&self, all: &mut [u32]) -> bool {
        self.attachments.copy_to(all)
    }

    fn split(&mut self, _color: u32) -> Result<Box<dyn Collective>, CollectiveError> {
        self.check()?;
        Ok(Box::new(Self::of(self.membership.clone(), self.crowded)))
    }

    fn abort_handle(&self) -> AbortHandle {
        self.membership.abort_handle()
    }
}

impl fmt::Debug for Single {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} alone", self.membership.name)
    }
}
