//! libnccl: collectives between threads or processes of one machine.
//!
//! As with NCCL, nobody compares the operations that ranks ask for: ranks that differ wait for
//! each other until they are aborted. An aborted operation ends without an error, and its
//! result may be anything.
//!
//! Aborts and farewells take as long as NCCL's: until the device runs nothing, no graph has an
//! operation of the communicator, and the other living ranks say goodbye too.

mod asked;
mod captured;
mod config;
mod kill;
mod letters;
mod post;
mod room;
mod taken;
mod values;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::{Answer, Code, Handle, In, Out, Refusal, export};
use crate::run::settle;
use crate::settings;
use crate::world::{enter, lock};
use asked::{Asked, What};
use config::Config;
use kill::When;
use room::{Captured, MOST_RANKS, Member, Who};
use taken::Taken;
use values::{Kind, Operation};

/// Result codes of NCCL (`ncclResult_t`).
const UNHANDLED: Code = 1;
const SYSTEM: Code = 2;
const INVALID_ARGUMENT: Code = 4;
const INVALID_USAGE: Code = 5;
const IN_PROGRESS: Code = 7;

/// The name of the group's file. Rank 0 makes it, and all ranks pass it.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([c_char; 128]);

static MEMBERS: LazyLock<Mutex<HashMap<Handle, Arc<Member>>>> = LazyLock::new(Mutex::default);

fn members() -> MutexGuard<'static, HashMap<Handle, Arc<Member>>> {
    MEMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(reason: impl Into<String>) -> Refusal {
    Refusal::new(INVALID_ARGUMENT, reason)
}

fn member(handle: Handle) -> Answer<Arc<Member>> {
    let known = members().get(&handle).cloned();
    known.ok_or_else(|| invalid("no such communicator"))
}

/// Takes the communicator out of the table, so that nobody finds it from now on.
fn take(handle: Handle) -> Answer<Arc<Member>> {
    let known = members().remove(&handle);
    known.ok_or_else(|| invalid("no such communicator"))
}

/// Returns true if this rank alone fails to join this group. `FAKE_NCCL_FAIL` names the rank by
/// its number in the calling thread's first group.
fn fails(rank: usize) -> bool {
    thread_local! {
        static JOINED: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
    }
    let (first, before) = JOINED.get().unwrap_or((rank, 0));
    let now = (first, before + 1);
    JOINED.set(Some(now));
    settings::of_rank("FAKE_NCCL_FAIL") == Some(now)
}

/// State of a group that may still form, and of the last operation asked of it.
fn state(member: &Member) -> Code {
    match (member.is_complete(), member.shares_a_device()) {
        (false, _) => IN_PROGRESS,
        (true, true) => INVALID_USAGE,
        (true, false) if member.fails => SYSTEM,
        (true, false) => member.progress(),
    }
}

/// Identity of an operation: only ranks with equal operations meet.
#[derive(Clone, Copy)]
struct Call {
    which: u64,
    kind: Kind,
    /// The reduction, or the rank that sends.
    detail: c_int,
    count: usize,
}

impl Call {
    /// Encodes the operation in two words. The second one has the number of the operation among
    /// those that its rank has captured.
    fn signature(self, captured: Captured) -> [u64; 2] {
        let Self {
            which,
            kind,
            detail,
            count,
        } = self;
        let what = which << 56 | u64::from(kind.number()) << 48 | (detail as u64) << 40;
        [what | count as u64, captured.0]
    }

    fn bytes(self) -> usize {
        self.count * self.kind.bytes()
    }
}

/// Addresses that an operation reads and writes.
#[derive(Clone, Copy)]
struct Places {
    from: usize,
    /// Number of bytes that this rank brings.
    brings: usize,
    to: usize,
    /// Number of bytes of the result.
    takes: usize,
}

/// Asks for an operation on a stream: all ranks bring their bytes, and `combine` makes a rank's
/// result of them.
fn collect(
    handle: Handle,
    stream: Handle,
    call: Call,
    at: Places,
    combine: impl Fn(&Member, &[Vec<u8>]) -> Vec<u8> + Send + Sync + 'static,
) -> Answer {
    let member = member(handle)?;
    member.kill.at(When::Asked);
    member.falters()?;
    member.taken.collective()?;
    let ranges = [(at.from, at.brings), (at.to, at.takes)];
    let world = enter()?;
    ranges
        .iter()
        .try_for_each(|(from, bytes)| world.memory.check(*from, *bytes))?;
    drop(world);
    let asked = member.clone();
    let work = move |captured: Captured| {
        member.kill.at(When::Entered);
        // SAFETY: the ranges are memory of the device, which its owner keeps
        // until the stream has run.
        let mine = unsafe { std::slice::from_raw_parts(at.from as *const u8, at.brings) }.to_vec();
        if let Some(all) = member.gather(call.signature(captured), &mine) {
            let result = combine(&member, &all);
            // SAFETY: as above.
            unsafe { std::ptr::copy(result.as_ptr(), at.to as *mut u8, at.takes) }
        }
    };
    asked::ask(Asked {
        member: asked,
        stream,
        what: What::Collective(Arc::new(work)),
    })
}

export! {
    fn ncclGetVersion(version: Out<c_int>) {
        version.set(22_803);
        Ok(())
    }

    fn ncclGetUniqueId(id: Out<UniqueId>) {
        let name = format!("/lockstep-fake-nccl-{}-{}", std::process::id(), lock().handle());
        let mut bytes = [0; 128];
        for (to, from) in bytes.iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        id.set(UniqueId(bytes));
        Ok(())
    }

    fn ncclCommInitRankConfig(
        made: Out<Handle>,
        size: c_int,
        id: UniqueId,
        rank: c_int,
        config: In<c_int>,
    ) {
        let (size, rank) = (usize::try_from(size).unwrap_or(0), usize::try_from(rank).unwrap_or(0));
        if rank >= size || size > MOST_RANKS {
            return Err(invalid(format!("rank {rank} of {size}, at most {MOST_RANKS}")));
        }
        let name = id.0.iter().map(|byte| *byte as u8);
        let name: Vec<u8> = name.take_while(|byte| *byte != 0).collect();
        let Config { blocking, channels } = Config::read(config);
        let who = {
            let world = enter()?;
            let context = world.context;
            let device = world.device(context);
            Who { rank, size, device, context, blocking, fails: fails(rank) }
        };
        let taken = Taken::new(who.device, size, channels)?;
        let member = Member::join(&name, who, taken);
        let member = Arc::new(member.map_err(|reason| Refusal::new(UNHANDLED, reason))?);
        let handle = lock().handle();
        members().insert(handle, member.clone());
        made.set(handle);
        if !blocking {
            return Err(Refusal::quiet(IN_PROGRESS));
        }
        while !member.is_complete() {
            std::thread::yield_now();
        }
        match state(&member) {
            0 => Ok(()),
            code => Err(Refusal::new(code, "two ranks on one device")),
        }
    }

    fn ncclCommGetAsyncError(handle: Handle, code: Out<Code>) {
        let member = member(handle)?;
        code.set(state(&member));
        Ok(())
    }

    fn ncclCommCount(handle: Handle, count: Out<c_int>) {
        count.set(member(handle)?.size as c_int);
        Ok(())
    }

    fn ncclCommUserRank(handle: Handle, rank: Out<c_int>) {
        rank.set(member(handle)?.rank as c_int);
        Ok(())
    }

    /// Ends all waits of this rank, and the communicator with them. Before its memory is freed,
    /// CUDA waits until the device runs nothing.
    fn ncclCommAbort(handle: Handle) {
        let known = take(handle)?;
        known.abort();
        settle(known.context);
        known.leave();
        known.taken.give_back();
        Ok(())
    }

    /// Operations are done when their stream is; those in graphs are done when the graphs are
    /// gone.
    fn ncclCommFinalize(handle: Handle) {
        let member = member(handle)?;
        member.expect_ready()?;
        member.finalize();
        match member.progress() {
            0 => Ok(()),
            code => Err(Refusal::quiet(code)),
        }
    }

    fn ncclCommDestroy(handle: Handle) {
        let known = take(handle)?;
        known.leave();
        known.taken.give_back();
        Ok(())
    }

    fn ncclGroupStart() {
        asked::begin()
    }

    fn ncclGroupEnd() {
        asked::end()
    }

    fn ncclAllReduce(
        from: usize,
        to: usize,
        count: usize,
        kind: c_int,
        operation: c_int,
        handle: Handle,
        stream: Handle,
    ) {
        let (kind, reduction) = (Kind::new(kind)?, Operation::new(operation)?);
        let call = Call { which: 1, kind, detail: operation, count };
        let bytes = call.bytes();
        let at = Places { from, brings: bytes, to, takes: bytes };
        collect(handle, stream, call, at, move |_, all| reduction.of(kind, all))
    }

    fn ncclBroadcast(
        from: usize,
        to: usize,
        count: usize,
        kind: c_int,
        root: c_int,
        handle: Handle,
        stream: Handle,
    ) {
        let call = Call { which: 2, kind: Kind::new(kind)?, detail: root, count };
        let member = member(handle)?;
        let sender = usize::try_from(root).ok().filter(|sender| *sender < member.size);
        let sender = sender.ok_or_else(|| invalid(format!("there is no rank {root}")))?;
        let bytes = call.bytes();
        // A rank that doesn't send brings as many bytes, which nobody reads.
        let from = if sender == member.rank { from } else { to };
        let at = Places { from, brings: bytes, to, takes: bytes };
        collect(handle, stream, call, at, move |_, all| all[sender].clone())
    }

    fn ncclAllGather(
        from: usize,
        to: usize,
        count: usize,
        kind: c_int,
        handle: Handle,
        stream: Handle,
    ) {
        let call = Call { which: 3, kind: Kind::new(kind)?, detail: 0, count };
        let (bytes, size) = (call.bytes(), member(handle)?.size);
        let at = Places { from, brings: bytes, to, takes: size * bytes };
        collect(handle, stream, call, at, |_, all| all.concat())
    }

    fn ncclSend(
        from: usize,
        count: usize,
        kind: c_int,
        peer: c_int,
        handle: Handle,
        stream: Handle,
    ) {
        letters::ask(handle, stream, true, from, (count, kind), peer)
    }

    fn ncclRecv(
        to: usize,
        count: usize,
        kind: c_int,
        peer: c_int,
        handle: Handle,
        stream: Handle,
    ) {
        letters::ask(handle, stream, false, to, (count, kind), peer)
    }

    fn ncclReduceScatter(
        from: usize,
        to: usize,
        count: usize,
        kind: c_int,
        operation: c_int,
        handle: Handle,
        stream: Handle,
    ) {
        let (kind, reduction) = (Kind::new(kind)?, Operation::new(operation)?);
        let call = Call { which: 4, kind, detail: operation, count };
        let (bytes, size) = (call.bytes(), member(handle)?.size);
        let at = Places { from, brings: size * bytes, to, takes: bytes };
        collect(handle, stream, call, at, move |member, all| {
            let part = |of: &Vec<u8>| of[member.rank * bytes..][..bytes].to_vec();
            let parts: Vec<Vec<u8>> = all.iter().map(part).collect();
            reduction.of(kind, &parts)
        })
    }
}

/// Name of a result code.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    let name = match code {
        0 => c"no error",
        UNHANDLED => c"unhandled cuda error",
        SYSTEM => c"unhandled system error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        IN_PROGRESS => c"operation in progress",
        _ => c"unknown result code",
    };
    name.as_ptr()
}
