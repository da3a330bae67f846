//! Letters from one rank to another. Only the sender and the receiver take part.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::kill::When;
use super::room::{BOX, Captured, Member, PIECE, pause_until};
use crate::world::graph::Work;

/// A letter, on the side of its sender or its receiver.
#[derive(Clone, Copy)]
pub(super) struct Letter {
    pub(super) sends: bool,
    pub(super) peer: usize,
    pub(super) at: usize,
    pub(super) bytes: usize,
}

/// The beginning of a box; zeros at first.
#[repr(C)]
struct Head {
    /// Number of pieces that were put in.
    put: AtomicU64,
    /// Number of pieces that were taken out.
    taken: AtomicU64,
    /// Bytes of the letter of the last piece. Its receiver takes a letter of this length only.
    bytes: AtomicU64,
    /// Number of the letter among those that its sender has captured. Its receiver takes no
    /// other.
    captured: AtomicU64,
}

/// A letter under way, and the number of its bytes that have gone.
struct Going {
    letter: Letter,
    captured: Captured,
    gone: usize,
    begun: bool,
}

/// Work for all `letters` of a rank. Either a graph `captures` all of them, or none. A letter
/// waits only for others that go the same way.
pub(super) fn work(member: &Arc<Member>, letters: &[Letter], captures: bool) -> Work {
    let member = member.clone();
    let number = |letter: &Letter| {
        let captured = &member.captured;
        (
            *letter,
            captured.letter(captures, letter.sends, letter.peer),
        )
    };
    let letters: Vec<_> = letters.iter().map(number).collect();
    Arc::new(move || {
        member.kill.at(When::Entered);
        let going = |&(letter, captured): &(Letter, Captured)| Going {
            letter,
            captured,
            gone: 0,
            begun: false,
        };
        let mut all: Vec<Going> = letters.iter().map(going).collect();
        let mut brought = false;
        pause_until(|| {
            let done = go_on(&member, &mut all);
            let sent = all.iter().all(|one| one.done() || !one.letter.sends);
            if sent && !std::mem::replace(&mut brought, true) {
                member.kill.at(When::Brought);
            }
            done || member.is_aborted()
        });
        Ok(())
    })
}

impl Going {
    fn done(&self) -> bool {
        self.begun && self.gone == self.letter.bytes
    }

    /// Moves the next piece, if its box is ready for that.
    fn step(&mut self, member: &Member) {
        let Letter {
            sends,
            peer,
            at,
            bytes,
        } = self.letter;
        let (from, to) = match sends {
            true => (member.rank, peer),
            false => (peer, member.rank),
        };
        let place = member.post_box(from, to);
        // SAFETY: the boxes are mapped as long as the member lives, begin with a head
        // each, and atomics are all that anybody has of it.
        let head = unsafe { &*(place as *const Head) };
        let piece = (bytes - self.gone).min(PIECE);
        let (content, own) = (
            (place + BOX - PIECE) as *mut u8,
            (at + self.gone) as *mut u8,
        );
        let (put, taken) = (
            head.put.load(Ordering::SeqCst),
            head.taken.load(Ordering::SeqCst),
        );
        let ready = match sends {
            true => put == taken,
            false => {
                let expected = [bytes as u64, self.captured.0];
                let came = [&head.bytes, &head.captured].map(|word| word.load(Ordering::SeqCst));
                put > taken && came == expected
            }
        };
        if !ready {
            return;
        }
        // SAFETY: the box is this rank's now and holds a piece; the letter is memory of the
        // device, which its owner keeps until the stream has run.
        unsafe {
            match sends {
                true => std::ptr::copy(own, content, piece),
                false => std::ptr::copy(content, own, piece),
            }
        }
        match sends {
            true => {
                head.bytes.store(bytes as u64, Ordering::SeqCst);
                head.captured.store(self.captured.0, Ordering::SeqCst);
                head.put.store(put + 1, Ordering::SeqCst);
            }
            false => head.taken.store(taken + 1, Ordering::SeqCst),
        }
        (self.begun, self.gone) = (true, self.gone + piece);
    }
}

/// Moves all pieces that can be moved; returns true when all letters are done.
fn go_on(member: &Member, all: &mut [Going]) -> bool {
    let mut busy: Vec<(bool, usize)> = Vec::new();
    for one in all.iter_mut().filter(|one| !one.done()) {
        let way = (one.letter.sends, one.letter.peer);
        if !busy.contains(&way) {
            busy.push(way);
            one.step(member);
        }
    }
    all.iter().all(Going::done)
}
