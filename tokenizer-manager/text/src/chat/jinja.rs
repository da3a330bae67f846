//! One compiled template in an environment that behaves like transformers' Jinja2.

use std::collections::BTreeMap;

use minijinja::machinery::{CodeGenerator, Instructions, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, Value};

use super::lower::{self, operations};
use super::python::{filters, functions, methods, repr, tests};
use super::{Clock, TemplateError, TemplateLimits, meter, source};

/// A compiled template with its environment: `trim_blocks`, `lstrip_blocks`, loop controls,
/// Python's methods, and transformers' `tojson`, `raise_exception` and `strftime_now`. Other
/// templates cannot be included or imported.
#[derive(Debug)]
pub(super) struct Jinja {
    environment: Environment<'static>,
    main: Instructions<'static>,
    blocks: BTreeMap<&'static str, Instructions<'static>>,
    limits: TemplateLimits,
}

const NAME: &str = "chat_template";

impl Jinja {
    /// Compiles `template`. The source stays in memory until the program ends, since a program
    /// loads the templates of one model only. Fails with [`TemplateError::Broken`] on a syntax
    /// error, and if the template uses a feature that cannot be rendered as in Jinja2.
    pub(super) fn new(
        template: &str,
        limits: TemplateLimits,
        clock: Clock,
    ) -> Result<Self, TemplateError> {
        let broken = |e: Error| TemplateError::from_engine(&e, limits.fuel);
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(broken)?;
        let source: &'static str = source::rewrite(template).map_err(broken)?.leak();
        let parsed = parse(source, NAME, syntax).map_err(broken)?;
        let mut generator = CodeGenerator::new(NAME, source);
        generator.compile_stmt(&lower::lower(&parsed).map_err(broken)?);
        let (main, blocks) = generator.finish();
        Ok(Self {
            environment: environment(limits, clock),
            main,
            blocks,
            limits,
        })
    }

    /// Renders with `context` as the variables. The variables hold about `bytes` bytes.
    pub(super) fn render(&self, context: Value, bytes: usize) -> Result<String, TemplateError> {
        let limits = &self.limits;
        let more = limits.value_bytes_per_byte.saturating_mul(bytes as u64);
        let allowance = limits.value_bytes.saturating_add(more);
        let rendered = meter::within(allowance, limits.time, || {
            let mut text = String::new();
            let (environment, escape) = (&self.environment, AutoEscape::None);
            let mut out = make_string_output(&mut text);
            eval(
                environment,
                &self.main,
                context,
                &self.blocks,
                &mut out,
                escape,
            )?;
            Ok::<_, Error>(text)
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

/// Makes the environment without the engine's own filters, tests and functions. A name that
/// Jinja2 does not have is an error here too.
fn environment(limits: TemplateLimits, clock: Clock) -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_fuel(Some(limits.fuel));
    environment.set_recursion_limit(limits.call_depth);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| match value.as_str() {
        Some(text) => meter::write(out, text),
        None => meter::write(out, &repr::string(value)?),
    });
    operations::add_to(&mut environment);
    filters::add_to(&mut environment, limits.json_depth);
    tests::add_to(&mut environment);
    functions::add_to(&mut environment, clock);
    environment
}

/// Converts a JSON value to the engine's. It is recursive, so the depth must be bounded.
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
        Json::Object(fields) => fields_of(fields, |_, field| value_of(field)),
    }
}

/// Converts a JSON object to the engine's. `value` converts each field.
pub(super) fn fields_of(
    fields: &serde_json::Map<String, serde_json::Value>,
    value: impl Fn(&str, &serde_json::Value) -> Value,
) -> Value {
    Value::from_pairs(
        fields
            .iter()
            .map(|(name, field)| (name.as_str(), value(name, field))),
    )
}

/// Converts a list of JSON values to the engine's.
pub(super) fn list_of(items: &[serde_json::Value]) -> Value {
    items.iter().map(value_of).collect()
}
