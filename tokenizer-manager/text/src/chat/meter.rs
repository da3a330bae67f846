//! What a rendering may take beside instructions: bytes of the values that it makes, steps of work
//! that are no instructions, nesting, and time.
//!
//! minijinja counts instructions alone, and one instruction may double a text, pad it to gigabytes
//! or print a list that holds another one a million times. Here every value that an instruction
//! makes is charged before or right after it is there, so that what exists at a time stays within
//! what may be charged. `instructions` puts the charges into compiled templates, `filters` stands
//! before filters whose result may be larger than what they are given.

mod filters;
mod instructions;

use std::cell::Cell;
use std::fmt::{self, Write};
use std::time::{Duration, Instant};

pub(super) use filters::{add_to, method};
pub(super) use instructions::Metered;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Bytes of an element of a list, about.
pub(super) const ELEMENT: usize = 32;

/// Lists in lists, beyond which printing or dropping one might fill the stack.
const DEEPEST: usize = 256;

/// How much is charged between two looks at the clock, bytes.
const BETWEEN_LOOKS: u64 = 1 << 20;

/// What is left of a rendering's allowance.
#[derive(Clone, Copy)]
struct Meter {
    allowance: u64,
    left: u64,
    look_at: u64,
    begun: Instant,
    longest: Duration,
}

thread_local! {
    /// Of the rendering on this thread: a filter gets no other way to it, as macros see no
    /// variables of those who call them.
    static METER: Cell<Option<Meter>> = const { Cell::new(None) };
}

/// Puts back what was there before, also after a panic.
struct Restore(Option<Meter>);

impl Drop for Restore {
    fn drop(&mut self) {
        METER.set(self.0);
    }
}

/// Runs a rendering that may make values of `allowance` bytes altogether and take `longest`.
pub(super) fn within<T>(allowance: u64, longest: Duration, render: impl FnOnce() -> T) -> T {
    let meter = Meter {
        allowance,
        left: allowance,
        look_at: allowance,
        begun: Instant::now(),
        longest,
    };
    let _before = Restore(METER.replace(Some(meter)));
    render()
}

/// The mark in the engine's error chain of a rendering that took too much.
#[derive(Debug, thiserror::Error)]
#[error("more than {0}")]
pub(super) struct Exceeded(pub String);

fn exceeded(limit: String) -> Error {
    let error = Error::new(ErrorKind::OutOfFuel, "the rendering takes too much");
    error.with_source(Exceeded(limit))
}

/// Charges bytes that are about to exist, or work that is as much.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    // Constants are folded while a template is compiled, by expressions of its own length.
    let Some(mut meter) = METER.get() else {
        return Ok(());
    };
    let left = meter.left.checked_sub(bytes as u64);
    meter.left = left.unwrap_or(0);
    let look = meter.left < meter.look_at;
    if look {
        meter.look_at = meter.left.saturating_sub(BETWEEN_LOOKS);
    }
    METER.set(Some(meter));
    if left.is_none() {
        return Err(exceeded(format!(
            "{} bytes of values on the way",
            meter.allowance
        )));
    }
    if look && meter.begun.elapsed() > meter.longest {
        return Err(exceeded(format!("{} s", meter.longest.as_secs())));
    }
    Ok(())
}

/// Charges what is written and passes it on; keeps the error that formatting can't carry.
struct Charging<'w> {
    out: &'w mut dyn Write,
    refused: Option<Error>,
}

impl Write for Charging<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if let Err(error) = charge(text.len()) {
            self.refused = Some(error);
            return Err(fmt::Error);
        }
        self.out.write_str(text)
    }
}

/// Writes, charged.
pub(super) fn write(out: &mut dyn Write, text: fmt::Arguments<'_>) -> Result<(), Error> {
    let mut out = Charging { out, refused: None };
    match out.write_fmt(text) {
        Ok(()) => Ok(()),
        Err(error) => Err(out.refused.unwrap_or_else(|| error.into())),
    }
}

/// A writer to nowhere.
struct Nowhere;

impl Write for Nowhere {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        Ok(())
    }
}

/// Charges what a value takes when it is printed.
pub(super) fn charge_printed(value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => charge(text.len()),
        None => write(&mut Nowhere, format_args!("{value}")),
    }
}

/// Charges a value that was just made: its text, or its elements.
pub(super) fn charge_made(value: &Value) -> Result<(), Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => charge(text.len()),
        (None, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) => {
            charge(value.len().unwrap_or(0).saturating_mul(ELEMENT))
        }
        _ => Ok(()),
    }
}

/// Charges every element in a value however deep, and refuses what nests too deeply or holds a
/// namespace, which may hold the value in turn.
pub(super) fn charge_nested(value: &Value) -> Result<(), Error> {
    nested(value, 0)
}

fn nested(value: &Value, depth: usize) -> Result<(), Error> {
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        return Ok(());
    }
    if depth > DEEPEST {
        return Err(exceeded(format!("{DEEPEST} values inside each other")));
    }
    let is_namespace =
        |object: &minijinja::value::DynObject| object.type_name().ends_with("Namespace");
    if value.as_object().is_some_and(is_namespace) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "a namespace cannot be an element of another value",
        ));
    }
    for element in value.try_iter()?.checked() {
        charge(1)?;
        let element = element?;
        match kind {
            ValueKind::Map => nested(&value.get_item(&element)?, depth + 1)?,
            _ => nested(&element, depth + 1)?,
        }
    }
    Ok(())
}

/// Lists that are computed when they are walked become lists that exist: a chain of the former is
/// walked by as many calls inside each other.
pub(super) fn existing(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let mut elements = Vec::new();
    for element in value.try_iter()?.checked() {
        charge(ELEMENT)?;
        elements.push(element?);
    }
    Ok(Value::from(elements))
}
