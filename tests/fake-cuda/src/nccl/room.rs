//! Meeting place of ranks: a file that all of them map, with a seat and a desk for each.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

pub(super) use super::captured::Captured;
use super::captured::Captures;
use super::kill::{Kill, When};
use super::taken::Taken;
use super::{IN_PROGRESS, SYSTEM, invalid};
use crate::abi::{Answer, Code, Handle, Refusal};
use crate::settings;

/// Largest number of ranks of a group.
pub(super) const MOST_RANKS: usize = 16;
/// Bytes that a rank shows at a time.
const DESK: usize = 64 << 10;
/// Bytes of a letter that lie in a box at a time (`PIECE`), and bytes of a box.
pub(super) const PIECE: usize = 4 << 10;
pub(super) const BOX: usize = PIECE + 64;
/// Bytes in front of the desks.
const SEATS: usize = 4096;

/// Number of yields before a rank pauses (`TURNS`), and length of a pause.
const TURNS: u32 = 8;
const PAUSE: std::time::Duration = std::time::Duration::from_micros(50);

/// Progress of one rank.
#[repr(C)]
struct Seat {
    /// Turn whose bytes lie on the rank's desk.
    shown: AtomicU64,
    /// Turn up to which the rank has read everybody's bytes.
    read: AtomicU64,
    /// Operation that the rank takes part in.
    signature: [AtomicU64; 2],
    /// Device of the rank.
    device: AtomicI32,
    /// Process of the rank; zero before it has come.
    process: AtomicU32,
    /// True once the rank aborts or gives its seat back.
    leaves: AtomicBool,
}

/// The beginning of the file; zeros at first.
#[repr(C)]
struct Seats {
    joined: AtomicU32,
    seats: [Seat; MOST_RANKS],
}

/// A rank of a group.
pub(super) struct Member {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Address at which the file is mapped.
    start: usize,
    /// Number of turns that this rank has begun.
    turn: AtomicU64,
    aborted: AtomicBool,
    /// True if calls wait for their operations.
    pub(super) blocking: bool,
    /// True if this rank fails to join, while the others don't.
    pub(super) fails: bool,
    /// Context in which the rank's operations run.
    pub(super) context: Handle,
    /// State of the last operation that was asked for.
    asked: AtomicI32,
    finalized: AtomicBool,
    /// Number of operations that were asked for.
    count: AtomicU64,
    /// Number of the rank's operations in existing graphs.
    held: AtomicU32,
    /// Counts of all operations that the rank has ever captured.
    pub(super) captured: Captures,
    pub(super) kill: Kill,
    /// Memory that the communicator takes of its device.
    pub(super) taken: Taken,
}

/// Properties of a rank that takes a seat.
#[derive(Clone, Copy)]
pub(super) struct Who {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) device: i32,
    pub(super) context: Handle,
    pub(super) blocking: bool,
    pub(super) fails: bool,
}

impl Member {
    /// Takes a seat in the group that meets under `name`. The last rank to come removes the
    /// name.
    pub(super) fn join(name: &[u8], who: Who, taken: Taken) -> Result<Self, String> {
        let Who { rank, size, .. } = who;
        let name = CString::new(name).map_err(|_| "a zero in a name".to_owned())?;
        let start = map(&name).ok_or_else(|| std::io::Error::last_os_error().to_string())?;
        let member = Self {
            rank,
            size,
            start,
            turn: AtomicU64::new(0),
            aborted: AtomicBool::new(false),
            blocking: who.blocking,
            fails: who.fails,
            context: who.context,
            asked: AtomicI32::new(0),
            finalized: AtomicBool::new(false),
            count: AtomicU64::new(0),
            held: AtomicU32::new(0),
            captured: Captures::default(),
            kill: Kill::of_rank(rank),
            taken,
        };
        let (seats, own) = (member.seats(), std::process::id());
        seats.seats[rank].device.store(who.device, Ordering::SeqCst);
        seats.seats[rank].process.store(own, Ordering::SeqCst);
        if seats.joined.fetch_add(1, Ordering::SeqCst) as usize + 1 == size {
            // SAFETY: the name ends with a zero.
            unsafe { libc::shm_unlink(name.as_ptr()) };
        }
        Ok(member)
    }

    fn seats(&self) -> &Seats {
        // SAFETY: the file stays mapped as long as this member lives and begins with the seats;
        // all users reach them through atomics only.
        unsafe { &*(self.start as *const Seats) }
    }

    fn desk(&self, rank: usize) -> *mut u8 {
        (self.start + SEATS + rank * DESK) as *mut u8
    }

    /// Address of the box for letters from one rank to another, behind all desks.
    pub(super) fn post_box(&self, from: usize, to: usize) -> usize {
        self.start + SEATS + MOST_RANKS * DESK + (from * MOST_RANKS + to) * BOX
    }

    /// Returns true once all ranks have come.
    pub(super) fn is_complete(&self) -> bool {
        self.seats().joined.load(Ordering::SeqCst) as usize >= self.size
    }

    /// Returns true if two ranks name the same device, which NCCL refuses.
    pub(super) fn shares_a_device(&self) -> bool {
        let seats = self.seats().seats[..self.size].iter();
        let devices: Vec<i32> = seats
            .map(|seat| seat.device.load(Ordering::SeqCst))
            .collect();
        (1..self.size).any(|rank| devices[..rank].contains(&devices[rank]))
    }

    /// Counts another operation. If `FAKE_NCCL_STUCK` names the call, returns only after an
    /// abort.
    ///
    /// # Errors
    /// `FAKE_NCCL_REFUSE` names the operation.
    pub(super) fn falters(&self) -> Answer {
        let this = (self.rank, self.count.fetch_add(1, Ordering::SeqCst) + 1);
        if settings::of_rank("FAKE_NCCL_STUCK") == Some(this) {
            pause_until(|| self.aborted.load(Ordering::SeqCst));
        }
        match settings::of_rank("FAKE_NCCL_REFUSE") == Some(this) {
            false => Ok(()),
            true => Err(Refusal::new(SYSTEM, "the environment has it fail")),
        }
    }

    /// Sets the state of the last operation to `code`.
    pub(super) fn asks(&self, code: Code) {
        self.asked.store(code, Ordering::SeqCst);
    }

    /// State of the last operation: zero, an error, or [`IN_PROGRESS`].
    pub(super) fn progress(&self) -> Code {
        let held = self.held.load(Ordering::SeqCst) > 0;
        match self.finalized.load(Ordering::SeqCst) && held {
            true => IN_PROGRESS,
            false => self.asked.load(Ordering::SeqCst),
        }
    }

    /// Refuses another operation while one is under way.
    pub(super) fn expect_ready(&self) -> Answer {
        match self.progress() {
            IN_PROGRESS => Err(invalid(
                "the communicator is used before what was asked of it last is done",
            )),
            _ => Ok(()),
        }
    }

    /// Says that no more operations will be asked for.
    pub(super) fn finalize(&self) {
        self.finalized.store(true, Ordering::SeqCst);
    }

    /// Ends the waits of this rank, now and later, and waits for the operation under way.
    pub(super) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        pause_until(|| self.asked.load(Ordering::SeqCst) != IN_PROGRESS);
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// Gives the seat back, which ranks do together. Waits until the other living ranks do so,
    /// too, and until no graph has operations of this rank.
    pub(super) fn leave(&self) {
        let own = &self.seats().seats[self.rank];
        own.leaves.store(true, Ordering::SeqCst);
        let others = self.seats().seats[..self.size].iter();
        let left = |seat: &Seat| {
            let process = seat.process.load(Ordering::SeqCst);
            seat.leaves.load(Ordering::SeqCst) || process == 0 || !lives(process)
        };
        pause_until(|| self.held.load(Ordering::SeqCst) == 0 && others.clone().all(left));
    }

    /// Waits until `ready` holds for every rank's seat; false if aborted.
    fn wait(&self, ready: impl Fn(&Seat) -> bool) -> bool {
        let all = || self.seats().seats[..self.size].iter().all(&ready);
        pause_until(|| all() || self.aborted.load(Ordering::SeqCst));
        all()
    }

    /// Brings `mine`, and returns the bytes of all ranks for the same operation, equally many
    /// each, by rank. `None` once this rank is aborted.
    pub(super) fn gather(&self, signature: [u64; 2], mine: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut all = vec![Vec::with_capacity(mine.len()); self.size];
        let mut rest = mine;
        // Ranks meet even if they bring no bytes.
        loop {
            let (chunk, behind) = rest.split_at(rest.len().min(DESK));
            self.show(signature, chunk, &mut all)?;
            rest = behind;
            if rest.is_empty() {
                return Some(all);
            }
        }
    }

    fn show(&self, signature: [u64; 2], chunk: &[u8], all: &mut [Vec<u8>]) -> Option<()> {
        let turn = self.turn.fetch_add(1, Ordering::SeqCst) + 1;
        let own = &self.seats().seats[self.rank];
        // Waits until all ranks have read the bytes that this rank showed last.
        let read = |seat: &Seat| seat.read.load(Ordering::SeqCst) + 1 >= turn;
        self.wait(read).then_some(())?;
        // SAFETY: the desk is this rank's, has room for a chunk, and all have
        // read what lay there.
        unsafe { std::ptr::copy_nonoverlapping(chunk.as_ptr(), self.desk(self.rank), chunk.len()) }
        for (word, value) in own.signature.iter().zip(signature) {
            word.store(value, Ordering::SeqCst);
        }
        own.shown.store(turn, Ordering::SeqCst);
        self.kill.at(When::Brought);
        // Ranks that are elsewhere are waited for, as long as that takes.
        let same = |seat: &Seat| {
            let shown = seat.shown.load(Ordering::SeqCst) == turn;
            let theirs = [0, 1].map(|word| seat.signature[word].load(Ordering::SeqCst));
            shown && theirs == signature
        };
        self.wait(same).then_some(())?;
        for (rank, theirs) in all.iter_mut().enumerate() {
            // SAFETY: the rank has shown a chunk of the same operation, and
            // shows no other before this rank has read it.
            let shown = unsafe { std::slice::from_raw_parts(self.desk(rank), chunk.len()) };
            theirs.extend_from_slice(shown);
        }
        own.read.store(turn, Ordering::SeqCst);
        Some(())
    }
}

/// A graph's hold on a member, which must not be dropped before the graph.
pub(super) struct Held(Arc<Member>);

impl Held {
    /// Counts another recorded operation of the member.
    pub(super) fn by_graph(member: &Arc<Member>) -> Self {
        member.held.fetch_add(1, Ordering::SeqCst);
        Self(member.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // SAFETY: nobody has the seats or desks any more.
        unsafe { libc::munmap(self.start as *mut libc::c_void, bytes()) };
    }
}

/// Waits until `done` returns true.
pub(super) fn pause_until(mut done: impl FnMut() -> bool) {
    let mut turns = 0;
    while !done() {
        // On a busy machine, a thread that yields gets its next turn late.
        match turns < TURNS {
            true => std::thread::yield_now(),
            false => std::thread::park_timeout(PAUSE),
        }
        turns += 1;
    }
}

/// Returns true if the process runs. A process that has ended and was not waited for does not.
fn lives(process: u32) -> bool {
    let known = std::fs::read_to_string(format!("/proc/{process}/stat"));
    let state = known.ok().and_then(|known| {
        let (_, behind) = known.rsplit_once(") ")?;
        behind.chars().next()
    });
    !matches!(state, None | Some('Z' | 'X'))
}

fn bytes() -> usize {
    SEATS + MOST_RANKS * (DESK + MOST_RANKS * BOX)
}

/// Maps the file, which the first rank makes.
fn map(name: &CString) -> Option<usize> {
    // SAFETY: the name ends with a zero; the file is as large as the mapping.
    unsafe {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC;
        let file = libc::shm_open(name.as_ptr(), flags, 0o600);
        if file < 0 {
            return None;
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let sized = libc::ftruncate(file, bytes() as libc::off_t) == 0;
        let none = std::ptr::null_mut();
        let start = libc::mmap(none, bytes(), rights, libc::MAP_SHARED, file, 0);
        libc::close(file);
        (sized && start != libc::MAP_FAILED).then_some(start as usize)
    }
}
