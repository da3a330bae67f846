//! Arithmetic as in Python.

use minijinja::{Error, Value};

use super::super::meter::{Text, charge};
use super::html;
use super::percent;
use super::repr;
use super::value::{Number, Py, fail, int, iterate, sequence_of, undefined};

fn unsupported(operator: &str, a: Py<'_>, b: Py<'_>) -> Error {
    match (a, b) {
        (Py::Undefined, _) | (_, Py::Undefined) => undefined(),
        _ => fail(format!(
            "unsupported operand type(s) for {operator}: '{}' and '{}'",
            a.type_name(),
            b.type_name()
        )),
    }
}

/// Returns the error for a whole number beyond 128 bits, which the engine cannot hold.
fn too_large() -> Error {
    fail("a whole number beyond 128 bits")
}

fn whole(value: Option<i128>) -> Result<Value, Error> {
    value.map(int).ok_or_else(too_large)
}

pub(in crate::chat) fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    match (Py::of(a), Py::of(b)) {
        (Py::Str(x), Py::Str(y)) if a.is_safe() || b.is_safe() => {
            let mut joined = Text::default();
            html::push_escaped(&mut joined, x, a.is_safe())?;
            html::push_escaped(&mut joined, y, b.is_safe())?;
            Ok(Value::from_safe_string(joined.into_string()))
        }
        (Py::Str(x), Py::Str(y)) => {
            charge(x.len().saturating_add(y.len()))?;
            Ok(Value::from([x, y].concat()))
        }
        (x @ (Py::List | Py::Tuple), y) if x == y => {
            let mut items = iterate(a)?;
            items.extend(iterate(b)?);
            sequence_of(x, items)
        }
        (x, y) => match numbers("+", x, y)? {
            (Number::Int(x), Number::Int(y)) => whole(x.checked_add(y)),
            (x, y) => Ok(Value::from(x.float() + y.float())),
        },
    }
}

fn numbers(operator: &str, a: Py<'_>, b: Py<'_>) -> Result<(Number, Number), Error> {
    a.number()
        .zip(b.number())
        .ok_or_else(|| unsupported(operator, a, b))
}

pub(in crate::chat) fn subtract(a: &Value, b: &Value) -> Result<Value, Error> {
    match numbers("-", Py::of(a), Py::of(b))? {
        (Number::Int(x), Number::Int(y)) => whole(x.checked_sub(y)),
        (x, y) => Ok(Value::from(x.float() - y.float())),
    }
}

pub(in crate::chat) fn multiply(a: &Value, b: &Value) -> Result<Value, Error> {
    let (x, y) = (Py::of(a), Py::of(b));
    for (value, py, times) in [(a, x, y), (b, y, x)] {
        let Some(times) = times.int() else { continue };
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        match py {
            Py::Str(text) => {
                let mut repeated = Text::default();
                repeated.repeat(text, times)?;
                return Ok(html::like(value, repeated.into_string()));
            }
            Py::List | Py::Tuple => {
                let items = iterate(value)?;
                // An empty list is charged nothing, so an endless repetition must be
                // avoided here.
                let times = if items.is_empty() { 0 } else { times };
                charge(items.len().saturating_mul(times).saturating_mul(32))?;
                let repeated = std::iter::repeat_n(items, times).flatten();
                return sequence_of(py, repeated.collect());
            }
            _ => {}
        }
    }
    match numbers("*", x, y)? {
        (Number::Int(x), Number::Int(y)) => whole(x.checked_mul(y)),
        (x, y) => Ok(Value::from(x.float() * y.float())),
    }
}

fn not_zero(b: Number) -> Result<(), Error> {
    match b.float() == 0.0 {
        true => Err(fail("division by zero")),
        false => Ok(()),
    }
}

pub(in crate::chat) fn divide(a: &Value, b: &Value) -> Result<Value, Error> {
    let (x, y) = numbers("/", Py::of(a), Py::of(b))?;
    not_zero(y)?;
    Ok(Value::from(x.float() / y.float()))
}

pub(in crate::chat) fn floor_divide(a: &Value, b: &Value) -> Result<Value, Error> {
    let (x, y) = numbers("//", Py::of(a), Py::of(b))?;
    not_zero(y)?;
    match (x, y) {
        (Number::Int(x), Number::Int(y)) => whole(floor(x, y).map(|(quotient, _)| quotient)),
        _ => Ok(Value::from(float_floor(x.float(), y.float()).0)),
    }
}

pub(in crate::chat) fn remainder(a: &Value, b: &Value) -> Result<Value, Error> {
    if matches!(Py::of(a), Py::Str(_)) {
        return percent::format_value(a, b);
    }
    let (x, y) = numbers("%", Py::of(a), Py::of(b))?;
    not_zero(y)?;
    match (x, y) {
        (Number::Int(x), Number::Int(y)) => whole(floor(x, y).map(|(_, remainder)| remainder)),
        _ => Ok(Value::from(float_floor(x.float(), y.float()).1)),
    }
}

/// Returns quotient and remainder, rounded down.
fn floor(a: i128, b: i128) -> Option<(i128, i128)> {
    let (quotient, remainder) = (a.checked_div(b)?, a.checked_rem(b)?);
    match remainder != 0 && (remainder < 0) != (b < 0) {
        true => Some((quotient - 1, remainder + b)),
        false => Some((quotient, remainder)),
    }
}

/// Returns quotient and remainder of floats, rounded down, as CPython's `float_divmod`
/// does.
fn float_floor(a: f64, b: f64) -> (f64, f64) {
    let mut remainder = a % b;
    let mut quotient = (a - remainder) / b;
    if remainder == 0.0 {
        remainder = 0.0f64.copysign(b);
    } else if (b < 0.0) != (remainder < 0.0) {
        remainder += b;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0f64.copysign(a / b), remainder);
    }
    let floored = quotient.floor();
    let up = if quotient - floored > 0.5 { 1.0 } else { 0.0 };
    (floored + up, remainder)
}

pub(in crate::chat) fn power(a: &Value, b: &Value) -> Result<Value, Error> {
    let (x, y) = numbers("**", Py::of(a), Py::of(b))?;
    if let (Number::Int(x), Number::Int(y @ 0..)) = (x, y) {
        return match (x, u32::try_from(y)) {
            (_, Ok(y)) => whole(x.checked_pow(y)),
            (0 | 1, _) => Ok(int(x)),
            (-1, _) => Ok(int(if y % 2 == 0 { 1 } else { -1 })),
            _ => Err(too_large()),
        };
    }
    let (x, y) = (x.float(), y.float());
    if x == 0.0 && y < 0.0 {
        return Err(fail("zero cannot be raised to a negative power"));
    }
    if x < 0.0 && x.is_finite() && y.is_finite() && y.fract() != 0.0 {
        return Err(fail("a complex number"));
    }
    let power = x.powf(y);
    match power.is_infinite() && x.is_finite() && y.is_finite() {
        true => Err(fail("the result of a power is too large")),
        false => Ok(Value::from(power)),
    }
}

pub(in crate::chat) fn negate(a: &Value) -> Result<Value, Error> {
    let py = Py::of(a);
    match py.number() {
        Some(Number::Int(value)) => whole(value.checked_neg()),
        Some(Number::Float(value)) => Ok(Value::from(-value)),
        None if py == Py::Undefined => Err(undefined()),
        None => Err(fail(format!(
            "bad operand type for unary -: '{}'",
            py.type_name()
        ))),
    }
}

/// Computes `~`: joins the texts of all values.
pub(in crate::chat) fn concatenate(values: &[Value]) -> Result<Value, Error> {
    let mut joined = Text::default();
    for value in values {
        repr::push_str(&mut joined, value)?;
    }
    Ok(Value::from(joined.into_string()))
}
