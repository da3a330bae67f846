//! The command line.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use lockstep_config::{
    ServeArgs, check_short_options, with_algorithm_options, with_config_file, with_switch_values,
};
use lockstep_hub::HubError;
use lockstep_process::{Role, exit};
use lockstep_types::{Algorithms, ConfigError};

use crate::console;
use crate::doctor::DoctorArgs;
use crate::error::LaunchError;
use crate::generate::GenerateArgs;
use crate::models::PullArgs;
use crate::pack::PackArgs;

mod source;

const EXAMPLES: &str = "\
Examples:
  lockstep                                    serve the demo model on 127.0.0.1:8000
  lockstep serve Qwen/Qwen2.5-0.5B-Instruct   load a model from the hub and serve it
  lockstep serve DIR --tp-size 2              serve a folder with two workers
  lockstep generate 'Count from 3 to 12.'     one answer, no server
  lockstep doctor                             what this machine offers

Without a command, `serve` is meant; a first word with a slash, or a GGUF file, is its model.";

/// Serves large language models from cooperating processes: OpenAI-compatible
/// HTTP and gRPC in front, tensor-parallel workers behind.
#[derive(Parser)]
#[command(
    name = "lockstep",
    version,
    override_usage = "lockstep [COMMAND] [OPTIONS]",
    after_help = EXAMPLES
)]
struct Cli {
    #[command(subcommand)]
    command: Parsed,
}

#[derive(Subcommand)]
enum Parsed {
    /// Serve a model over HTTP and gRPC (the default command).
    #[command(override_usage = "lockstep serve [MODEL] [OPTIONS]")]
    Serve(Box<ServeArgs>),
    /// Answer one prompt and end, without a server.
    Generate(Box<GenerateArgs>),
    /// Pack a model's weights into a folder that servers start from.
    #[command(override_usage = "lockstep pack [MODEL] --weight-cache DIR [OPTIONS]")]
    Pack(Box<PackArgs>),
    /// Load models from the Hugging Face Hub, and print their folders.
    ///
    /// What the cache of the hub's programs has already is not loaded again,
    /// and what was interrupted is continued.
    Pull(Box<PullArgs>),
    /// List the models of the cache: name, revision, size, whether they can be served.
    Models,
    /// Measure throughput and latency.
    Bench(Box<lockstep_bench::Args>),
    /// Print the resolved configuration and its hash.
    #[command(override_usage = "lockstep config [MODEL] [OPTIONS]")]
    Config(Box<ServeArgs>),
    /// Show what this machine offers to a server with these options, and what could be better.
    #[command(override_usage = "lockstep doctor [MODEL] [OPTIONS]")]
    Doctor(Box<DoctorArgs>),
    #[command(hide = true)]
    TokenizerManager(RoleArgs),
    #[command(hide = true)]
    Scheduler(RoleArgs),
    #[command(hide = true)]
    Worker(RoleArgs),
}

/// A role's own arguments; everything else is in the configuration file.
#[derive(clap::Args)]
struct RoleArgs {
    /// The launcher's run directory.
    #[arg(long)]
    run_dir: PathBuf,
    /// The tokenizer-manager's number or the worker's rank.
    #[arg(long, default_value_t = 0)]
    index: usize,
}

/// The command that the user gives, with its options.
pub(crate) enum Command {
    Serve(Box<ServeArgs>),
    Generate(Box<GenerateArgs>),
    Pack(Box<PackArgs>),
    Pull(Box<PullArgs>),
    Models,
    Bench(Box<lockstep_bench::Args>),
    Config(Box<ServeArgs>),
    Doctor(Box<DoctorArgs>),
    Role(Role, PathBuf),
}

/// The definition of the command line, with a flag for every option of one of `algorithms`.
///
/// # Errors
/// For an option whose flag stands for something else already.
fn definition(algorithms: &Algorithms) -> Result<clap::Command, ConfigError> {
    let command = Cli::command().mut_subcommands(without_names);
    with_algorithm_options(command, algorithms).map(with_switch_values)
}

/// Removes environment variables of options that a command refuses. `pack` refuses options
/// that packed weights don't depend on; `generate` refuses options that only clients see. An
/// environment that sets up a server may have such variables for the server.
fn without_names(command: clap::Command) -> clap::Command {
    let refused: &[&str] = match command.get_name() {
        "pack" => &["served_model_name", "context_length"],
        "generate" => &["served_model_name"],
        _ => return command,
    };
    command.mut_args(|arg| match refused.contains(&arg.get_id().as_str()) {
        true => arg.env(Resettable::Reset),
        false => arg,
    })
}

/// Parses the command line, and the `--config` file if one is named.
///
/// # Errors
/// The exit code, after help, version or an error has been printed.
pub(crate) fn parse(
    arguments: Vec<OsString>,
    algorithms: &Algorithms,
) -> Result<Command, ExitCode> {
    let wrong = |error| {
        console::print_error(&LaunchError::Config(error));
        ExitCode::from(exit::USAGE)
    };
    let command = definition(algorithms).map_err(wrong)?;
    let words = with_default_command(arguments);
    check_words(&words).map_err(wrong)?;
    let arguments = with_config_file(&command, words.clone()).map_err(wrong)?;
    let parsed = command
        .clone()
        .try_get_matches_from(arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map_err(|mut error| {
            source::suggest_public(&command, &mut error);
            let printed = error.print();
            if let Some(hint) = source::hint(&command, &words, &error) {
                console::print_note(&hint);
            }
            // A user who asked for help and stops reading has seen enough.
            let left = |error: &io::Error| lockstep_process::reader_left(error, io::stdout());
            let lost = printed.is_err_and(|error| !left(&error));
            ExitCode::from(match (error.use_stderr(), lost) {
                (true, _) => exit::USAGE,
                (false, true) => exit::START_FAILED,
                (false, false) => exit::OK,
            })
        })?;
    let is_role = matches!(
        parsed.command,
        Parsed::TokenizerManager(_) | Parsed::Scheduler(_) | Parsed::Worker(_)
    );
    if let Parsed::Serve(args) | Parsed::Config(args) = &parsed.command {
        args.check_foreign().map_err(wrong)?;
    }
    if !is_role && let Some(note) = source::unknown(&command, std::env::vars_os()) {
        console::print_note(&note);
    }
    Ok(match parsed.command {
        Parsed::Serve(args) => Command::Serve(args),
        Parsed::Generate(args) => Command::Generate(args),
        Parsed::Pack(args) => Command::Pack(args),
        Parsed::Pull(args) => Command::Pull(args),
        Parsed::Models => Command::Models,
        Parsed::Bench(args) => Command::Bench(args),
        Parsed::Config(args) => Command::Config(args),
        Parsed::Doctor(args) => Command::Doctor(args),
        Parsed::TokenizerManager(args) => {
            Command::Role(Role::TokenizerManager(args.index), args.run_dir)
        }
        Parsed::Scheduler(args) => Command::Role(Role::Scheduler, args.run_dir),
        Parsed::Worker(args) => Command::Role(Role::Worker(args.index), args.run_dir),
    })
}

/// Commands with the options of a server.
const OF_SERVERS: [&str; 3] = ["serve", "config", "doctor"];
/// Commands that take their first word without an option for the model.
const OF_MODELS: [&str; 4] = ["serve", "config", "doctor", "pack"];

/// Refuses other engines' options with one dash, which would be read as several options of
/// one letter.
fn check_words(words: &[OsString]) -> Result<(), ConfigError> {
    let [_, command, rest @ ..] = words else {
        return Ok(());
    };
    if OF_SERVERS.iter().any(|name| command == name) {
        check_short_options(rest.iter().filter_map(|word| word.to_str()))?;
    }
    Ok(())
}

/// Hints about the source of the options that a configuration error names. Options of the
/// command line get none.
pub(crate) fn hints(
    error: &LaunchError,
    arguments: Vec<OsString>,
    algorithms: &Algorithms,
) -> Vec<String> {
    let options: &[&str] = match error.config() {
        Some(ConfigError::Value { option, .. } | ConfigError::File { option, .. }) => &[option],
        Some(ConfigError::Conflict { first, second, .. }) => &[first, second],
        Some(ConfigError::Model(_)) => &["--model-path"],
        _ => match error.hub() {
            Some(HubError::NoFolder { option, .. }) => &[option],
            _ => return Vec::new(),
        },
    };
    let Ok(command) = definition(algorithms) else {
        return Vec::new();
    };
    let words = with_default_command(arguments);
    let Ok(all) = with_config_file(&command, words.clone()) else {
        return Vec::new();
    };
    let from_file = all.get(words.len()..).unwrap_or_default();
    source::hints(&command, &words, from_file, options)
}

/// Puts `serve` in front of options and of a model without a command. Makes the first word after
/// a command of [`OF_MODELS`] the model, and reads `help --help` as `help`.
fn with_default_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    const OF_THE_PROGRAM: [&str; 4] = ["-h", "--help", "-V", "--version"];
    let first = arguments.get(1).map(|first| first.to_string_lossy());
    let serve = match first.as_deref() {
        None => true,
        // No command has a slash; folders and names of the hub have.
        Some(first) => {
            first.contains('/')
                || first.ends_with(".gguf")
                || (first.starts_with('-') && !OF_THE_PROGRAM.contains(&first))
        }
    };
    if serve {
        arguments.insert(1.min(arguments.len()), "serve".into());
    }
    let is = |at: usize, names: &[&str]| {
        arguments
            .get(at)
            .is_some_and(|word| names.iter().any(|name| word == name))
    };
    let option = |word: &OsString| word.is_empty() || word.to_string_lossy().starts_with('-');
    if is(1, &OF_MODELS) && arguments.get(2).is_some_and(|word| !option(word)) {
        arguments.insert(2, "--model-path".into());
    } else if is(1, &["help"]) {
        arguments.retain(|word| word != "--help" && word != "-h");
    }
    arguments
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
