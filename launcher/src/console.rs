//! Output for people: stdout for answers, stderr for everything else. Commands that answer
//! and end wait for their readers. `serve` waits for nobody: its output goes through queues
//! that drop lines if they are not read in time.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd as _;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressDrawTarget};
use lockstep_process::LineQueue;
use lockstep_process::logging;

use crate::error::LaunchError;
use screen::Screen;

mod screen;

/// Frames of progress bars in a second.
const FRAMES: u8 = 20;
/// Longest wait of an answer for bars that were drawn before it. Both go to one terminal by
/// two ways.
const IN_ORDER: Duration = Duration::from_millis(100);

/// Prints an error. Configuration errors have their remedy in their text.
pub(crate) fn print_error(error: &dyn Display) {
    print_note(&format!("error: {error}"));
}

/// Prints a line to stdout; a reader that left is not an error.
pub(crate) fn print(text: &str) -> Result<(), LaunchError> {
    lockstep_process::print(&format!("{text}\n")).map_err(|source| LaunchError::System {
        what: "printing the answer",
        source,
    })
}

/// Returns true if bars can be drawn on stderr: it is a terminal that moves its cursor.
pub(crate) fn draws() -> bool {
    io::stderr().is_terminal() && moves_cursor(std::env::var_os("TERM").as_deref())
}

/// Returns true if a terminal of that name moves its cursor.
fn moves_cursor(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Prints a note to stderr that belongs to no answer. If the process logs, the note goes
/// through the log's queue, as its reader may have stopped reading.
pub(crate) fn print_note(text: &str) {
    if logging::started() {
        logging::stderr().push_urgent(format!("{text}\n").as_bytes());
        logging::finish();
    } else {
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// The output of `serve`. No method waits for a reader.
pub(crate) struct Console {
    stdout: LineQueue,
    lines: Lines,
}

/// A handle that takes lines for stderr, for tasks that forward them.
#[derive(Clone)]
pub(crate) struct Lines {
    queue: LineQueue,
    bars: MultiProgress,
}

impl Lines {
    /// Queues a line. The line is dropped when too many wait.
    pub(crate) fn push(&self, line: &[u8]) {
        self.bars.suspend(|| self.queue.push(line));
    }

    /// Lines that are written to `out`.
    #[cfg(test)]
    pub(crate) fn to(out: impl Write + Send + 'static) -> Self {
        Self {
            queue: LineQueue::start("lines", out),
            bars: MultiProgress::with_draw_target(ProgressDrawTarget::hidden()),
        }
    }
}

impl Console {
    /// Starts the console's threads.
    ///
    /// # Errors
    /// Fails when the system has no handle left.
    pub(crate) fn start() -> io::Result<Self> {
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let queue = logging::stderr().clone();
        let target = if draws() {
            let screen = Screen::over(queue.clone());
            ProgressDrawTarget::term_like_with_hz(Box::new(screen), FRAMES)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bars = MultiProgress::with_draw_target(target);
        Ok(Self {
            stdout: LineQueue::start("stdout", stdout),
            lines: Lines { queue, bars },
        })
    }

    /// Progress bars at the bottom of the terminal.
    pub(crate) fn bars(&self) -> &MultiProgress {
        &self.lines.bars
    }

    /// A handle for tasks that forward lines.
    pub(crate) fn lines(&self) -> Lines {
        self.lines.clone()
    }

    /// Writes a line of the launcher itself to stderr.
    pub(crate) fn say(&self, text: &str) {
        self.lines.push(format!("{text}\n").as_bytes());
    }

    /// Writes a text that a user waits for to stdout.
    pub(crate) fn answer(&self, text: &str) {
        self.lines.bars.suspend(|| {
            self.lines.queue.flush(IN_ORDER);
            self.stdout.push(format!("{text}\n").as_bytes());
        });
    }
}

impl Drop for Console {
    /// Gives active readers the time to take the last lines.
    fn drop(&mut self) {
        self.stdout.flush(logging::LAST_WORDS);
        logging::finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_that_cannot_move_their_cursor_are_drawn_nothing() {
        for (term, moves) in [
            (Some("xterm-256color"), true),
            (Some("dumb"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(moves_cursor(term.map(OsStr::new)), moves, "{term:?}");
        }
    }
}
