//! `lockstep serve`: starts, watches, restarts and drains an engine.

use lockstep_config::ServeArgs;
use lockstep_process::logging;
use lockstep_types::Algorithms;

use crate::console::Console;
use crate::error::LaunchError;
use crate::ports::Ports;
use crate::settings::Settings;

mod cause;
mod child;
mod children;
mod control;
mod end;
mod event;
mod lifecycle;
mod processes;
mod progress;
mod pulse;
mod replace;
mod restarts;
mod retry_after;
mod signals;
mod startup;
mod summary;
mod supervisor;

pub(crate) use summary::{kv_cache, megabytes, rounded, weights};

/// Serves until told to stop; returns the exit code.
pub(crate) fn run(args: &ServeArgs, algorithms: &Algorithms) -> Result<u8, LaunchError> {
    let settings = Settings::of_server(args, algorithms)?;
    let node = &settings.file.node;
    logging::init("launcher", &node.log, node.log_json);
    logging::log_panics();
    if node.node_rank == 0 {
        check_ports(args, &settings)?;
    }
    raise_file_limit();
    settings.file.write()?;
    // Death signals follow the thread that starts a child. This thread lives as long as the
    // program.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| LaunchError::System {
            what: "the launcher's event loop",
            source,
        })?;
    let console = Console::start().map_err(|source| LaunchError::System {
        what: "the console",
        source,
    })?;
    let code = runtime.block_on(supervisor::run(&settings, &console));
    drop(runtime);
    code
}

/// Reports early an error that a tokenizer-manager or the scheduler would report after the
/// weights are loaded.
fn check_ports(args: &ServeArgs, settings: &Settings) -> Result<(), LaunchError> {
    let grpc_follows = args.server.grpc_port.is_none();
    let ports = Ports::of(&settings.file.engine.server, grpc_follows);
    for (option, port) in ports.all() {
        ports.try_out(option, *port)?;
    }
    Ok(())
}

/// Many systems start programs with 1,024 open files and allow far more;
/// children inherit the raised limit.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
}
