//! Hints about the source of a wrong value.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

/// Names the environment variable with the value that `error` is about, or the likely
/// meaning of a word without an option. `None` if the value was given in `words`.
pub(super) fn hint(command: &Command, words: &[OsString], error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    if error.kind() == ErrorKind::UnknownArgument && !shown.starts_with('-') {
        return stray(command, words);
    }
    if error.kind() == ErrorKind::UnknownArgument {
        return Some(
            "docs/coming-from.md says what options of vLLM, SGLang and llama.cpp are here.".into(),
        );
    }
    if error.kind() == ErrorKind::ArgumentConflict && shown == "[TEXT]" {
        return Some(
            "The word without an option is the prompt; a model is --model-path MODEL.".into(),
        );
    }
    variable(command, words, shown)
}

/// The likely meaning of a word without an option: a model, or the rest of a prompt.
fn stray(command: &Command, words: &[OsString]) -> Option<String> {
    let mut leaf = command;
    for word in words.iter().skip(1) {
        let Some(below) = word.to_str().and_then(|word| leaf.find_subcommand(word)) else {
            break;
        };
        leaf = below;
    }
    let takes_model = leaf
        .get_arguments()
        .any(|arg| arg.get_long() == Some("model-path"));
    let name = leaf.get_name();
    if super::OF_MODELS.contains(&name) {
        return Some(format!(
            "A model comes right after the command: lockstep {name} MODEL."
        ));
    }
    if leaf.get_positionals().next().is_some() {
        let model = if takes_model {
            "; a model is --model-path MODEL"
        } else {
            ""
        };
        return Some(format!(
            "A prompt of several words is put in quotes{model}."
        ));
    }
    takes_model.then(|| "A model is an option here: --model-path MODEL.".to_owned())
}

/// Removes the program's internal commands from the suggestions of an error.
pub(super) fn suggest_public(command: &Command, error: &mut clap::Error) {
    let suggested = ContextKind::SuggestedSubcommand;
    let Some(ContextValue::Strings(names)) = error.get(suggested) else {
        return;
    };
    let public = |name: &&String| {
        let found = command.find_subcommand(name);
        found.is_none_or(|command| !command.is_hide_set())
    };
    let names: Vec<String> = names.iter().filter(public).cloned().collect();
    match names.is_empty() {
        true => error.remove(suggested),
        false => error.insert(suggested, ContextValue::Strings(names)),
    };
}

/// Hints about the source of the `options` of an error: the file, with the words
/// `from_file`, or the environment. Options that are given in `words` get no hint. An option
/// is `--name`, perhaps with more text behind it.
pub(super) fn hints(
    command: &Command,
    words: &[OsString],
    from_file: &[OsString],
    options: &[&str],
) -> Vec<String> {
    let hint = |option: &&str| {
        let argument = find(command, name(option)?)?;
        if given(argument, from_file) {
            return Some(format!("--{} is from the --config file.", name(option)?));
        }
        variable(command, words, option)
    };
    options.iter().filter_map(hint).collect()
}

/// Variables that are no options of any command: ranks read them.
const SWITCHES: [&str; 4] = [
    "LOCKSTEP_CONSTRAINT_MASKS",
    "LOCKSTEP_CUDA_PDL",
    "LOCKSTEP_CUDA_PDL_TRIGGER",
    "LOCKSTEP_CUDA_PREFETCH",
];

/// Names the `variables` that look like options of `command`, or of one of its subcommands,
/// and are none. Variables that Kubernetes sets in pods beside a service of that name are
/// left out.
pub(super) fn unknown(
    command: &Command,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Option<String> {
    let of_kubernetes = |name: &str, value: &OsString| {
        let link = value.to_string_lossy();
        let parts = ["_SERVICE_HOST", "_SERVICE_PORT", "_TCP_", "_UDP_"];
        link.starts_with("tcp://")
            || link.starts_with("udp://")
            || parts.iter().any(|part| name.contains(part))
    };
    let ours = |(name, value): (OsString, OsString)| {
        let name = name.into_string().ok()?;
        let switch = SWITCHES.contains(&name.as_str());
        let other = !name.starts_with("LOCKSTEP_") || switch || of_kubernetes(&name, &value);
        (!other && !sets(command, &name)).then_some(name)
    };
    let mut names: Vec<_> = variables.filter_map(ours).collect();
    names.sort();
    (!names.is_empty()).then(|| {
        format!(
            "No option is set by {} of the environment: names are LOCKSTEP_ and an option in \
             capitals, such as LOCKSTEP_TP_SIZE; `lockstep serve --help` says them all.",
            names.join(", ")
        )
    })
}

/// Returns true if `variable` sets an option of `command` or of one of its subcommands.
fn sets(command: &Command, variable: &str) -> bool {
    let mut own = command.get_arguments().filter_map(Arg::get_env);
    own.any(|name| name == variable) || command.get_subcommands().any(|below| sets(below, variable))
}

fn variable(command: &Command, words: &[OsString], shown: &str) -> Option<String> {
    let name = name(shown)?;
    let argument = find(command, name)?;
    let variable = argument.get_env()?.to_str()?;
    std::env::var_os(variable)?;
    let hint = format!("--{name} is from the environment: {variable}.");
    (!given(argument, words)).then_some(hint)
}

/// The name in "--port <PORT>" and in "--log-json[=<true|false>]".
fn name(shown: &str) -> Option<&str> {
    let ends = |c: char| c.is_whitespace() || c == '[' || c == '=';
    shown.split(ends).next()?.strip_prefix("--")
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

/// Returns true if one of the argument's names is among the words.
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
    use std::ffi::OsString;

    use super::{hint, hints};
    use clap::{Arg, Command};

    /// A program with one number, from a variable that every test run has. The variable's
    /// value is no number.
    fn program() -> Command {
        let number = Arg::new("number")
            .long("number")
            .alias("n")
            .env("PATH")
            .value_parser(clap::value_parser!(u8));
        Command::new("p").subcommand(Command::new("run").arg(number))
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(Into::into).collect()
    }

    #[test]
    fn a_value_from_the_environment_is_told_from_a_flags() {
        let path = Some("--number is from the environment: PATH.");
        for (line, expected) in [
            ("p run", path),
            ("p run --number x", None),
            ("p run --n=x", None),
        ] {
            let error = program().try_get_matches_from(words(line));
            let found = hint(&program(), &words(line), &error.expect_err("wrong"));
            assert_eq!(found.as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn a_switch_from_the_environment_is_told_by_its_variable() {
        let switch = Arg::new("switch")
            .long("switch")
            .env("PATH")
            .num_args(0..=1)
            .require_equals(true)
            .value_parser(clap::builder::BoolishValueParser::new());
        let program = Command::new("p").subcommand(Command::new("run").arg(switch));
        let line = words("p run");
        let error = program.clone().try_get_matches_from(&line);
        let found = hint(&program, &line, &error.expect_err("neither on nor off"));
        let expected = "--switch is from the environment: PATH.";
        assert_eq!(found.as_deref(), Some(expected));
    }

    #[test]
    fn a_value_from_the_file_is_told_from_the_others() {
        let found = |line: &str, file: &str| {
            let option = ["--number 3"];
            hints(&program(), &words(line), &words(file), &option).concat()
        };
        assert!(found("p run", "--number=3").contains("--config"));
        assert!(found("p run", "").contains("PATH"));
        assert_eq!(found("p run --number 3", ""), "");
    }

    #[test]
    fn an_option_that_is_none_gets_the_page_of_other_engines_options() {
        let error = program().try_get_matches_from(words("p run --other"));
        let found = hint(&program(), &words(""), &error.expect_err("wrong"));
        assert!(found.is_some_and(|hint| hint.contains("docs/coming-from.md")));
    }
}
