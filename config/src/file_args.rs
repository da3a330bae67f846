//! Options from a TOML file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use crate::ConfigError;

/// Adds the options of the `--config` file that neither a flag nor the
/// environment gives to the end of `arguments`, so that they are parsed and
/// checked as flags are. Keys are the flags' long names. Without `--config`,
/// or when the arguments do not parse, they come back as they were: the caller
/// parses them next and reports the error.
///
/// # Errors
/// When the file cannot be read, is not TOML, or has a key that is not an
/// option.
pub fn with_config_file(
    command: &Command,
    mut arguments: Vec<OsString>,
) -> Result<Vec<OsString>, ConfigError> {
    let Ok(matches) = command.clone().try_get_matches_from(&arguments) else {
        return Ok(arguments);
    };
    let (command, matches) = leaf(command, &matches);
    let Ok(Some(path)) = matches.try_get_one::<PathBuf>("config") else {
        return Ok(arguments);
    };
    let wrong = |message| ConfigError::File {
        option: "--config",
        path: path.clone(),
        message,
    };
    for (key, value) in read(path).map_err(wrong)? {
        let argument = command
            .get_arguments()
            .find(|argument| argument.get_long() == Some(key.as_str()) && !argument.is_hide_set());
        let Some(argument) = argument.filter(|argument| argument.get_id() != "config") else {
            return Err(wrong(unknown(command, &key)));
        };
        let given = matches.value_source(argument.get_id().as_str());
        if matches!(
            given,
            Some(ValueSource::CommandLine | ValueSource::EnvVariable)
        ) {
            continue;
        }
        if let Some(flag) =
            flag(&key, &value, argument.get_action().takes_values()).map_err(wrong)?
        {
            arguments.push(flag);
        }
    }
    Ok(arguments)
}

fn leaf<'a>(command: &'a Command, matches: &'a ArgMatches) -> (&'a Command, &'a ArgMatches) {
    match matches.subcommand() {
        Some((name, below)) => match command.find_subcommand(name) {
            Some(command) => leaf(command, below),
            None => (command, matches),
        },
        None => (command, matches),
    }
}

fn read(path: &Path) -> Result<toml::Table, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    text.parse()
        .map_err(|error: toml::de::Error| error.to_string().trim_end().to_owned())
}

/// The argument that stands for one key; `None` for a switch that is off.
fn flag(key: &str, value: &toml::Value, takes_value: bool) -> Result<Option<OsString>, String> {
    use toml::Value::{Boolean, Float, Integer, String as Text};
    let text = match value {
        Boolean(on) if !takes_value => return Ok(on.then(|| format!("--{key}").into())),
        _ if !takes_value => return Err(format!("`{key}` is a switch: true or false")),
        Text(text) => text.clone(),
        Integer(number) => number.to_string(),
        Float(number) => number.to_string(),
        _ => return Err(format!("`{key}` must be a text or a number")),
    };
    Ok(Some(format!("--{key}={text}").into()))
}

fn unknown(command: &Command, key: &str) -> String {
    let dashed = key.replace('_', "-");
    let known = command
        .get_arguments()
        .any(|argument| argument.get_long() == Some(&dashed));
    if known && dashed != key {
        return format!("`{key}` is not an option; write `{dashed}`");
    }
    format!("`{key}` is not an option; keys are the names of flags without the dashes in front")
}

#[cfg(test)]
mod tests;
