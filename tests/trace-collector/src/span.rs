//! A span as the collector got it.

use std::{collections::BTreeMap, fmt};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value},
    trace::v1::{Span, status::StatusCode},
};

/// A span and its service.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectedSpan {
    /// Service, from `service.name`.
    pub service: String,
    /// Instance of the service, from `service.instance.id`.
    pub instance: String,
    /// Trace id, hexadecimal.
    pub trace_id: String,
    /// Span id, hexadecimal.
    pub span_id: String,
    /// Id of the parent span, hexadecimal; empty for a root.
    pub parent_id: String,
    /// Vendors' state of the trace, from `tracestate`.
    pub state: String,
    /// Name of the span.
    pub name: String,
    /// OTLP's number of the kind: 1 internal, 2 server, 3 client.
    pub kind: i32,
    /// Begin, in nanoseconds since 1970.
    pub start: u64,
    /// End, in nanoseconds since 1970.
    pub end: u64,
    /// Attributes by name.
    pub attributes: BTreeMap<String, Value>,
    /// Events: their names and their attributes.
    pub events: Vec<(String, BTreeMap<String, Value>)>,
    /// Description of the failure, if the span failed.
    pub error: Option<String>,
}

/// Value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// Another number.
    Number(f64),
    /// Yes or no.
    Bool(bool),
    /// Several values.
    List(Vec<Value>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Bool(yes) => write!(f, "{yes}"),
            Self::List(values) => {
                let texts: Vec<_> = values.iter().map(Self::to_string).collect();
                write!(f, "[{}]", texts.join(", "))
            }
        }
    }
}

impl CollectedSpan {
    /// Value of an attribute as text; empty if there is no such attribute.
    pub fn text(&self, name: &str) -> String {
        self.attributes
            .get(name)
            .map_or_else(String::new, Value::to_string)
    }
}

/// All spans of a call.
pub(crate) fn spans(call: ExportTraceServiceRequest) -> Vec<CollectedSpan> {
    let mut all = Vec::new();
    for resource in call.resource_spans {
        let of = resource.resource.map(|of| values(of.attributes));
        let of = of.unwrap_or_default();
        let text = |name: &str| of.get(name).map_or_else(String::new, Value::to_string);
        for span in resource
            .scope_spans
            .into_iter()
            .flat_map(|scope| scope.spans)
        {
            all.push(collected(
                text("service.name"),
                text("service.instance.id"),
                span,
            ));
        }
    }
    all
}

fn collected(service: String, instance: String, span: Span) -> CollectedSpan {
    let failed = span
        .status
        .filter(|status| status.code() == StatusCode::Error);
    CollectedSpan {
        service,
        instance,
        trace_id: hex(&span.trace_id),
        span_id: hex(&span.span_id),
        parent_id: hex(&span.parent_span_id),
        state: span.trace_state,
        name: span.name,
        kind: span.kind,
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        attributes: values(span.attributes),
        events: span
            .events
            .into_iter()
            .map(|event| (event.name, values(event.attributes)))
            .collect(),
        error: failed.map(|status| status.message),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn values(pairs: Vec<KeyValue>) -> BTreeMap<String, Value> {
    let pairs = pairs.into_iter();
    pairs
        .filter_map(|pair| Some((pair.key, value(pair.value?)?)))
        .collect()
}

fn value(value: AnyValue) -> Option<Value> {
    Some(match value.value? {
        any_value::Value::StringValue(text) => Value::Text(text),
        any_value::Value::IntValue(number) => Value::Integer(number),
        any_value::Value::DoubleValue(number) => Value::Number(number),
        any_value::Value::BoolValue(yes) => Value::Bool(yes),
        any_value::Value::ArrayValue(list) => {
            Value::List(list.values.into_iter().filter_map(self::value).collect())
        }
        _ => return None,
    })
}
