//! Where a wrong value comes from.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};

/// The variable of the environment that gave the value which `error` is about;
/// `None` when it was given in `words`, or when the error is about none.
pub(super) fn variable(
    command: &Command,
    words: &[OsString],
    error: &clap::Error,
) -> Option<String> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    // As "--port <PORT>".
    let name = shown.split_whitespace().next()?.strip_prefix("--")?;
    let argument = find(command, name)?;
    let variable = argument.get_env()?.to_str()?;
    std::env::var_os(variable)?;
    (!given(argument, words)).then(|| variable.to_owned())
}

fn find<'a>(command: &'a Command, long: &str) -> Option<&'a Arg> {
    let mut own = command.get_arguments();
    own.find(|argument| argument.get_long() == Some(long))
        .or_else(|| {
            command
                .get_subcommands()
                .find_map(|below| find(below, long))
        })
}

/// Whether one of the argument's names is among the words.
fn given(argument: &Arg, words: &[OsString]) -> bool {
    let names = argument
        .get_long()
        .into_iter()
        .chain(argument.get_all_aliases().into_iter().flatten());
    let names: Vec<_> = names.collect();
    words.iter().any(|word| {
        let word = word.to_string_lossy();
        let name = word.split('=').next().and_then(|w| w.strip_prefix("--"));
        name.is_some_and(|name| names.contains(&name))
    })
}

#[cfg(test)]
mod tests {
    use super::variable;
    use clap::{Arg, Command};

    /// A number from a variable that every test run has and that is none.
    fn program() -> Command {
        let number = Arg::new("number")
            .long("number")
            .alias("n")
            .env("PATH")
            .value_parser(clap::value_parser!(u8));
        Command::new("p").subcommand(Command::new("run").arg(number))
    }

    #[test]
    fn a_value_from_the_environment_is_told_from_a_flags() {
        for (words, expected) in [
            (vec!["p", "run"], Some("PATH")),
            (vec!["p", "run", "--number", "x"], None),
            (vec!["p", "run", "--n=x"], None),
            (vec!["p", "run", "--other"], None),
        ] {
            let words: Vec<_> = words.into_iter().map(Into::into).collect();
            let error = program().try_get_matches_from(&words).expect_err("wrong");
            let found = variable(&program(), &words, &error);
            assert_eq!(found.as_deref(), expected, "{words:?}");
        }
    }
}
