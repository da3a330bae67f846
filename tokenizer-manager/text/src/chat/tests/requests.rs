use serde_json::{Value, json};

use crate::chat::{ChatRequest, ChatTemplate, ContentFormat, TemplateError, TemplateOptions};
use crate::tokenizer::NamedTemplate;
use crate::tokenizer::samples::demo_dir;

const CHATML: &str = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '\\n' }}{% endfor %}\
                      {% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";
const PARTS: &str = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}\
                     {% for p in m.content %}[{{ p['text'] }}]{% endfor %}{% endif %};{% endfor %}";
const PARTS_ONLY: &str = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}[{{ p.text }}]{% endfor %};{% endfor %}";

pub(super) fn template(source: &str) -> ChatTemplate {
    let templates = [NamedTemplate {
        name: "default".to_owned(),
        source: source.to_owned(),
    }];
    ChatTemplate::new(&templates, &[], TemplateOptions::default()).unwrap()
}

pub(super) fn render(source: &str, messages: &Value) -> Result<String, TemplateError> {
    let messages = messages.as_array().unwrap();
    template(source).render(&ChatRequest {
        messages,
        ..Default::default()
    })
}

fn refusal(source: &str, messages: &Value) -> String {
    match render(source, messages) {
        Err(TemplateError::InvalidRequest { message }) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_demo_template_renders() {
    let template = ChatTemplate::from_dir(demo_dir(), TemplateOptions::default())
        .unwrap()
        .unwrap();
    assert_eq!(template.content_format(), ContentFormat::String);
    let messages = [json!({"role": "user", "content": "Count from 3 to 12."})];
    let request = ChatRequest {
        messages: &messages,
        add_generation_prompt: true,
        ..Default::default()
    };
    let expected = "<|im_start|>user\nCount from 3 to 12.<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(template.render(&request).unwrap(), expected);
}

#[test]
fn a_base_model_has_no_template() {
    let dir = tempfile::tempdir().unwrap();
    assert!(
        ChatTemplate::from_dir(dir.path(), TemplateOptions::default())
            .unwrap()
            .is_none()
    );
}

#[test]
fn content_takes_the_shape_the_template_wants() {
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]},
        {"role": "assistant", "content": null},
        {"role": "assistant"},
        {"role": "user", "content": "d"},
    ]);
    assert_eq!(template(CHATML).content_format(), ContentFormat::String);
    assert_eq!(
        render(CHATML, &messages).unwrap(),
        "<user>a\nb\nc\n<assistant>\n<assistant>\n<user>d\n"
    );
    assert_eq!(template(PARTS).content_format(), ContentFormat::OpenAi);
    assert_eq!(
        render(PARTS, &messages).unwrap(),
        "user:[a][b][c];assistant:;assistant:;user:d;"
    );
    assert_eq!(
        template(PARTS_ONLY).content_format(),
        ContentFormat::PartsOnly
    );
    assert_eq!(
        render(PARTS_ONLY, &messages).unwrap(),
        "user:[a][b][c];assistant:;assistant:;user:[d];"
    );
}

#[test]
fn bad_messages_are_refused_with_their_place() {
    let image =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    assert!(
        refusal(CHATML, &image).contains("messages[0].content[0]: parts of type \"image_url\"")
    );
    assert!(refusal(PARTS, &image).contains("text only"));
    for (messages, words) in [
        (json!([]), "must not be empty"),
        (json!([1]), "messages[0] is not an object"),
        (
            json!([{"role": "user"}, {"content": "x"}]),
            "messages[1].role",
        ),
        (json!([{"role": 1}]), "messages[0].role"),
        (
            json!([{"role": "user", "content": 1}]),
            "messages[0].content",
        ),
        (json!([{"role": "user", "content": [1]}]), "content[0]"),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "\"text\" must be a string",
        ),
    ] {
        let message = refusal(CHATML, &messages);
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn json_too_deep_is_refused() {
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    assert!(
        refusal(
            CHATML,
            &json!([{"role": "user", "content": "x", "extra": deep}])
        )
        .contains("nested deeper")
    );
}

#[test]
fn tool_call_arguments_become_objects() {
    let source = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}";
    let call = |arguments: Value| json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]);
    for (arguments, expected) in [
        (
            json!("{\"b\": 1.0, \"a\": [\"é<\"]}"),
            r#"{"b": 1.0, "a": ["é<"]}"#,
        ),
        (json!({"a": 1}), r#"{"a": 1}"#),
        (json!(""), "{}"),
        (json!("{broken"), r#""{broken""#),
        (json!("[1]"), r#""[1]""#),
    ] {
        assert_eq!(render(source, &call(arguments)).unwrap(), expected);
    }
}

#[test]
fn keyword_arguments_reach_the_template_but_not_reserved_names() {
    let messages = [json!({"role": "user", "content": "x"})];
    let source = template("{{ enable_thinking }}{{ nested.a }}{% if tools is none %}-{% endif %}");
    let with = |kwargs: Value| {
        let kwargs = kwargs.as_object().cloned();
        source.render(&ChatRequest {
            messages: &messages,
            kwargs: kwargs.as_ref(),
            ..Default::default()
        })
    };
    assert_eq!(
        with(json!({"enable_thinking": false, "nested": {"a": 7}})).unwrap(),
        "False7-"
    );
    for name in [
        "messages",
        "tools",
        "tokenize",
        "chat_template",
        "bos_token",
        "add_generation_prompt",
    ] {
        let error = with(json!({name: true})).unwrap_err();
        assert!(
            matches!(&error, TemplateError::InvalidRequest { message } if message.contains(name)),
            "{error}"
        );
        assert!(error.is_client_error());
    }
}

#[test]
fn the_last_message_can_be_continued() {
    let trimming = CHATML.replace("m['content']", "m['content']|trim");
    let keeping = |source: &str, content: Value| {
        let messages = [
            json!({"role": "user", "content": "go"}),
            json!({"role": "assistant", "content": content}),
        ];
        template(source).render(&ChatRequest {
            messages: &messages,
            continue_final_message: true,
            ..Default::default()
        })
    };
    assert_eq!(
        keeping(CHATML, json!("Once ")).unwrap(),
        "<user>go\n<assistant>Once "
    );
    assert_eq!(
        keeping(&trimming, json!("Once ")).unwrap(),
        "<user>go\n<assistant>Once"
    );
    assert_eq!(
        keeping(CHATML, json!("go")).unwrap(),
        "<user>go\n<assistant>go"
    );
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]);
    assert_eq!(keeping(PARTS, parts).unwrap(), "user:go;assistant:[a][b ");
    assert!(matches!(
        keeping("fixed", json!("x")),
        Err(TemplateError::InvalidRequest { .. })
    ));
    let messages = [json!({"role": "user", "content": "go"})];
    let both = ChatRequest {
        messages: &messages,
        continue_final_message: true,
        add_generation_prompt: true,
        ..Default::default()
    };
    assert!(matches!(
        template(CHATML).render(&both),
        Err(TemplateError::InvalidRequest { .. })
    ));
}

#[test]
fn tools_choose_the_tool_template() {
    let named = |name: &str, source: &str| NamedTemplate {
        name: name.to_owned(),
        source: source.to_owned(),
    };
    let templates = [
        named("tool_use", "tools {{ tools|length }}"),
        named("default", "{{ bos_token }}plain"),
    ];
    let special = [("bos_token".to_owned(), "<s>".to_owned())];
    let template = ChatTemplate::new(&templates, &special, TemplateOptions::default()).unwrap();
    let messages = [json!({"role": "user", "content": "x"})];
    let tools = [json!({"type": "function"})];
    let request = ChatRequest {
        messages: &messages,
        ..Default::default()
    };
    assert_eq!(template.render(&request).unwrap(), "<s>plain");
    assert_eq!(
        template
            .render(&ChatRequest {
                tools: Some(&tools),
                ..request
            })
            .unwrap(),
        "tools 1"
    );
    let error = ChatTemplate::new(
        &[named("a", ""), named("b", "")],
        &[],
        TemplateOptions::default(),
    )
    .unwrap_err();
    assert!(matches!(error, TemplateError::Broken { .. }) && !error.is_client_error());
}

#[test]
fn faults_are_told_apart() {
    let user = json!([{"role": "user", "content": "x"}]);
    let source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}{{ messages[0].content + messages[0].name|default('', true) }}";
    let raised = render(source, &json!([{"role": "system", "content": "x"}])).unwrap_err();
    assert_eq!(
        raised,
        TemplateError::Raised {
            message: "no system role".to_owned()
        }
    );
    assert!(raised.is_client_error());
    let unsuitable = render(
        source,
        &json!([{"role": "user", "content": "x", "name": {}}]),
    );
    assert_eq!(unsuitable.unwrap(), "x");
    let unsuitable = render(
        source,
        &json!([{"role": "user", "content": "x", "name": 5}]),
    )
    .unwrap_err();
    assert!(matches!(unsuitable, TemplateError::Unsuitable { .. }) && unsuitable.is_client_error());
    let broken = render("{{ nothing.here }}", &user).unwrap_err();
    assert!(matches!(broken, TemplateError::Broken { .. }) && !broken.is_client_error());
    let limits = crate::TemplateLimits {
        output_bytes: 4,
        ..Default::default()
    };
    let templates = [NamedTemplate {
        name: "default".to_owned(),
        source: CHATML.to_owned(),
    }];
    let small = ChatTemplate::new(
        &templates,
        &[],
        TemplateOptions {
            limits,
            ..Default::default()
        },
    )
    .unwrap();
    let messages = user.as_array().unwrap();
    let error = small
        .render(&ChatRequest {
            messages,
            ..Default::default()
        })
        .unwrap_err();
    assert!(
        matches!(error, TemplateError::TooExpensive { .. }),
        "{error}"
    );
}

#[test]
fn templates_and_tokenizers_are_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>() {}
    shared::<ChatTemplate>();
    shared::<crate::Tokenizer>();
}

#[test]
fn tool_calls_take_the_shape_the_template_wants() {
    let call = |content: Value, arguments: Value| {
        let call = json!({"function": {"name": "f", "arguments": arguments}});
        json!([{"role": "user", "content": "go"},
               {"role": "assistant", "content": content, "tool_calls": [call]}])
    };
    // The first templates of DeepSeek V3 and R1: `none` tells calls from answers, and
    // the arguments are text.
    let deepseek = "{% for m in messages %}{% if m['role'] == 'assistant' and m['content'] is none %}\
                    {% for c in m['tool_calls'] %}{{ c['function']['name'] + ':' + c['function']['arguments'] }}\
                    {% endfor %}{% elif m['role'] == 'assistant' %}{{ m['content'] + '.' }}{% else %}\
                    {{ m['content'] + '?' }}{% endif %}{% endfor %}";
    for content in [Value::Null, json!("said")] {
        for arguments in [json!("{\"a\": 1}"), json!({"a": 1})] {
            let expected = match (&content, &arguments) {
                (Value::Null, Value::String(_)) => "go?f:{\"a\": 1}",
                (Value::Null, _) => "go?f:{\"a\":1}",
                _ => "go?said.",
            };
            let messages = call(content.clone(), arguments);
            assert_eq!(render(deepseek, &messages).unwrap(), expected);
        }
    }
    // Absent content is printed as nothing, not as the word None.
    let printing = "{% for m in messages %}<{{ m.content }}>\
                    {% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}\
                    {% endfor %}";
    let messages = call(Value::Null, json!("{\"a\": 1}"));
    assert_eq!(render(printing, &messages).unwrap(), "<go><>f{\"a\": 1}");
}
