//! Lives of an engine, one after another.

use std::time::Duration;

use lockstep_process::exit;
use tokio::time::{Instant, sleep};

use super::cause::Cause;
use super::children::Children;
use super::lifecycle::{self, Served};
use super::progress::Progress;
use super::pulse::Pulse;
use super::replace::Replacements;
use super::restarts::Restarts;
use super::retry_after::Outlook;
use super::signals::Signals;
use super::startup::{self, Started};
use super::{processes, summary};
use crate::console::Console;
use crate::error::LaunchError;
use crate::settings::Settings;

/// Time within which a failed start ends its children.
const HALT: Duration = Duration::from_millis(500);

/// The end of one life.
enum Life {
    Stopped(u8),
    StartFailed(String),
    Died(Cause),
}

/// Runs engines until one is stopped or restarts are used up; returns the exit code.
pub(super) async fn run(settings: &Settings, console: &Console) -> Result<u8, LaunchError> {
    let system = |what| move |source| LaunchError::System { what, source };
    let mut signals = Signals::new().map_err(system("signals"))?;
    let mut known = (Restarts::new(settings.max_restarts), Outlook::default());
    let mut again = false;
    loop {
        let what = match live(settings, console, &mut signals, &mut known, again).await? {
            Life::Stopped(code) => {
                summary::stopped(settings, console, code);
                return Ok(code);
            }
            Life::StartFailed(why) if !again => return Err(LaunchError::Start(why)),
            Life::StartFailed(why) => why,
            Life::Died(cause) => cause.to_string(),
        };
        let restarts = &mut known.0;
        let Some(restart) = restarts.take(Instant::now()) else {
            tracing::error!("the engine ended: {what}");
            return Ok(exit::PROCESS_DIED);
        };
        again = true;
        tracing::error!(
            "the engine ended: {what}\nrestart {} of {} {restart}",
            restart.number,
            restarts.most(),
        );
        tokio::select! {
            () = sleep(restart.pause) => {}
            _ = signals.next() => return Ok(exit::PROCESS_DIED),
        }
    }
}

/// Starts an engine and serves with it to its end. `again` is true if another engine served
/// before. Restarts and outlook cover all engines so far.
async fn live(
    settings: &Settings,
    console: &Console,
    signals: &mut Signals,
    (restarts, outlook): &mut (Restarts, Outlook),
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
    let foresee = || outlook.while_starting(begin.elapsed());
    let started = startup::until_ready(&mut children, limit, signals, &mut progress, foresee).await;
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
    outlook.started(begin.elapsed());
    restarts.healthy(Instant::now());
    let spec = |role| processes::spec(&settings.file, role);
    let replacements = Replacements::new(restarts, outlook, limit, &spec);
    let pulse = Pulse::new(settings.ping_timeout);
    let drain = (
        Duration::from_secs(engine.timeouts.drain_delay_s),
        Duration::from_secs(engine.timeouts.drain_s),
    );
    let front = node.node_rank == 0;
    Ok(
        match lifecycle::serve(&mut children, signals, pulse, replacements, drain, front).await {
            Served::Stopped(code) => Life::Stopped(code),
            Served::Died(cause) => Life::Died(cause),
        },
    )
}
