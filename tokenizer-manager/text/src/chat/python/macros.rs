//! Macros that take arguments as in Jinja2.
//!
//! The engine's macros (minijinja 3.0.5) have no `varargs` and `kwargs`, evaluate defaults from
//! the last to the first, and take an undefined argument for a missing one. Here a macro of the
//! engine gets all its arguments by position, and [`Macro`] binds them before the call.

use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr};
use minijinja::{Error, ErrorKind, State, Value};

use super::args::Args;
use super::objects::Missing;
use super::value::{dict, fail, tuple};

/// The parameters of a macro.
#[derive(Debug, Clone, Default)]
pub(in crate::chat) struct Signature {
    pub name: Option<String>,
    pub params: Vec<String>,
    /// Number of parameters, from the end, that have a default.
    pub defaults: usize,
    pub caller: bool,
    pub kwargs: bool,
    pub varargs: bool,
}

impl Object for Signature {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// A macro of a template.
#[derive(Debug)]
pub(in crate::chat) struct Macro {
    body: Value,
    signature: Arc<Signature>,
}

impl Macro {
    /// Wraps a macro of the engine. Its parameters are the signature's, then `caller`, `kwargs`
    /// and `varargs` if the signature has them.
    pub(in crate::chat) fn value(body: Value, signature: &Value) -> Result<Value, Error> {
        let signature = signature.downcast_object::<Signature>();
        let signature = signature.ok_or_else(|| fail("a macro without a signature"))?;
        Ok(Value::from_object(Self { body, signature }))
    }

    /// Returns the arguments of the engine's macro.
    fn bind(&self, args: Args) -> Result<Vec<Value>, Error> {
        let signature = &self.signature;
        let Args {
            positional,
            mut named,
        } = args;
        let mut take = |name: &str| {
            let at = named.iter().position(|(known, _)| known == name)?;
            Some(named.remove(at).1)
        };
        let count = signature.params.len();
        let first_default = count - signature.defaults.min(count);
        let more = positional.get(count..).unwrap_or_default().to_vec();
        let mut bound: Vec<Value> = positional.into_iter().take(count).collect();
        for (at, name) in signature.params.iter().enumerate().skip(bound.len()) {
            bound.push(match take(name) {
                Some(value) => value,
                None if at >= first_default => Value::from_object(Missing),
                None => Value::UNDEFINED,
            });
        }
        if signature.caller {
            bound.push(take("caller").unwrap_or_default());
        }
        if signature.kwargs {
            let rest = named
                .drain(..)
                .map(|(name, value)| (Value::from(name), value));
            let rest = rest.collect();
            bound.push(dict(rest)?);
        }
        if let Some((name, _)) = named.first() {
            return Err(Error::new(
                ErrorKind::TooManyArguments,
                format!("macro {:?} takes no keyword argument {name:?}", self.name()),
            ));
        }
        match (signature.varargs, more.is_empty()) {
            (true, _) => bound.push(tuple(more)?),
            (false, true) => {}
            (false, false) => {
                return Err(Error::new(
                    ErrorKind::TooManyArguments,
                    format!(
                        "macro {:?} takes not more than {count} argument(s)",
                        self.name()
                    ),
                ));
            }
        }
        Ok(bound)
    }

    /// Returns the name that the macro was declared with; a call block has none.
    pub(super) fn declared_name(&self) -> Option<&str> {
        self.signature.name.as_deref()
    }

    fn name(&self) -> &str {
        self.declared_name().unwrap_or("caller")
    }
}

impl Object for Macro {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let signature = &self.signature;
        Some(match key.as_str()? {
            "name" => signature
                .name
                .as_deref()
                .map_or(Value::from(()), Value::from),
            "arguments" => tuple(
                signature
                    .params
                    .iter()
                    .map(|name| Value::from(&**name))
                    .collect(),
            )
            .ok()?,
            "catch_kwargs" => Value::from(signature.kwargs),
            "catch_varargs" => Value::from(signature.varargs),
            "caller" => Value::from(signature.caller),
            _ => return None,
        })
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let bound = self.bind(Args::new(args)?)?;
        self.body.call(state, &bound)
    }
}
