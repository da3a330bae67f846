//! `docs/flags.md`, written from the definition of the command line.

mod coming_from;
mod schema;

use std::fmt::Write;

use clap::{Arg, Command};
use expect_test::expect_file;

use super::definition;
use crate::settings::tests::algorithms;

const HEAD: &str = "\
# Every flag

Generated from the definition of the command line, as `lockstep COMMAND --help` shows it: after a change, \
`UPDATE_EXPECT=1 cargo test -p lockstep reference` writes this page anew.

Each flag of `serve` is also an environment variable, `LOCKSTEP_` and its name in capitals, and a key of the file that \
`--config` names; a flag wins over the environment, the environment over the file.
Other commands take the variables that their `--help` names and leave the rest to the server in whose environment they run; a variable that no command has is named in a note.
What is on or off is on where its flag stands alone, and may be told its state everywhere: `--log-json=false`, `LOCKSTEP_LOG_JSON=false`, `log-json = false`.
What a value resolves to with a model on this machine, `lockstep config` prints.
";

#[test]
fn every_flag_stands_in_its_reference() {
    let program = definition(&algorithms()).expect("flags that differ");
    let serve = program.find_subcommand("serve").map(groups);
    let serve = serve.expect("the default command");
    let mut page = HEAD.to_owned();
    for command in program.get_subcommands() {
        // `config` has the options of `serve`; roles are started by the launcher.
        if !command.is_hide_set() && command.get_name() != "config" {
            section(&mut page, "lockstep", command, &serve);
        }
    }
    expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/flags.md")].assert_eq(&page);
}

/// Flags under one heading, with a row of the table for each.
#[derive(PartialEq)]
struct Group {
    heading: String,
    rows: String,
}

/// A command's flags in groups. Flags of algorithms come last in the definition, but stand
/// with the others of their group.
fn groups(command: &Command) -> Vec<Group> {
    let shown = |arg: &&Arg| !arg.is_hide_set() && arg.get_id() != "help";
    let mut groups: Vec<Group> = Vec::new();
    for arg in command.get_arguments().filter(shown) {
        let heading = arg.get_help_heading().unwrap_or_default();
        let row = format!("| `{}` | {} |\n", synopsis(arg), meaning(arg));
        match groups.iter_mut().find(|group| group.heading == heading) {
            Some(group) => group.rows.push_str(&row),
            None => groups.push(Group {
                heading: heading.to_owned(),
                rows: row,
            }),
        }
    }
    groups
}

/// The section of one command, including its commands, with a table for each group of flags.
/// Groups that `serve` has too stand only there.
fn section(page: &mut String, parents: &str, command: &Command, serve: &[Group]) {
    let name = format!("{parents} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about());
    let about = about.map_or_else(String::new, ToString::to_string);
    let _ = write!(page, "\n## `{name}`\n\n{about}\n");
    let (shared, own): (Vec<_>, Vec<_>) = groups(command)
        .into_iter()
        .partition(|group| command.get_name() != "serve" && serve.contains(group));
    for Group { heading, rows } in own {
        if !heading.is_empty() {
            let _ = write!(page, "\n### {heading}\n");
        }
        let _ = write!(page, "\n| Flag | Meaning |\n|---|---|\n{rows}");
    }
    let shared: Vec<_> = shared
        .iter()
        .map(|Group { heading, .. }| {
            format!("[{heading}](#{})", heading.to_lowercase().replace(' ', "-"))
        })
        .collect();
    if !shared.is_empty() {
        let _ = write!(
            page,
            "\nAnd the flags of `serve` under {}.\n",
            shared.join(", ")
        );
    }
    for inner in command.get_subcommands() {
        section(page, &name, inner, serve);
    }
}

/// The flag with its value: `--port PORT`, `--dtype auto|bfloat16|float32`. An optional
/// value is in brackets.
fn synopsis(arg: &Arg) -> String {
    let mut text = match (arg.get_long(), arg.get_short()) {
        (Some(long), Some(short)) => format!("-{short}, --{long}"),
        (Some(long), None) => format!("--{long}"),
        _ => String::new(),
    };
    if arg.get_action().takes_values() {
        let values: Vec<_> = arg.get_possible_values();
        let value = if values.is_empty() {
            let names = arg.get_value_names().unwrap_or_default();
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        } else {
            let shown = values.iter().filter(|value| !value.is_hide_set());
            vec![
                shown
                    .map(|value| value.get_name())
                    .collect::<Vec<_>>()
                    .join("\\|"),
            ]
        };
        let value = value.join(" ");
        let values = arg.get_num_args().unwrap_or_default();
        if values.min_values() == 0 && arg.is_require_equals_set() {
            let _ = write!(text, "[={value}]");
        } else if text.is_empty() {
            text = value;
        } else {
            let _ = write!(text, " {value}");
        }
    }
    text
}

/// The whole help, in one line.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let help = help.map_or_else(String::new, ToString::to_string);
    let mut text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for value in arg.get_possible_values() {
        if let (false, Some(help)) = (value.is_hide_set(), value.get_help()) {
            let _ = write!(text, " `{}`: {help}", value.get_name());
            if !text.ends_with('.') {
                text.push('.');
            }
        }
    }
    let says_default = !arg.get_default_values().is_empty() && !arg.is_hide_default_value_set();
    if says_default && !text.contains("[default") {
        let values: Vec<_> = arg
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy())
            .collect();
        let _ = write!(text, " [default: {}]", values.join(", "));
    }
    text.replace('|', "\\|").replace("\\\\|", "\\|")
}
