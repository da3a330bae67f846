//! Files that are read for a thread that must not wait for ever.
//!
//! A read that a disk or a network does not answer can't be ended, only left behind. So for
//! work in [`patiently`], another thread does everything that concerns files. The working
//! thread waits for it, and gives up in time.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::time_limits::{Place, look_at, still_waited_for};

/// Time limit for one file, or for one piece of a MiB at most.
pub const LONGEST_STALL: Duration = Duration::from_secs(10);

/// Bytes that are read at a time, between two checks whether anybody still waits.
pub(crate) const PIECE: usize = 1 << 20;

/// Time limits of a wait for files.
#[derive(Debug, Clone, Copy)]
pub struct TimeLimits {
    /// Limit for one file, or for one piece of it.
    pub stall: Duration,
    /// Limit for all files together.
    pub total: Duration,
    /// Option that sets `total`, for errors.
    pub set_by: &'static str,
}

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The thread that reads for this thread.
    static READER: RefCell<Option<Reader>> = const { RefCell::new(None) };
}

/// Handle of a thread that reads.
struct Reader {
    jobs: mpsc::Sender<Job>,
    /// Counts files and pieces; `None` once the reader was given up.
    pulse: Option<Arc<AtomicU64>>,
    patience: TimeLimits,
    since: Instant,
}

/// Guard that takes the reader away again, also after a panic.
struct Reading;

impl Drop for Reading {
    fn drop(&mut self) {
        READER.take();
    }
}

/// Runs `work` on this thread. Files that `work` uses through this crate, and tasks that it
/// gives to [`aside`], are handled on another thread. The wait for that thread is limited by
/// `patience`. After that the thread is left behind, and every further use of files by `work`
/// is an error.
///
/// # Errors
/// If no thread can be started; [`io::ErrorKind::TimedOut`] if too many hang already.
pub fn patiently<T>(patience: TimeLimits, work: impl FnOnce() -> T) -> io::Result<T> {
    let place = Place::take()?;
    let (jobs, taken) = mpsc::channel::<Job>();
    let pulse = Arc::new(AtomicU64::new(0));
    let waits = Arc::downgrade(&pulse);
    let read = move || {
        let _place = place;
        look_at(waits);
        taken.into_iter().for_each(|job| job());
    };
    thread::Builder::new().name("files".into()).spawn(read)?;
    READER.set(Some(Reader {
        jobs,
        pulse: Some(pulse),
        patience,
        since: Instant::now(),
    }));
    let _reading = Reading;
    Ok(work())
}

/// Runs `work` on files. Inside of [`patiently`] it runs on the thread that reads for this one,
/// otherwise here.
///
/// # Errors
/// The errors of `work`; [`io::ErrorKind::TimedOut`] if it was given up.
pub fn on_reader_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    // `READER` is empty meanwhile: this thread only waits, and asks for no other work.
    let Some(mut reader) = READER.take() else {
        return work();
    };
    let done = reader.wait_for(work);
    READER.set(Some(reader));
    done
}

/// Closes files. Closing may wait for the disk, too, so inside of [`patiently`] another thread
/// does it.
pub fn close(files: impl Send + 'static) {
    READER.with_borrow(|reader| {
        if let Some(reader) = reader {
            // If that thread has ended, the files come back and are closed here, which delays
            // nobody.
            let _ = reader.jobs.send(Box::new(move || drop(files)));
        }
    });
}

/// Fills `into` from byte `at` of a file on, piece by piece, as long as somebody waits.
///
/// # Errors
/// The errors of reading; [`io::ErrorKind::TimedOut`] if nobody waits any more.
pub fn read_exact_at(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    for (number, piece) in into.chunks_mut(PIECE).enumerate() {
        still_waited_for()?;
        file.read_exact_at(piece, at + (number * PIECE) as u64)?;
    }
    Ok(())
}

impl Reader {
    fn wait_for<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let Some(pulse) = self.pulse.clone() else {
            let error = "reading the files was given up";
            return Err(io::Error::new(io::ErrorKind::TimedOut, error));
        };
        let (done, outcome) = mpsc::sync_channel(1);
        // Nobody may wait for the result any more.
        let job = move || drop(done.send(work()));
        // If the thread has ended, nobody answers.
        let _ = self.jobs.send(Box::new(job));
        let mut seen = pulse.load(Ordering::Relaxed);
        loop {
            let left = self.patience.total.saturating_sub(self.since.elapsed());
            match outcome.recv_timeout(left.min(self.patience.stall)) {
                Ok(outcome) => return outcome,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("reading the files failed"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            let now = pulse.load(Ordering::Relaxed);
            if left <= self.patience.stall || now == seen {
                self.pulse = None;
                return Err(self.patience.over(left));
            }
            seen = now;
        }
    }
}

impl TimeLimits {
    /// The error when the wait ends and `left` of the whole time is left.
    fn over(&self, left: Duration) -> io::Error {
        let Self {
            stall,
            total,
            set_by,
        } = self;
        let why = match left <= *stall {
            true => format!(
                "the files were not read within {} s ({set_by}); give more time, or look at their \
                 file system",
                total.as_secs()
            ),
            false => format!(
                "no piece of the file came within {} s; look at its file system",
                stall.as_secs()
            ),
        };
        io::Error::new(io::ErrorKind::TimedOut, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time_limits::ALONE;

    const LONG: Duration = Duration::from_secs(60);

    fn patience(stall: Duration, total: Duration) -> TimeLimits {
        let set_by = "--an-option";
        TimeLimits {
            stall,
            total,
            set_by,
        }
    }

    #[test]
    fn work_is_done_by_another_thread_and_waited_for() {
        let _alone = ALONE.lock().expect("no panic");
        let id = || Ok(thread::current().id());
        let here = thread::current().id();
        assert_eq!(on_reader_thread(id).expect("here"), here);
        let read = patiently(patience(LONG, LONG), || {
            let other = on_reader_thread(id).expect("there");
            assert_eq!(
                on_reader_thread(move || on_reader_thread(id)).expect("there"),
                other
            );
            let failed = on_reader_thread(|| Err::<(), _>(io::Error::other("on purpose")));
            assert_eq!(failed.expect_err("its own").to_string(), "on purpose");
            other
        });
        assert_ne!(read.expect("a thread"), here);
        assert_eq!(on_reader_thread(id).expect("here"), here, "it is over");
        let failed = patiently(patience(LONG, LONG), || {
            let panics = || -> io::Result<()> { panic!("on purpose") };
            [on_reader_thread(panics), on_reader_thread(|| Ok(()))]
                .map(|failed| failed.expect_err("it ended").kind())
        });
        assert_eq!(failed.expect("a thread"), [io::ErrorKind::Other; 2]);
    }

    #[test]
    fn who_hangs_is_left_behind_and_so_is_what_is_closed() {
        let _alone = ALONE.lock().expect("no panic");
        let (release, hangs) = mpsc::channel::<()>();
        let (closed, closes) = mpsc::channel::<()>();
        let errors = patiently(patience(Duration::ZERO, LONG), move || {
            let first = on_reader_thread(move || Ok(hangs.recv())).expect_err("it hangs");
            close(closed);
            let second = on_reader_thread(|| Ok(())).expect_err("given up");
            assert_eq!(second.kind(), io::ErrorKind::TimedOut);
            assert!(second.to_string().contains("given up"), "{second}");
            first
        });
        let error = errors.expect("a thread");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().starts_with("no piece"), "{error}");
        assert_eq!(closes.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(release);
        let end = closes.recv_timeout(LONG);
        assert_eq!(end, Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn readers_that_hang_are_counted() {
        let _alone = ALONE.lock().expect("no panic");
        let mut held = Vec::new();
        let error = loop {
            assert!(held.len() < 100, "nobody counts them");
            let (release, hangs) = mpsc::channel::<()>();
            let (begun, begins) = mpsc::channel::<()>();
            let hang = move || {
                drop(begun);
                Ok(hangs.recv())
            };
            let tried = patiently(patience(Duration::ZERO, LONG), || {
                on_reader_thread(hang).expect_err("it hangs")
            });
            held.push(release);
            if let Err(error) = tried {
                break error;
            }
            begins.recv().expect_err("it has begun");
        };
        assert!(held.len() > 1, "one may hang");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("earlier"), "{error}");
        drop(held);
        // They end, and the next one may try.
        while patiently(patience(LONG, LONG), || ()).is_err() {
            thread::yield_now();
        }
    }

    /// The work moves for longer than it may stand still, and then hangs.
    #[test]
    fn who_hangs_after_a_while_is_left_behind_too() {
        let _alone = ALONE.lock().expect("no panic");
        let (release, hangs) = mpsc::channel::<()>();
        let stall = Duration::from_millis(200);
        let error = patiently(patience(stall, LONG), move || {
            let begun = Instant::now();
            on_reader_thread(move || {
                while begun.elapsed() < 2 * stall {
                    still_waited_for()?;
                }
                Ok(hangs.recv())
            })
            .expect_err("it hangs")
        });
        let error = error.expect("a thread");
        assert!(error.to_string().starts_with("no piece"), "{error}");
        drop(release);
    }

    #[test]
    fn what_goes_on_is_waited_for_until_all_took_too_long() {
        let _alone = ALONE.lock().expect("no panic");
        let (working, ended) = mpsc::channel::<()>();
        // The work moves at every check, and never ends by itself.
        let endless = move || -> io::Result<()> {
            let _working = working;
            loop {
                still_waited_for()?;
                thread::yield_now();
            }
        };
        let stall = Duration::from_millis(500);
        let patience = patience(stall, 3 * stall);
        let error = patiently(patience, || on_reader_thread(endless).expect_err("over"));
        let error = error.expect("a thread");
        assert!(error.to_string().contains("--an-option"), "{error}");
        // The work has noticed.
        let end = ended.recv_timeout(LONG);
        assert_eq!(end, Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn files_are_read_in_pieces() {
        let _alone = ALONE.lock().expect("no panic");
        let folder = tempfile::tempdir().expect("a folder");
        let bytes: Vec<u8> = (0..3 * PIECE + 7).map(|at| (at / 1000) as u8).collect();
        std::fs::write(folder.path().join("file"), &bytes).expect("written");
        let read = patiently(patience(LONG, LONG), || {
            let file = crate::open(folder.path(), "file")?;
            on_reader_thread(move || {
                let mut read = vec![0; bytes.len() - 5];
                read_exact_at(&file, &mut read, 5)?;
                Ok(read == bytes[5..])
            })
        });
        assert!(read.expect("a thread").expect("there"));
    }
}
