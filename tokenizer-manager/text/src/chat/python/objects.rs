//! Python's objects that the engine lacks or treats differently.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, ErrorKind, State, Value};

use super::super::meter::{ELEMENT, Kept, charge, keep};
use super::error::fail;
use super::number::int;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `namespace(…)`: attributes that templates may set. An object that holds a namespace shares it,
/// so references may form cycles. The rendering keeps a list of its namespaces and empties them
/// at its end.
#[derive(Default)]
pub(in crate::chat) struct Namespace {
    fields: Mutex<Vec<(Arc<str>, Value)>>,
}

impl Namespace {
    /// Makes an empty namespace that belongs to the rendering on this thread.
    pub(in crate::chat) fn create() -> Result<Arc<Self>, Error> {
        charge(4 * ELEMENT)?;
        let namespace = Arc::new(Self::default());
        keep(namespace.clone());
        Ok(namespace)
    }

    pub(in crate::chat) fn set(&self, name: &str, value: Value) -> Result<(), Error> {
        let mut fields = lock(&self.fields);
        charge(fields.len() + 1)?;
        match fields.iter_mut().find(|(known, _)| **known == *name) {
            Some(field) => field.1 = value,
            None => {
                charge(2 * ELEMENT + name.len())?;
                fields.push((name.into(), value));
            }
        }
        Ok(())
    }

    pub(in crate::chat) fn fields(&self) -> Vec<(Arc<str>, Value)> {
        lock(&self.fields).clone()
    }
}

impl Kept for Namespace {
    fn empty(&self) {
        let fields = std::mem::take(&mut *lock(&self.fields));
        drop(fields);
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<Namespace>")
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let key = key.as_str()?;
        let fields = lock(&self.fields);
        let field = fields.iter().find(|(name, _)| **name == *key)?;
        Some(field.1.clone())
    }
}

/// Result of `map`, `select` and similar filters. A generator is true, has no length, and is
/// empty once it is read.
#[derive(Debug)]
pub(in crate::chat) struct Generator(Mutex<Vec<Value>>);

impl Generator {
    pub(in crate::chat) fn value(mut items: Vec<Value>) -> Result<Value, Error> {
        // An empty generator is kept to the rendering's end too, so it is charged.
        charge(items.len().saturating_add(4).saturating_mul(ELEMENT))?;
        items.reverse();
        let generator = Arc::new(Self(Mutex::new(items)));
        keep(generator.clone());
        Ok(Value::from_dyn_object(generator))
    }

    /// Takes all remaining items.
    pub(in crate::chat) fn rest(&self) -> Vec<Value> {
        let mut items = std::mem::take(&mut *lock(&self.0));
        items.reverse();
        items
    }

    pub(in crate::chat) fn next(&self) -> Option<Value> {
        lock(&self.0).pop()
    }
}

impl Kept for Generator {
    fn empty(&self) {
        drop(self.rest());
    }
}

/// A generator is equal only to itself.
impl PartialEq for Generator {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.rest())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }
}

/// The kinds of a dictionary's views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::chat) enum ViewKind {
    Keys,
    Values,
    Items,
}

impl ViewKind {
    pub(in crate::chat) fn type_name(self) -> &'static str {
        match self {
            Self::Keys => "dict_keys",
            Self::Values => "dict_values",
            Self::Items => "dict_items",
        }
    }
}

/// Result of `keys()`, `values()` and `items()`. It is a copy, since dictionaries never change.
#[derive(Debug, PartialEq)]
pub(in crate::chat) struct View {
    pub kind: ViewKind,
    pub items: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }
}

/// `range(…)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::chat) struct Range {
    pub start: i128,
    pub stop: i128,
    pub step: i128,
}

impl Range {
    pub(in crate::chat) fn len(&self) -> usize {
        let (from, to) = match self.step > 0 {
            true => (self.start, self.stop),
            false => (self.stop, self.start),
        };
        let span = if from < to { to.abs_diff(from) } else { 0 };
        let steps = span.div_ceil(self.step.unsigned_abs().max(1));
        usize::try_from(steps).unwrap_or(usize::MAX)
    }

    /// Returns the values that two equal ranges share: the length, the first element, and the
    /// step to the next.
    pub(in crate::chat) fn elements(&self) -> (usize, Option<i128>, Option<i128>) {
        let length = self.len();
        (length, self.at(0), (length > 1).then_some(self.step))
    }

    pub(in crate::chat) fn contains(&self, wanted: i128) -> bool {
        let within = match self.step > 0 {
            true => (self.start..self.stop).contains(&wanted),
            false => wanted <= self.start && wanted > self.stop,
        };
        within
            && wanted
                .abs_diff(self.start)
                .is_multiple_of(self.step.unsigned_abs())
    }

    pub(in crate::chat) fn at(&self, index: usize) -> Option<i128> {
        (index < self.len()).then(|| self.start + self.step * index as i128)
    }

    pub(in crate::chat) fn iter(&self) -> impl Iterator<Item = i128> + use<> {
        let range = *self;
        (0..range.len()).filter_map(move |index| range.at(index))
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str() {
            Some("start") => Some(int(self.start)),
            Some("stop") => Some(int(self.stop)),
            Some("step") => Some(int(self.step)),
            Some(_) => None,
            None => self.at(key.as_usize()?).map(int),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len())
    }
}

/// `cycler(…)`. An object with values enumerates them, so that their nesting can be measured.
#[derive(Debug)]
pub(in crate::chat) struct Cycler {
    pub items: Vec<Value>,
    pub at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str()? == "current")
            .then(|| self.items.get(self.at.load(Ordering::Relaxed)).cloned())
            .flatten()
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        name: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        match name {
            "next" | "reset" if !args.is_empty() => {
                Err(fail(format!("{name}() takes no argument")))
            }
            "next" => {
                let at = self.at.load(Ordering::Relaxed);
                self.at
                    .store((at + 1) % self.items.len().max(1), Ordering::Relaxed);
                Ok(self.items.get(at).cloned().unwrap_or_default())
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// `joiner(…)`: prints nothing the first time, and its separator after that.
#[derive(Debug)]
pub(in crate::chat) struct Joiner {
    pub separator: Value,
    pub calls: AtomicUsize,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(vec![self.separator.clone()])
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        match (args, self.calls.fetch_add(1, Ordering::Relaxed)) {
            ([], 0) => Ok(Value::from("")),
            ([], _) => Ok(self.separator.clone()),
            _ => Err(fail("a joiner takes no argument")),
        }
    }
}

/// A method that was looked up but not called.
#[derive(Debug)]
pub(in crate::chat) struct Bound {
    pub object: Value,
    pub method: &'static str,
}

impl Object for Bound {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(vec![self.object.clone()])
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.object.call_method(state, self.method, args)
    }
}

/// Stands for an argument that a call of a macro left out, if the parameter has a default.
#[derive(Debug)]
pub(in crate::chat) struct Missing;

impl Object for Missing {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// One group of `groupby`: a tuple of two items with names.
#[derive(Debug)]
pub(in crate::chat) struct Group {
    pub grouper: Value,
    pub list: Value,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_str(), key.as_usize()) {
            (Some("grouper"), _) | (None, Some(0)) => Some(self.grouper.clone()),
            (Some("list"), _) | (None, Some(1)) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}
