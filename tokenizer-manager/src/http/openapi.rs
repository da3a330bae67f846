//! `/openapi.json`: a description of the server, made from the routes and from the
//! types that requests are parsed as.

use serde_json::{Map, Value, json};

use super::{
    anthropic, loads, native,
    openai::{chat, completions, responses},
};
use crate::app::App;

/// One method of one path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
    /// Method in lower case.
    pub method: &'static str,
    /// Path with axum's `{*name}` for a part that may be any text.
    pub path: &'static str,
    /// Description in one line.
    pub summary: &'static str,
}

type Fields = &'static [(&'static str, &'static str)];

/// Routes whose body is described: path, fields, required fields.
const BODIES: &[(&str, Fields, &[&str])] = &[
    ("/v1/chat/completions", chat::FIELDS, &["messages"]),
    ("/v1/completions", completions::FIELDS, &["prompt"]),
    (
        "/v1/messages",
        anthropic::FIELDS,
        &["max_tokens", "messages"],
    ),
    (
        "/v1/messages/count_tokens",
        anthropic::FIELDS,
        &["messages"],
    ),
    ("/v1/responses", responses::FIELDS, &["input"]),
    ("/generate", native::FIELDS, &[]),
];

/// Returns the description in OpenAPI 3.1. Each list of routes has its tag.
pub(super) fn document(app: &App, all: [(&str, &[Route]); 2]) -> Value {
    let mut paths = Map::new();
    for (tag, routes) in all {
        for route in routes {
            let path = paths.entry(route.path.replace("{*", "{"));
            let path = path.or_insert_with(|| json!({}));
            path[route.method] = operation(app, route, tag);
        }
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {"title": "Lockstep", "version": env!("CARGO_PKG_VERSION")},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": {"Error": error(), "MessagesError": messages_error()}},
    });
    if app.keys.client.is_some() || app.keys.operator.is_some() {
        document["components"]["securitySchemes"] = json!({
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        });
    }
    document
}

fn operation(app: &App, route: &Route, tag: &str) -> Value {
    let error = match route.path.starts_with("/v1/messages") {
        true => "#/components/schemas/MessagesError",
        false => "#/components/schemas/Error",
    };
    let content = json!({"schema": {"$ref": error}});
    let mut operation = json!({
        "summary": route.summary,
        "tags": [tag],
        "responses": {
            "200": {"description": "The answer."},
            "default": {"description": "A refusal.", "content": {"application/json": content}},
        },
    });
    if let Some((_, name)) = route.path.split_once("{*") {
        let name = name.trim_end_matches('}');
        operation["parameters"] =
            json!([{"name": name, "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    if route.path == "/v1/loads" {
        let parameter = |(name, says): (&str, &str)| json!({"name": name, "in": "query", "description": says, "schema": {"type": "string"}});
        operation["parameters"] = loads::PARAMETERS.map(parameter).into_iter().collect();
    }
    if route.method == "post" {
        let known = BODIES.iter().find(|(path, ..)| *path == route.path);
        let mut schema = match known {
            Some((_, fields, required)) => object(fields, required),
            None => json!({"type": "object"}),
        };
        if let Some(field) = schema.pointer_mut("/properties/data_parallel_rank") {
            field["minimum"] = json!(0);
            field["maximum"] = json!(app.config.parallel.dp_size - 1);
        }
        operation["requestBody"] = json!({"content": {"application/json": {"schema": schema}}});
    }
    let open = matches!(route.path, "/health" | "/ping");
    let keys = &app.keys;
    let asked = match tag {
        "operators" => keys.client.is_some() || keys.operator.is_some(),
        _ => keys.client.is_some() && !open,
    };
    if asked {
        operation["security"] = json!([{"bearer": []}, {"key": []}]);
    }
    operation
}

/// Returns the schema of OpenAI's error object.
fn error() -> Value {
    let text = json!({"type": ["string", "null"]});
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {"error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": text,
                "code": text,
            },
        }},
    })
}

/// Returns the schema of Anthropic's error object.
fn messages_error() -> Value {
    json!({
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
            "request_id": {"type": "string"},
        },
    })
}

/// Returns the schema of a request. Fields that it does not name are ignored or
/// refused.
fn object(fields: Fields, required: &[&str]) -> Value {
    let properties = fields
        .iter()
        .map(|(name, kind)| ((*name).to_owned(), schema(kind)))
        .collect::<Map<_, _>>();
    json!({"type": "object", "properties": properties, "required": required})
}

/// Returns the schema of a field from its Rust type.
fn schema(kind: &str) -> Value {
    let kind: String = kind.split_whitespace().collect();
    let (outer, inner) = match kind.split_once('<') {
        Some((outer, inner)) => (outer, inner.strip_suffix('>').unwrap_or(inner)),
        None => (&*kind, ""),
    };
    match outer.rsplit("::").next().unwrap_or(outer) {
        "Option" => schema(inner),
        "OneOrMany" => {
            let one = schema(inner);
            json!({"anyOf": [one, {"type": "array", "items": one}]})
        }
        "Vec" => json!({"type": "array", "items": schema(inner)}),
        "Object" if inner.ends_with("SamplingFields") => object(native::SAMPLING_FIELDS, &[]),
        "Object" | "Map" | "LogitBias" => json!({"type": "object"}),
        "Prompt" => json!({"type": ["string", "array"]}),
        "String" => json!({"type": "string"}),
        "bool" => json!({"type": "boolean"}),
        "f64" => json!({"type": "number"}),
        "i64" | "i32" | "u32" | "Integer" | "Seed" => json!({"type": "integer"}),
        _ => json!({}),
    }
}
