//! From started processes to an engine that serves.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::cause::{self, Cause};
use super::group::{Change, Group};
use super::progress::Progress;
use super::signals::Signals;

/// How a start ended.
pub(super) enum Started {
    /// All serve: the scheduler has run a step on every rank.
    Ready,
    /// One of them failed.
    Failed,
    /// The limit passed; these are not ready.
    TimedOut(String),
    /// Somebody asked to stop.
    Signal(&'static str),
}

/// Waits until all children are ready.
pub(super) async fn until_ready(
    group: &mut Group,
    limit: Duration,
    signals: &mut Signals,
    progress: &mut Progress,
) -> Started {
    let deadline = Instant::now() + limit;
    while !group.all_ready() {
        let change = tokio::select! {
            change = group.next() => change,
            name = signals.next() => return Started::Signal(name),
            () = sleep_until(deadline) => return Started::TimedOut(unready(group)),
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

/// The cause of a failed start, after giving a child that reported a failure
/// the time to end.
pub(super) async fn cause(group: &mut Group) -> Option<Cause> {
    const SETTLE: Duration = Duration::from_millis(200);
    // Others may fail because of the first; who was killed shows by its exit.
    group
        .wait_ended(super::group::everyone, Instant::now() + SETTLE)
        .await;
    cause::find(group)
}

fn unready(group: &Group) -> String {
    let waiting: Vec<_> = group
        .members()
        .iter()
        .filter(|member| member.ready.is_none())
        .map(|member| member.child.role.to_string())
        .collect();
    waiting.join(", ")
}
