//! Results of Python and Jinja2 for none and undefined values, for namespaces, and for optional
//! arguments. Each row once had a different result here.

use serde_json::json;

use crate::chat::jinja::{Jinja, value_of};
use crate::chat::{Clock, TemplateError, TemplateLimits};

fn render(template: &str) -> Result<String, TemplateError> {
    let variables = json!({
        "messages": [{"role": "user", "content": "Hi", "calls": null}],
        "tools": null,
        "none_given": null,
        "s": "a-b-a",
        "x": 1,
    });
    let jinja = Jinja::new(template, TemplateLimits::default(), Clock::Fixed(0))?;
    jinja.render(value_of(&variables), 0)
}

fn check(rows: &[(&str, &str)]) {
    let wrong: Vec<String> = rows
        .iter()
        .map(|(template, expected)| (template, expected, render(template)))
        .filter(|(_, expected, rendered)| rendered.as_deref() != Ok(**expected))
        .map(|(template, _, rendered)| format!("{template}: {rendered:?}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn none_is_no_empty_list() {
    check(&[
        ("{{ none is iterable }}", "False"),
        (
            "{% if tools is iterable and tools|length > 0 %}T{% endif %}x",
            "x",
        ),
        (
            "{% set c = messages[0].calls %}{% if c is iterable and c|length > 0 %}T{% endif %}x",
            "x",
        ),
    ]);
    for template in [
        "{% for x in none %}{% endfor %}",
        "{% for x in tools %}{{ x }}{% else %}none{% endfor %}",
        "{{ none|list }}",
        "{{ none|join }}",
        "{{ none|length }}",
        "{{ none|first }}",
        "{{ none|sum }}",
        "{{ none|sort }}",
        "{{ none|unique|list }}",
        "{{ 1 in none }}",
        "{{ dict(none) }}",
        "{{ ''.join(none) }}",
        "{{ range(*none) }}",
    ] {
        assert!(render(template).is_err(), "{template}");
    }
}

#[test]
fn namespaces_stand_in_lists_and_mappings() {
    check(&[
        (
            "{% set s = namespace(role='system', content='') %}{% set s.content = 'Be brief.' %}\
             {% for m in [s] + messages %}{{ m.role }}:{{ m.content }};{% endfor %}",
            "system:Be brief.;user:Hi;",
        ),
        (
            "{% set n = namespace(a=1) %}{% set l = [n] %}{% set n.a = 2 %}{{ l[0].a }}",
            "2",
        ),
        (
            "{% set n = namespace(a=1) %}{% set d = {'n': n} %}{{ d.n.a }}",
            "1",
        ),
    ]);
}

#[test]
fn what_is_undefined_has_no_elements() {
    check(&[
        ("{{ messages[0].tool_calls|length }}", "0"),
        ("{{ nothing|count }}", "0"),
        ("{{ nothing|first }}{{ nothing|last }}", ""),
        ("{{ nothing|items|list }}", "[]"),
        ("{{ nothing|wordcount }}", "0"),
    ]);
}

#[test]
fn optional_arguments_are_pythons() {
    check(&[
        (
            "{{ s.find('a', 1) }}{{ s.rfind('a', 0, 3) }}{{ s.index('a', 1) }}{{ s.count('a', 1) }}",
            "4041",
        ),
        (
            "{{ s.startswith('b', 2) }}{{ s.endswith('b', 0, 3) }}",
            "TrueTrue",
        ),
        ("{{ s.split(sep='-') }}", "['a', 'b', 'a']"),
        ("{{ s.split('-', maxsplit=1) }}", "['a', 'b-a']"),
        ("{{ s.rsplit('-', maxsplit=1) }}", "['a-b', 'a']"),
        ("{{ 'aaa'|replace('a', 'b', 1) }}", "baa"),
        ("{{ ''|default('x', boolean=true) }}", "x"),
        ("{{ [1, 3, 2]|sort(true) }}", "[3, 2, 1]"),
        ("{{ 'Hello wide World'|truncate(8, true, '') }}", "Hello wi"),
        ("[{{ 'ab'|center(6) }}]", "[  ab  ]"),
        ("{{ ('a' ~ '%s') % 'b' }}", "ab"),
        ("{{ +5 }}", "5"),
        ("{{ x is callable }}", "False"),
        ("{{ '½'.isdigit() }}", "False"),
        ("{{ 'a-b_c'.title() }}", "A-B_C"),
        ("{{ [1e20, 1e-7] }}", "[1e+20, 1e-07]"),
        ("{{ 1e20|string }}", "1e+20"),
    ]);
}
