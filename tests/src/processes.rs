//! The processes of a server, found by the folder they were started with.

use std::fmt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// Role of a process of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The launcher, `serve`.
    Launcher,
    /// A tokenizer-manager, by index.
    TokenizerManager(usize),
    /// The scheduler.
    Scheduler,
    /// A worker, by rank.
    Worker(usize),
}

/// A living process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Role of the process.
    pub role: Role,
    /// Process id.
    pub pid: i32,
}

impl Process {
    /// Sends a signal. A process that has ended meanwhile ignores it.
    pub fn signal(self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills the process.
    pub fn kill(self) {
        self.signal(Signal::KILL);
    }

    /// Returns a figure of its memory in bytes, such as `VmRSS` (`proc(5)`, `status`).
    ///
    /// # Panics
    /// Panics if the process has ended.
    pub fn memory(self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        let status = status.expect("it lives");
        let line = status.lines().find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        number.map_or(0, |kib: usize| kib << 10)
    }

    /// Resets the peak of its memory, `VmHWM` (`proc(5)`, `clear_refs`).
    ///
    /// # Panics
    /// Panics if the process has ended.
    pub fn reset_peak(self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.pid), "5").expect("it lives");
    }
}

/// Returns the processes whose command lines name `folder`, sorted by role.
pub fn of(folder: &Path) -> Vec<Process> {
    let folder = folder.as_os_str().as_encoded_bytes();
    let mut found: Vec<_> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| inspect(pid, folder))
        .collect();
    found.sort_unstable();
    found
}

fn inspect(pid: i32, folder: &[u8]) -> Option<Process> {
    // A process that has ended but was not waited for has no command line.
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    if !line.windows(folder.len()).any(|part| part == folder) {
        return None;
    }
    let arguments: Vec<_> = line
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .collect();
    let index = || {
        let at = arguments.iter().position(|word| word == "--index")?;
        arguments.get(at + 1)?.parse().ok()
    };
    let role = match arguments.get(1)?.as_ref() {
        "serve" => Role::Launcher,
        "scheduler" => Role::Scheduler,
        "worker" => Role::Worker(index()?),
        "tokenizer-manager" => Role::TokenizerManager(index()?),
        _ => return None,
    };
    Some(Process { role, pid })
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (pid {})", self.role, self.pid)
    }
}
