//! The group of one rank.

use std::fmt;
use std::sync::Arc;

use crate::arguments::Arguments;
use crate::attachment::Attachments;
use crate::membership::{Alone, Membership};
use crate::{AbortHandle, Collective, CollectiveError, Parts};

/// A group of size 1: sums and broadcasts leave the data as it is.
pub struct Single {
    membership: Arc<Membership>,
    crowded: bool,
    attachments: Attachments,
}

impl Single {
    /// A group of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Membership::new(0, Arc::new(Alone::default())), false)
    }

    /// A rank alone, split off from the groups of `membership`, whose ranks may
    /// crowd the machine.
    pub(crate) fn of(membership: Arc<Membership>, crowded: bool) -> Self {
        Self {
            membership,
            crowded,
            attachments: Attachments::new(1),
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

    /// All parts are the own one.
    fn copy<T: Copy>(&self, from: &[T], to: &mut [T]) -> Result<(), CollectiveError> {
        self.check()?;
        let checked = self.arguments().equal_parts(from.len(), to.len());
        self.membership.settle(checked)?;
        to.copy_from_slice(from);
        Ok(())
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

    /// Of ranks that split off alone; how many threads a rank without peers
    /// has, it alone knows.
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
        self.membership.settle(self.arguments().fits(length, 0))?;
        Ok(&mut [])
    }

    fn sum_parts(&mut self, length: usize) -> Result<Parts<'_>, CollectiveError> {
        self.sum_buffer(length)?;
        Ok(Parts::new(1, |_| &[]))
    }

    fn reduce_scatter_sum(&mut self, data: &[f32], own: &mut [f32]) -> Result<(), CollectiveError> {
        self.copy(data, own)
    }

    fn all_gather(&mut self, own: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        self.copy(own, all)
    }

    fn exchange(&mut self, words: &[u32], all: &mut [u32]) -> Result<(), CollectiveError> {
        self.copy(words, all)
    }

    fn gather(
        &mut self,
        send: &[f32],
        counts: &[usize],
        recv: Option<&mut [f32]>,
    ) -> Result<(), CollectiveError> {
        self.check()?;
        let checked = self.arguments().gather(send.len(), counts, recv.as_deref());
        self.membership.settle(checked)?;
        if let Some(recv) = recv {
            recv.copy_from_slice(send);
        }
        Ok(())
    }

    fn gather_parts<'a>(
        &'a mut self,
        send: &'a [f32],
        counts: &[usize],
    ) -> Result<Option<Parts<'a>>, CollectiveError> {
        self.check()?;
        let checked = self.arguments().counts(send.len(), counts);
        self.membership.settle(checked)?;
        Ok(Some(Parts::new(1, |_| send)))
    }

    /// Its own part needs no room.
    fn gather_capacity(&self) -> usize {
        usize::MAX
    }

    fn broadcast(&mut self, root: usize, _data: &mut [u32]) -> Result<(), CollectiveError> {
        self.check()?;
        self.membership.settle(self.arguments().root(root))
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
