//! The functions that chat templates may call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use minijinja::value::{Object, ObjectRepr};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::super::Clock;
use super::super::error::RaisedByTemplate;
use super::args::{Args, required, text, whole};
use super::methods;
use super::objects::{Cycler, Joiner, Namespace, Range};
use super::repr;
use super::value::{self, Py, charge_nested, entries, fail, iterate};

/// Maximum elements of a range in Jinja2's sandbox.
const LONGEST_RANGE: usize = 100_000;

/// A function that chat templates may call.
#[derive(Debug, Clone, Copy)]
pub(in crate::chat) enum Function {
    Cycler,
    Dict,
    Joiner,
    /// Random words; refused, since the result cannot be compared with Jinja2's.
    Lipsum,
    Namespace,
    RaiseException,
    Range,
    StrftimeNow(Clock),
}

/// Adds all functions to an environment.
pub(in crate::chat) fn add_to(environment: &mut Environment<'static>, clock: Clock) {
    for (name, function) in [
        ("cycler", Function::Cycler),
        ("dict", Function::Dict),
        ("joiner", Function::Joiner),
        ("lipsum", Function::Lipsum),
        ("namespace", Function::Namespace),
        ("raise_exception", Function::RaiseException),
        ("range", Function::Range),
        ("strftime_now", Function::StrftimeNow(clock)),
    ] {
        environment.add_global(name, Value::from_object(function));
    }
}

impl Object for Function {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let args = Args::new(args)?;
        match **self {
            Self::Cycler => cycler(args),
            Self::Dict => dict(args),
            Self::Joiner => {
                let [separator] = args.bind(["sep"])?;
                let separator = separator.unwrap_or(Value::from(", "));
                let calls = AtomicUsize::new(0);
                nested(Value::from_object(Joiner { separator, calls }))
            }
            Self::Lipsum => Err(fail("lipsum() is not supported in chat templates")),
            Self::Namespace => namespace(args),
            Self::RaiseException => {
                let [message] = args.bind(["message"])?;
                let message = repr::string(&required(message)?)?;
                let error = Error::new(ErrorKind::InvalidOperation, message.clone());
                Err(error.with_source(RaisedByTemplate(message)))
            }
            Self::Range => range(args),
            Self::StrftimeNow(clock) => {
                let [format] = args.bind(["format"])?;
                clock.strftime(text(&required(format)?)?).map(Value::from)
            }
        }
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        name: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        match (**self, name) {
            (Self::Dict, "fromkeys") => methods::from_keys(Args::new(args)?),
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match **self {
            Self::Dict => "<TemplateDict object>",
            _ => "<function>",
        })
    }
}

fn cycler(args: Args) -> Result<Value, Error> {
    if args.positional.is_empty() || !args.named.is_empty() {
        return Err(fail("cycler takes one item or more"));
    }
    nested(Value::from_object(Cycler {
        items: args.positional,
        at: AtomicUsize::new(0),
    }))
}

/// Charges for the nesting of a value that was just made of other values.
fn nested(made: Value) -> Result<Value, Error> {
    charge_nested(&made).map(|()| made)
}

/// Returns the entries that `dict` and `namespace` are called with: the entries of a mapping or
/// pairs, then the keyword arguments.
fn fields(args: Args) -> Result<Vec<(Value, Value)>, Error> {
    let mut fields = match args.positional.as_slice() {
        [] => Vec::new(),
        [from] => match Py::of(from) {
            Py::Dict => entries(from)?,
            _ => pairs(from)?,
        },
        _ => return Err(Error::from(ErrorKind::TooManyArguments)),
    };
    let named = args.named.into_iter();
    fields.extend(named.map(|(name, value)| (Value::from(name), value)));
    Ok(fields)
}

fn pairs(from: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let pair = |pair: Value| match iterate(&pair)?.as_slice() {
        [key, item] => Ok((key.clone(), item.clone())),
        _ => Err(fail("a dictionary needs pairs")),
    };
    iterate(from)?.into_iter().map(pair).collect()
}

fn dict(args: Args) -> Result<Value, Error> {
    value::dict(fields(args)?)
}

/// Computes `namespace(mapping, name=value, …)`.
fn namespace(args: Args) -> Result<Value, Error> {
    let namespace = Namespace::create()?;
    for (name, value) in fields(args)? {
        // In Python, a name that is no text can be stored, but never found again.
        let name = name.as_str().unwrap_or_default();
        namespace.set(attribute_name(name)?, value)?;
    }
    Ok(Value::from_dyn_object(namespace))
}

/// Refuses names that begin with an underscore, as transformers does for namespaces.
fn attribute_name(name: &str) -> Result<&str, Error> {
    match name.starts_with('_') {
        true => Err(fail(format!(
            "a namespace cannot have an attribute with an underscore in front: {name:?}"
        ))),
        false => Ok(name),
    }
}

/// Computes `{% set namespace.name = value %}`.
pub(in crate::chat) fn set_attribute(
    namespace: &Value,
    name: &str,
    value: Value,
) -> Result<(), Error> {
    match namespace.downcast_object_ref::<Namespace>() {
        Some(namespace) => namespace.set(attribute_name(name)?, value),
        None => Err(fail("cannot assign attribute on non-namespace object")),
    }
}

fn range(args: Args) -> Result<Value, Error> {
    let [first, second, step] = args.unnamed()?;
    let first = whole(Some(&required(first)?), 0)?;
    let (start, stop) = match second {
        Some(second) => (first, whole(Some(&second), 0)?),
        None => (0, first),
    };
    let step = whole(step.as_ref(), 1)?;
    if step == 0 {
        return Err(fail("range() arg 3 must not be zero"));
    }
    let range = Range { start, stop, step };
    match range.len() > LONGEST_RANGE {
        true => Err(fail(format!(
            "a range cannot have more than {LONGEST_RANGE} elements"
        ))),
        false => Ok(Value::from_object(range)),
    }
}
