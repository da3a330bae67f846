//! One life of an engine: start, serve, end.

use std::time::Duration;

use lockstep_process::{LauncherMessage, Role, exit};
use tokio::time::{Instant, interval, timeout_at};

use super::cause::{self, Cause};
use super::children::{Change, Children, Filter, Member, everyone, fronts};
use super::end::Ending;
use super::outlook::FORESEEN;
use super::pulse::Pulse;
use super::replace::Replacements;
use super::signals::Signals;

/// Tokenizer-managers get this long to end their clients' requests with an
/// error; all clients know within two seconds.
const FLUSH: Duration = Duration::from_secs(1);
/// Then the others get this long to end by themselves.
const HALT: Duration = Duration::from_millis(500);

/// How serving ended.
pub(super) enum Served {
    /// As asked, with this exit code.
    Stopped(u8),
    /// A process died or failed.
    Died(Cause),
}

/// Watches a serving engine until it ends; all processes are gone afterwards.
/// A node without a front ends well when all its ranks do: node 0 released
/// them, or this node was asked to leave.
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
                // No restart follows.
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

/// How the time before a drain ended.
enum Left {
    InTime,
    /// This process ended meanwhile.
    Died(Role),
    /// By this signal.
    Again(&'static str),
}

/// Has all that clients ask say that they should go elsewhere, and serves for so long.
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

/// Says what a signal has set off.
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

/// Node 0 has ended the engine and released the first of this node's ranks.
async fn released(children: &mut Children) -> Served {
    const OTHERS: Duration = Duration::from_secs(5);
    children.wait_ended(everyone, Instant::now() + OTHERS).await;
    let well = |member: &Member| matches!(member.ended, Some((Ending::Code(0), _)));
    let cause = cause::find(children).filter(|_| !children.members().iter().all(well));
    children.stop(HALT).await;
    cause.map_or(Served::Stopped(exit::OK), Served::Died)
}

/// Ends an engine that lost a process, `role` as far as is known yet: clients
/// get their errors first.
async fn collapse(children: &mut Children, role: Role) -> Served {
    children.send(LauncherMessage::Halt, fronts);
    let flushed = Instant::now() + FLUSH;
    if children.wait_ended(fronts, flushed).await {
        // Whoever fails because of the first failure has a moment to do so, and
        // the one that was killed shows by its exit.
        let settle = flushed.min(Instant::now() + Duration::from_millis(200));
        children.wait_ended(everyone, settle).await;
    }
    let cause = cause::find_or(children, role);
    children.stop(HALT).await;
    Served::Died(cause)
}

/// Stops admitting and lets running requests finish: front first, then the
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

/// Has the front end requests that still run with an error. The scheduler may hear of the
/// end of its ranks before its own, and must know then that it was asked for.
fn cut(children: &mut Children) {
    children.send(LauncherMessage::Drain, scheduler);
    children.send(LauncherMessage::Halt, fronts);
}

enum Drained {
    Finished,
    /// This process died and still had work.
    Died(Role),
    Late,
}

/// Ends members in order, each stage when the one before it has ended.
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

/// Whether nothing is lost when a member ends like this during a drain: it was
/// asked to and ended well, or it is a rank that the scheduler released. On a
/// node that leaves, the first rank to go ends the engine; the others may then
/// report node 0's end instead of leaving in order.
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
