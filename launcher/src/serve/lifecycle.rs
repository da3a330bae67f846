//! One life of an engine: start, serve, end.

use std::time::Duration;

use lockstep_process::{LauncherMessage, Role, exit};
use tokio::time::{Instant, interval, timeout_at};

use super::cause::{self, Cause};
use super::children::{Change, Children, Filter, Member, everyone, fronts};
use super::end::Ending;
use super::pulse::Pulse;
use super::replace::Replacements;
use super::retry_after::FORESEEN;
use super::signals::Signals;

/// Time for tokenizer-managers to end their clients' requests with an error. All clients get
/// it within two seconds.
const FLUSH: Duration = Duration::from_secs(1);
/// Time after that for the others to end by themselves.
const HALT: Duration = Duration::from_millis(500);

/// The end of serving.
pub(super) enum Served {
    /// Serving stopped as asked, with this exit code.
    Stopped(u8),
    /// A process died or failed.
    Died(Cause),
}

/// Watches a serving engine until it ends; all processes are gone afterwards. A node without
/// a front ends well when all its ranks do: either node 0 released them, or this node was
/// asked to leave.
pub(super) async fn serve(
    children: &mut Children,
    signals: &mut Signals,
    mut pulse: Pulse,
    mut replacements: Replacements<'_>,
    (drain_delay, drain_limit): (Duration, Duration),
    has_front: bool,
) -> Served {
    let mut ticks = interval(FORESEEN);
    loop {
        tokio::select! {
            change = children.next() => match change {
                Change::Exited(_, Ending::Code(0)) if !has_front => {
                    return released(children).await;
                }
                Change::Failed(role) => if !replacements.ends(children, role) {
                    return collapse(children, role).await;
                },
                Change::Exited(role, _) => {
                    let why = cause::of(children, role).to_string();
                    if !replacements.take(children, role, &why) {
                        return collapse(children, role).await;
                    }
                }
                Change::Ready(role) => replacements.ready(role),
                Change::Progress(..) => {}
            },
            () = pulse.due() => pulse.ping(children),
            _ = ticks.tick() => replacements.foresee(children),
            role = replacements.due() => if !replacements.step(children, role) {
                return collapse(children, role).await;
            },
            name = signals.next() => {
                // No restart follows a signal.
                children.foresee(None);
                if has_front && !drain_delay.is_zero() {
                    tracing::info!(
                        "{name}: not healthy any more; requests are served for {} s \
                         (--drain-delay) before the drain",
                        drain_delay.as_secs()
                    );
                    match leave(children, signals, drain_delay).await {
                        Left::InTime => {}
                        Left::Died(role) => return collapse(children, role).await,
                        Left::Again(name) => {
                            tracing::warn!("{name} again: the drain begins now");
                        }
                    }
                }
                log_drain(name, drain_limit, has_front);
                return drain(children, signals, drain_limit, has_front).await;
            }
        }
    }
}

/// The end of the time before a drain.
enum Left {
    InTime,
    /// This process ended before the time was over.
    Died(Role),
    /// This signal came.
    Again(&'static str),
}

/// Tells the children to send clients elsewhere, and serves for another `delay`. Returns
/// earlier if a process ends or a signal comes.
async fn leave(children: &mut Children, signals: &mut Signals, delay: Duration) -> Left {
    let until = Instant::now() + delay;
    children.tell(LauncherMessage::Leave);
    loop {
        tokio::select! {
            name = signals.next() => return Left::Again(name),
            change = timeout_at(until, children.next()) => match change {
                Err(_) => return Left::InTime,
                Ok(Change::Exited(role, _) | Change::Failed(role)) => return Left::Died(role),
                Ok(_) => {}
            },
        }
    }
}

/// Logs the effect of a signal.
fn log_drain(name: &str, limit: Duration, has_front: bool) {
    if has_front {
        tracing::info!(
            "{name}: finishing running requests, at most {} s; a second signal ends at once",
            limit.as_secs()
        );
    } else {
        tracing::info!(
            "{name}: this node leaves once running requests are finished, at most {} s; node 0 \
             will then fail or restart its engine; a second signal ends at once",
            limit.as_secs()
        );
    }
}

/// Ends this node after node 0 has ended the engine and released the first of this node's
/// ranks.
async fn released(children: &mut Children) -> Served {
    const OTHERS: Duration = Duration::from_secs(5);
    children.wait_ended(everyone, Instant::now() + OTHERS).await;
    let well = |member: &Member| matches!(member.ended, Some((Ending::Code(0), _)));
    let cause = cause::find(children).filter(|_| !children.members().iter().all(well));
    children.stop(HALT).await;
    cause.map_or(Served::Stopped(exit::OK), Served::Died)
}

/// Ends an engine that lost a process, `role` as far as is known yet. Clients get their
/// errors first.
async fn collapse(children: &mut Children, role: Role) -> Served {
    children.send(LauncherMessage::Halt, fronts);
    let flushed = Instant::now() + FLUSH;
    if children.wait_ended(fronts, flushed).await {
        // Processes that fail because of the first failure get a moment to do so. A process
        // that was killed shows by its exit.
        let settle = flushed.min(Instant::now() + Duration::from_millis(200));
        children.wait_ended(everyone, settle).await;
    }
    let cause = cause::find_or(children, role);
    children.stop(HALT).await;
    Served::Died(cause)
}

/// Stops admission and lets running requests finish: ends the front first, then the
/// scheduler, then the ranks.
async fn drain(
    children: &mut Children,
    signals: &mut Signals,
    limit: Duration,
    has_front: bool,
) -> Served {
    let deadline = Instant::now() + limit;
    let outcome = tokio::select! {
        finished = stages(children, deadline, has_front) => Ok(finished),
        name = signals.next() => Err(name),
    };
    match outcome {
        Ok(Drained::Finished) => {
            children.stop(HALT).await;
            Served::Stopped(exit::OK)
        }
        Ok(Drained::Died(role)) => collapse(children, role).await,
        Ok(Drained::Late) => {
            tracing::warn!(
                "requests still run after {} s: they end with an error now, and this server with \
                 exit code {}; --drain-timeout gives them longer",
                limit.as_secs(),
                exit::DRAIN_LIMIT
            );
            cut(children);
            children.wait_ended(fronts, Instant::now() + FLUSH).await;
            children.stop(HALT).await;
            Served::Stopped(exit::DRAIN_LIMIT)
        }
        Err(name) => {
            tracing::warn!("{name} again: ending at once");
            children.stop(HALT).await;
            Served::Stopped(exit::INTERRUPTED)
        }
    }
}

/// Makes the front end running requests with an error. The scheduler may see its ranks end
/// before its own message comes, so it gets a message now: it must know that the end was
/// asked for.
fn cut(children: &mut Children) {
    children.send(LauncherMessage::Drain, scheduler);
    children.send(LauncherMessage::Halt, fronts);
}

enum Drained {
    Finished,
    /// This process died while it still had work.
    Died(Role),
    Late,
}

/// Ends members in order, each stage after the one before it has ended.
async fn stages(children: &mut Children, deadline: Instant, has_front: bool) -> Drained {
    let in_order: &[Filter] = if has_front {
        &[fronts, scheduler, everyone]
    } else {
        &[everyone]
    };
    for stage in in_order {
        children.send(LauncherMessage::Drain, *stage);
        while !children.all_ended(*stage) {
            match timeout_at(deadline, children.next()).await {
                Err(_) => return Drained::Late,
                Ok(Change::Exited(role, ending)) if !may_leave(children, role, ending) => {
                    return Drained::Died(role);
                }
                Ok(Change::Failed(role)) if !may_leave(children, role, Ending::Unknown) => {
                    return Drained::Died(role);
                }
                Ok(_) => {}
            }
        }
    }
    Drained::Finished
}

/// Returns true if nothing is lost when a member ends like this during a drain: the member
/// was asked to end and ended well, or it is a rank that the scheduler released. On a node
/// that leaves, the first rank to go ends the engine. The other ranks may then report node
/// 0's end instead of leaving in order.
fn may_leave(children: &Children, role: Role, ending: Ending) -> bool {
    let well = ending == Ending::Code(0);
    let asked = |role| children.member(role).is_some_and(Member::was_asked);
    let rank = matches!(role, Role::Worker(_));
    let scheduler_gone = children
        .member(Role::Scheduler)
        .is_some_and(|m| m.ended.is_some());
    let bug = Ending::Code(i32::from(exit::PANIC));
    let crashed = matches!(ending, Ending::Signal(_)) || ending == bug;
    let node_leaves = children.member(Role::Scheduler).is_none() && rank && asked(role);
    (well && asked(role))
        || (node_leaves && !crashed)
        || (rank && (scheduler_gone || (well && asked(Role::Scheduler))))
}

fn scheduler(role: Role) -> bool {
    role == Role::Scheduler
}

#[cfg(test)]
mod tests;
