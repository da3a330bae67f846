//! One child process.

use std::collections::VecDeque;
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockstep_process::Role;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{ChildStderr, Command};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::end::Ending;
use super::event::Event;
use crate::console::Lines;

/// Lines of a child that are kept for an error.
const KEPT_LINES: usize = 50;
/// Longest line that is forwarded whole, in bytes; longer lines come in pieces.
const LONGEST_LINE: u64 = 16 * 1024;
/// Longest wait for the last lines of a child that ended. Its pipe closes at once, unless
/// another process has inherited the pipe.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Role and command of a child to start.
pub(super) struct ChildSpec {
    pub(super) role: Role,
    pub(super) command: Command,
}

/// A child that was started; dropping it kills the process.
pub(super) struct Child {
    pub(super) role: Role,
    tail: Tail,
    kill: CancellationToken,
}

impl Child {
    /// Starts the child in a process group of its own, so that Ctrl-C reaches the launcher
    /// alone. Watches the child from now on: its stderr goes to `lines`, its end to
    /// `events`.
    ///
    /// # Errors
    /// Fails when the system cannot start the child.
    pub(super) fn spawn(
        spec: ChildSpec,
        lines: Lines,
        events: UnboundedSender<Event>,
    ) -> io::Result<Self> {
        let ChildSpec { role, mut command } = spec;
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let (tail, kill) = (Tail::default(), CancellationToken::new());
        let stderr = process
            .stderr
            .take()
            .map(|pipe| tokio::spawn(forward(pipe, lines, tail.clone())));
        let killed = kill.clone();
        tokio::spawn(async move {
            let status = tokio::select! {
                status = process.wait() => status,
                () = killed.cancelled() => {
                    let _ = process.start_kill();
                    process.wait().await
                }
            };
            if let Some(stderr) = stderr {
                let _ = timeout(LAST_WORDS, stderr).await;
            }
            let _ = events.send(Event::Exited(role, Ending::from(status)));
        });
        Ok(Self { role, tail, kill })
    }

    /// Kills the process, even one that is stopped.
    pub(super) fn kill(&self) {
        self.kill.cancel();
    }

    /// The last lines that the child wrote, at most `count`.
    pub(super) fn last_lines(&self, count: usize) -> Vec<String> {
        let lines = self.tail.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .iter()
            .skip(lines.len().saturating_sub(count))
            .cloned()
            .collect()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

/// The last lines of a child.
#[derive(Clone, Default)]
struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn push(&self, line: &[u8]) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(line).trim_end().to_owned());
    }
}

async fn forward(pipe: ChildStderr, lines: Lines, tail: Tail) {
    let mut reader = BufReader::new(pipe).take(LONGEST_LINE);
    let mut line = Vec::new();
    while matches!(reader.read_until(b'\n', &mut line).await, Ok(read) if read > 0) {
        tail.push(&line);
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        lines.push(&line);
        line.clear();
        reader.set_limit(LONGEST_LINE);
    }
}
