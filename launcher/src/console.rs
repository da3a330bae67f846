//! What people read: stdout for answers, stderr for everything else.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::MultiProgress;
use tokio::sync::mpsc;

/// Lines that may wait for a slow reader of stderr before children have to.
const WAITING_LINES: usize = 1024;

/// Prints an error. Configuration errors bring their remedy along.
pub(crate) fn print_error(error: &dyn Display) {
    let _ = writeln!(io::stderr(), "error: {error}");
}

/// Prints to stdout; a reader that left is not an error.
pub(crate) fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Prints to stderr what belongs to no answer.
pub(crate) fn print_note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Lines to stderr from a thread of its own: a reader that does not read must
/// not keep the launcher from watching its children.
pub(crate) struct Console {
    lines: mpsc::Sender<Vec<u8>>,
    bars: MultiProgress,
    done: std::sync::mpsc::Receiver<()>,
}

/// Something that accepts lines, for tasks that forward them.
#[derive(Clone)]
pub(crate) struct Lines(mpsc::Sender<Vec<u8>>);

impl Lines {
    /// Queues a line; waits while too many are queued.
    pub(crate) async fn forward(&self, line: Vec<u8>) {
        let _ = self.0.send(line).await;
    }

    /// Accepts lines and hands them to a receiver.
    #[cfg(test)]
    pub(crate) fn collected() -> (Self, mpsc::Receiver<Vec<u8>>) {
        let (sender, lines) = mpsc::channel(WAITING_LINES);
        (Self(sender), lines)
    }
}

impl Console {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let bars = MultiProgress::new();
        let (lines, mut queue) = mpsc::channel::<Vec<u8>>(WAITING_LINES);
        let (ended, done) = std::sync::mpsc::channel();
        let above = bars.clone();
        std::thread::Builder::new()
            .name("console".into())
            .spawn(move || {
                let _until_the_end: std::sync::mpsc::Sender<()> = ended;
                while let Some(line) = queue.blocking_recv() {
                    above.suspend(|| {
                        let _ = io::stderr().write_all(&line);
                    });
                }
            })?;
        Ok(Self { lines, bars, done })
    }

    /// Progress bars at the bottom of the terminal.
    pub(crate) fn bars(&self) -> &MultiProgress {
        &self.bars
    }

    /// For tasks that forward lines.
    pub(crate) fn lines(&self) -> Lines {
        Lines(self.lines.clone())
    }

    /// Queues a line of the launcher itself; dropped when too many wait.
    pub(crate) fn say(&self, text: &str) {
        let _ = self.lines.try_send(format!("{text}\n").into_bytes());
    }

    /// Waits until everything is printed, for a reader that reads.
    pub(crate) fn finish(self) {
        drop(self.lines);
        let _ = self.done.recv_timeout(Duration::from_millis(500));
    }
}
