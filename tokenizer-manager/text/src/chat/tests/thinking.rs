//! Thoughts and absent content, as templates receive them.

use serde_json::{Value, json};

use super::requests::render;
use crate::chat::TemplateError;

const CONTENT: &str = "{% if m.content is string %}{{ m.content }}{% else %}\
                       {% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}";

/// Makes a template that prints a field of each message before its content.
fn printing(field: &str) -> String {
    format!(
        "{{% for m in messages %}}{{% if m.{field} %}}({{{{ m.{field} }}}}){{% endif %}}{CONTENT}{{% endfor %}}"
    )
}

fn answered(fields: &Value) -> Value {
    let mut answer = json!({"role": "assistant", "content": "Yes"});
    for (name, value) in fields.as_object().unwrap() {
        answer[name] = value.clone();
    }
    json!([{"role": "user", "content": "Hi"}, answer])
}

#[test]
fn thoughts_have_every_name() {
    for given in ["reasoning_content", "thinking", "reasoning"] {
        for read in ["reasoning_content", "thinking", "reasoning"] {
            let messages = answered(&json!({ given: "Hm" }));
            let shown = render(&printing(read), &messages).unwrap();
            assert_eq!(shown, "Hi(Hm)Yes", "{given} as {read}");
        }
    }
}

#[test]
fn a_name_that_is_given_keeps_its_text() {
    let messages = answered(&json!({"reasoning_content": "a", "thinking": "b", "reasoning": null}));
    for (read, text) in [
        ("reasoning_content", "a"),
        ("thinking", "b"),
        ("reasoning", "a"),
    ] {
        let shown = render(&printing(read), &messages).unwrap();
        assert_eq!(shown, format!("Hi({text})Yes"), "{read}");
    }
}

#[test]
fn thoughts_in_parts_move_to_fields_where_the_template_looks_there_alone() {
    for part in [
        json!({"type": "thinking", "thinking": "Hm"}),
        json!({"type": "thinking", "thinking": [{"type": "text", "text": "H"}, {"type": "text", "text": "m"}]}),
        json!({"type": "reasoning", "reasoning": "Hm"}),
        json!({"type": "reasoning", "text": "Hm"}),
    ] {
        let parts = json!([part, {"type": "text", "text": "Yes"}]);
        let messages = answered(&json!({"content": parts}));
        let strings = "{% for m in messages %}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\
                       {{ m.content + '.' }}{% endfor %}";
        assert_eq!(render(strings, &messages).unwrap(), "Hi.(Hm)Yes.", "{part}");
        let shown = render(&printing("reasoning_content"), &messages).unwrap();
        assert_eq!(shown, "Hi(Hm)Yes", "{part}");
    }
    let two = json!([{"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": "b"}]);
    let messages = answered(&json!({"content": two}));
    assert_eq!(
        render(&printing("thinking"), &messages).unwrap(),
        "Hi(a\nb)"
    );
}

#[test]
fn thoughts_in_parts_stay_where_the_template_looks_for_them() {
    let source = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
                  {% if p.type == 'thinking' %}{{ '[' + p.thinking + ']' }}{% elif p.type == 'text' %}{{ p.text }}\
                  {% else %}{{ raise_exception('unknown part') }}{% endif %}{% endfor %}{% endif %}\
                  {{ m.reasoning_content }}{% endfor %}";
    for kind in ["thinking", "reasoning"] {
        let part = json!({"type": kind, kind: "Hm"});
        let parts = json!([part, {"type": "text", "text": "Yes"}]);
        let messages = answered(&json!({"content": parts}));
        assert_eq!(render(source, &messages).unwrap(), "Hi[Hm]Yes");
        let system =
            json!([{"role": "system", "content": [part]}, {"role": "user", "content": "Hi"}]);
        assert_eq!(render(source, &system).unwrap(), "[Hm]Hi");
        let strict = source.replace(
            "{% for m in messages %}",
            "{% for m in messages if m.role in ['system', 'user', 'assistant'] %}",
        );
        let messages = json!([
            {"role": "system", "content": [part]},
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
        ]);
        assert_eq!(render(&strict, &messages).unwrap(), "[Hm]\n\nBe brief.Hi");
    }
}

#[test]
fn thoughts_that_would_be_lost_are_refused() {
    let part = json!({"type": "thinking", "thinking": "Hm"});
    let user = json!([{"role": "user", "content": [part]}]);
    let broken = answered(&json!({"content": [{"type": "thinking", "thinking": 7}]}));
    for (messages, place) in [
        (user, "messages[0].content[0]"),
        (broken, "messages[1].content[0]"),
    ] {
        let error = render(&printing("thinking"), &messages).unwrap_err();
        assert!(matches!(error, TemplateError::InvalidRequest { .. }));
        assert!(error.to_string().starts_with(place), "{error}");
    }
}

#[test]
fn null_is_absent() {
    let source = "{% for m in messages %}{{ m|list|sort|join(',') }};{% endfor %}";
    let messages = json!([
        {"role": "user", "content": "Hi", "name": null},
        {"role": "assistant", "content": null, "tool_calls": null, "refusal": null},
    ]);
    assert_eq!(render(source, &messages).unwrap(), "content,role;role;");
}

#[test]
fn absent_content_is_empty_where_the_template_needs_one() {
    let strict = "{% for m in messages %}{{ m.role + m['content'] + ';' }}{% endfor %}";
    let lenient = "{% for m in messages %}{{ m.role }}{% if m.content is defined %}{{ m.content }}{% else %}!{% endif %};{% endfor %}";
    for content in [json!({"content": null}), json!({})] {
        let mut answer = content;
        answer["role"] = "assistant".into();
        let messages = json!([{"role": "user", "content": "Hi"}, answer]);
        assert_eq!(render(strict, &messages).unwrap(), "userHi;assistant;");
        assert_eq!(render(lenient, &messages).unwrap(), "userHi;assistant!;");
    }
}

/// Refuses thoughts beside the content of a message that calls tools, as gpt-oss's template does.
const HARMONY: &str = "{% for m in messages %}{% if m.role == 'assistant' %}{% if 'tool_calls' in m %}\
                       {% if m.content and m.thinking %}{{ raise_exception('content and thinking') }}{% endif %}\
                       ({{ m.content or m.thinking }}){{ m.tool_calls[0].function.name }}\
                       {{ m.tool_calls[0].function.arguments|tojson }}{% else %}{{ m.content }}{% endif %}\
                       {% else %}{{ m.content }}{% endif %}{% endfor %}";

#[test]
fn a_name_that_the_template_refuses_is_not_added() {
    let calls = json!([{"function": {"name": "f", "arguments": "{}"}}]);
    let shown = |fields: Value| render(HARMONY, &answered(&fields));
    for name in ["reasoning_content", "reasoning"] {
        let echoed = json!({"content": "Going", name: "Hm", "tool_calls": calls});
        assert_eq!(shown(echoed).unwrap(), "Hi(Going)f{}");
        let alone = json!({"content": null, name: "Hm", "tool_calls": calls});
        assert_eq!(shown(alone).unwrap(), "Hi(Hm)f{}");
        let empty = json!({"content": "", name: "Hm", "tool_calls": calls});
        assert_eq!(shown(empty).unwrap(), "Hi(Hm)f{}");
    }
    let own = json!({"content": "Going", "thinking": "Hm", "tool_calls": calls});
    assert!(matches!(shown(own), Err(TemplateError::Raised { .. })));
}

#[test]
fn only_the_name_that_the_template_reads_is_added() {
    let names = "{% for m in messages %}{{ m|list|sort|join(',') }};{% endfor %}";
    for (reads, given, fields) in [
        ("thinking", "reasoning", "content,reasoning,role,thinking"),
        ("thinking", "thinking", "content,role,thinking"),
        (
            "reasoning or m.thinking",
            "thinking",
            "content,role,thinking",
        ),
        (
            "reasoning or m.thinking",
            "reasoning_content",
            "content,reasoning_content,role,thinking",
        ),
        // If the template shows none, thoughts get the names that transformers uses.
        (
            "nothing",
            "reasoning",
            "content,reasoning,reasoning_content,role,thinking",
        ),
    ] {
        let source = format!("{}{names}", printing(reads));
        let shown = render(&source, &answered(&json!({ given: "Hm" }))).unwrap();
        let end = format!("content,role;{fields};");
        assert!(shown.ends_with(&end), "{reads}, {given}: {shown}");
    }
}

#[test]
fn empty_thoughts_hide_no_others() {
    let part = json!([{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Yes"}]);
    for read in ["reasoning_content", "thinking", "reasoning"] {
        for fields in [
            json!({"reasoning_content": "", "reasoning": "Hm"}),
            json!({"reasoning_content": "", "thinking": "", "reasoning": "Hm"}),
            json!({"thinking": "Hm", "reasoning": ""}),
            json!({"reasoning_content": "", "content": part}),
            json!({"reasoning": "Hm", "content": part}),
        ] {
            let shown = render(&printing(read), &answered(&fields)).unwrap();
            assert_eq!(shown, "Hi(Hm)Yes", "{read}: {fields}");
        }
    }
}

#[test]
fn an_empty_name_that_comes_first_is_filled() {
    let first = "{% for m in messages %}({% if m.reasoning_content is defined %}{{ m.reasoning_content }}\
                 {% else %}{{ m.reasoning }}{% endif %}){{ m.content }}{% endfor %}";
    for fields in [
        json!({"reasoning_content": "", "reasoning": "Hm"}),
        json!({"reasoning": "Hm"}),
    ] {
        let shown = render(first, &answered(&fields)).unwrap();
        assert_eq!(shown, "()Hi(Hm)Yes", "{fields}");
    }
}

#[test]
fn thoughts_that_contradict_each_other_are_refused() {
    let part = json!([{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Yes"}]);
    let messages = answered(&json!({"reasoning_content": "No", "content": part}));
    let error = render(&printing("thinking"), &messages).unwrap_err();
    assert!(matches!(error, TemplateError::InvalidRequest { .. }));
    let message = error.to_string();
    assert!(message.starts_with("messages[1].content[0]"), "{message}");
    assert!(message.contains("other thinking"), "{message}");
}
