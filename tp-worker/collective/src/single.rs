//! The group of one rank.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abort::Abort;
use crate::arguments::Arguments;
use crate::{AbortHandle, Collective, CollectiveError, Parts};

/// A group of size 1: sums and broadcasts leave the data as it is.
#[derive(Debug, Clone, Default)]
pub struct Single {
    aborted: Arc<Flag>,
}

#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Abort for Flag {
    fn abort(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Single {
    /// A group of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn check(&self) -> Result<(), CollectiveError> {
        if self.aborted.0.load(Ordering::Acquire) {
            return Err(CollectiveError::Aborted { rank: 0 });
        }
        Ok(())
    }
}

impl Collective for Single {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    /// No other rank competes; how many threads this one has, it alone knows.
    fn is_crowded(&self) -> bool {
        false
    }

    fn all_reduce_sum(&mut self, _data: &mut [f32]) -> Result<(), CollectiveError> {
        self.check()
    }

    fn sum_capacity(&self) -> usize {
        0
    }

    fn sum_buffer(&mut self, length: usize) -> Result<&mut [f32], CollectiveError> {
        self.check()?;
        Arguments { rank: 0, size: 1 }.fits(length, 0)?;
        Ok(&mut [])
    }

    fn sum_parts(&mut self, length: usize) -> Result<Parts<'_>, CollectiveError> {
        self.sum_buffer(length)?;
        Ok(Parts::new(1, |_| &[]))
    }

    fn gather(
        &mut self,
        send: &[f32],
        counts: &[usize],
        recv: Option<&mut [f32]>,
    ) -> Result<(), CollectiveError> {
        self.check()?;
        Arguments { rank: 0, size: 1 }.gather(send.len(), counts, recv.as_deref())?;
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
        Arguments { rank: 0, size: 1 }.counts(send.len(), counts)?;
        Ok(Some(Parts::new(1, |_| send)))
    }

    /// Its own part needs no room.
    fn gather_capacity(&self) -> usize {
        usize::MAX
    }

    fn broadcast(&mut self, root: usize, _data: &mut [u32]) -> Result<(), CollectiveError> {
        self.check()?;
        Arguments { rank: 0, size: 1 }.root(root)
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.check()
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.aborted.clone())
    }
}
