//! The options of NGRAM, as SGLang names them.

use lockstep_types::{ConfigError, NumberOption, OptionSpec, OptionValues, SwitchOption};

use super::Trie;

const MIN_MATCH: NumberOption = NumberOption {
    flag: "--speculative-ngram-min-match-window-size",
    unit: "TOKENS",
    default: 1,
    least: 1,
    most: 64,
    help: "tokens of the shortest suffix that is looked up",
};
const MAX_MATCH: NumberOption = NumberOption {
    flag: "--speculative-ngram-max-match-window-size",
    unit: "TOKENS",
    default: 16,
    least: 1,
    most: 64,
    help: "tokens of the longest suffix that is looked up, at most 64",
};
pub(super) const CAPACITY: NumberOption = NumberOption {
    flag: "--speculative-ngram-capacity",
    unit: "NODES",
    default: 1 << 20,
    least: 1,
    most: Trie::MOST_NODES as u64,
    help: "nodes of the memory that requests share, 40 bytes each: one per token, or per seven \
           tokens that only one text went on with",
};
const PRIVATE: SwitchOption = SwitchOption {
    flag: "--speculative-ngram-private",
    help: "draft from a request's own text and from given corpora alone",
    details: "Otherwise the texts that were served are remembered, and shared by all requests: an \
              answer that comes faster than it should can tell one client what another was \
              served. The prefix cache can tell it of how prompts begin, unless requests have a \
              `cache_salt`; --disable-radix-cache turns that off.",
};

/// All options.
pub(super) const OPTIONS: [OptionSpec; 4] = [
    OptionSpec::Number(MIN_MATCH),
    OptionSpec::Number(MAX_MATCH),
    OptionSpec::Number(CAPACITY),
    OptionSpec::Switch(PRIVATE),
];

/// The values of the options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NgramConfig {
    /// Number of tokens of the shortest suffix that is looked up.
    pub min_match: usize,
    /// Number of tokens of the longest suffix that is looked up.
    pub max_match: usize,
    /// Number of nodes of the trie that requests share. When it is full, the nodes unserved for
    /// longest go.
    pub capacity: usize,
    /// True if there is no such trie: served texts are not remembered. So no client can tell by
    /// the time of an answer what others were served.
    pub private: bool,
}

impl NgramConfig {
    /// Reads the options from a configuration.
    pub fn read(values: &OptionValues) -> Self {
        // The ranges of the options fit `usize`.
        let number =
            |option: NumberOption| usize::try_from(option.get(values)).unwrap_or(usize::MAX);
        Self {
            min_match: number(MIN_MATCH),
            max_match: number(MAX_MATCH),
            capacity: number(CAPACITY),
            private: PRIVATE.get(values),
        }
    }

    /// Writes the options as a configuration has them.
    #[cfg(test)]
    pub fn write(self) -> OptionValues {
        let mut values = OptionValues::default();
        MIN_MATCH.set(&mut values, self.min_match as u64);
        MAX_MATCH.set(&mut values, self.max_match as u64);
        CAPACITY.set(&mut values, self.capacity as u64);
        PRIVATE.set(&mut values, self.private);
        values
    }

    /// Checks the options against each other.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] if the shortest match is longer than the longest.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.min_match <= self.max_match {
            return Ok(());
        }
        Err(ConfigError::conflict(
            format!("{} {}", MIN_MATCH.flag, self.min_match),
            format!("{} {}", MAX_MATCH.flag, self.max_match),
            "the shortest suffix would be longer than the longest",
            format!("Give a {} that is no smaller", MAX_MATCH.flag),
        ))
    }
}

/// Raises the default of the longest match to a given shortest match.
///
/// # Errors
/// [`ConfigError::Conflict`] if a capacity is given, but no text is to be remembered.
pub(super) fn complete(given: &mut OptionValues) -> Result<(), ConfigError> {
    if let Some(shortest) = MIN_MATCH.given(given)
        && MAX_MATCH.given(given).is_none()
    {
        MAX_MATCH.set(given, MAX_MATCH.default.max(shortest));
    }
    match CAPACITY.given(given) {
        Some(capacity) if PRIVATE.get(given) => Err(ConfigError::conflict(
            format!("{} {capacity}", CAPACITY.flag),
            PRIVATE.flag,
            "no served text is remembered",
            "Leave one of them out",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_match_is_no_shorter_than_the_shortest_unless_that_is_said() {
        for (shortest, longest, expected) in [
            (None, None, 16),
            (Some(3), None, 16),
            (Some(20), None, 20),
            (Some(20), Some(30), 30),
            (Some(20), Some(8), 8),
        ] {
            let mut values = OptionValues::default();
            for (option, value) in [(MIN_MATCH, shortest), (MAX_MATCH, longest)] {
                if let Some(value) = value {
                    option.set(&mut values, value);
                }
            }
            complete(&mut values).expect("they go together");
            let config = NgramConfig::read(&values);
            assert_eq!(config.max_match, expected);
            assert_eq!(config.check().is_ok(), expected != 8);
        }
    }

    #[test]
    fn a_memory_that_there_is_not_has_no_size() {
        for (private, refused) in [(false, false), (true, true)] {
            let mut values = OptionValues::default();
            CAPACITY.set(&mut values, 4000);
            PRIVATE.set(&mut values, private);
            let error = complete(&mut values).err().map(|error| error.to_string());
            assert_eq!(error.is_some(), refused, "{error:?}");
            let names =
                |error: String| error.contains(CAPACITY.flag) && error.contains(PRIVATE.flag);
            assert!(error.is_none_or(names));
        }
    }
}
