//! Any template and any messages give a result or an error, never a panic.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::chat::jinja::Jinja;
use crate::chat::{ChatRequest, ChatTemplate, Clock, TemplateLimits, TemplateOptions};
use crate::tokenizer::NamedTemplate;

const TEMPLATES: &[&str] = &[
    "chatml",
    "llama3_tools",
    "mistral_tools",
    "qwen3",
    "gemma",
    "macros",
];

fn templates() -> &'static [ChatTemplate] {
    static LOADED: std::sync::LazyLock<Vec<ChatTemplate>> = std::sync::LazyLock::new(|| {
        let load = |name: &&str| {
            let dir = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../tests/fixtures/chat_templates"
            );
            let source = std::fs::read_to_string(format!("{dir}/templates/{name}.jinja")).unwrap();
            let template = NamedTemplate {
                name: "default".to_owned(),
                source,
            };
            ChatTemplate::new(&[template], &[], TemplateOptions::default()).unwrap()
        };
        TEMPLATES.iter().map(load).collect()
    });
    &LOADED
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof!["\\PC{0,8}", "user|assistant|tool|system|text|function"].prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let names = "role|content|type|text|name|tool_calls|function|arguments|id|tool_call_id|x";
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((names, inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn any_message() -> impl Strategy<Value = Value> {
    let role = prop_oneof!["user|assistant|tool|system", "\\PC{0,4}"];
    (role, any_json(), any_json(), any::<bool>()).prop_map(|(role, content, calls, text)| {
        let content = if text { json!("plain") } else { content };
        json!({"role": role, "content": content, "tool_calls": calls})
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_messages_are_answered(
        messages in proptest::collection::vec(prop_oneof![4 => any_message(), 1 => any_json()], 0..4),
        tools in proptest::option::of(proptest::collection::vec(any_json(), 0..3)),
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) {
        let tools = tools.as_deref();
        let request = ChatRequest {
            messages: &messages, tools, add_generation_prompt, continue_final_message,
            ..Default::default()
        };
        for (template, name) in templates().iter().zip(TEMPLATES) {
            if let Err(error) = template.render(&request) {
                prop_assert!(error.is_client_error(), "{}: {}", name, error);
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }

    #[test]
    fn any_template_is_compiled_or_refused(
        parts in proptest::collection::vec(
            prop_oneof![
                "[{}%#'\"\\\\()|.~a-c \\n-]{1,3}", "\\PC",
                Just("{% raw %}".to_owned()), Just("{% endraw %}".to_owned()),
                Just("{%- generation -%}".to_owned()), Just("{% endgeneration %}".to_owned()),
                Just("{{ '%s' % ".to_owned()), Just("}}".to_owned()), Just("%}".to_owned()),
            ],
            0..16,
        ),
    ) {
        let source = parts.concat();
        if let Ok(template) = Jinja::new(&source, TemplateLimits::default(), Clock::Fixed(0)) {
            let _ = template.render(minijinja::Value::from(()), 0);
        }
    }
}
