//! NCCL between ranks, which are threads here.

use std::ffi::{CStr, c_int, c_void};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use cudarc::driver::sys::CUstream;

use crate::device::{Buffer, Graph, Stream, begin_on};

/// Result codes (`ncclResult_t`).
const INVALID_USAGE: c_int = 5;
const IN_PROGRESS: c_int = 7;
/// Types of values and reductions.
const U32: c_int = 3;
const F32: c_int = 7;
const SUM: c_int = 0;
const MAX: c_int = 2;

/// `ncclUniqueId`
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

/// `ncclConfig_t` of version 2.14, which later versions accept too.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

type Group = usize;

/// Functions of the library, which cudarc does not find by this name.
#[derive(Clone, Copy)]
struct Nccl {
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init: unsafe extern "C" fn(*mut Group, c_int, UniqueId, c_int, *const Config) -> c_int,
    state: unsafe extern "C" fn(Group, *mut c_int) -> c_int,
    abort: unsafe extern "C" fn(Group) -> c_int,
    finalize: unsafe extern "C" fn(Group) -> c_int,
    destroy: unsafe extern "C" fn(Group) -> c_int,
    reduce: Reduce,
    reduce_scatter: Reduce,
    broadcast: unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Group, CUstream) -> c_int,
    gather: unsafe extern "C" fn(u64, u64, usize, c_int, Group, CUstream) -> c_int,
    send: Letter,
    receive: Letter,
}

type Letter = unsafe extern "C" fn(u64, usize, c_int, c_int, Group, CUstream) -> c_int;
type Reduce = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Group, CUstream) -> c_int;

/// A function of the library, with its type in `nccl.h`.
fn find<F: Copy>(name: &CStr) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: the names end with zeros, and the type is a pointer to a function.
    unsafe {
        let library = libc::dlopen(c"libnccl.so.2".as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "no libnccl.so.2");
        let found = libc::dlsym(library, name.as_ptr());
        assert!(!found.is_null(), "no {name:?}");
        std::mem::transmute_copy::<*mut c_void, F>(&found)
    }
}

fn nccl() -> Nccl {
    Nccl {
        unique_id: find(c"ncclGetUniqueId"),
        init: find(c"ncclCommInitRankConfig"),
        state: find(c"ncclCommGetAsyncError"),
        abort: find(c"ncclCommAbort"),
        finalize: find(c"ncclCommFinalize"),
        destroy: find(c"ncclCommDestroy"),
        reduce: find(c"ncclAllReduce"),
        reduce_scatter: find(c"ncclReduceScatter"),
        broadcast: find(c"ncclBroadcast"),
        gather: find(c"ncclAllGather"),
        send: find(c"ncclSend"),
        receive: find(c"ncclRecv"),
    }
}

/// One rank of a group, on a device of its own.
struct Rank {
    rank: usize,
    stream: Stream,
    group: Group,
    nccl: Nccl,
}

impl Rank {
    /// Joins, and waits until the other ranks have. Returns the rank and the state.
    fn join(id: UniqueId, rank: usize, device: i32) -> (Self, c_int) {
        begin_on(device);
        let (nccl, mut group, mut state) = (nccl(), 0, IN_PROGRESS);
        let config = Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21_400,
            blocking: 0,
        };
        // SAFETY: there is room for the communicator, and the configuration lives.
        let began = unsafe { (nccl.init)(&raw mut group, 2, id, rank as i32, &raw const config) };
        assert_eq!(began, IN_PROGRESS);
        while state == IN_PROGRESS {
            std::thread::yield_now();
            // SAFETY: the communicator exists.
            assert_eq!(unsafe { (nccl.state)(group, &raw mut state) }, 0);
        }
        let stream = Stream::new();
        let made = Self {
            rank,
            stream,
            group,
            nccl,
        };
        (made, state)
    }

    fn sum(&self, values: &Buffer, count: usize) {
        assert_eq!(self.taken(self.ask_for_sum(values, count)), 0);
    }

    /// Asks for a sum, and returns the immediate answer.
    fn ask_for_sum(&self, values: &Buffer, count: usize) -> c_int {
        let (at, stream) = (values.address, self.stream.0);
        // SAFETY: the buffer is large enough, or the fake refuses.
        unsafe { (self.nccl.reduce)(at, at, count, F32, SUM, self.group, stream) }
    }

    /// A letter from rank 0 to rank 1.
    fn letter(&self, values: &Buffer, count: usize) {
        let (ask, peer) = match self.rank {
            0 => (self.nccl.send, 1),
            _ => (self.nccl.receive, 0),
        };
        let (at, stream) = (values.address, self.stream.0);
        // SAFETY: the buffer is large enough, or the fake refuses.
        let code = unsafe { ask(at, count, F32, peer, self.group, stream) };
        assert_eq!(self.taken(code), 0);
    }

    /// A graph of the operations that `ask` asks for.
    fn captured(&self, ask: impl Fn()) -> Graph {
        self.stream.begin_capture().expect("begun");
        ask();
        self.stream.end_capture().expect("a graph")
    }

    /// Waits for the operation that was answered with `code`, and returns its final state.
    fn taken(&self, mut code: c_int) -> c_int {
        while code == IN_PROGRESS {
            std::thread::yield_now();
            // SAFETY: the communicator exists.
            assert_eq!(unsafe { (self.nccl.state)(self.group, &raw mut code) }, 0);
        }
        code
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // SAFETY: it was made once.
        unsafe { (self.nccl.destroy)(self.group) };
    }
}

fn unique_id() -> UniqueId {
    begin_on(0);
    let mut id = UniqueId([0; 128]);
    // SAFETY: there is room for it.
    assert_eq!(unsafe { (nccl().unique_id)(&raw mut id) }, 0);
    id
}

/// Runs two ranks, each on its own device.
fn two(work: impl Fn(&Rank) + Sync) {
    let id = unique_id();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let work = &work;
            scope.spawn(move || {
                let (rank, state) = Rank::join(id, rank, rank as i32);
                assert_eq!(state, 0);
                work(&rank);
            });
        }
    });
}

#[test]
fn sums_of_all_ranks_in_a_graph() {
    // More than fits on a desk.
    let count = 40_000;
    two(|rank| {
        let values = Buffer::new(4 * count);
        rank.stream.begin_capture().expect("begun");
        rank.sum(&values, count);
        let graph = rank.stream.end_capture().expect("a graph");
        for turn in 1..4 {
            let own = vec![(rank.rank + turn) as f32; count];
            rank.stream.upload(&values, &own).expect("asked for");
            rank.stream.replay(&graph).expect("launched");
            let expected = vec![(2 * turn + 1) as f32; count];
            assert_eq!(values.read::<f32>(count, &rank.stream), expected);
        }
    });
}

#[test]
fn the_other_collectives_move_what_they_should() {
    two(|rank| {
        let own = [rank.rank as u32 * 10 + 1, rank.rank as u32 * 10 + 2];
        let (from, to) = (Buffer::of(&own), Buffer::of(&[0u32; 4]));
        let (source, target, group) = (from.address, to.address, rank.group);
        let (nccl, stream) = (rank.nccl, rank.stream.0);
        // SAFETY: the buffers hold two and four values.
        let asked = unsafe { (nccl.gather)(source, target, 2, U32, group, stream) };
        assert_eq!(rank.taken(asked), 0);
        assert_eq!(to.read::<u32>(4, &rank.stream), [1, 2, 11, 12]);
        // SAFETY: as above.
        let asked = unsafe { (nccl.broadcast)(source, target, 2, U32, 1, group, stream) };
        assert_eq!(rank.taken(asked), 0);
        assert_eq!(to.read::<u32>(4, &rank.stream), [11, 12, 11, 12]);
        // SAFETY: as above.
        let asked = unsafe { (nccl.reduce_scatter)(source, target, 1, U32, MAX, group, stream) };
        assert_eq!(rank.taken(asked), 0);
        assert_eq!(to.read::<u32>(1, &rank.stream), [11 + rank.rank as u32]);
    });
}

#[test]
fn ranks_that_differ_wait_until_they_are_aborted() {
    let asked = std::sync::Barrier::new(3);
    let groups = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            asked.wait();
            let groups = groups.lock().expect("not poisoned");
            std::thread::scope(|aborts| {
                for group in groups.iter().copied() {
                    // SAFETY: the ranks keep their groups until all threads have ended.
                    aborts.spawn(move || assert_eq!(unsafe { (nccl().abort)(group) }, 0));
                }
            });
        });
        two(|rank| {
            let values = Buffer::of(&[1.0f32; 4]);
            // Each rank sums another number of values.
            rank.sum(&values, 2 + rank.rank);
            groups.lock().expect("not poisoned").push(rank.group);
            asked.wait();
            // The stream ends without an error: the program that aborts has to remember it.
            rank.stream.synchronize().expect("aborted");
        });
    });
}

#[test]
fn who_asks_instead_of_waiting_can_give_up() {
    two(|rank| {
        let (values, other) = (Buffer::of(&[1.0f32; 4]), Buffer::of(&[0u8; 4]));
        rank.sum(&values, 2 + rank.rank);
        let event = rank.stream.event();
        // Work that needs no other rank goes on meanwhile.
        let side = Stream::new();
        side.fill(&other, 7, 4).expect("asked for");
        assert_eq!(other.read::<u8>(4, &side), [7; 4]);
        for _ in 0..100 {
            assert_eq!(event.query(), Err(600), "not ready");
        }
        // SAFETY: the group exists.
        assert_eq!(unsafe { (rank.nccl.abort)(rank.group) }, 0);
        event.synchronize().expect("aborted");
    });
}

/// Ends a communicator on another thread. The receiver gets the result when that is over.
fn end(rank: &Rank, end: unsafe extern "C" fn(Group) -> c_int) -> Receiver<c_int> {
    let (said, over) = channel();
    let group = rank.group;
    // SAFETY: the group exists; a test that drops the rank knows that it does not any more.
    std::thread::spawn(move || said.send(unsafe { end(group) }));
    over
}

/// Time limit for calls that wait for nothing.
const SOON: Duration = Duration::from_secs(20);
/// Time after which a call counts as waiting; short enough for a test.
const WHILE: Duration = Duration::from_millis(50);

#[test]
fn an_abort_waits_for_graphs_and_for_the_other_ranks() {
    let both = std::sync::Barrier::new(2);
    two(|rank| {
        let values = Buffer::of(&[1.0f32; 4]);
        let graph = (rank.rank == 0).then(|| {
            rank.stream.begin_capture().expect("begun");
            rank.sum(&values, 4);
            rank.stream.end_capture().expect("a graph")
        });
        if rank.rank == 0 {
            // The last things to end in a finalized communicator are its graphs.
            // SAFETY: the group exists.
            let finalized = unsafe { (rank.nccl.finalize)(rank.group) };
            assert_eq!(finalized, IN_PROGRESS);
            let over = end(rank, rank.nccl.abort);
            assert_eq!(over.recv_timeout(WHILE), Err(RecvTimeoutError::Timeout));
            both.wait();
            both.wait();
            // The other rank has ended its communicator, and this one's graph still lives.
            assert_eq!(over.recv_timeout(WHILE), Err(RecvTimeoutError::Timeout));
            drop(graph);
            assert_eq!(over.recv_timeout(SOON), Ok(0));
        } else {
            both.wait();
            let over = end(rank, rank.nccl.destroy);
            assert_eq!(over.recv_timeout(SOON), Ok(0));
            both.wait();
        }
    });
}

#[test]
fn an_abort_waits_for_what_the_device_runs() {
    let ids = [unique_id(), unique_id()];
    let all = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let all = &all;
            scope.spawn(move || {
                let [first, second] = ids.map(|id| Rank::join(id, rank, rank as i32).0);
                let values = Buffer::of(&[1.0f32; 4]);
                // No other rank comes to this sum.
                second.sum(&values, 2 + rank);
                let event = second.stream.event();
                assert_eq!(event.query(), Err(600), "it runs");
                let over = [&first, &second].map(|group| {
                    let over = end(group, group.nccl.abort);
                    if group.group == first.group {
                        assert_eq!(over.recv_timeout(WHILE), Err(RecvTimeoutError::Timeout));
                    }
                    over
                });
                for over in over {
                    assert_eq!(over.recv_timeout(SOON), Ok(0));
                }
                event.synchronize().expect("aborted");
                all.wait();
            });
        }
    });
}

/// Some operations come to their stream later.
#[test]
fn what_is_asked_for_may_be_under_way() {
    let late = std::sync::atomic::AtomicU32::new(0);
    two(|rank| {
        let values = Buffer::of(&[1.0f32; 4]);
        for _ in 0..64 {
            let code = rank.ask_for_sum(&values, 4);
            if code == IN_PROGRESS {
                late.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
            assert_eq!(rank.taken(code), 0);
        }
    });
    let late = late.into_inner();
    assert!((1..128).contains(&late), "{late}");
}

/// Values of a letter in more than one piece.
const LONG: usize = 2000;

#[test]
fn equal_captures_meet_again_and_again() {
    two(|rank| {
        let [sums, letters] = [4, LONG].map(|count| Buffer::new(4 * count));
        let sum = || rank.sum(&sums, 4);
        let both = || {
            rank.letter(&letters, LONG);
            rank.sum(&sums, 4);
        };
        let graphs = [rank.captured(sum), rank.captured(both), rank.captured(sum)];
        // Queued operations, and captures made later, are in nobody's way.
        for (turn, at) in [0, 1, 1, 2, 0, 3, 1, 4, 2, 4].into_iter().enumerate() {
            let own = (rank.rank + 1) as f32 + turn as f32;
            rank.stream.upload(&sums, &[own; 4]).expect("asked for");
            rank.stream
                .upload(&letters, &[own; LONG])
                .expect("asked for");
            let late = (at == 4).then(|| rank.captured(both));
            match late.as_ref().or(graphs.get(at)) {
                Some(graph) => rank.stream.replay(graph).expect("launched"),
                None => both(),
            }
            let expected = [2.0 * turn as f32 + 3.0; 4];
            assert_eq!(sums.read::<f32>(4, &rank.stream), expected);
            if matches!(at, 1 | 3 | 4) {
                let sent = [1.0 + turn as f32; LONG];
                assert_eq!(letters.read::<f32>(LONG, &rank.stream), sent);
            }
        }
    });
}

/// The peer's operation is queued, or is another one of its captured operations.
#[test]
fn what_one_rank_has_captured_meets_nothing_else() {
    let both = std::sync::Barrier::new(2);
    for lettered in [false, true] {
        // The captured operation that each rank launches; 0 for a queued one.
        for pair in [[0, 1], [1, 0], [1, 2], [2, 1]] {
            two(|rank| {
                let values = Buffer::of(&[1.0f32 + rank.rank as f32; LONG]);
                let ask = || match lettered {
                    true => rank.letter(&values, LONG),
                    false => rank.sum(&values, LONG),
                };
                let mut graphs = Vec::new();
                graphs.resize_with(2, || rank.captured(ask));
                match pair[rank.rank] {
                    0 => ask(),
                    at => rank.stream.replay(&graphs[at - 1]).expect("launched"),
                }
                let event = rank.stream.event();
                both.wait();
                for _ in 0..1000 {
                    assert_eq!(event.query(), Err(600), "{pair:?} met");
                    std::thread::yield_now();
                }
                both.wait();
                let over = end(rank, rank.nccl.abort);
                event.synchronize().expect("aborted");
                drop(graphs);
                assert_eq!(over.recv_timeout(SOON), Ok(0));
            });
        }
    }
}

#[test]
fn two_ranks_on_one_device_are_refused() {
    let id = unique_id();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let (_rank, state) = Rank::join(id, rank, 0);
                assert_eq!(state, INVALID_USAGE);
            });
        }
    });
}
