//! One compiled template in an environment that behaves like transformers' Jinja2.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::error::RaisedByTemplate;
use super::meter::{self, Metered};
use super::{
    Clock, TemplateError, TemplateLimits, python_globals, python_json, python_methods, source,
};

/// A compiled template with its environment: `trim_blocks`, `lstrip_blocks`, loop controls,
/// Python's methods, and transformers' `tojson`, `raise_exception` and `strftime_now`. Other
/// templates cannot be included or imported.
#[derive(Debug)]
pub(super) struct Jinja {
    environment: Environment<'static>,
    template: Metered,
    limits: TemplateLimits,
}

const NAME: &str = "chat_template";

impl Jinja {
    /// Compiles `template`; fails with [`TemplateError::Broken`] on a syntax error.
    pub(super) fn new(
        template: &str,
        limits: TemplateLimits,
        clock: Clock,
    ) -> Result<Self, TemplateError> {
        let broken = |e: Error| TemplateError::from_engine(&e, limits.fuel);
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(broken)?;
        environment.set_syntax(syntax.clone());
        environment.set_fuel(Some(limits.fuel));
        environment.set_recursion_limit(limits.call_depth);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(python_methods::call);
        environment.set_formatter(|out, state, value| match python_float_or(value) {
            Some(text) => meter::write(out, format_args!("{text}")),
            None if matches!(state.auto_escape(), AutoEscape::None) => {
                meter::write(out, format_args!("{value}"))
            }
            None => {
                meter::charge_printed(value)?;
                minijinja::escape_formatter(out, state, value)
            }
        });
        minijinja_contrib::add_to_environment(&mut environment);
        python_globals::add_to(&mut environment);
        environment.add_filter("tojson", python_json::tojson(limits.json_depth));
        environment.add_function(
            "raise_exception",
            |message: Value| -> Result<Value, Error> {
                let message = message.to_string();
                let error = Error::new(ErrorKind::InvalidOperation, message.clone());
                Err(error.with_source(RaisedByTemplate(message)))
            },
        );
        environment.add_function("strftime_now", move |format: &str| clock.strftime(format));
        meter::add_to(&mut environment);
        let template = Metered::compile(NAME, source::rewrite(template), syntax).map_err(broken)?;
        Ok(Self {
            environment,
            template,
            limits,
        })
    }

    /// Renders with `context` as the variables, which hold about `bytes` bytes.
    pub(super) fn render(&self, context: Value, bytes: usize) -> Result<String, TemplateError> {
        let limits = &self.limits;
        let more = limits.value_bytes_per_byte.saturating_mul(bytes as u64);
        let allowance = limits.value_bytes.saturating_add(more);
        let rendered = meter::within(allowance, limits.time, || {
            self.template.render(&self.environment, context)
        });
        let prompt = rendered.map_err(|e| TemplateError::from_engine(&e, limits.fuel))?;
        if prompt.len() > limits.output_bytes {
            return Err(TemplateError::TooExpensive {
                limit: format!("{} bytes of output", limits.output_bytes),
            });
        }
        Ok(prompt)
    }
}

#[cfg(test)]
impl Jinja {
    /// What the engine makes of `source` by itself, without charges.
    pub(super) fn plain(&self, source: &str, context: Value) -> Result<String, Error> {
        let mut environment = self.environment.clone();
        environment.set_fuel(None);
        environment.add_template_owned(NAME, source::rewrite(source))?;
        environment.get_template(NAME)?.render(context)
    }
}

/// A JSON value as the engine's; recursive, for values whose depth is bounded.
pub(super) fn value_of(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (None, Some(n)) => Value::from(n),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => list_of(items),
        Json::Object(fields) => Value::from_pairs(
            fields
                .iter()
                .map(|(name, field)| (name.as_str(), value_of(field))),
        ),
    }
}

/// A list of JSON values as the engine's.
pub(super) fn list_of(items: &[serde_json::Value]) -> Value {
    items.iter().map(value_of).collect()
}

fn python_float_or(value: &Value) -> Option<String> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    f64::try_from(value.clone())
        .ok()
        .map(|float| python_json::python_float(float, ("inf", "nan")))
}
