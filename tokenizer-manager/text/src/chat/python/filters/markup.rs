//! Filters that escape texts or mark them as safe.

use minijinja::{Error, State, Value};

use super::super::args::Args;
use super::super::html;
use super::super::repr;

type Result<T, E = Error> = std::result::Result<T, E>;

pub(super) fn escape(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    html::escaped(value).map(Value::from_safe_string)
}

pub(super) fn forceescape(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    let text = Value::from(repr::string(value)?);
    html::escaped(&text).map(Value::from_safe_string)
}

pub(super) fn safe(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [] = args.bind([])?;
    repr::string(value).map(Value::from_safe_string)
}
