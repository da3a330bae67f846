//! `config` in the schema of the Helm chart's values, written from the definition of the
//! command line.
//!
//! The values of a flag are found by trying: the flag's own parser takes or refuses them.

use clap::{Arg, ArgAction, Command};
use expect_test::expect_file;
use serde_json::{Map, Value, json};

use super::super::definition;
use crate::settings::tests::algorithms;

const SCHEMA: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/helm/lockstep/values.schema.json"
);
/// Beginning of the property in the file, where it comes last.
const START: &str = "\n    \"config\": ";
const END: &str = "\n  }\n}\n";
/// Largest whole number that all readers of JSON read alike.
const LARGEST: u64 = 1 << 53;

#[test]
fn every_option_stands_in_the_schema_of_the_charts_values() {
    let program = definition(&algorithms()).expect("flags that differ");
    let serve = program.find_subcommand("serve").expect("the command");
    let mut options = Map::new();
    for arg in serve.get_arguments() {
        let id = arg.get_id();
        if !arg.is_hide_set() && id != "help" && id != "config" {
            let name = arg.get_long().expect("an option of `serve` has a name");
            options.insert(name.to_owned(), property(&program, arg, name));
        }
    }
    assert!(options.len() > 50, "of {} options alone", options.len());
    let config = json!({
        "type": "object",
        "description": "Options of `lockstep serve`, by their names in its configuration file",
        "additionalProperties": false,
        "properties": options,
    });
    let config = serde_json::to_string_pretty(&sorted(config)).expect("JSON");
    let old = std::fs::read_to_string(SCHEMA).expect("the schema");
    let (own, _) = old.split_once(START).expect("`config` in the schema");
    let new = format!("{own}{START}{}{END}", config.replace('\n', "\n    "));
    expect_file![SCHEMA].assert_eq(&new);
}

/// The value with its keys in order, for maps that keep insertion order too.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().collect();
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            let entries = entries.into_iter();
            Value::Object(entries.map(|(key, value)| (key, sorted(value))).collect())
        }
        other => other,
    }
}

/// The schema of one option in the file.
fn property(program: &Command, arg: &Arg, name: &str) -> Value {
    let takes = |value: &str| {
        let flag = format!("--{name}={value}");
        let parsed = program
            .clone()
            .try_get_matches_from(["lockstep", "serve", &flag]);
        parsed.is_ok()
    };
    let values: Vec<_> = arg.get_possible_values();
    let values = values.iter().filter(|value| !value.is_hide_set());
    let values: Vec<_> = values.map(|value| value.get_name().to_owned()).collect();
    let mut property = if !arg.get_action().takes_values() || takes("true") && !takes("text") {
        json!({"type": "boolean"})
    } else if !values.is_empty() {
        json!({"type": "string", "enum": values})
    } else if takes("text") || takes("name=text") {
        let text = json!({"type": "string", "minLength": 1});
        match arg.get_action() {
            ArgAction::Append => json!({
                "anyOf": [text, {"type": "array", "items": text, "minItems": 1}]
            }),
            _ => text,
        }
    } else if takes("1.5") {
        json!({"type": "number"})
    } else {
        assert!(takes("1"), "no kind of value is known for --{name}");
        whole(takes)
    };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    property["description"] = help.split_whitespace().collect::<Vec<_>>().join(" ").into();
    property
}

/// The schema of a whole number, with the range of values for which `takes` is true.
fn whole(takes: impl Fn(&str) -> bool) -> Value {
    let mut schema = json!({"type": "integer"});
    if !takes("-1") {
        schema["minimum"] = if takes("0") { 0 } else { 1 }.into();
    }
    let good = |number: u64| takes(&number.to_string());
    if !good(LARGEST) {
        // The largest number lies between a value that is taken and one that is refused.
        let (mut taken, mut refused) = (1, LARGEST);
        while refused - taken > 1 {
            let middle = taken.midpoint(refused);
            if good(middle) {
                taken = middle;
            } else {
                refused = middle;
            }
        }
        schema["maximum"] = taken.into();
    }
    schema
}
