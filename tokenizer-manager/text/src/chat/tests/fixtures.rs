//! Comparison with templates that transformers rendered
//! (`tests/fixtures/make_chat_templates.py`).

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use minijinja::Value;
use serde::Deserialize;

use crate::chat::jinja::{self, Jinja};
use crate::chat::{Clock, TemplateError, TemplateLimits};

#[derive(Deserialize)]
struct Case {
    name: String,
    template: String,
    messages: Vec<serde_json::Value>,
    tools: Option<Vec<serde_json::Value>>,
    documents: Option<Vec<serde_json::Value>>,
    add_generation_prompt: bool,
    bos_token: Option<String>,
    eos_token: Option<String>,
    #[serde(default)]
    kwargs: serde_json::Map<String, serde_json::Value>,
    now: Option<String>,
    expected: Option<String>,
    error: Option<String>,
    error_kind: Option<String>,
}

#[test]
fn templates_render_as_in_transformers() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/chat_templates/cases.json"
    );
    let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(cases.len() > 200, "only {} cases", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        if let Some(difference) = difference(case) {
            wrong.push(format!("{}: {difference}", case.name));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} cases differ:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

fn difference(case: &Case) -> Option<String> {
    match (render(case), &case.expected) {
        (Ok(text), Some(expected)) if text == *expected => None,
        (Ok(text), Some(expected)) => {
            Some(format!("\n  got      {text:?}\n  expected {expected:?}"))
        }
        (Ok(text), None) => Some(format!(
            "\n  got   {text:?}\n  expected an error: {:?}",
            case.error
        )),
        (Err(error), Some(expected)) => {
            Some(format!("\n  got   {error:?}\n  expected {expected:?}"))
        }
        (Err(error), None) => {
            let raised = TemplateError::Raised {
                message: case.error.clone().unwrap(),
            };
            let agrees = match case.error_kind.as_deref() {
                Some("raise") => error == raised,
                _ => matches!(error, TemplateError::Broken { .. }),
            };
            (!agrees).then(|| {
                format!(
                    "\n  got   {error:?}\n  expected {:?} {:?}",
                    case.error_kind, case.error
                )
            })
        }
    }
}

fn render(case: &Case) -> Result<String, TemplateError> {
    let clock = case.now.as_deref().map_or(Clock::System, |now| {
        let now: DateTime = now.parse().unwrap();
        Clock::Fixed(now.to_zoned(TimeZone::UTC).unwrap().timestamp().as_second())
    });
    let list = |values: &Option<Vec<_>>| values.as_deref().map_or(Value::from(()), jinja::list_of);
    let mut variables = vec![
        ("messages", jinja::list_of(&case.messages)),
        ("tools", list(&case.tools)),
        ("documents", list(&case.documents)),
        ("add_generation_prompt", case.add_generation_prompt.into()),
    ];
    variables.extend(
        case.bos_token
            .as_deref()
            .map(|token| ("bos_token", token.into())),
    );
    variables.extend(
        case.eos_token
            .as_deref()
            .map(|token| ("eos_token", token.into())),
    );
    variables.extend(
        case.kwargs
            .iter()
            .map(|(name, value)| (name.as_str(), jinja::value_of(value))),
    );
    Jinja::new(&case.template, TemplateLimits::default(), clock)?
        .render(Value::from_pairs(variables), 0)
}
