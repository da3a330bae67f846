//! Lives of an engine, one after the other.

use std::time::Duration;

use lockstep_process::exit;
use tokio::time::{Instant, sleep};

use super::cause::Cause;
use super::children::Children;
use super::lifecycle::{self, Served};
use super::progress::Progress;
use super::signals::Signals;
use super::startup::{self, Started};
use super::{processes, summary};
use crate::console::Console;
use crate::error::LaunchError;
use crate::settings::Settings;

/// A start that failed ends its children within this.
const HALT: Duration = Duration::from_millis(500);
/// Before the first restart; doubled for each one after it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How one life ended.
enum Life {
    Stopped(u8),
    StartFailed(String),
    Died(Cause),
}

/// Runs engines until one is stopped or restarts are used up; gives the exit
/// code.
pub(super) async fn run(settings: &Settings, console: &Console) -> Result<u8, LaunchError> {
    let system = |what| move |source| LaunchError::System { what, source };
    let mut signals = Signals::new().map_err(system("signals"))?;
    let mut restarts = 0;
    loop {
        let what = match live(settings, console, &mut signals, restarts > 0).await? {
            Life::Stopped(code) => {
                summary::stopped(settings, console, code);
                return Ok(code);
            }
            Life::StartFailed(why) if restarts == 0 => return Err(LaunchError::Start(why)),
            Life::StartFailed(why) => why,
            Life::Died(cause) => cause.to_string(),
        };
        if restarts == settings.max_restarts {
            tracing::error!("the engine ended: {what}");
            return Ok(exit::PROCESS_DIED);
        }
        let pause = LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.saturating_pow(restarts.min(8)));
        restarts += 1;
        tracing::error!(
            "the engine ended: {what}\nrestart {restarts} of {} in {} s",
            settings.max_restarts,
            pause.as_secs()
        );
        tokio::select! {
            () = sleep(pause) => {}
            _ = signals.next() => return Ok(exit::PROCESS_DIED),
        }
    }
}

/// Starts an engine and serves with it to its end. `again` says that another
/// one served before.
async fn live(
    settings: &Settings,
    console: &Console,
    signals: &mut Signals,
    again: bool,
) -> Result<Life, LaunchError> {
    let (engine, node) = (&settings.file.engine, &settings.file.node);
    let begin = Instant::now();
    if !again {
        summary::starting(settings, console);
    }
    let mut children = Children::spawn(
        processes::specs(&settings.file),
        &node.control_socket(),
        &console.lines(),
    )
    .map_err(|source| LaunchError::System {
        what: "starting the processes",
        source,
    })?;
    let limit = Duration::from_secs(engine.timeouts.startup_s);
    let mut progress = Progress::new(console);
    let started = startup::until_ready(&mut children, limit, signals, &mut progress).await;
    progress.finish();
    match started {
        Started::Ready if again => summary::ready_again(settings, console, begin.elapsed()),
        Started::Ready => summary::ready(settings, console, &children, begin.elapsed()),
        Started::Failed => {
            let cause = startup::cause(&mut children).await;
            children.stop(HALT).await;
            let why = cause.map_or_else(|| "a process ended".to_owned(), |cause| cause.to_string());
            return Ok(Life::StartFailed(why));
        }
        Started::TimedOut(waiting) => {
            children.stop(HALT).await;
            return Ok(Life::StartFailed(format!(
                "not ready within {} s: {waiting}. Give more time with --startup-timeout, or see \
                 what they wait for with --log-level debug",
                limit.as_secs()
            )));
        }
        Started::Signal(name) => {
            tracing::info!("{name} during the start");
            children.stop(HALT).await;
            return Ok(Life::Stopped(exit::OK));
        }
    }
    let drain = Duration::from_secs(engine.timeouts.drain_s);
    Ok(
        match lifecycle::serve(&mut children, signals, drain, node.node_rank == 0).await {
            Served::Stopped(code) => Life::Stopped(code),
            Served::Died(cause) => Life::Died(cause),
        },
    )
}
