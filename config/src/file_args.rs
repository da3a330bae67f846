//! Options from a TOML file.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};

use lockstep_types::ConfigError;

use crate::args::remedy;

/// Adds the options of the `--config` file to the end of `arguments`, so that they are parsed
/// and checked like flags. Options that a flag or the environment gives are left out. Keys are
/// the flags' long names. Without `--config`, or if the arguments do not parse, they come back
/// unchanged: the caller parses them next and reports the error.
///
/// # Errors
/// If the file cannot be read, is not TOML, or has a key that is not an option.
pub fn with_config_file(
    command: &Command,
    mut arguments: Vec<OsString>,
) -> Result<Vec<OsString>, ConfigError> {
    let Ok(matches) = command.clone().try_get_matches_from(&arguments) else {
        return Ok(arguments);
    };
    let program = command;
    let (command, matches) = leaf(program, &matches);
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
        // An option that may stand without a value is a switch.
        let is_switch = argument
            .get_num_args()
            .is_some_and(|values| values.min_values() == 0);
        let several = matches!(argument.get_action(), ArgAction::Append);
        for value in values(&value, several) {
            arguments.push(flag(path, &key, value, is_switch).map_err(wrong)?);
            // Checked one by one, so that the error names the file.
            if let Err(error) = program.clone().try_get_matches_from(&arguments) {
                return Err(wrong(reason(&error)));
            }
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

/// Keys whose values are paths. Relative paths begin at the file's own folder, wherever the
/// program is started.
const PATHS: [&str; 16] = [
    "model-path",
    "speculative-draft-model-path",
    "speculative-adaptive-config",
    "weight-cache",
    "weight-update-dir",
    "lora-dir",
    "api-key-file",
    "admin-api-key-file",
    "dist-secret-file",
    "ssl-certfile",
    "ssl-keyfile",
    "ssl-ca-certs",
    "dist-ssl-certfile",
    "dist-ssl-keyfile",
    "dist-ssl-ca-certs",
    "run-dir",
];

/// Keys of [`PATHS`] whose values may be names on the hub instead.
const MODELS: [&str; 2] = ["model-path", "speculative-draft-model-path"];

/// A value of [`PATHS`] in the file `path`, relative to the program's working directory. The
/// value may be a path or a name on the hub. If a folder beside the file has the name of a
/// model's owner, the value means a folder inside.
fn located(path: &Path, key: &str, text: &str) -> PathBuf {
    let here = path.parent().unwrap_or(Path::new(""));
    let owner = owner(text).filter(|_| MODELS.contains(&key));
    match owner {
        Some(owner) if !is_folder(&here.join(owner)) => text.into(),
        _ => here.join(text),
    }
}

/// Returns true for a folder, and for a path that the system does not allow to look at.
fn is_folder(path: &Path) -> bool {
    match path.metadata() {
        Ok(metadata) => metadata.is_dir(),
        Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    }
}

/// The owner in a text that may be `OWNER/NAME`.
fn owner(text: &str) -> Option<&str> {
    let is_word = |word: &str| !word.is_empty() && !word.starts_with('.') && !word.contains('/');
    let (owner, name) = text.split_once('/')?;
    (is_word(owner) && is_word(name)).then_some(owner)
}

/// The values of one key: the items of a list, if the option takes several.
fn values(value: &toml::Value, several: bool) -> &[toml::Value] {
    match value {
        toml::Value::Array(values) if several => values,
        value => std::slice::from_ref(value),
    }
}

/// The argument for one key of the file `path`.
fn flag(path: &Path, key: &str, value: &toml::Value, is_switch: bool) -> Result<OsString, String> {
    use toml::Value::{Boolean, Float, Integer, String as Text};
    let text = match value {
        Boolean(on) if is_switch => on.to_string(),
        _ if is_switch && !value.is_str() => {
            return Err(format!("`{key}` is a switch: true or false"));
        }
        Text(text) if PATHS.contains(&key) => {
            let mut flag = OsString::from(format!("--{key}="));
            flag.push(located(path, key, text));
            return Ok(flag);
        }
        Text(text) if key == "lora-paths" => match text.split_once('=') {
            Some((name, folder)) if !folder.is_empty() => {
                let mut flag = OsString::from(format!("--{key}={name}="));
                flag.push(located(path, key, folder));
                return Ok(flag);
            }
            _ => text.clone(),
        },
        Text(text) => text.clone(),
        Integer(number) => number.to_string(),
        Float(number) => number.to_string(),
        _ => return Err(format!("`{key}` must be a text or a number")),
    };
    Ok(format!("--{key}={text}").into())
}

/// The error in one line, without the hint at `--help`.
fn reason(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<_> = text
        .lines()
        .take_while(|line| !line.trim().is_empty())
        .map(str::trim)
        .collect();
    let text = lines.join(" ");
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}

fn unknown(command: &Command, key: &str) -> String {
    let dashed = key.replace('_', "-");
    let known = command
        .get_arguments()
        .any(|argument| argument.get_long() == Some(&dashed));
    if let Some(remedy) = remedy(&format!("--{dashed}")) {
        return format!("`{key}` is not an option here: {remedy}");
    }
    if known && dashed != key {
        return format!("`{key}` is not an option; write `{dashed}`");
    }
    let alias = command.get_arguments().find_map(|argument| {
        let aliases = argument.get_all_aliases()?;
        argument.get_long().filter(|_| aliases.contains(&&*dashed))
    });
    if let Some(name) = alias {
        return format!("`{key}` is not an option; write `{name}`");
    }
    format!("`{key}` is not an option; keys are the names of flags without the dashes in front")
}

#[cfg(test)]
mod tests;
