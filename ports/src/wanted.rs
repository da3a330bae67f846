//! Who waits for room that others hold.
//!
//! A request that finds none is refused at once, and comes again. What it needs may be
//! held by bodies that don't go on: they have to hear that somebody wants their room.

use std::{future::poll_fn, task::Poll};

use tokio::sync::watch;

/// Tells when somebody finds no room in a budget, or in what that is a part of. A clone
/// knows what this one knows.
#[derive(Debug, Clone)]
pub(crate) struct Wanted(Vec<watch::Receiver<()>>);

impl Wanted {
    /// Of these budgets, from now on.
    pub(crate) fn new<'b>(budgets: impl Iterator<Item = &'b watch::Sender<()>>) -> Self {
        Self(budgets.map(watch::Sender::subscribe).collect())
    }

    /// Waits until somebody is told of, which may have been before.
    pub(crate) async fn told(self) {
        let told = self.0.into_iter().map(|mut budget| {
            Box::pin(async move {
                if budget.changed().await.is_err() {
                    // Of a budget that is gone nobody wants anything.
                    std::future::pending::<()>().await;
                }
            })
        });
        let mut told: Vec<_> = told.collect();
        poll_fn(|context| {
            let mut told = told.iter_mut();
            match told.any(|told| told.as_mut().poll(context).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}
