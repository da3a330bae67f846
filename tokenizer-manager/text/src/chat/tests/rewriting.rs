use minijinja::Value;
use serde_json::json;

use crate::chat::jinja::{Jinja, value_of};
use crate::chat::source::rewrite;
use crate::chat::{Clock, TemplateError, TemplateLimits};

fn render_with(template: &str, limits: TemplateLimits) -> Result<String, TemplateError> {
    Jinja::new(template, limits, Clock::Fixed(0))?.render(Value::from_pairs([("x", 1.5)]), 0)
}

fn render(template: &str) -> String {
    render_with(template, TemplateLimits::default()).unwrap()
}

#[test]
fn generation_tags_become_scopes() {
    assert_eq!(
        rewrite("{%- generation -%}a{% endgeneration %}").unwrap(),
        "{%- with -%}a{% endwith %}"
    );
    assert_eq!(
        rewrite("{% generation_x %}{{ 'generation' }}").unwrap(),
        "{% generation_x %}{{ 'generation' }}"
    );
    assert_eq!(
        render("{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}"),
        "21"
    );
}

#[test]
fn tags_are_spelled_as_the_engine_reads_them() {
    for (from, to) in [
        ("{{ '%s' % x }}", "{{ '%s' % x }}"),
        ("{{ +5 }}{{+5}}", "{{ - -5 }}{{+5}}"),
        (
            "{{ a + b }}{{ [+a, -+b] }}",
            "{{ a + b }}{{ [- -a, -- -b] }}",
        ),
        ("{{ 1, 2 }}{{- a, -}}", "{{ (1, 2) }}{{- (a,) -}}"),
        ("{{ f(1, 2) }}{{ [1, 2] }}", "{{ f(1, 2) }}{{ [1, 2] }}"),
        (
            "{% for x in 1, 2 if x %}{% endfor %}",
            "{% for x in (1, 2) if x %}{% endfor %}",
        ),
        (
            "{% for a, b in c %}{% endfor %}",
            "{% for a, b in c %}{% endfor %}",
        ),
        (r"{{ '\x41\101\d\'\n' }}", r"{{ 'AA\\d\'\n' }}"),
        ("{# '\\x41' #}'\\x41'", "{# '\\x41' #}'\\x41'"),
        (
            "{% raw %}{{ +5 }}{% endraw %}",
            "{% raw +%}{{ +5 }}{% endraw %}",
        ),
    ] {
        assert_eq!(rewrite(from).unwrap().replace("  ", " "), to);
    }
}

#[test]
fn what_would_mean_something_else_is_refused_with_its_line() {
    for template in [
        "{{ 007 }}",
        "{{ 1. }}",
        "{{ 1__0 }}",
        "{{ a is b is c }}",
        "{{ a +}}",
        "{{ '\\ud800' }}",
        "{{ '\\N{BULLET}' }}",
        "{% for x in y %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
        "{% do x.y() %}",
        "{{ x|nothing }}",
        "{{ x is nothing }}",
        "{{ x|urlize }}",
        "{% autoescape true %}{{ a ~ b }}{% endautoescape %}",
        "{% autoescape x %}{{ a|join }}{% endautoescape %}",
        "{% macro f(a,) %}{% endmacro %}",
        "{% macro f(caller) %}{% endmacro %}",
        "{% for a, in b %}{% endfor %}",
        "{% raw +%}{% endraw %}",
        "{{ f(**a, b=1) }}",
        "{% for x in y if x recursive %}{% endfor %}",
        "{{ f(a=1, a=2) }}",
        "{% macro f(a, a) %}{% endmacro %}",
    ] {
        let source = format!("\n{template}");
        let refused = render_with(&source, TemplateLimits::default()).unwrap_err();
        assert!(
            matches!(&refused, TemplateError::Broken { message } if message.contains("line 2")),
            "{template}: {refused}"
        );
    }
}

#[test]
fn malformed_templates_pass_through() {
    for template in [
        "{",
        "{{",
        "{%",
        "{#",
        "{{ '",
        "{% raw %}",
        "{{ '%s' %",
        "{{ '%s' % (",
        "{{ é",
        "{{ '\\",
        "{% é",
        "{{ '%s' % ´é",
    ] {
        let rewritten = rewrite(template).unwrap();
        assert!(rewritten.starts_with('{'), "{template}");
    }
}

#[test]
fn methods_of_python() {
    for (template, expected) in [
        (
            "{{ 'a=b=c'.partition('=') }}{{ 'x'.partition('=') }}",
            "('a', '=', 'b=c')('x', '', '')",
        ),
        (
            "{{ 'a=b=c'.rpartition('=') }}{{ 'x'.rpartition('=') }}",
            "('a=b', '=', 'c')('', '', 'x')",
        ),
        (
            "{{ 'ab'.removeprefix('a') }}{{ 'ab'.removesuffix('b') }}",
            "ba",
        ),
        (
            "{{ 'a b  c '.rsplit() }}{{ ' a b  c '.rsplit(none, 1) }}",
            "['a', 'b', 'c'][' a b', 'c']",
        ),
        ("{{ 'a,b,c'.rsplit(',', 1) }}", "['a,b', 'c']"),
        (
            "{{ 'éa'.index('a') }}{{ 'aéa'.rindex('a') }}{{ ['a', 'b'].index('b') }}",
            "121",
        ),
        (
            "{{ '-7'.zfill(4) }}|{{ 'x'.ljust(3) }}|{{ 'x'.rjust(3, '.') }}|{{ 'ab'.center(5) }}",
            "-007|x  |..x|  ab ",
        ),
        ("{{ 'aB'.swapcase() }}{{ 'AB'.casefold() }}", "Abab"),
    ] {
        assert_eq!(render(template), expected, "{template}");
    }
}

#[test]
fn loops_know_their_end() {
    for list in [
        "d.items()",
        "d|items",
        "d.keys()",
        "d.values()",
        "d",
        "d|dictsort",
        "range(2)",
        "[1, 2]|map('string')",
        "[1, 2]|select",
        "[1, 2, none]|reject('none')",
        "d.items()|list",
        "'a b'.split()",
        "[{'x': 1}, {'x': 2}]|selectattr('x')",
        "[1, 2][::-1]",
        "[2, 1]|sort",
        "[1, 2]|reverse",
        "'ab'|list",
        "[1, 1, 2]|unique",
        "[1, 2, 3, 4]|batch(2)",
        "'a,b'.split(',')",
        "d.items()|map(attribute=0)",
        "(1, 2)",
        "[1] + [2]",
        "[1, 2, 3][1:]",
    ] {
        let template = format!(
            "{{% set d = {{'a': 1, 'b': 2}} %}}{{% for x in {list} %}}{{{{ loop.revindex }}}}{{{{ loop.last }}}}{{% endfor %}}"
        );
        assert_eq!(render(&template), "2False1True", "{list}");
    }
}

#[test]
fn limits_stop_runaway_templates() {
    let limits = TemplateLimits {
        fuel: 10_000,
        output_bytes: 1000,
        json_depth: 8,
        call_depth: 64,
        ..TemplateLimits::default()
    };
    let fails = |template: &str| render_with(template, limits).unwrap_err();
    let endless = "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}";
    assert!(
        matches!(fails(endless), TemplateError::TooExpensive { limit } if limit.contains("instructions"))
    );
    let long = "{% for i in range(100) %}0123456789{{ i }}{% endfor %}";
    assert!(
        matches!(fails(long), TemplateError::TooExpensive { limit } if limit.contains("bytes"))
    );
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(20) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}";
    assert!(
        matches!(fails(deep), TemplateError::Broken { message } if message.contains("nested too deeply"))
    );
    let recursion = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(matches!(fails(recursion), TemplateError::Broken { .. }));
}

/// Runs on a thread with tokio's default stack size for workers, 2 MiB.
fn on_a_small_stack<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(f)
        .unwrap()
        .join()
        .unwrap()
}

#[test]
fn the_call_depth_fits_a_small_stack() {
    let recursion = "{% macro f(n) %}{% for x in [1] %}{% if true %}{{ [n]|map('string')|join ~ f(n + 1) }}{% endif %}\
                     {% endfor %}{% endmacro %}{{ f(0) }}";
    let result = on_a_small_stack(move || render_with(recursion, TemplateLimits::default()));
    assert!(matches!(result, Err(TemplateError::Broken { .. })));
}

#[test]
fn long_sums_fit_a_small_stack_or_are_refused() {
    let sum = |terms: usize| format!("{{{{ 0{} }}}}", " + 1".repeat(terms));
    let render = |terms: usize| {
        let template = sum(terms);
        on_a_small_stack(move || render_with(&template, TemplateLimits::default()))
    };
    assert_eq!(render(150).as_deref(), Ok("150"));
    let refused = render(1000).unwrap_err();
    assert!(
        matches!(&refused, TemplateError::Broken { message } if message.contains("line 1")),
        "{refused}"
    );
}

#[test]
fn the_json_depth_fits_a_small_stack() {
    let limits = TemplateLimits::default();
    let deep = (0..2 * limits.json_depth).fold(json!(1), |inner, at| {
        if at % 2 == 0 {
            json!([inner])
        } else {
            json!({"a": inner})
        }
    });
    let printed = on_a_small_stack(move || {
        let jinja = Jinja::new("{{ x }}{{ x|string|length }}", limits, Clock::System).unwrap();
        jinja
            .render(Value::from_pairs([("x", value_of(&deep))]), 0)
            .unwrap()
    });
    assert!(printed.len() > 2 * limits.json_depth);
    let deep = (0..limits.json_depth - 1).fold(json!(1), |inner, _| json!([inner]));
    let printed = on_a_small_stack(move || {
        let jinja = Jinja::new("{{ x|tojson }}", limits, Clock::System).unwrap();
        jinja
            .render(Value::from_pairs([("x", value_of(&deep))]), 0)
            .unwrap()
    });
    assert_eq!(printed.len(), 2 * limits.json_depth - 1);
}

#[test]
fn raised_messages_are_found_through_macros() {
    let template = "{% macro f() %}{{ raise_exception('No ' ~ x) }}{% endmacro %}{% set y %}{{ f() }}{% endset %}{{ y }}";
    let error = render_with(template, TemplateLimits::default()).unwrap_err();
    assert_eq!(
        error,
        TemplateError::Raised {
            message: "No 1.5".to_owned()
        }
    );
}

#[test]
fn strftime_formats_the_clock() {
    let now = |clock: Clock, format: &str| {
        let template = format!("{{{{ strftime_now('{format}') }}}}");
        Jinja::new(&template, TemplateLimits::default(), clock)?.render(Value::from(()), 0)
    };
    assert_eq!(
        now(Clock::Fixed(86_400), "%d %b %Y, %-d %H:%M").unwrap(),
        "02 Jan 1970, 2 00:00"
    );
    let year = now(Clock::System, "%Y").unwrap();
    assert!(year.len() == 4 && *year > *"2024", "{year}");
    assert!(matches!(
        now(Clock::System, "%!"),
        Err(TemplateError::Broken { .. })
    ));
}

/// Jinja2 looks a filter up before it renders, but for those of a condition. The iterable of a
/// loop inside a condition belongs to it, the loop's body does not.
#[test]
fn an_unknown_filter_fails_where_it_is_reached_in_a_condition() {
    assert_eq!(
        render("{% if y %}{% for a in y | nope %}{{ a }}{% endfor %}{% endif %}ok"),
        "ok"
    );
    for template in [
        "{% for a in y | nope %}{% endfor %}",
        "{% if y %}{% for a in y %}{{ a | nope }}{% endfor %}{% endif %}",
    ] {
        let error = render_with(template, TemplateLimits::default()).unwrap_err();
        assert!(
            error.to_string().contains("there is no filter \"nope\""),
            "{error}"
        );
    }
}
