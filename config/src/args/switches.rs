//! Options that are on or off, all written alike.

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command};

/// Lets every switch of a command line say its state: `--name`, `--name=true` and
/// `--name=false`, as a `--config` file and the environment do. What is neither on
/// nor off is an error, wherever it is given.
#[must_use]
pub fn with_switch_values(command: Command) -> Command {
    let switch = |arg: Arg| match arg.get_action() {
        ArgAction::SetTrue => valued(arg).value_parser(BoolishValueParser::new()),
        _ => arg,
    };
    command.mut_args(switch).mut_subcommands(with_switch_values)
}

/// A switch that is off unless it is given, and on where it is given alone.
pub(super) fn valued(arg: Arg) -> Arg {
    arg.action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .default_value("false")
        .default_missing_value("true")
        .hide_default_value(true)
        .hide_possible_values(true)
        .value_name("true|false")
}
