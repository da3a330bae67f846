//! The `lockstep` program: launcher, roles and tools behind one command line.
//!
//! This is a library so that other binaries can be the same program under another name:
//! roles are started by running the same executable again.

#![forbid(unsafe_code)]

use std::process::ExitCode;

mod cli;
mod config_command;
mod console;
mod demo;
mod doctor;
mod error;
mod generate;
mod models;
mod pack;
mod ports;
mod rank_args;
mod role;
mod run_dir;
mod serve;
mod settings;

use cli::Command;
use error::LaunchError;
use lockstep_devices::Registry;
use lockstep_process::exit;

/// The program: parses the command line and runs the command. Exit codes are
/// in [`lockstep_process::exit`].
pub fn main() -> ExitCode {
    main_with(&Registry::builtin())
}

/// Runs the program like [`main`], with the speculative algorithms of `registry`. A program
/// with algorithms of its own consists of this one call.
pub fn main_with(registry: &Registry) -> ExitCode {
    let algorithms = registry.algorithms();
    let command = match cli::parse(std::env::args_os().collect(), &algorithms) {
        Ok(command) => command,
        Err(code) => return code,
    };
    let result = match command {
        Command::Serve(args) => serve::run(&args, &algorithms),
        Command::Generate(args) => generate::run(&args, registry).map_err(LaunchError::Command),
        Command::Pack(args) => pack::run(&args, &algorithms).map_err(LaunchError::Command),
        Command::Pull(args) => models::pull(&args),
        Command::Models => models::list(),
        Command::Bench(args) => lockstep_bench::run(*args, demo::unpack_family, registry)
            .map(|()| exit::OK)
            .map_err(LaunchError::Command),
        Command::Config(args) => config_command::run(&args, &algorithms),
        Command::Doctor(args) => doctor::run(&args, &algorithms),
        Command::Role(role, run_dir) => return role::run(role, &run_dir, registry),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            console::print_error(&error);
            for hint in cli::hints(&error, std::env::args_os().collect(), &algorithms) {
                console::print_note(&hint);
            }
            ExitCode::from(error.exit_code())
        }
    }
}
