//! Flags for the options that algorithms declare.

use clap::builder::{BoolishValueParser, TypedValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use lockstep_types::{Algorithms, ConfigError, OptionSpec, OptionValue, OptionValues};

pub(super) const HEADING: &str = "Speculative decoding";

/// The values of algorithms' own options that were given. Their flags are not
/// part of this structure: [`with_algorithm_options`] adds them to a command
/// line, for the algorithms that the program knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlgorithmArgs(pub OptionValues);

/// Adds a flag for every option of `algorithms` to each command that can draft.
///
/// # Errors
/// [`ConfigError::Value`] for an option whose flag stands for something else
/// already.
pub fn with_algorithm_options(
    command: Command,
    algorithms: &Algorithms,
) -> Result<Command, ConfigError> {
    let mut failed = None;
    let command = command.mut_subcommands(|below| {
        let name = below.get_name().to_owned();
        with_algorithm_options(below, algorithms).unwrap_or_else(|error| {
            failed = Some(error);
            Command::new(name)
        })
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let drafts = |arg: &Arg| arg.get_id() == "speculative_algorithm";
    if !command.get_arguments().any(drafts) {
        return Ok(command);
    }
    let mut declared: Vec<OptionSpec> = Vec::new();
    let mut arguments = Vec::new();
    for algorithm in algorithms.iter() {
        for option in algorithm.options() {
            if declared.contains(option) {
                continue;
            }
            let taken = |arg: &Arg| arg.get_long() == Some(option.name());
            if declared.iter().any(|other| other.flag() == option.flag())
                || command.get_arguments().any(taken)
            {
                return Err(ConfigError::value(
                    option.flag(),
                    format!("of {}", algorithm.name()),
                    "the flag stands for another option already",
                    "Rename it where the algorithm declares it",
                ));
            }
            arguments.push(argument(algorithm.name(), *option));
            declared.push(*option);
        }
    }
    Ok(command.args(arguments))
}

fn argument(algorithm: &str, option: OptionSpec) -> Arg {
    let name = option.name();
    let variable = name.replace('-', "_").to_ascii_uppercase();
    let argument = Arg::new(name)
        .long(name)
        .env(format!("LOCKSTEP_{variable}"))
        .help_heading(HEADING);
    match option {
        OptionSpec::Number(option) => argument
            .value_name(option.unit)
            .value_parser(move |text: &str| number(text, option.least))
            .help(format!(
                "{algorithm}: {} [default: {}]",
                option.help, option.default
            )),
        OptionSpec::Switch(option) => {
            let help = format!("{algorithm}: {}", option.help);
            let argument = super::switches::valued(argument)
                .value_parser(BoolishValueParser::new().map(OptionValue::Switch));
            match option.details {
                "" => argument.help(help),
                details => argument
                    .long_help(format!("{help}.\n\n{details}"))
                    .help(help),
            }
        }
    }
}

fn number(text: &str, least: u64) -> Result<OptionValue, String> {
    match text.parse() {
        Ok(number) if number >= least => Ok(OptionValue::Number(number)),
        Ok(_) => Err(format!("must be at least {least}")),
        Err(_) => Err(format!("must be a whole number, at least {least}")),
    }
}

impl FromArgMatches for AlgorithmArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = OptionValues::default();
        for id in matches.ids() {
            // Other arguments are of other types.
            let value = matches.try_get_one::<OptionValue>(id.as_str());
            if let Ok(Some(value)) = value
                && *value != OptionValue::Switch(false)
            {
                given.set(id.as_str(), *value);
            }
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for AlgorithmArgs {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::CommandFactory;

    use super::*;
    use crate::testing::{Program, TestAlgorithm, algorithms};

    #[test]
    fn options_become_flags_with_help_default_and_variable() {
        let command = Program::definition();
        let flag = |name: &str| {
            let mut all = command.get_arguments();
            let found = all.find(|arg| arg.get_long() == Some(name));
            found.unwrap_or_else(|| panic!("no --{name}"))
        };
        let size = flag("speculative-window-size");
        let help = size.get_help().expect("a help").to_string();
        assert_eq!(help, "WINDOW: tokens that are looked at [default: 4]");
        let variable = size.get_env().expect("a variable");
        assert_eq!(variable, "LOCKSTEP_SPECULATIVE_WINDOW_SIZE");
        let private = flag("speculative-window-private");
        let help = private.get_long_help().expect("a help").to_string();
        assert_eq!(help, "WINDOW: remember nothing.\n\nIt is slower.");
        let values = private.get_num_args().expect("built with them");
        assert_eq!((values.min_values(), values.max_values()), (0, 1));
    }

    #[test]
    fn a_flag_that_stands_for_something_else_is_refused() {
        for name in ["CLASHES WITH A FLAG", "CLASHES WITH AN OPTION"] {
            let mut known = algorithms();
            known.add(Arc::new(TestAlgorithm(name)));
            let error = with_algorithm_options(Program::command(), &known);
            let error = error.expect_err(name).to_string();
            assert!(error.contains(name) && error.contains("--"), "{error}");
        }
        let mut twice = algorithms();
        twice.add(Arc::new(TestAlgorithm("WINDOW AGAIN")));
        assert!(with_algorithm_options(Program::command(), &twice).is_ok());
    }
}
