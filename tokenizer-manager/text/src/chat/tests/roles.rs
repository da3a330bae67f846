//! Roles and places of instructions.

use serde_json::{Value, json};

use super::requests::{render, template};
use crate::chat::{ChatRequest, TemplateError};

/// Shows three roles and leaves out others silently.
const SILENT: &str = "{% for m in messages %}{% if m.role == 'system' %}S:{{ m.content }};\
                      {% elif m.role == 'user' %}U:{{ m.content }};\
                      {% elif m.role == 'assistant' %}A:{{ m.content }};{% endif %}{% endfor %}";

/// Refuses other roles, and a system message that is not first.
const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' %}\
                      {% if not loop.first %}{{ raise_exception('system must be first') }}{% endif %}\
                      S:{{ m.content }};\
                      {% elif m.role == 'user' %}U:{{ m.content }};\
                      {% elif m.role == 'assistant' %}A:{{ m.content }};\
                      {% else %}{{ raise_exception('unexpected role') }}{% endif %}{% endfor %}";

/// Treats all roles but the user's and the system's as the assistant's.
const ELSE: &str = "{% for m in messages %}{% if m.role == 'system' %}S:{{ m.content }};\
                    {% elif m.role == 'user' %}U:{{ m.content }};{% else %}A:{{ m.content }};{% endif %}{% endfor %}";

/// Has a branch for `developer`.
const BRANCH: &str = "{% for m in messages %}{% if m.role in ['system', 'developer'] %}{{ m.role }}:{{ m.content }};\
                      {% elif m.role == 'user' %}U:{{ m.content }};\
                      {% elif m.role == 'assistant' %}A:{{ m.content }};{% endif %}{% endfor %}";

/// Shows one instruction, the first message, like gpt-oss's template.
const FIRST: &str = "{% if messages[0].role in ['system', 'developer'] %}I:{{ messages[0].content }};\
                     {% endif %}{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }};\
                     {% elif m.role == 'assistant' %}A:{{ m.content }};{% endif %}{% endfor %}";

/// Shows no instructions.
const NONE: &str = "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }};\
                    {% elif m.role == 'assistant' %}A:{{ m.content }};{% endif %}{% endfor %}";

fn chat(turns: &[(&str, &str)]) -> Value {
    let message = |(role, content): &(&str, &str)| json!({"role": role, "content": content});
    turns.iter().map(message).collect()
}

fn shown(source: &str, turns: &[(&str, &str)]) -> String {
    render(source, &chat(turns)).unwrap()
}

fn refusal(source: &str, turns: &[(&str, &str)]) -> TemplateError {
    render(source, &chat(turns)).unwrap_err()
}

#[test]
fn developer_messages_are_system_messages_where_the_template_does_not_know_them() {
    let turns = [("developer", "Be brief."), ("user", "Hi")];
    for source in [SILENT, STRICT, ELSE] {
        assert_eq!(shown(source, &turns), "S:Be brief.;U:Hi;", "{source}");
    }
}

#[test]
fn developer_messages_stay_where_the_template_knows_them() {
    let turns = [("developer", "Be brief."), ("user", "Hi")];
    assert_eq!(shown(BRANCH, &turns), "developer:Be brief.;U:Hi;");
    let names = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    assert_eq!(shown(names, &turns), "<developer>Be brief.<user>Hi");
    let turns = [("system", "A"), ("user", "Hi"), ("developer", "B")];
    assert_eq!(shown(BRANCH, &turns), "system:A;U:Hi;developer:B;");
}

#[test]
fn instructions_of_both_roles_become_one_in_their_order() {
    let turns = [
        ("system", "A"),
        ("developer", "B"),
        ("user", "Hi"),
        ("assistant", "Yes?"),
        ("developer", ""),
        ("developer", "C"),
        ("user", "Go"),
    ];
    for source in [SILENT, STRICT, ELSE] {
        let expected = "S:A\n\nB\n\nC;U:Hi;A:Yes?;U:Go;";
        assert_eq!(shown(source, &turns), expected, "{source}");
    }
    let late = [("user", "Hi"), ("developer", "B"), ("user", "Go")];
    assert_eq!(shown(STRICT, &late), "S:B;U:Hi;U:Go;");
}

#[test]
fn parts_of_instructions_become_one_text() {
    let parts = "{% for m in messages %}{% if m.role == 'system' %}S{% elif m.role == 'user' %}U{% endif %}\
                 {% if m.role in ['system', 'user'] %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}\
                 {% endfor %}";
    let messages = json!([
        {"role": "system", "content": "A"},
        {"role": "user", "content": "Hi"},
        {"role": "developer", "content": [{"type": "text", "text": "B"}, {"type": "text", "text": "C"}]},
    ]);
    assert_eq!(render(parts, &messages).unwrap(), "S[A\n\nB\nC]U[Hi]");
    assert_eq!(render(SILENT, &messages).unwrap(), "S:A\n\nB\nC;U:Hi;");
}

#[test]
fn instructions_that_a_template_would_hide_come_first() {
    for second in ["system", "developer"] {
        let turns = [
            ("system", "A"),
            (second, "B"),
            ("user", "Hi"),
            (second, "C"),
        ];
        assert_eq!(shown(FIRST, &turns), "I:A\n\nB\n\nC;U:Hi;", "{second}");
    }
    let alone = [("developer", "A"), ("user", "Hi")];
    assert_eq!(shown(FIRST, &alone), "I:A;U:Hi;");
    let unable = FIRST.replace("A:{{ m.content }}", "{{ m.nothing.here }}");
    let turns = [("system", "A"), ("system", "B"), ("user", "Hi")];
    assert_eq!(shown(&unable, &turns), "I:A\n\nB;U:Hi;");
}

#[test]
fn system_messages_that_a_template_shows_or_refuses_stay_in_their_places() {
    let turns = [
        ("system", "A"),
        ("user", "Hi"),
        ("system", "B"),
        ("user", "Go"),
    ];
    assert_eq!(shown(SILENT, &turns), "S:A;U:Hi;S:B;U:Go;");
    let raised = TemplateError::Raised {
        message: "system must be first".to_owned(),
    };
    assert_eq!(refusal(STRICT, &turns), raised);
}

#[test]
fn instructions_that_no_template_shows_are_refused() {
    for role in ["system", "developer"] {
        let error = refusal(NONE, &[("user", "Hi"), (role, "Be brief.")]);
        assert!(error.to_string().starts_with("messages[1]: "), "{error}");
        assert!(error.is_client_error());
    }
    let gemma = format!(
        "{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no system role') }}}}{{% endif %}}{NONE}"
    );
    let raised = TemplateError::Raised {
        message: "no system role".to_owned(),
    };
    assert_eq!(
        refusal(&gemma, &[("developer", "A"), ("user", "Hi")]),
        raised
    );
}

#[test]
fn tools_may_bring_instructions_to_light() {
    let source = format!(
        "{{% if tools %}}{{% for m in messages if m.role == 'system' %}}S:{{{{ m.content }}}};{{% endfor %}}\
         {{% endif %}}{NONE}"
    );
    let turns = [("developer", "A"), ("user", "Hi")];
    assert!(refusal(&source, &turns).is_client_error());
    let messages = chat(&turns);
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    let shown = template(&source).render(&ChatRequest {
        messages: messages.as_array().unwrap(),
        tools: Some(&tools),
        ..Default::default()
    });
    assert_eq!(shown.unwrap(), "S:A;U:Hi;");
}

#[test]
fn results_of_functions_reach_templates_that_know_them() {
    let turns = [("user", "Hi"), ("function", "7")];
    let knows = format!(
        "{NONE}{{% for m in messages if m.role == 'function' %}}F:{{{{ m.content }}}};{{% endfor %}}"
    );
    assert_eq!(shown(&knows, &turns), "U:Hi;F:7;");
    for source in [SILENT, ELSE] {
        let error = refusal(source, &turns).to_string();
        assert!(error.starts_with("messages[1].role: "), "{error}");
    }
}

#[test]
fn what_moves_cannot_be_continued() {
    let continued = |source: &str, turns: &[(&str, &str)]| {
        let messages = chat(turns);
        template(source).render(&ChatRequest {
            messages: messages.as_array().unwrap(),
            continue_final_message: true,
            ..Default::default()
        })
    };
    let late = [("user", "Hi"), ("developer", "B")];
    assert_eq!(continued(BRANCH, &late).unwrap(), "U:Hi;developer:B");
    let error = continued(SILENT, &late).unwrap_err();
    assert!(
        error.to_string().contains("continue_final_message"),
        "{error}"
    );
    let answer = [("user", "Hi"), ("developer", "B"), ("assistant", "We")];
    assert_eq!(continued(SILENT, &answer).unwrap(), "S:B;U:Hi;A:We");
}
