//! Options of vLLM, SGLang and llama.cpp that people will try and that this program
//! does not have. They are known so that the error can say what to do.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use lockstep_types::ConfigError;

mod table;

use table::TABLE;

/// Refused options that are about one thing.
#[derive(Debug)]
pub struct RefusedGroup {
    /// What they are about.
    pub heading: &'static str,
    /// The options.
    pub options: &'static [RefusedOption],
}

/// One of them.
#[derive(Debug)]
pub struct RefusedOption {
    /// Whose it is.
    pub of: &'static str,
    /// Its spellings, with their dashes.
    pub names: &'static [&'static str],
    /// Values that say what is done anyway.
    pub passes: &'static [&'static str],
    /// What to do instead.
    pub remedy: &'static str,
}

/// All refused options, from which `docs/coming-from.md` is written too.
#[must_use]
pub fn refused_options() -> &'static [RefusedGroup] {
    TABLE
}

/// The remedy for the option `name`, written with its dashes.
pub(crate) fn remedy(name: &str) -> Option<&'static str> {
    let (_, option) = all().find(|(known, _)| *known == name)?;
    Some(option.remedy)
}

/// The error for a word that is a refused option with one dash, such as `-ngl`.
/// Those with two are parsed, as their values may be ones that pass.
///
/// # Errors
/// [`ConfigError::Unsupported`].
pub fn check_short_options<'a>(words: impl Iterator<Item = &'a str>) -> Result<(), ConfigError> {
    let short = |word: &str| {
        let known = all().find(|(name, _)| *name == word && !name.starts_with("--"));
        known.map(|(option, row)| (option, row.remedy))
    };
    refuse(words.filter_map(short).next())
}

fn refuse(given: Option<(&'static str, &'static str)>) -> Result<(), ConfigError> {
    match given {
        Some((option, remedy)) => Err(ConfigError::Unsupported { option, remedy }),
        None => Ok(()),
    }
}

fn all() -> impl Iterator<Item = (&'static str, &'static RefusedOption)> {
    let options = TABLE.iter().flat_map(|group| group.options);
    options.flat_map(|option| option.names.iter().map(move |name| (*name, option)))
}

/// Which of them were given.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusedArgs {
    /// The first one, and the remedy.
    given: Option<(&'static str, &'static str)>,
}

impl RefusedArgs {
    /// The error for the first refused option that was given. A parallel size
    /// of 1 and the like say what is done anyway and pass.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        refuse(self.given)
    }
}

/// The argument of one spelling, which is its own, so that the error names what was
/// written. With any number of values, also none: the remedy is the error.
fn argument(name: &'static str) -> Option<Arg> {
    let long = name.strip_prefix("--")?;
    let argument = Arg::new(name).long(long).hide(true);
    let argument = argument.action(ArgAction::Append).num_args(0..);
    Some(argument.allow_negative_numbers(true))
}

fn is_refused(matches: &ArgMatches, name: &'static str, option: &RefusedOption) -> bool {
    if !name.starts_with("--") {
        return false;
    }
    let passes = |value: &String| option.passes.contains(&value.as_str());
    let values = matches.get_many::<String>(name);
    values.is_some_and(|mut values| values.len() == 0 || !values.all(passes))
}

impl FromArgMatches for RefusedArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = all()
            .find(|(name, option)| is_refused(matches, name, option))
            .map(|(name, option)| (name, option.remedy));
        Ok(Self { given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for RefusedArgs {
    fn augment_args(command: Command) -> Command {
        command.args(all().filter_map(|(name, _)| argument(name)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
