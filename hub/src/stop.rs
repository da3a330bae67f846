//! Signals that end loading.
//!
//! By default the kernel ends a process by these signals. The exception is the first process
//! of a container: it gets only signals that it listens to, and could not be stopped while
//! it loads.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

use crate::HubError;

/// Does `work`. A signal ends it if the kernel would not end the process by the signal.
pub(crate) async fn unless_stopped<T>(
    work: impl Future<Output = Result<T, HubError>>,
) -> Result<T, HubError> {
    match std::process::id() {
        1 => unless(work, stopped()).await,
        _ => work.await,
    }
}

async fn unless<T>(
    work: impl Future<Output = Result<T, HubError>>,
    stop: impl Future<Output = io::Result<&'static str>>,
) -> Result<T, HubError> {
    tokio::select! {
        done = work => done,
        signal = stop => Err(HubError::Stopped(signal?)),
    }
}

/// Waits for a signal, and returns its name.
async fn stopped() -> io::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        _ = hangup.recv() => "SIGHUP",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_what_would_not_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        let endless = std::future::pending::<Result<(), HubError>>();
        let error = runtime.block_on(unless(endless, async { Ok("SIGTERM") }));
        let error = error.expect_err("stopped");
        assert!(error.to_string().contains("SIGTERM"), "{error}");
        assert!(!error.is_usage() && !error.is_borne());
        let never = std::future::pending();
        let done = runtime.block_on(unless(async { Ok(7) }, never));
        assert_eq!(done.expect("done"), 7);
    }
}
