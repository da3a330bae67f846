//! The end of a child process.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use lockstep_process::exit;

/// The end of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The process exited with this code.
    Code(i32),
    /// A signal ended the process.
    Signal(i32),
    /// The system could not say.
    Unknown,
}

impl From<std::io::Result<ExitStatus>> for Ending {
    fn from(status: std::io::Result<ExitStatus>) -> Self {
        match status.map(|status| (status.code(), status.signal())) {
            Ok((Some(code), _)) => Self::Code(code),
            Ok((None, Some(signal))) => Self::Signal(signal),
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => match exit::meaning(code) {
                Some(meaning) => write!(f, "ended with exit code {code} ({meaning})"),
                None => write!(f, "ended with exit code {code}"),
            },
            Self::Signal(9) => f.write_str(
                "was killed by signal 9 (SIGKILL; where nobody sent it, memory ran out)",
            ),
            Self::Signal(4) => {
                f.write_str("was killed by signal 4 (SIGILL; this processor lacks an instruction)")
            }
            Self::Signal(signal) => write!(f, "was killed by signal {signal}{}", name(signal)),
            Self::Unknown => f.write_str("ended in an unknown way"),
        }
    }
}

fn name(signal: i32) -> &'static str {
    match signal {
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}
