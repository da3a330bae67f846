//! Jinja2's tests (`is …`).

use std::cmp::Ordering;

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::args::{Args, required};
use super::compare;
use super::filters;
use super::functions::Function;
use super::macros::Macro;
use super::objects::{Bound, Joiner, Missing};
use super::operators::remainder;
use super::repr;
use super::text::is_all;
use super::value::{Py, int, length};

type Result<T, E = Error> = std::result::Result<T, E>;
type Test = fn(&Value, Args) -> Result<bool>;

const TESTS: &[(&str, Test)] = &[
    ("odd", |value, args| divides(value, args, 2, 1)),
    ("even", |value, args| divides(value, args, 2, 0)),
    ("divisibleby", |value, args| {
        let [number] = args.bind(["num"])?;
        is_zero(&remainder(value, &required(number)?)?, 0)
    }),
    ("defined", |value, args| alone(args, !value.is_undefined())),
    ("undefined", |value, args| alone(args, value.is_undefined())),
    ("filter", |value, args| {
        alone(args, known(value, filters::exists)?)
    }),
    ("test", |value, args| alone(args, known(value, exists)?)),
    ("none", |value, args| alone(args, value.is_none())),
    ("boolean", |value, args| {
        alone(args, matches!(Py::of(value), Py::Bool(_)))
    }),
    ("false", |value, args| {
        alone(args, Py::of(value) == Py::Bool(false))
    }),
    ("true", |value, args| {
        alone(args, Py::of(value) == Py::Bool(true))
    }),
    ("integer", |value, args| {
        alone(args, matches!(Py::of(value), Py::Int(_)))
    }),
    ("float", |value, args| {
        alone(args, matches!(Py::of(value), Py::Float(_)))
    }),
    ("lower", |value, args| {
        alone(args, is_all(&repr::string(value)?, false))
    }),
    ("upper", |value, args| {
        alone(args, is_all(&repr::string(value)?, true))
    }),
    ("string", |value, args| {
        alone(args, matches!(Py::of(value), Py::Str(_)))
    }),
    ("mapping", |value, args| {
        alone(args, Py::of(value) == Py::Dict)
    }),
    ("number", |value, args| {
        alone(args, Py::of(value).number().is_some())
    }),
    ("sequence", |value, args| {
        let views = matches!(Py::of(value), Py::View(_));
        alone(args, !views && length(value).is_ok())
    }),
    ("iterable", |value, args| alone(args, is_iterable(value))),
    ("callable", |value, args| alone(args, is_callable(value))),
    ("sameas", |value, args| {
        let [other] = args.bind(["other"])?;
        Ok(compare::same(value, &required(other)?))
    }),
    ("escaped", |value, args| alone(args, value.is_safe())),
    ("in", |value, args| {
        let [container] = args.bind(["seq"])?;
        compare::contains(&required(container)?, value)
    }),
    ("==", |value, args| equals(value, args)),
    ("eq", |value, args| equals(value, args)),
    ("equalto", |value, args| equals(value, args)),
    ("!=", |value, args| Ok(!equals(value, args)?)),
    ("ne", |value, args| Ok(!equals(value, args)?)),
    (">", |value, args| ordered(value, args, Ordering::is_gt)),
    ("gt", |value, args| ordered(value, args, Ordering::is_gt)),
    ("greaterthan", |value, args| {
        ordered(value, args, Ordering::is_gt)
    }),
    ("ge", |value, args| ordered(value, args, Ordering::is_ge)),
    (">=", |value, args| ordered(value, args, Ordering::is_ge)),
    ("<", |value, args| ordered(value, args, Ordering::is_lt)),
    ("lt", |value, args| ordered(value, args, Ordering::is_lt)),
    ("lessthan", |value, args| {
        ordered(value, args, Ordering::is_lt)
    }),
    ("<=", |value, args| ordered(value, args, Ordering::is_le)),
    ("le", |value, args| ordered(value, args, Ordering::is_le)),
];

/// A test for converted templates: true if a macro was called without the argument.
pub(in crate::chat) const MISSING: &str = "%missing";

/// Returns true if Jinja2 has a test of this name.
pub(in crate::chat) fn exists(name: &str) -> bool {
    TESTS.iter().any(|(known, _)| *known == name)
}

/// Adds all tests to an environment.
pub(in crate::chat) fn add_to(environment: &mut Environment<'static>) {
    for &(name, test) in TESTS {
        environment.add_test(
            name,
            move |_: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                let (value, args) = Args::of_filter(args)?;
                test(&value, args)
            },
        );
    }
    environment.add_test(MISSING, |value: &Value| {
        value.downcast_object_ref::<Missing>().is_some()
    });
}

fn alone(args: Args, answer: bool) -> Result<bool> {
    let [] = args.bind([])?;
    Ok(answer)
}

fn divides(value: &Value, args: Args, by: i128, rest: i128) -> Result<bool> {
    alone(args, is_zero(&remainder(value, &int(by))?, rest)?)
}

fn is_zero(value: &Value, rest: i128) -> Result<bool> {
    compare::equal(value, &int(rest))
}

fn known(name: &Value, exists: fn(&str) -> bool) -> Result<bool> {
    super::value::hashable(name)?;
    Ok(name.as_str().is_some_and(exists))
}

fn equals(value: &Value, args: Args) -> Result<bool> {
    let [other] = args.unnamed()?;
    compare::equal(value, &required(other)?)
}

fn ordered(value: &Value, args: Args, holds: fn(Ordering) -> bool) -> Result<bool> {
    let [other] = args.unnamed()?;
    Ok(compare::order(value, &required(other)?)?.is_some_and(holds))
}

fn is_iterable(value: &Value) -> bool {
    !matches!(
        Py::of(value),
        Py::None | Py::Bool(_) | Py::Int(_) | Py::Float(_) | Py::Other
    )
}

fn is_callable(value: &Value) -> bool {
    matches!(Py::of(value), Py::Undefined | Py::Loop)
        || value.downcast_object_ref::<Bound>().is_some()
        || value.downcast_object_ref::<Function>().is_some()
        || value.downcast_object_ref::<Macro>().is_some()
        || value.downcast_object_ref::<Joiner>().is_some()
}
