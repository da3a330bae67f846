//! Random walks through grammars of random tools. Whatever a walk writes, the format's parser
//! reads as calls of those tools, however it is cut.

use lockstep_sampling::{TokenConstraint as _, allows};
use lockstep_text::{Beside, TOOL_FORMATS, ToolFormat};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Answer, ENDS, Model, Tool, fulfils, grammar, marks, model, parse};

/// Tokens after which a walk tries to come to its end.
const LONG: usize = 60;
/// Tokens after which a walk is given up.
const LONGEST: usize = 1500;

/// Random numbers of one walk.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// Writes a random output; `None` if it came to no end. What a model would write rarely by chance,
/// such as a closing tag or a quote, is tried at every other token, and more often later on.
fn walk(format: &ToolFormat, model: &Model, grammar: &str, seed: u64) -> Option<Vec<u32>> {
    let mut random = Random(seed);
    let mut matcher = model
        .matcher(grammar)
        .unwrap_or_else(|error| panic!("{error}\n{grammar}"));
    let mut tries: Vec<Vec<u32>> = Vec::new();
    for mark in marks(format) {
        tries.push(model.spell(mark));
        tries.push([model.spell("\n"), model.spell(mark)].concat());
    }
    for text in ["\"", "}", "]", ")", "1", "a", "\n", "\"", "}"] {
        tries.push(model.spell(text));
    }
    let mut ids = Vec::new();
    while ids.len() < LONGEST {
        if matcher.allowed().is_err() {
            panic!("{:?} {}\n{grammar}", matcher.failure(), text(model, &ids));
        }
        let allowed = matcher.allowed().unwrap();
        let ends = allows(allowed, ENDS[0]);
        if ends && (ids.len() > LONG || random.below(4) == 0) {
            return Some(ids);
        }
        if ids.len() > LONG || random.below(2) == 0 {
            let wanted = &tries[random.below(tries.len())];
            let done = wanted
                .iter()
                .take_while(|id| matcher.take(**id).is_ok())
                .count();
            if done == wanted.len() {
                ids.extend(wanted);
                continue;
            }
            // A forbidden token changes nothing.
            matcher.give_back(done).unwrap();
            if ids.len() > LONG && random.below(3) > 0 {
                continue;
            }
        }
        let allowed = matcher.allowed().unwrap();
        let all: Vec<u32> = (0..allowed.len() as u32 * 32)
            .filter(|id| allows(allowed, *id) && !ENDS.contains(id))
            .collect();
        if all.is_empty() {
            return Some(ids);
        }
        let id = all[random.below(all.len())];
        matcher.take(id).unwrap();
        ids.push(id);
    }
    None
}

fn text(model: &Model, ids: &[u32]) -> String {
    let bytes = ids
        .iter()
        .flat_map(|id| model.tokenizer.token_bytes(*id).unwrap_or(b"?"));
    String::from_utf8_lossy(&bytes.copied().collect::<Vec<_>>()).into_owned()
}

/// Schemas of a property.
fn property() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => Just(json!({"type": "string", "description": "a text"})),
        1 => Just(json!({"type": "string", "minLength": 2, "maxLength": 5})),
        1 => Just(json!({"enum": ["metric", "imperial", "a\nb"]})),
        1 => Just(json!({"enum": ["x", 1, null, {"a": true}]})),
        1 => Just(json!({"const": "fixed"})),
        1 => Just(json!({"type": ["string", "null"], "enum": ["x", 1, null, "\"y"]})),
        2 => Just(json!({"type": "integer", "minimum": -3, "maximum": 300})),
        1 => Just(json!({"type": "number"})),
        2 => Just(json!({"type": "boolean"})),
        1 => Just(json!({"type": ["string", "null"]})),
        1 => Just(json!({"type": ["integer", "string"]})),
        1 => Just(json!({"anyOf": [{"type": "integer"}, {"type": "null"}]})),
        1 => Just(json!({"type": "array", "items": {"type": "string"}, "maxItems": 3})),
        1 => Just(json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["b"], "additionalProperties": false})),
        1 => Just(json!({"$ref": "#/$defs/color"})),
        1 => Just(json!({"$ref": "#/$defs/point"})),
        1 => Just(json!({})),
    ]
}

/// Schemas of properties that are not listed.
fn additional() -> impl Strategy<Value = Value> {
    let text = json!({"type": "string"});
    let schemas = [
        true.into(),
        false.into(),
        text,
        json!({"$ref": "#/$defs/color"}),
    ];
    prop::sample::select(schemas.to_vec())
}

fn schema() -> impl Strategy<Value = Value> {
    let properties = prop::collection::vec((property(), any::<bool>()), 0..4);
    (properties, prop::option::of(additional())).prop_map(|(properties, additional)| {
        let mut schema = json!({
            "type": "object", "properties": {}, "required": [],
            "$defs": {
                "color": {"type": "string", "enum": ["red", "green"]},
                "point": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}],
                    "minItems": 2, "maxItems": 2},
            },
        });
        for (at, (property, required)) in properties.into_iter().enumerate() {
            let name = ["place", "unit_2", "x", "Depth"][at];
            schema["properties"][name] = property;
            if required {
                schema["required"].as_array_mut().unwrap().push(name.into());
            }
        }
        if let Some(additional) = additional {
            schema["additionalProperties"] = additional;
        }
        schema
    })
}

fn tools() -> impl Strategy<Value = Vec<Tool>> {
    let names =
        prop::sample::subsequence(vec!["look", "box.open", "look_up", "a-1", "x:y/z"], 1..4);
    let rest = prop::collection::vec((prop::option::weighted(0.9, schema()), 0..3), 4);
    (names, rest).prop_map(|(names, rest)| {
        let pairs = names.into_iter().zip(rest);
        let tool = |(name, (schema, kind)): (&str, (Option<Value>, i32))| Tool {
            name: name.to_owned(),
            schema,
            strict: kind == 0,
            loose: kind == 2,
        };
        pairs.map(tool).collect()
    })
}

/// Checks the calls of an answer: tools that are there, with arguments that fulfil their schemas.
fn check_calls(answer: &Answer, tools: &[Tool], shown: &str) {
    for (name, arguments) in &answer.calls {
        let tool = tools.iter().find(|tool| tool.name == *name);
        let tool = tool.unwrap_or_else(|| panic!("no tool {name}: {shown}"));
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(arguments);
        is_json.unwrap_or_else(|error| panic!("{error}: {arguments}\n{shown}"));
        // Numbers may be too large for a value of Rust.
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
            continue;
        };
        assert!(arguments.is_object(), "{shown}");
        if let Some(schema) = tool.schema.as_ref().filter(|_| !tool.loose) {
            assert!(
                fulfils(schema, &arguments),
                "{schema}\n{arguments}\n{shown}"
            );
        }
    }
}

/// Walks once, and checks what comes out. Returns false if the walk came to no end.
fn check(
    format: &'static ToolFormat,
    as_tokens: bool,
    tools: &[Tool],
    (beside, several): (Beside<'_>, bool),
    seed: u64,
) -> bool {
    let model = model(format, as_tokens);
    let grammar = grammar(format, &model, tools, beside, several).unwrap();
    let Some(ids) = walk(format, &model, &grammar, seed) else {
        return false;
    };
    let shown = format!(
        "{:?} {as_tokens} {}\n{grammar}",
        format.names[0],
        text(&model, &ids)
    );
    let alone = matches!(beside, Beside::Answer(_));
    let whole = parse(format, &model, (tools, alone), &ids, |_| false);
    check_calls(&whole, tools, &shown);
    match beside {
        Beside::Nothing => {
            assert_eq!(whole.text, "", "{shown}");
            assert!(!whole.calls.is_empty(), "{shown}");
        }
        Beside::Text => {}
        Beside::Answer(_) => assert_eq!(whole.text.is_empty(), !whole.calls.is_empty(), "{shown}"),
    }
    assert!(several || whole.calls.len() <= 1, "{shown}");
    for cut in [1, 2, 3, 5] {
        let other = parse(format, &model, (tools, alone), &ids, |at| at % cut == 0);
        assert_eq!(other, whole, "cut {cut}: {shown}");
    }
    true
}

fn begins_with_a_mark(format: &ToolFormat) -> bool {
    !["llama3", "pythonic"].contains(&format.names[0])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_walk_is_read_as_calls(
        format in prop::sample::select(TOOL_FORMATS),
        as_tokens: bool,
        tools in tools(),
        several: bool,
        beside in 0..3,
        seed: u64,
    ) {
        let beside = match beside {
            _ if !begins_with_a_mark(format) => Beside::Nothing,
            0 => Beside::Nothing,
            1 => Beside::Text,
            _ => Beside::Answer("%json {\"type\": \"array\", \"items\": {\"type\": \"string\"}}"),
        };
        prop_assume!(check(format, as_tokens, &tools, (beside, several), seed));
    }
}

/// Walks through every format in every way, with tools of every type.
#[test]
fn every_format_is_walked() {
    let tools = [
        Tool {
            name: "look".to_owned(),
            schema: Some(json!({
                "type": "object",
                "properties": {
                    "place": {"type": "string"}, "days": {"type": "integer"},
                    "unit": {"enum": ["c", "f"]}, "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["place", "days"],
            })),
            strict: true,
            loose: false,
        },
        Tool {
            name: "ping".to_owned(),
            schema: None,
            strict: false,
            loose: false,
        },
    ];
    for format in TOOL_FORMATS {
        for as_tokens in [false, true] {
            for several in [false, true] {
                let mut ended = 0;
                for seed in 0..2 {
                    for beside in [Beside::Nothing, Beside::Text] {
                        if matches!(beside, Beside::Nothing) || begins_with_a_mark(format) {
                            let way = (beside, several);
                            ended += usize::from(check(format, as_tokens, &tools, way, seed));
                        }
                    }
                }
                assert!(ended > 0, "{:?}", format.names);
            }
        }
    }
}
