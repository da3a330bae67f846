//! Options that an algorithm declares for itself.

use lockstep_types::{Algorithm, Algorithms, ConfigError, NumberOption, OptionSpec, OptionValues};

use super::ALGORITHM;

/// Every option that `algorithm` declares, as given or by default.
///
/// # Errors
/// [`ConfigError`] for an option that `algorithm` does not declare, for a value out of range,
/// and for options that the algorithm refuses together.
pub(super) fn resolve(
    given: &OptionValues,
    algorithm: &dyn Algorithm,
    known: &Algorithms,
) -> Result<OptionValues, ConfigError> {
    if let Some(flag) = foreign(given, algorithm, known) {
        return Err(refused(&flag, algorithm, known));
    }
    let mut values = given.clone();
    algorithm.complete_options(&mut values)?;
    for option in algorithm.options() {
        match option {
            OptionSpec::Switch(option) => option.set(&mut values, option.get(given)),
            OptionSpec::Number(option) => {
                let value = within(option, option.get(&values))?;
                option.set(&mut values, value);
            }
        }
    }
    Ok(values)
}

/// The flag of the first given option, in the order of their declarations.
pub(super) fn first(given: &OptionValues, known: &Algorithms) -> Option<String> {
    let declared = known.iter().flat_map(|algorithm| algorithm.options());
    let mut declared = declared.filter(|option| given.get(option.name()).is_some());
    let undeclared = || given.names().next().map(|name| format!("--{name}"));
    declared
        .next()
        .map(|option| option.flag().to_owned())
        .or_else(undeclared)
}

/// The flag of the first given option that `algorithm` does not declare.
fn foreign(given: &OptionValues, algorithm: &dyn Algorithm, known: &Algorithms) -> Option<String> {
    let mut rest = given.clone();
    for own in algorithm.options() {
        rest.remove(own.name());
    }
    first(&rest, known)
}

fn refused(flag: &str, algorithm: &dyn Algorithm, known: &Algorithms) -> ConfigError {
    let declared = |own: &OptionSpec| own.flag() == flag;
    let owner = known
        .iter()
        .find(|other| other.options().iter().any(declared));
    let (why, instead) = match owner {
        Some(owner) => (
            owner.why_others_refuse_options(),
            format!(", or give {ALGORITHM} {}", owner.name()),
        ),
        None => (
            "no algorithm of this program has that option",
            String::new(),
        ),
    };
    ConfigError::conflict(
        flag,
        format!("{ALGORITHM} {}", algorithm.name()),
        why,
        format!("Leave {flag} out{instead}"),
    )
}

fn within(option: &NumberOption, value: u64) -> Result<u64, ConfigError> {
    let (bound, remedy) = if value > option.most {
        (format!("at most {}", option.most), "Give that or less")
    } else if value < option.least {
        (format!("at least {}", option.least), "Give that or more")
    } else {
        return Ok(value);
    };
    Err(ConfigError::value(option.flag, value, bound, remedy))
}
