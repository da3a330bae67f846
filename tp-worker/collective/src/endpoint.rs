//! What a transport provides, and all operations in terms of it.

use std::ops::Range;
use std::sync::Arc;

use crate::abort::Abort;
use crate::{CollectiveError, Operation};

/// One rank's end of a transport.
///
/// Operations consist of exchanges. In each, every rank fills its outgoing
/// buffer, all ranks exchange, and then read each other's buffers.
pub(crate) trait Endpoint: Send {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;

    /// Elements that an exchange can carry per rank.
    fn capacity(&self) -> usize;

    /// See [`crate::Collective::is_crowded`].
    fn is_crowded(&self) -> bool;

    /// This rank's buffer for the next exchange.
    fn outgoing(&mut self) -> &mut [f32];

    /// What `rank` sent in the exchange that ended last; for this rank itself,
    /// what it wrote to [`Self::outgoing`].
    fn incoming(&self, rank: usize) -> &[f32];

    /// Exchanges outgoing buffers under the name of `operation`.
    ///
    /// `part(from, to)` says which elements of `from`'s buffer `to` will read;
    /// others need not be transported. Returns an error, after telling the
    /// peers, if one of them names another operation.
    fn exchange(
        &mut self,
        operation: Operation,
        part: &dyn Fn(usize, usize) -> Range<usize>,
    ) -> Result<(), CollectiveError>;

    /// Takes this rank out of the group: peers that wait for it fail.
    fn leave(&mut self);

    /// Something that fails this rank's waits.
    fn aborter(&self) -> Arc<dyn Abort>;
}
