//! Makes the command line a configuration that can be run.

use std::path::Path;
use std::time::Duration;

use lockstep_config::{ConfigFile, Hardware, Resolved, ServeArgs, resolve};
use lockstep_process::logging;
use lockstep_traces::Destination;
use lockstep_types::{Algorithms, ConfigError};
use rustix::fs::Access;

use crate::console;
use crate::demo;
use crate::error::LaunchError;
use crate::run_dir::RunDir;

mod tls;

/// A resolved configuration, with the run directory that it lies in.
pub(crate) struct Settings {
    /// The configuration that roles read.
    pub(crate) file: ConfigFile,
    /// Destination of spans, if requests are traced.
    pub(crate) traces: Option<Destination>,
    /// Notes for people about choices of the configuration.
    pub(crate) notes: Vec<String>,
    /// True if the model is the one inside the program.
    pub(crate) demo: bool,
    /// True if the head that drafts is the one inside the program.
    pub(crate) demo_head: bool,
    /// Restarts that are allowed.
    pub(crate) max_restarts: u32,
    /// Time after which a process that answers no ping is killed; 0 is never.
    pub(crate) ping_timeout: Duration,
    /// The run directory, which lives as long as the settings.
    _run_dir: RunDir,
}

impl Settings {
    /// Prepares a server, with a start that takes no longer than `--startup-timeout`; see
    /// [`Self::prepare`].
    ///
    /// # Errors
    /// [`LaunchError`].
    pub(crate) fn of_server(
        args: &ServeArgs,
        algorithms: &Algorithms,
    ) -> Result<Self, LaunchError> {
        let startup = Duration::from_secs(args.timeouts.startup());
        Self::prepare(args, algorithms, Some(startup))
    }

    /// Loads models that are given by name, makes the run directory, and puts the demo model
    /// there if no other is given. Then resolves the configuration with the `algorithms`
    /// that the program can draft with. Loading the description of a model takes no longer
    /// than `startup`, if that is a limit.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub(crate) fn prepare(
        args: &ServeArgs,
        algorithms: &Algorithms,
        startup: Option<Duration>,
    ) -> Result<Self, LaunchError> {
        let mut args = args.clone();
        check_log(&args)?;
        lockstep_hub::resolve_names(&mut args.model, Some(&mut args.speculation), startup)?;
        let run_dir = RunDir::create(args.process.run_dir.as_deref())?;
        let demo = args.model.model_path.is_none();
        let mut demo_head = false;
        if demo {
            let failed = |source| LaunchError::RunDir {
                path: run_dir.path().to_owned(),
                source,
            };
            args.model.model_path = Some(demo::unpack(run_dir.path()).map_err(failed)?);
            args.parallel.tp_size_on_cpu = Some(demo::TP_SIZE);
            demo_head = demo::speculate(&mut args.speculation, algorithms, run_dir.path())
                .map_err(failed)?;
        }
        let Resolved {
            value: (engine, mut node),
            mut notes,
        } = resolve(
            &args,
            &Hardware::detect(),
            algorithms,
            &lockstep_devices::DeviceFootprint,
        )?;
        node.run_dir = absolute(run_dir.path());
        node.weight_cache = node.weight_cache.as_deref().map(absolute);
        node.weight_cache.as_deref().map_or(Ok(()), check_cache)?;
        node.weight_update_dir = node.weight_update_dir.as_deref().map(absolute);
        node.lora_dir = node.lora_dir.as_deref().map(absolute);
        for adapter in &mut node.lora_paths {
            adapter.path = absolute(&adapter.path);
        }
        let mut engine = engine;
        engine.model.path = absolute(&engine.model.path);
        if let Some(draft) = &mut engine.speculation.draft {
            draft.model.path = absolute(&draft.model.path);
        }
        notes.extend(tls::check(&node)?);
        // Children have the same environment.
        let traces = node.traces.as_ref().map(Destination::of).transpose()?;
        notes.extend(traces.as_ref().and_then(http_port));
        let max_restarts = args.process.max_restarts.unwrap_or(0);
        let ping_timeout = Duration::from_secs(args.timeouts.ping_timeout.unwrap_or(15));
        Ok(Self {
            file: ConfigFile::new(engine, node),
            traces,
            notes,
            demo,
            demo_head,
            max_restarts,
            ping_timeout,
            _run_dir: run_dir,
        })
    }

    /// Prints the notes to stderr, for commands that start no server.
    pub(crate) fn print_notes(&self) {
        for note in &self.notes {
            console::print_note(&format!("Note: {note}."));
        }
    }
}

/// Refuses a folder of packed weights that can't be written and has none: it would have no
/// effect. A folder that another user has filled may be only readable.
fn check_cache(folder: &Path) -> Result<(), ConfigError> {
    let wrong = |why: String| {
        let remedy = "Give a folder that this user may write, or that has packed weights, or \
                      leave it out";
        ConfigError::value("--weight-cache", folder.display(), why, remedy)
    };
    // Missing folders are made in the first one that exists.
    let there = folder.ancestors().find(|above| above.exists());
    let there = there.unwrap_or(folder);
    if !there.is_dir() {
        return Err(wrong(format!("{} is no folder", there.display())));
    }
    let writes = Access::WRITE_OK | Access::EXEC_OK;
    let Err(error) = rustix::fs::access(there, writes) else {
        return Ok(());
    };
    let has_files = folder
        .read_dir()
        .is_ok_and(|mut files| files.next().is_some());
    match has_files {
        true => Ok(()),
        false => Err(wrong(format!(
            "nothing can be written in {}: {error}",
            there.display()
        ))),
    }
}

/// A note if spans would go to a port that mostly speaks another protocol.
fn http_port(traces: &Destination) -> Option<String> {
    traces.is_for_http().then(|| {
        format!(
            "traces go to {} by gRPC, but collectors mostly take OTLP over HTTP at port 4318, and \
             gRPC at 4317",
            traces.shown()
        )
    })
}

fn check_log(args: &ServeArgs) -> Result<(), LaunchError> {
    let Some(filter) = &args.process.log_level else {
        return Ok(());
    };
    logging::check(filter).map_err(|why| {
        LaunchError::Config(ConfigError::Value {
            option: "--log-level",
            value: filter.clone(),
            why,
            remedy: "Give off, error, warn, info, debug or trace, or module=level as in RUST_LOG"
                .into(),
        })
    })
}

fn absolute(path: &Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
pub(crate) mod tests;
