//! Time limits for work on files: a file system may hang.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::Duration;

/// Time limit for a look at a folder's descriptions.
pub const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// Number of threads that may hang before no further one is tried.
const MOST_HANGING: usize = 8;

/// Number of threads at work, including those that hang.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// On a thread that works for another: the counter of files and pieces, which exists as
    /// long as the other thread waits.
    static WAITS: RefCell<Option<Weak<AtomicU64>>> = const { RefCell::new(None) };
}

/// A thread's place in [`AT_WORK`]; given back when dropped, also after a panic.
pub(crate) struct Place;

impl Place {
    /// Takes another place.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if too many threads hang.
    pub(crate) fn take() -> io::Result<Self> {
        let place = Self;
        match AT_WORK.fetch_add(1, Ordering::Relaxed) >= MOST_HANGING {
            false => Ok(place),
            true => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "earlier attempts to read files still hang; look at their file system",
            )),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `work` on a thread of its own and waits for it no longer than `limit`. After that the
/// work ends with an error at the next file that it opens, or piece that it reads, through this
/// crate. A thread that hangs is left behind.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if the time is over, or if too many threads of earlier calls
/// still hang. Other errors if no thread can be started, or if `work` panics.
pub fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let place = Place::take()?;
    let (done, outcome) = mpsc::sync_channel(1);
    let waits = Arc::new(AtomicU64::new(0));
    let waited_for = Arc::downgrade(&waits);
    let work = move || {
        let _place = place;
        look_at(waited_for);
        // Nobody may wait for the result any more.
        let _ = done.send(work());
    };
    thread::Builder::new().name("files".into()).spawn(work)?;
    let outcome = outcome.recv_timeout(limit);
    drop(waits);
    outcome.map_err(|error| match error {
        mpsc::RecvTimeoutError::Timeout => io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "reading the files took more than {} s; look at their file system",
                limit.as_secs()
            ),
        ),
        mpsc::RecvTimeoutError::Disconnected => io::Error::other("reading the files failed"),
    })
}

/// Lets this thread work only as long as the target of `waits` exists.
pub(crate) fn look_at(waits: Weak<AtomicU64>) {
    WAITS.set(Some(waits));
}

/// Checks whether to go on. Called before every file and piece.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] on a thread that nobody waits for any more.
pub(crate) fn still_waited_for() -> io::Result<()> {
    let given_up = |waits: &Weak<AtomicU64>| match waits.upgrade() {
        Some(pulse) => {
            pulse.fetch_add(1, Ordering::Relaxed);
            false
        }
        None => true,
    };
    match WAITS.with_borrow(|waits| waits.as_ref().is_some_and(given_up)) {
        true => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "nobody waits for the files any more",
        )),
        false => Ok(()),
    }
}

/// Lock for tests in one process, since its threads are counted together.
#[cfg(test)]
pub(crate) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{open, read, read_exact_at, read_pieces};

    #[test]
    fn what_hangs_is_left_behind_and_not_tried_for_ever() {
        let _alone = ALONE.lock().expect("no panic");
        assert_eq!(within(LONGEST_LOOK, || 7).expect("in time"), 7);
        let failed = within(LONGEST_LOOK, || panic!("on purpose")).expect_err("failed");
        assert_eq!(failed.kind(), io::ErrorKind::Other);
        let mut held = Vec::new();
        for at in 0..=MOST_HANGING {
            let (release, hangs) = mpsc::channel::<()>();
            let error = within(Duration::ZERO, move || hangs.recv()).expect_err("no time");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(error.to_string().contains("earlier"), at == MOST_HANGING);
            held.push(release);
        }
        // Who was refused has taken no place; those of before may still be on their way.
        let end = Instant::now() + LONGEST_LOOK;
        while AT_WORK.load(Ordering::Relaxed) != MOST_HANGING {
            assert!(Instant::now() < end, "a place is lost");
            thread::yield_now();
        }
        drop(held);
        // The threads end, and the next call may try.
        while within(LONGEST_LOOK, || ()).is_err() {
            thread::yield_now();
        }
    }

    /// Repeats `work` until it fails.
    fn failure<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Error {
        loop {
            if let Err(error) = work() {
                return error;
            }
        }
    }

    #[test]
    fn who_is_given_up_stops_at_the_next_file_or_piece() {
        let _alone = ALONE.lock().expect("no panic");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("file"), "text").expect("written");
        let path = folder.path().to_owned();
        let file = open(folder.path(), "file").expect("there");
        let works: [Box<dyn FnOnce() -> io::Error + Send>; 3] = [
            Box::new(move || failure(|| open(&path, "file"))),
            Box::new(move || failure(|| read_exact_at(&file, &mut [0; 4], 0))),
            // A file without an end.
            Box::new(|| failure(|| read_pieces(io::repeat(7), &mut Vec::new()))),
        ];
        for work in works {
            let (sender, ended) = mpsc::channel();
            let work = move || sender.send(work().kind());
            let error = within(Duration::ZERO, work).expect_err("no time");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            let end = ended.recv_timeout(Duration::from_secs(60));
            assert_eq!(end, Ok(io::ErrorKind::TimedOut), "it goes on");
        }
        // Other threads go on.
        assert!(read(folder.path(), "file", 4).is_ok());
    }
}
