//! Arguments of filters, methods and functions, bound as in Python.

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Error, ErrorKind, Value};

use super::super::meter::{ELEMENT, charge};
use super::value::{Py, entries, fail};

/// The arguments of one call.
#[derive(Debug, Default)]
pub(in crate::chat) struct Args {
    pub positional: Vec<Value>,
    pub named: Vec<(String, Value)>,
}

impl Args {
    /// Converts the engine's arguments, of which keyword arguments are the last value.
    pub(in crate::chat) fn new(args: &[Value]) -> Result<Self, Error> {
        charge(args.len().saturating_mul(ELEMENT))?;
        match args.split_last() {
            Some((last, positional)) if last.is_kwargs() => Ok(Self {
                positional: positional.to_vec(),
                named: entries(last)?
                    .into_iter()
                    .map(|(name, value)| (name.as_str().unwrap_or_default().to_owned(), value))
                    .collect(),
            }),
            _ => Ok(Self {
                positional: args.to_vec(),
                named: Vec::new(),
            }),
        }
    }

    /// Converts the arguments of a filter. Returns the value that the filter is applied
    /// to, and the other arguments.
    pub(in crate::chat) fn of_filter(args: Rest<ValueOrKwargs>) -> Result<(Value, Self), Error> {
        let mut args = Self::new(&args.into_values())?;
        if args.positional.is_empty() {
            return Err(Error::from(ErrorKind::MissingArgument));
        }
        let value = args.positional.remove(0);
        Ok((value, args))
    }

    /// Returns the arguments in the order of `names`; `None` for each argument that is
    /// not given.
    pub(in crate::chat) fn bind<const N: usize>(
        self,
        names: [&str; N],
    ) -> Result<[Option<Value>; N], Error> {
        if self.positional.len() > N {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        let mut bound = [const { None }; N];
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            let place = names.iter().position(|known| *known == name);
            match place.and_then(|at| bound.get_mut(at)) {
                Some(place @ None) => *place = Some(value),
                Some(_) => {
                    return Err(Error::new(
                        ErrorKind::TooManyArguments,
                        format!("multiple values for argument {name:?}"),
                    ));
                }
                None => {
                    return Err(Error::new(
                        ErrorKind::TooManyArguments,
                        format!("unexpected keyword argument {name:?}"),
                    ));
                }
            }
        }
        Ok(bound)
    }

    /// Returns the arguments of a call that takes no keyword arguments.
    pub(in crate::chat) fn unnamed<const N: usize>(self) -> Result<[Option<Value>; N], Error> {
        match self.named.first() {
            Some((name, _)) => Err(Error::new(
                ErrorKind::TooManyArguments,
                format!("unexpected keyword argument {name:?}"),
            )),
            None => self.bind([""; N]),
        }
    }
}

/// Returns an argument that must be given.
pub(in crate::chat) fn required(value: Option<Value>) -> Result<Value, Error> {
    value.ok_or_else(|| Error::from(ErrorKind::MissingArgument))
}

/// Returns a text; other types are an error.
pub(in crate::chat) fn text(value: &Value) -> Result<&str, Error> {
    match Py::of(value) {
        Py::Str(text) => Ok(text),
        other => Err(fail(format!("expected a str, got '{}'", other.type_name()))),
    }
}

/// Returns a whole number, or `default` if none is given.
pub(in crate::chat) fn whole(value: Option<&Value>, default: i128) -> Result<i128, Error> {
    let Some(value) = value else {
        return Ok(default);
    };
    let py = Py::of(value);
    py.int().ok_or_else(|| {
        fail(format!(
            "'{}' object cannot be interpreted as an integer",
            py.type_name()
        ))
    })
}

/// Returns a number of characters or elements; negative numbers become 0.
pub(in crate::chat) fn count(value: Option<&Value>, default: usize) -> Result<usize, Error> {
    let whole = whole(value, i128::try_from(default).unwrap_or(i128::MAX))?;
    Ok(usize::try_from(whole.max(0)).unwrap_or(usize::MAX))
}

/// Returns true if an argument is given and true.
pub(in crate::chat) fn flag(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}
