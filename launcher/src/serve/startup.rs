//! The start of an engine, from started processes to serving.

use std::time::Duration;

use tokio::time::{Instant, interval, sleep_until};

use super::cause::{self, Cause};
use super::children::{Change, Children};
use super::progress::Progress;
use super::retry_after::FORESEEN;
use super::signals::Signals;

/// The end of a start.
pub(super) enum Started {
    /// All children serve: the scheduler has run a step on every rank.
    Ready,
    /// A child failed.
    Failed,
    /// The limit passed; these roles are not ready.
    TimedOut(String),
    /// A signal asked to stop.
    Signal(&'static str),
}

/// Waits until all children are ready. Meanwhile tells the children when that will be, if a
/// time is foreseen.
pub(super) async fn until_ready(
    children: &mut Children,
    limit: Duration,
    signals: &mut Signals,
    progress: &mut Progress,
    foresee: impl Fn() -> Option<u32>,
) -> Started {
    let deadline = Instant::now() + limit;
    let mut ticks = interval(FORESEEN);
    while !children.all_ready() {
        let change = tokio::select! {
            change = children.next() => change,
            _ = ticks.tick() => {
                children.foresee(foresee());
                continue;
            }
            name = signals.next() => return Started::Signal(name),
            () = sleep_until(deadline) => return Started::TimedOut(unready(children)),
        };
        match change {
            Change::Progress(role, phase, done, total) => {
                progress.update(role, &phase, done, total);
            }
            Change::Ready(role) => progress.done(role),
            Change::Failed(_) | Change::Exited(..) => return Started::Failed,
        }
    }
    Started::Ready
}

/// The cause of a failed start. A child that reported a failure first gets time to end.
pub(super) async fn cause(children: &mut Children) -> Option<Cause> {
    const SETTLE: Duration = Duration::from_millis(200);
    // Other children may fail because of the first. A child that was killed shows by its
    // exit.
    children
        .wait_ended(super::children::everyone, Instant::now() + SETTLE)
        .await;
    cause::find(children)
}

fn unready(children: &Children) -> String {
    let waiting: Vec<_> = children
        .members()
        .iter()
        .filter(|member| member.ready.is_none())
        .map(|member| member.child.role.to_string())
        .collect();
    waiting.join(", ")
}
