//! `lockstep serve`: starts, watches, restarts and drains an engine.

use std::net::{TcpListener, ToSocketAddrs};

use lockstep_config::ServeArgs;
use lockstep_ports::{NodeTls, Tls, TlsError};
use lockstep_process::logging;
use lockstep_types::{Algorithms, ConfigError, NodeConfig, TlsFiles};

use crate::console::Console;
use crate::error::LaunchError;
use crate::settings::Settings;

mod cause;
mod child;
mod children;
mod control;
mod end;
mod event;
mod lifecycle;
mod outlook;
mod processes;
mod progress;
mod pulse;
mod replace;
mod restarts;
mod signals;
mod startup;
mod summary;
mod supervisor;

/// Serves until told to stop; gives the exit code.
pub(crate) fn run(args: &ServeArgs, algorithms: &Algorithms) -> Result<u8, LaunchError> {
    let settings = Settings::prepare(args, algorithms)?;
    let node = &settings.file.node;
    logging::init("launcher", &node.log, node.log_json);
    logging::log_panics();
    check_tls(node)?;
    if node.node_rank == 0 {
        check_ports(&settings)?;
    }
    raise_file_limit();
    settings.file.write()?;
    // Death signals follow the thread that starts a child: this one, which
    // lives as long as the program.
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

/// Says early what the processes would say of certificates.
///
/// # Errors
/// [`LaunchError::Config`] names the option and what is wrong with its file.
pub(crate) fn check_tls(node: &NodeConfig) -> Result<(), LaunchError> {
    if let Some(files) = &node.tls {
        let options = ["--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs"];
        Tls::load(files).map_err(|error| of_file(error, files, options))?;
    }
    if let Some(files) = &node.dist_tls {
        let options = [
            "--dist-ssl-certfile",
            "--dist-ssl-keyfile",
            "--dist-ssl-ca-certs",
        ];
        NodeTls::load(files).map_err(|error| of_file(error, files, options))?;
    }
    Ok(())
}

/// What is wrong with one of `files`, said of the option that names it: certificate, key
/// or roots.
fn of_file(error: TlsError, files: &TlsFiles, options: [&'static str; 3]) -> LaunchError {
    let TlsError { path, message } = error;
    let [certificate, key, roots] = options;
    let option = if path == files.certificate {
        certificate
    } else if path == files.key {
        key
    } else {
        roots
    };
    LaunchError::Config(ConfigError::File {
        option,
        path,
        message,
    })
}

/// Says early what a tokenizer-manager or the scheduler would say after the
/// weights are loaded.
fn check_ports(settings: &Settings) -> Result<(), LaunchError> {
    let server = &settings.file.engine.server;
    let ports = [
        ("--port", Some(server.port)),
        ("--grpc-port", server.grpc_port),
        ("--sglang-grpc-port", server.sglang_grpc_port),
    ];
    for (option, port) in ports {
        let Some(port) = port else { continue };
        let failed = |remedy| {
            let address = format!("{}:{port}", server.host);
            move |source| LaunchError::Port {
                option,
                address,
                source,
                remedy,
            }
        };
        let addresses: Vec<_> = (server.host.as_str(), port)
            .to_socket_addrs()
            .map_err(failed("Give an address of this machine with --host"))?
            .collect();
        TcpListener::bind(addresses.as_slice())
            .map_err(failed("Free the port or give another; see also --host"))?;
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
