//! Work on files that must not take for ever: a file system may hang.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a look at a folder's descriptions may take.
pub const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// How many threads may hang at a time before nothing is tried any more.
const MOST_HANGING: usize = 8;

/// Threads at work, those that hang among them.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// Leaves [`AT_WORK`] when dropped, also by a panic.
struct Place;

impl Drop for Place {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `work` on a thread of its own and waits for it no longer than `limit`. A thread that hangs
/// is left behind.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] when the time is over, or threads from earlier calls still hang;
/// others where there is no thread to be had, or `work` panics.
pub fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let timed_out = |why: String| io::Error::new(io::ErrorKind::TimedOut, why);
    let place = Place;
    if AT_WORK.fetch_add(1, Ordering::Relaxed) >= MOST_HANGING {
        return Err(timed_out(
            "earlier attempts to read files still hang; look at their file system".into(),
        ));
    }
    let (done, outcome) = mpsc::sync_channel(1);
    let work = move || {
        let _place = place;
        // Nobody may wait for it any more.
        let _ = done.send(work());
    };
    thread::Builder::new().name("files".into()).spawn(work)?;
    outcome.recv_timeout(limit).map_err(|error| match error {
        mpsc::RecvTimeoutError::Timeout => timed_out(format!(
            "reading the files took more than {} s; look at their file system",
            limit.as_secs()
        )),
        mpsc::RecvTimeoutError::Disconnected => io::Error::other("reading the files failed"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_left_behind_and_not_tried_for_ever() {
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
        drop(held);
        // They end, and the next one may try.
        while within(LONGEST_LOOK, || ()).is_err() {
            thread::yield_now();
        }
    }
}
