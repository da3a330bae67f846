//! Filters that apply filters, tests and attributes to each element.

use minijinja::value::Kwargs;
use minijinja::{Error, State, Value};

use super::super::super::meter;
use super::super::args::{Args, required, text};
use super::super::items;
use super::super::objects::Generator;
use super::super::text::is_digit;
use super::super::value::{Py, fail, iterate};

type Result<T, E = Error> = std::result::Result<T, E>;

/// A path of attributes, such as `a.b.0`; whole numbers are indices of lists.
#[derive(Debug, Default)]
pub(super) struct Getter {
    path: Vec<Value>,
    /// Value used in place of an undefined one.
    default: Option<Value>,
}

impl Getter {
    /// Makes a path from a text with dots or from one key. Without `attribute`, the
    /// path is empty and stands for the element itself.
    pub(super) fn new(attribute: Option<&Value>) -> Self {
        let part = |part: &str| match part.parse::<u64>() {
            Ok(at) if part.chars().all(is_digit) => Value::from(at),
            _ => Value::from(part),
        };
        let path = match attribute.map(|attribute| (Py::of(attribute), attribute)) {
            None | Some((Py::None, _)) => Vec::new(),
            Some((Py::Str(path), _)) => path.split('.').map(part).collect(),
            Some((_, key)) => vec![key.clone()],
        };
        Self {
            path,
            default: None,
        }
    }

    pub(super) fn or(mut self, default: Option<Value>) -> Self {
        self.default = default.filter(|default| !default.is_none());
        self
    }

    pub(super) fn get(&self, mut item: Value) -> Result<Value> {
        for key in &self.path {
            item = items::item(&item, key)?;
            if let (true, Some(default)) = (item.is_undefined(), &self.default) {
                item = default.clone();
            }
        }
        Ok(item)
    }
}

pub(super) fn attr(_: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    let [name] = args.bind(["name"])?;
    let name = required(name)?;
    Ok(items::own_attribute(value, text(&name)?)?.unwrap_or_default())
}

/// Returns the arguments of a filter or test that is applied to an element: the
/// element, then the given arguments.
fn call_args(item: Value, positional: &[Value], named: &[(String, Value)]) -> Vec<Value> {
    let mut args = vec![item];
    args.extend_from_slice(positional);
    if !named.is_empty() {
        let named = named
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()));
        args.push(Value::from(named.collect::<Kwargs>()));
    }
    args
}

/// Returns the name of a filter or test. Names that begin with `%` are not for
/// templates.
fn name_of(value: &Value) -> Result<&str> {
    match text(value)? {
        name if name.starts_with('%') => Err(fail(format!("there is no {name:?}"))),
        name => Ok(name),
    }
}

pub(super) fn map(state: &mut State<'_, '_>, value: &Value, mut args: Args) -> Result<Value> {
    if !value.is_true() {
        return Generator::value(Vec::new());
    }
    let by_attribute = args.named.iter().any(|(name, _)| name == "attribute");
    if args.positional.is_empty() && by_attribute {
        let [attribute, default] = args.bind(["attribute", "default"])?;
        let getter = Getter::new(attribute.as_ref()).or(default);
        let items = iterate(value)?.into_iter().map(|item| getter.get(item));
        return Generator::value(items.collect::<Result<_>>()?);
    }
    if args.positional.is_empty() {
        return Err(fail("map requires a filter argument"));
    }
    let name = args.positional.remove(0);
    let name = name_of(&name)?;
    let items = iterate(value)?.into_iter().map(|item| {
        let args = call_args(item, &args.positional, &args.named);
        meter::inside(|| state.apply_filter(name, &args))
    });
    Generator::value(items.collect::<Result<_>>()?)
}

/// Filters elements by a test on each element, or on an attribute of it. Keeps the
/// elements that pass if `keep` is true, or else the others.
fn filtered(
    state: &mut State<'_, '_>,
    value: &Value,
    mut args: Args,
    by_attribute: bool,
    keep: bool,
) -> Result<Value> {
    if !value.is_true() {
        return Generator::value(Vec::new());
    }
    let getter = match by_attribute {
        true if args.positional.is_empty() => {
            return Err(fail("missing parameter for attribute name"));
        }
        true => Getter::new(Some(&args.positional.remove(0))),
        false => Getter::default(),
    };
    let test = (!args.positional.is_empty()).then(|| args.positional.remove(0));
    let test = test.as_ref().map(name_of).transpose()?;
    let mut kept = Vec::new();
    for item in iterate(value)? {
        let tested = getter.get(item.clone())?;
        let passes = match test {
            Some(test) => {
                let args = call_args(tested, &args.positional, &args.named);
                state.perform_test(test, &args)?
            }
            None => tested.is_true(),
        };
        if passes == keep {
            kept.push(item);
        }
    }
    Generator::value(kept)
}

pub(super) fn select(state: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    filtered(state, value, args, false, true)
}

pub(super) fn reject(state: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    filtered(state, value, args, false, false)
}

pub(super) fn selectattr(state: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    filtered(state, value, args, true, true)
}

pub(super) fn rejectattr(state: &mut State<'_, '_>, value: &Value, args: Args) -> Result<Value> {
    filtered(state, value, args, true, false)
}
