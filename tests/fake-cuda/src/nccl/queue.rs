//! The way of operations from their callers to streams.
//!
//! If a communicator does not block, NCCL puts its operations on streams from a thread of its
//! own, and answers that they are under way. Here that happens to some of them, drawn from the
//! seed.

use std::cell::RefCell;
use std::sync::Arc;

use super::group::{Captured, Held, Member};
use super::mailbox::{self, Message};
use super::{IN_PROGRESS, UNHANDLED, invalid};
use crate::abi::{Answer, Handle, Refusal};
use crate::order;
use crate::world::graph::{Overlap, Task, Work};
use crate::world::{act_for, current, enter, thread};

/// One of this many operations comes late.
const LATE: usize = 4;

/// An operation that was asked for.
pub(super) struct QueuedCall {
    pub(super) member: Arc<Member>,
    pub(super) stream: Handle,
    pub(super) what: What,
}

/// Work of an operation.
pub(super) enum What {
    /// All ranks of the group take part.
    Collective(Arc<dyn Fn(Captured) + Send + Sync>),
    /// Two ranks take part.
    Message(Message),
    /// The letters of a group, which are one operation.
    Post(Vec<Message>),
}

thread_local! {
    /// Operations that the calling thread has asked for since its group began; `None` outside
    /// of groups.
    static GROUP: RefCell<Option<Vec<QueuedCall>>> = const { RefCell::new(None) };
}

/// Begins a group: operations from now on belong together.
pub(super) fn begin() -> Answer {
    let before = GROUP.replace(Some(Vec::new()));
    match before {
        None => Ok(()),
        Some(_) => Err(invalid("the fake NCCL has no groups in groups")),
    }
}

/// Ends the group: its operations go to their streams, in the order of the calls.
pub(super) fn end() -> Answer {
    let all = GROUP.take();
    queue(all.ok_or_else(|| invalid("a group ends that did not begin"))?)
}

/// Puts an operation on its stream, or keeps it until its group ends.
pub(super) fn ask(asked: QueuedCall) -> Answer {
    asked.member.expect_ready()?;
    let alone = GROUP.with_borrow_mut(|group| match group {
        Some(group) => {
            group.push(asked);
            None
        }
        None => Some(asked),
    });
    alone.map_or(Ok(()), |asked| queue(vec![asked]))
}

/// Joins the letters of a communicator on one stream to one operation, at the place of the
/// first of them: none of these letters waits for another.
fn bundle(all: Vec<QueuedCall>) -> Vec<QueuedCall> {
    let mut bundled: Vec<QueuedCall> = Vec::new();
    for mut one in all {
        let What::Message(letter) = one.what else {
            bundled.push(one);
            continue;
        };
        let found = bundled.iter_mut().find_map(|other| match &mut other.what {
            What::Post(letters)
                if Arc::ptr_eq(&other.member, &one.member) && other.stream == one.stream =>
            {
                Some(letters)
            }
            _ => None,
        });
        match found {
            Some(letters) => letters.push(letter),
            None => {
                one.what = What::Post(vec![letter]);
                bundled.push(one);
            }
        }
    }
    bundled
}

fn queue(all: Vec<QueuedCall>) -> Answer {
    let all = bundle(all);
    let waits = all.iter().any(|one| one.member.blocking);
    if all.is_empty() || waits || order::below(LATE) != 0 {
        return all.into_iter().try_for_each(push);
    }
    let members: Vec<_> = all.iter().map(|one| one.member.clone()).collect();
    members.iter().for_each(|member| member.asks(IN_PROGRESS));
    let (caller, context) = (thread(), current());
    std::thread::spawn(move || {
        act_for(caller, context);
        let done = all.into_iter().try_for_each(push);
        let code = done.map_or_else(|refusal| refusal.code, |()| 0);
        members.iter().for_each(|member| member.asks(code));
    });
    Err(Refusal::quiet(IN_PROGRESS))
}

/// Puts an operation on its stream. A recorded operation holds its communicator.
fn push(asked: QueuedCall) -> Answer {
    let QueuedCall {
        member,
        stream,
        what,
    } = asked;
    // Nobody keeps the operation's memory any more.
    if member.is_aborted() {
        return Ok(());
    }
    let mut world = enter()?;
    let own = world.stream(stream);
    let held = own.is_ok_and(|own| world.capture_of(own).is_some());
    let held = held.then(|| Held::by_graph(&member));
    let captures = held.is_some();
    let (name, work): (_, Work) = match what {
        What::Collective(work) => {
            let captured = member.captured.collective(captures);
            let work: Work = Arc::new(move || {
                work(captured);
                Ok(())
            });
            ("collective", work)
        }
        What::Message(letter) => ("letters", mailbox::work(&member, &[letter], captures)),
        What::Post(letters) => ("letters", mailbox::work(&member, &letters, captures)),
    };
    let task = Task {
        name,
        work: Arc::new(move || {
            let _held = &held;
            work()
        }),
        waits: true,
        overlap: Overlap::None,
    };
    let pushed = world.push_task(stream, task);
    pushed.map_err(|refusal| Refusal::new(UNHANDLED, refusal.reason))
}
