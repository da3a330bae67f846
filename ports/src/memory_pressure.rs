//! Notice of requests that find no memory because other requests hold it.
//!
//! A request without memory is refused at once, and its client tries again. The memory
//! may be held by bodies that do not go on. The readers of these bodies must learn that
//! other requests want the memory.

use std::{future::poll_fn, task::Poll};

use tokio::sync::watch;

/// Notice of a request that finds no memory in one of the watched budgets. A clone has
/// the same knowledge.
#[derive(Debug, Clone)]
pub(crate) struct MemoryPressure(Vec<watch::Receiver<()>>);

impl MemoryPressure {
    /// Watches these budgets, from now on.
    pub(crate) fn new<'b>(budgets: impl Iterator<Item = &'b watch::Sender<()>>) -> Self {
        Self(budgets.map(watch::Sender::subscribe).collect())
    }

    /// Waits until a request finds no memory; returns at once if one did since the
    /// start.
    pub(crate) async fn noticed(self) {
        let noticed = self.0.into_iter().map(|mut budget| {
            Box::pin(async move {
                if budget.changed().await.is_err() {
                    // Nobody wants memory of a budget that is gone.
                    std::future::pending::<()>().await;
                }
            })
        });
        let mut noticed: Vec<_> = noticed.collect();
        poll_fn(|context| {
            let mut noticed = noticed.iter_mut();
            match noticed.any(|noticed| noticed.as_mut().poll(context).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}
