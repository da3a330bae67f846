//! Options that an algorithm declares for itself.
//!
//! Each becomes a flag `--{name}`, a variable `LOCKSTEP_{NAME}` of the
//! environment and a key `{name}` of the configuration file. Their values travel
//! in the configuration as [`OptionValues`], which only the algorithm reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An option of an algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionSpec {
    /// A whole number.
    Number(NumberOption),
    /// On or off.
    Switch(SwitchOption),
}

/// An option that takes a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberOption {
    /// The flag with its dashes, such as `--speculative-ngram-capacity`.
    pub flag: &'static str,
    /// Unit of the number, for the help: `TOKENS`.
    pub unit: &'static str,
    /// Value if the option is not given.
    pub default: u64,
    /// The smallest value.
    pub least: u64,
    /// The largest value.
    pub most: u64,
    /// Effect of the option, for the help: half a sentence. The algorithm's name goes in front
    /// and the default behind.
    pub help: &'static str,
}

/// An option without a value, off if it is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchOption {
    /// The flag with its dashes.
    pub flag: &'static str,
    /// Effect of the option, for the help: half a sentence behind the algorithm's name.
    pub help: &'static str,
    /// Further paragraphs for the long help; empty for none.
    pub details: &'static str,
}

/// The value of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OptionValue {
    /// Value of a [`NumberOption`].
    Number(u64),
    /// Value of a [`SwitchOption`].
    Switch(bool),
}

/// Values of options, by name. In a resolved configuration they are the values of all options
/// of the algorithm, and the hash of a handshake covers each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OptionValues(BTreeMap<String, OptionValue>);

impl OptionSpec {
    /// The flag with its dashes.
    pub fn flag(&self) -> &'static str {
        match self {
            Self::Number(option) => option.flag,
            Self::Switch(option) => option.flag,
        }
    }

    /// The flag without its dashes, which is also the key in files.
    pub fn name(&self) -> &'static str {
        name(self.flag())
    }
}

impl NumberOption {
    /// Returns the option's value, or its default.
    pub fn get(&self, values: &OptionValues) -> u64 {
        self.given(values).unwrap_or(self.default)
    }

    /// Returns the option's value; `None` if it was not given.
    pub fn given(&self, values: &OptionValues) -> Option<u64> {
        match values.get(name(self.flag)) {
            Some(OptionValue::Number(value)) => Some(value),
            _ => None,
        }
    }

    /// Gives the option a value.
    pub fn set(&self, values: &mut OptionValues, value: u64) {
        values.set(name(self.flag), OptionValue::Number(value));
    }
}

impl SwitchOption {
    /// Returns true if the option is on.
    pub fn get(&self, values: &OptionValues) -> bool {
        values.get(name(self.flag)) == Some(OptionValue::Switch(true))
    }

    /// Turns the option on or off.
    pub fn set(&self, values: &mut OptionValues, on: bool) {
        values.set(name(self.flag), OptionValue::Switch(on));
    }
}

impl OptionValues {
    /// The value of the option `name`.
    pub fn get(&self, name: &str) -> Option<OptionValue> {
        self.0.get(name).copied()
    }

    /// Gives the option `name` a value.
    pub fn set(&mut self, name: &str, value: OptionValue) {
        self.0.insert(name.to_owned(), value);
    }

    /// Removes the value of the option `name`.
    pub fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The names of all options that have a value, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

fn name(flag: &'static str) -> &'static str {
    flag.trim_start_matches('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: NumberOption = NumberOption {
        flag: "--speculative-depth",
        unit: "TOKENS",
        default: 3,
        least: 1,
        most: 9,
        help: "how deep",
    };
    const LAZY: SwitchOption = SwitchOption {
        flag: "--speculative-lazy",
        help: "do little",
        details: "",
    };

    #[test]
    fn what_is_not_given_has_its_default() {
        let mut values = OptionValues::default();
        assert_eq!((DEPTH.get(&values), LAZY.get(&values)), (3, false));
        DEPTH.set(&mut values, 7);
        LAZY.set(&mut values, true);
        assert_eq!((DEPTH.get(&values), LAZY.get(&values)), (7, true));
        let text = serde_json::to_string(&values).expect("plain data");
        assert_eq!(text, r#"{"speculative-depth":7,"speculative-lazy":true}"#);
        let read: OptionValues = serde_json::from_str(&text).expect("the same");
        assert_eq!(read, values);
    }
}
