//! Comparison with thousands of small templates that transformers' Jinja2 rendered
//! (`tests/fixtures/make_jinja_cases.py`).

use minijinja::Value;

use crate::chat::jinja::{self, Jinja};
use crate::chat::{Clock, TemplateError, TemplateLimits};

/// Cases that differ on purpose, each with its reason. A case that starts to agree must leave
/// this list.
const KNOWN_DIFFERENCES: &[(&str, &str)] = &[
    ("{{ (-8) ** (1 / 3) }}", "an error: complex numbers"),
    ("{{ {(1, 2): 'a'}[1, 2] }}", "refused: several keys"),
    ("{{ l[1, 2] }}", "refused: several keys"),
    ("{{ '\\N{BULLET}' }}", "refused: characters by their names"),
    ("{{ é }}", "refused: names beyond ASCII"),
    ("{{ l|random is number }}", "refused: chance"),
    (
        "{% for x in tree if x.v > 1 recursive %}{{ x.v }}{{ loop(x.c) }}{% endfor %}",
        "refused: a recursive loop with a condition",
    ),
    ("{% set self = 1 %}{{ self }}", RESERVED),
    ("{% set loop = 1 %}{{ loop }}", RESERVED),
    ("{% print s %}", "refused: an old spelling of {{ s }}"),
];

const RESERVED: &str = "refused: a name of the engine's own";

#[test]
fn jinja2_renders_the_same() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/jinja_cases.jsonl"
    );
    let file = std::fs::read_to_string(path).unwrap();
    let mut lines = file.lines();
    let variables: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    let variables = jinja::value_of(&variables);
    let cases: Vec<(String, Option<String>)> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(cases.len() > 3000, "only {} cases", cases.len());
    for (template, reason) in KNOWN_DIFFERENCES {
        let listed = cases.iter().any(|(name, _)| name == template);
        assert!(listed, "{template} ({reason}) is no case");
    }
    let mut wrong = Vec::new();
    for (template, expected) in &cases {
        let known = KNOWN_DIFFERENCES.iter().any(|(name, _)| name == template);
        let rendered = render(template, &variables);
        let same = match (&rendered, expected) {
            (Ok(text), Some(expected)) => text == expected,
            (Err(_), None) => true,
            _ => false,
        };
        if same == known {
            wrong.push(format!(
                "{template}\n  got      {rendered:?}\n  expected {expected:?}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} cases differ, or agree by now and stand in the list of known differences:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

fn render(template: &str, variables: &Value) -> Result<String, TemplateError> {
    Jinja::new(template, TemplateLimits::default(), Clock::Fixed(0))?.render(variables.clone(), 0)
}
