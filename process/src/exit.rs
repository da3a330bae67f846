//! Exit codes of the `lockstep` program and its roles.

/// Success, also at the end of a drain that finished in time.
pub const OK: u8 = 0;
/// The start failed: a model that cannot be read, a port that is taken, a process that died
/// before the engine was ready, or a start past its limit. For a command that prints an answer:
/// it could not do its task. For a role: it failed at any time and reported why.
pub const START_FAILED: u8 = 1;
/// Wrong usage or an unsupported configuration, for every command; nothing was started.
pub const USAGE: u8 = 2;
/// A process of the engine died or failed while serving, on any node.
pub const PROCESS_DIED: u8 = 3;
/// The drain limit passed with requests still running.
pub const DRAIN_LIMIT: u8 = 4;
/// A child lost its launcher.
pub const LAUNCHER_GONE: u8 = 5;
/// A second signal stopped the process before the drain was finished.
pub const INTERRUPTED: u8 = 6;
/// `lockstep doctor` found problems.
pub const PROBLEMS: u8 = 7;
/// A panic, which is a bug in this program.
pub const PANIC: u8 = 101;

/// Ends the process from any thread, also while others are stuck.
///
/// For watchdogs only: all other code returns its exit code from `main`. Logged lines get half
/// a second to be read. If the C library's exit handlers hang, a kill signal follows half a
/// second later.
pub fn exit_now(code: u8) -> ! {
    crate::logging::finish();
    let _guard = std::thread::Builder::new()
        .name("exit-guard".into())
        .spawn(|| {
            let (_open, never) = std::sync::mpsc::channel::<()>();
            let _ = never.recv_timeout(std::time::Duration::from_millis(500));
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        });
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that ends a process at once"
    )]
    std::process::exit(i32::from(code))
}

/// Meaning of an exit code, for log lines; `None` for codes of other programs.
pub fn meaning(code: i32) -> Option<&'static str> {
    Some(match u8::try_from(code).ok()? {
        OK => "ended normally",
        START_FAILED => "failed",
        USAGE => "wrong usage or configuration",
        PROCESS_DIED => "a process of the engine died",
        DRAIN_LIMIT => "the drain limit passed",
        LAUNCHER_GONE => "the launcher is gone",
        INTERRUPTED => "interrupted before the drain was finished",
        PROBLEMS => "problems were found",
        PANIC => "panicked",
        _ => return None,
    })
}
