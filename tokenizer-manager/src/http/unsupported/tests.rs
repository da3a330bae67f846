use serde_json::json;

use super::*;
use crate::http::{
    anthropic, native,
    openai::{chat, completions, responses},
};

const PARAMS: Params = &[("temperature", "Option<f64>")];

fn refused(route: Routes, body: &Value) -> Option<String> {
    check(body.to_string().as_bytes(), route, PARAMS)
        .err()
        .map(|error| error.param.expect("a field"))
}

#[test]
fn every_field_is_refused_where_it_asks_for_something() {
    for field in FIELDS {
        for route in [CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES] {
            let known = find(field.name, route).is_some();
            for (value, asks) in [
                (json!(true), true),
                (json!(7), true),
                (json!("x"), true),
                (json!(["x"]), true),
                (json!({"type": "object"}), true),
                (json!(null), false),
                (json!(false), false),
                (json!(""), false),
                (json!([]), false),
                (json!({}), false),
            ] {
                let body = json!({"model": {"deep": [1]}, field.name: value, "unknown": 1});
                let field = find(field.name, route).unwrap_or(field);
                let asks = match (field.neutral, &value) {
                    (Neutral::True, Value::Bool(value)) => !value,
                    _ => asks,
                };
                let expected = (known && asks).then(|| field.name.to_owned());
                assert_eq!(refused(route, &body), expected, "{body}");
            }
        }
    }
}

#[test]
fn defaults_ask_for_nothing() {
    for (fields, expected) in [
        (json!({"length_penalty": 1.0, "typical_p": 1}), None),
        (json!({"length_penalty": 0.9}), Some("length_penalty")),
        (json!({"xtc_probability": 0, "dry_multiplier": 0.0}), None),
        (json!({"xtc_probability": 0.5}), Some("xtc_probability")),
        (json!({"n_predict": -1, "n_probs": 0, "mirostat": 0}), None),
        (json!({"n_predict": 5}), Some("n_predict")),
        (json!({"n_probs": 2}), Some("n_probs")),
        (json!({"prompt_logprobs": 0}), Some("prompt_logprobs")),
        (json!({"modalities": ["text"]}), None),
        (json!({"modalities": ["text", "audio"]}), Some("modalities")),
    ] {
        assert_eq!(refused(CHAT, &fields).as_deref(), expected, "{fields}");
    }
}

#[test]
fn sampling_params_are_looked_into() {
    let params = |params: Value| json!({"text": "a", "sampling_params": params});
    for (body, expected) in [
        (params(json!({"grammar": null, "temperature": 1})), None),
        (
            params(json!({"grammar": "a+"})),
            Some("sampling_params.grammar"),
        ),
        (
            params(json!([{}, {"guided_grammar": "x"}])),
            Some("sampling_params.guided_grammar"),
        ),
        (
            params(json!({"temprature": null})),
            Some("sampling_params.temprature"),
        ),
        (
            params(json!({"max_tokens": 5})),
            Some("sampling_params.max_tokens"),
        ),
        (
            params(json!({"stream_interval": 1, "spaces_between_special_tokens": true})),
            None,
        ),
        (params(json!(5)), None),
        (json!([1]), None),
    ] {
        assert_eq!(refused(GENERATE, &body).as_deref(), expected, "{body}");
    }
    assert!(check(b"{nope", CHAT, PARAMS).is_ok());
}

#[test]
fn the_message_says_what_to_do() {
    let message = |body: &[u8]| {
        check(body, COMPLETIONS, PARAMS)
            .expect_err("refused")
            .message
    };
    assert_eq!(
        message(br#"{"guided_whitespace_pattern": "x"}"#),
        "'guided_whitespace_pattern' is not supported by this version; leave it out."
    );
    assert_eq!(
        message(br#"{"guided_json_object": true}"#),
        "'guided_json_object' is not supported by this version; use 'response_format' of the type \
         \"json_object\"."
    );
    assert_eq!(
        message(br#"{"n_predict": 5}"#),
        "'n_predict' is not supported by this version; use 'max_tokens'."
    );
}

#[test]
fn no_field_is_both_read_and_refused() {
    for (route, fields) in [
        (CHAT, chat::FIELDS),
        (COMPLETIONS, completions::FIELDS),
        (GENERATE, native::FIELDS),
        (MESSAGES, anthropic::FIELDS),
        (RESPONSES, responses::FIELDS),
        (SAMPLING_PARAMS, native::SAMPLING_FIELDS),
    ] {
        assert!(!fields.is_empty());
        for (name, _) in fields {
            assert!(find(name, route).is_none(), "{name}");
        }
    }
}
