use super::*;

fn read(fields: ConstraintFields) -> Result<Option<(String, ConstraintKind, String)>, String> {
    let spec = fields.spec("");
    let spec = spec.map_err(|error| error.param.unwrap_or_default())?;
    Ok(spec.map(|spec| (spec.param.into_owned(), spec.kind, spec.text)))
}

fn format(value: Value) -> ConstraintFields {
    ConstraintFields {
        response_format: Some(value),
        ..ConstraintFields::default()
    }
}

fn outputs(value: Value) -> ConstraintFields {
    ConstraintFields {
        structured_outputs: Some(value),
        ..ConstraintFields::default()
    }
}

#[test]
fn every_spelling_is_read() {
    let schema = json!({"type": "integer"});
    let tag = json!({"type": "structural_tag", "format": {"type": "any_text"}});
    for (fields, param, kind, text) in [
        (
            format(json!({"type": "json_schema",
                "json_schema": {"name": "a-b_1", "schema": schema, "strict": true}})),
            "response_format",
            ConstraintKind::JsonSchema,
            schema.to_string(),
        ),
        (
            format(json!({"type": "json_schema", "schema": schema.to_string()})),
            "response_format",
            ConstraintKind::JsonSchema,
            schema.to_string(),
        ),
        (
            format(json!({"type": "json_object"})),
            "response_format",
            ConstraintKind::JsonSchema,
            "{\"type\":\"object\"}".to_owned(),
        ),
        (
            format(json!({"type": "json_object", "schema": schema})),
            "response_format",
            ConstraintKind::JsonSchema,
            schema.to_string(),
        ),
        (
            outputs(json!({"choice": ["a"], "regex": null})),
            "structured_outputs.choice",
            ConstraintKind::Choice,
            "[\"a\"]".to_owned(),
        ),
        (
            outputs(json!({"regex": "a+", "disable_any_whitespace": true})),
            "structured_outputs.regex",
            ConstraintKind::Regex,
            "a+".to_owned(),
        ),
        (
            format(tag.clone()),
            "response_format",
            ConstraintKind::StructuralTag,
            tag.to_string(),
        ),
        (
            outputs(json!({"structural_tag": "{}"})),
            "structured_outputs.structural_tag",
            ConstraintKind::StructuralTag,
            "{}".to_owned(),
        ),
        (
            outputs(json!({"grammar": "start: \"a\""})),
            "structured_outputs.grammar",
            ConstraintKind::Lark,
            "start: \"a\"".to_owned(),
        ),
    ] {
        let wanted = (param.to_owned(), kind, text);
        assert_eq!(read(fields), Ok(Some(wanted)));
    }
    for nothing in [json!({"type": "text"}), Value::Null] {
        assert_eq!(read(format(nothing)), Ok(None));
    }
    assert_eq!(read(outputs(json!({}))), Ok(None));
}

#[test]
fn other_forms_name_their_field() {
    for (fields, param) in [
        (format(json!({})), "response_format"),
        (format(json!("json")), "response_format"),
        (format(json!({"type": "json_schema"})), "response_format"),
        (
            format(json!({"type": "json_schema", "json_schema": {"name": "a"}})),
            "response_format.json_schema.schema",
        ),
        (
            format(json!({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}})),
            "response_format.json_schema.name",
        ),
        (
            outputs(json!({"structural_tag": 5})),
            "structured_outputs.structural_tag",
        ),
        (
            outputs(json!({"json": {}, "regex": "a"})),
            "structured_outputs",
        ),
        (
            outputs(json!({"disable_any_whitespace": true})),
            "structured_outputs",
        ),
        (
            outputs(json!({"grammar": "root ::= a"})),
            "structured_outputs.grammar",
        ),
        (outputs(json!({"json": 5})), "structured_outputs.json"),
        (
            ConstraintFields {
                regex: Some("a".to_owned()),
                ..format(json!({"type": "json_object"}))
            },
            "regex",
        ),
    ] {
        assert_eq!(read(fields), Err(param.to_owned()));
    }
}
