//! Templates that double, pad, repeat or nest values without end. Each must fail after few bytes.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::chat::jinja::{Jinja, value_of};
use crate::chat::{Clock, TemplateError, TemplateLimits};

fn render(template: &str, x: &Json) -> Result<String, TemplateError> {
    render_within(4 << 20, template, x)
}

fn render_within(value_bytes: u64, template: &str, x: &Json) -> Result<String, TemplateError> {
    let limits = TemplateLimits {
        fuel: 1_000_000,
        value_bytes,
        time: Duration::from_secs(600),
        ..TemplateLimits::default()
    };
    let variables = minijinja::Value::from_pairs([("x", value_of(x))]);
    Jinja::new(template, limits, Clock::Fixed(0))?.render(variables, 0)
}

/// Makes a template that runs `body` again and again on its own last result.
fn again(body: &str) -> String {
    format!(
        "{{% set ns = namespace(v=x) %}}{{% for i in range(1000) %}}{body}{{% endfor %}}{{{{ ns.v|length }}}}"
    )
}

#[test]
fn values_that_grow_are_refused() {
    let texts = [
        "{% set ns.v = ns.v ~ ns.v %}",
        "{% set ns.v = ns.v + ns.v %}",
        "{% set ns.v = ns.v * 2 %}",
        "{% set ns.v = 2 * ns.v %}",
        "{% set ns.v = [ns.v, ns.v]|join %}",
        "{% set ns.v = [ns.v, ns.v]|string %}",
        "{% set ns.v = [ns.v, ns.v]|tojson %}",
        "{% set ns.v = ns.v|replace('a', 'aa') %}",
        "{% set ns.v = ns.v.replace('a', 'aa') %}",
        "{% set ns.v = ns.v|replace('', 'aa') %}",
        "{% set ns.v = ns.v|indent(100000, true) %}",
        "{% set ns.v = ns.v|indent(width=100000, first=true) %}",
        "{% set ns.v = '%s%s'|format(ns.v, ns.v) %}",
        "{% set ns.v = '{0}{0}'.format(ns.v) %}",
        "{% set ns.v = (ns.v ~ '&')|escape|escape %}",
        "{% set ns.v = ns.v.join([ns.v, ns.v, ns.v]) %}",
        "{% set v %}{{ ns.v }}{{ ns.v }}{% endset %}{% set ns.v = v %}",
        "{% set ns.v %}{{ ns.v }}{{ ns.v }}{% endset %}",
        "{% filter upper %}{{ ns.v }}{{ ns.v }}{% endfilter %}{% set ns.v = ns.v ~ ns.v %}",
        "{% macro twice() %}{{ ns.v }}{{ ns.v }}{% endmacro %}{% set ns.v = twice() %}",
        "{% macro twice() %}{{ caller() }}{{ caller() }}{% endmacro %}\
         {% set ns.v %}{% call twice() %}{{ ns.v }}{% endcall %}{% endset %}",
        "{% set ns.v = ns.v.ljust(60000) ~ ns.v %}",
    ];
    let lists = [
        "{% set ns.v = ns.v + ns.v %}",
        "{% set ns.v = ns.v * 2 %}",
        "{% set ns.v = [ns.v, ns.v] %}",
        "{% set ns.v = (ns.v, ns.v) %}",
        "{% set ns.v = {'a': ns.v, 'b': ns.v} %}",
        "{% set ns.v = dict(a=ns.v, b=ns.v) %}",
        "{% set ns.v = ns.v|map('string')|list + ns.v %}",
        "{% set ns.v = [ns.v, ns.v]|sum(start=[]) + ns.v + ns.v %}",
        "{% set ns.v = dict.fromkeys(range(50000), ns.v).values()|list %}",
        "{% set ns.v = [ns.v] %}",
        "{% set ns.v = ns.v|batch(100000, 0)|list %}",
        "{% set ns.v = ns.v|slice(100000)|list %}",
    ];
    for (bodies, x) in [(&texts[..], json!("a")), (&lists[..], json!(["a", "b"]))] {
        for body in bodies {
            let refused = render(&again(body), &x);
            assert!(
                matches!(refused, Err(TemplateError::TooExpensive { .. })),
                "{body}: {:.200}",
                format!("{refused:?}")
            );
        }
    }
}

#[test]
fn one_step_to_gigabytes_is_refused() {
    for template in [
        "{{ x|indent(4000000000, true) }}",
        "{{ x|indent(width=4000000000, first=true) }}",
        "{{ x|batch(4000000000, 0)|list }}",
        "{{ x|slice(4000000000)|list }}",
        "{{ x|center(4000000000) }}",
        "{{ x.ljust(4000000000) }}",
        "{{ x.zfill(4000000000) }}",
        "{{ ('\\t' * 9).expandtabs(4000000000) }}",
        "{{ [x]|tojson(indent=4000000000) }}",
        "{{ (x * 99999)|replace('a', x * 99999) }}",
        "{{ (x * 99999).replace('', x * 99999) }}",
        "{{ (x * 99999)|list|join(x * 99999) }}",
        "{{ (x * 99999).join((x * 99999)|list) }}",
        "{{ x * 99000000 }}",
        "{{ ([x] * 99000000)|list|length }}",
        "{{ ([x] * 99000000)|join }}",
        "{{ [x] * 99000000 }}",
        "{{ '%4000000000d'|format(1) }}",
        "{{ '%*d'|format(4000000000, 1) }}",
        "{{ '%.4000000000f'|format(1) }}",
        "{{ '{:4000000000}'.format(1) }}",
        "{{ range(99999)|tojson(indent=64) ~ (range(99999)|list|tojson(indent=64)) ~ (range(99999)|list|string) }}",
        "{{ [[[[x]]]]|tojson(indent=x * 3000000) }}",
        "{% for i in range(2000) %}0123456789{{ x * 4000 }}{% endfor %}",
        "{% set v %}{% for i in range(90000) %}01234567890123456789012345678901234567890123456789\
         {% endfor %}{% endset %}{{ v|length }}",
    ] {
        let refused = render(template, &json!("ab"));
        let refused = refused.map(|text| text.len());
        assert!(refused.is_err(), "{template}: {refused:?}");
    }
}

/// Each operation must refuse a result beyond the allowance before it makes the result. Nothing
/// else in these templates would charge it.
#[test]
fn operations_charge_in_advance() {
    for (make, name) in [
        ("(x * 900)|replace('a', x * 900)", "replace"),
        ("(x * 900).replace('a', x * 900)", "str.replace"),
        ("(x * 900)|list|join(x * 900)", "join"),
        ("(x * 900).join((x * 900)|list)", "str.join"),
        ("('a\\n' * 900)|indent(x * 900)", "indent"),
        ("x|center(900000)", "center"),
        (
            "'%60000d%60000d%60000d%60000d%60000d' % (1, 2, 3, 4, 5)",
            "%",
        ),
        ("'{0}{0}{0}{0}{0}'.format(x * 90000)", "format"),
        ("('<' * 90000)|e|e", "escape"),
        ("range(9000)|list|tojson(indent=60)", "tojson"),
        ("[x * 90000] * 9000", "*"),
        ("range(9)|batch(90000, 0)|list", "batch"),
        ("range(9)|slice(90000)|list", "slice"),
        ("('a\\n' * 9000).splitlines()", "splitlines"),
        ("('\\x01' * 60000)|tojson", "tojson of control characters"),
        ("('é' * 60000)|tojson(ensure_ascii=true)", "tojson in ASCII"),
        (
            "range(3000)|list %}{% for x in y %}{% set z = []|map('string') %}{% endfor %}{% set z = 1",
            "empty generators",
        ),
    ] {
        let limits = TemplateLimits {
            value_bytes: 300_000,
            ..TemplateLimits::default()
        };
        // The result is dropped, so it is charged nowhere else.
        let template = format!("{{% set y = {make} %}}");
        let variables = minijinja::Value::from_pairs([("x", "ab")]);
        let jinja = Jinja::new(&template, limits, Clock::Fixed(0)).unwrap();
        let refused = jinja.render(variables, 0);
        assert!(
            matches!(refused, Err(TemplateError::TooExpensive { .. })),
            "{name}: {refused:?}"
        );
    }
}

/// Each of these would take hours if the repetition were done.
#[test]
fn nothing_repeated_is_nothing() {
    for (template, expected) in [
        ("{{ '' * 1000000000000000000 }}", ""),
        ("{{ 1000000000000000000 * '' }}", ""),
        ("{{ [] * 1000000000000000000 }}", "[]"),
        ("{{ () * 1000000000000000000 }}", "()"),
        ("{{ [] * x }}", "[]"),
    ] {
        let rendered = render(template, &json!(1_000_000_000_000_000_000_u64));
        assert_eq!(rendered.as_deref(), Ok(expected), "{template}");
    }
}

/// Each of these kept a processor busy for minutes or hours, although the result is small.
#[test]
fn work_that_makes_little_ends() {
    for (template, expected) in [
        ("{{ ('a' * 3000000).strip('b' * 3000000 ~ 'a') }}", ""),
        ("{{ ('a' * 3000000)|trim('b' * 3000000 ~ 'a') }}", ""),
        (
            "{% set r = range(99999) %}{% set n = namespace(v=0) %}{% for i in range(30000) %}\
             {% if r == range(99999) and -1 not in r %}{% set n.v = n.v + 1 %}{% endif %}{% endfor %}{{ n.v }}",
            "30000",
        ),
        ("{{ ('𝟶' * 2000000)|int }}", "0"),
    ] {
        let rendered = render_within(48 << 20, template, &json!(1));
        assert_eq!(rendered.as_deref(), Ok(expected), "{template}");
    }
}

/// Results that the standard library cannot print or count are an error, or Python's answer.
#[test]
fn no_operation_panics() {
    for (template, expected) in [
        ("{{ '{0[a]é}'.format({'a': 1}) }}", None),
        ("{{ '%.65535g' % 0.01 }}", None),
        ("{{ ('%.65500g' % 0.01)|length }}", Some("61")),
        ("{{ ('%.65500e' % 0.01)|length }}", Some("65506")),
        ("{{ '{:.65535}'.format(0.01) }}", None),
        ("{{ range(0, 2 ** 126 + (2 ** 126 - 1), 2) }}", None),
        (
            "{{ range(2 ** 126, 2 ** 126 + (2 ** 126 - 1), 2 ** 126)[1:]|length }}",
            Some("0"),
        ),
        (
            "{{ 5 in range(-(2 ** 126), 2 ** 126, 2 ** 120) }}",
            Some("False"),
        ),
        (
            "{{ {9007199254740993: 1, 9007199254740992.0: 2, 9007199254740992: 3}|tojson(sort_keys=true)|length }}",
            Some("48"),
        ),
    ] {
        let rendered = render(template, &json!(1)).ok();
        assert_eq!(rendered.as_deref(), expected, "{template}");
    }
}

/// Taking elements from a list costs as much as the elements taken, not as much as the list, at
/// every depth.
#[test]
fn what_is_chosen_costs_what_is_chosen() {
    let x: Json = vec![vec![0; 2000]; 20].into();
    for body in [
        "{% set z = y[7:8] %}",
        "{% set z = y[::1000] %}",
        "{% set z = (s * 50)[9:10] %}",
        "{% set z = y|first + y|last %}",
        "{% for z in y %}{% break %}{% endfor %}",
        "{% for z, _ in pairs %}{% break %}{% endfor %}",
        "{% set z = x[::-1] %}",
        "{% set z = x|list %}",
        "{% set z = x.copy() %}",
        "{% set z = x|sort(attribute='a') %}",
        "{% set z = x + x %}",
        "{% set z = x * 2 %}",
        "{% set z = d.items() %}",
        "{% set z = d|items|first %}",
        "{% set z = d|dictsort|length %}",
    ] {
        let template = format!(
            "{{% set y = x[0] %}}{{% set d = dict(a=x, b=x) %}}{{% set s = 'abc' %}}\
             {{% set pairs = y|batch(2)|list %}}{{% for i in range(250) %}}{body}{{% endfor %}}"
        );
        let rendered = render(&template, &x);
        assert_eq!(rendered.as_deref(), Ok(""), "{body}");
    }
}

/// Lists that are taken apart and put together must not nest deeper than other lists.
#[test]
fn what_is_chosen_nests_no_deeper() {
    for body in [
        "{% set ns.v = ns.v|batch(9)|list %}",
        "{% set ns.v = ns.v|slice(1)|list %}",
        "{% set ns.v = ns.v|groupby(0) %}",
        "{% set ns.v = {'a': ns.v}.items()|list %}",
        "{% set ns.v = {'a': ns.v}|dictsort %}",
        "{% set ns.v = [ns.v][0:1] %}",
        "{% set ns.v = [ns.v] + [] %}",
        "{% set ns.v = ([ns.v]|map('list')|list) * 1 %}",
    ] {
        let refused = render(&again(body), &json!([["a"], ["b"]]));
        assert!(
            matches!(&refused, Err(TemplateError::TooExpensive { .. })),
            "{body}: {refused:?}"
        );
    }
}

/// `map` applies filters, and may apply `map` itself.
#[test]
fn filters_inside_each_other_end() {
    let names = ", 'map'".repeat(200);
    for template in [
        format!("{{{{ 'a'|map('map'{names})|list }}}}"),
        "{{ 'a'|map(*(['map'] * 5000))|list }}".to_owned(),
        "{{ ['ab']|map('map', *(['map'] * 500))|list }}".to_owned(),
    ] {
        let refused = render(&template, &json!(1));
        assert!(
            matches!(refused, Err(TemplateError::TooExpensive { .. })),
            "{template:.60}: {refused:?}"
        );
    }
    // Both nest as deeply as allowed here, on a test thread's stack of 2 MiB.
    let deep = render(
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% else %}\
         {{ 'a'|map('map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'upper')|list|length }}\
         {% endif %}{% endmacro %}{{ m(9) }}",
        &json!(1),
    );
    assert_eq!(deep.as_deref(), Ok("1"));
    let nested = render(
        "{% for x in [[[1, 2]], [[3]]]|map('map', 'map', 'string') %}{% for y in x %}{{ y|list }}\
         {% endfor %}{% endfor %}",
        &json!(1),
    );
    assert_eq!(nested.as_deref(), Ok("['1', '2']['3']"));
}

/// A namespace may hold itself. Printing or comparing it without end must fail. It is freed when
/// its rendering ends.
#[test]
fn what_holds_itself_ends() {
    for template in [
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns|tojson }}",
        "{% set ns = namespace() %}{% set ns.a = {'b': (1, ns)} %}{{ ns ~ '' }}",
        "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ [a]|join }}",
    ] {
        let refused = render(template, &json!(1));
        assert!(refused.is_err(), "{template}: {refused:?}");
    }
    for (template, expected) in [
        (
            "{% set ns = namespace(n=1) %}{% set ns.a = [ns] %}{{ ns.a[0].a[0].n }}",
            "1",
        ),
        (
            "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns == ns.a }}{{ ns in [ns] }}",
            "TrueTrue",
        ),
        // A chain of more namespaces than the stack could free by recursion.
        (
            "{% set ns = namespace(v=none) %}{% for i in range(8000) %}\
             {% set ns.v = [namespace(v=ns.v)] %}{% endfor %}{{ ns.v|length }}",
            "1",
        ),
    ] {
        assert_eq!(render(template, &json!(1)).as_deref(), Ok(expected));
    }
}

#[test]
fn lists_of_lists_of_slices_end() {
    for body in [
        "{% set ns.v = ns.v[0:] %}",
        "{% set ns.v = ns.v|reverse|list %}",
        "{% set ns.v = ns.v|map('upper')|list %}",
        "{% set ns.v = ns.v|select|list %}",
        "{% set ns.v = ns.v + [] %}",
    ] {
        let body = body.repeat(20);
        let length = render(&again(&body), &json!(["a", "b"]));
        let answered = matches!(&length, Ok(text) if text == "2")
            || matches!(length, Err(TemplateError::TooExpensive { .. }));
        assert!(answered, "{body:.40}: {length:?}");
    }
}

/// Slices and reversed lists are lists, as in Python, and compare with lists.
#[test]
fn what_is_computed_becomes_a_list() {
    for yes in [
        "[1, 2, 3][1:] is sequence",
        "[1, 2, 3][1:] < [2, 4]",
        "[4] > [1, 2, 3][1:]",
        "[1, 2, 3][::-1] is sequence",
        "(x|reverse|list) is sequence",
    ] {
        let told = render(&format!("{{{{ {yes} }}}}"), &json!(["a", "b"]));
        assert_eq!(told.as_deref(), Ok("True"), "{yes}");
    }
}

#[test]
fn time_ends_too() {
    let limits = TemplateLimits {
        time: Duration::ZERO,
        ..TemplateLimits::default()
    };
    let jinja = Jinja::new(
        "{% for i in range(2000) %}{{ 'a' * 1000 }}{% endfor %}",
        limits,
        Clock::Fixed(0),
    );
    let refused = jinja.unwrap().render(minijinja::Value::from(()), 0);
    let expected = TemplateError::TooExpensive {
        limit: "0 s".into(),
    };
    assert_eq!(refused, Err(expected));
}

fn part() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        Just("x"),
        Just("'a b'"),
        Just("3"),
        Just("[1, 'b', x]"),
        Just("{'k': x}"),
        Just("(1, 2)"),
        Just("none"),
        Just("1.5"),
        Just("range(3)"),
        Just("v"),
    ];
    let value = value.prop_map(str::to_owned);
    value.prop_recursive(3, 12, 2, |inner| {
        let operator = prop_oneof![
            Just("~"),
            Just("+"),
            Just("*"),
            Just("=="),
            Just("!="),
            Just("in"),
            Just("and"),
            Just("or"),
            Just("%"),
            Just("not in"),
        ];
        let filter = prop_oneof![
            Just("upper"),
            Just("list"),
            Just("join('-')"),
            Just("string"),
            Just("indent(2)"),
            Just("length"),
            Just("replace('a', 'b')"),
            Just("first"),
            Just("reverse"),
            Just("tojson"),
            Just("batch(2, 0)"),
            Just("slice(2)"),
            Just("sort"),
            Just("unique"),
            Just("default('d')"),
            Just("map('string')"),
            Just("length"),
            Just("select"),
            Just("trim"),
        ];
        prop_oneof![
            (inner.clone(), operator, inner.clone())
                .prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            // Compared as texts: computed values become lists, and the engine orders by kind
            // first.
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}|string < {b}|string)")),
            (inner.clone(), filter).prop_map(|(a, filter)| format!("({a}|{filter})")),
            inner.clone().prop_map(|a| format!("({a})[1:]")),
            inner.clone().prop_map(|a| format!("({a}).split('a')")),
            (inner.clone(), inner.clone(), inner)
                .prop_map(|(a, b, c)| format!("({a} if {b} else {c})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Every operation gives a text or an error, and the same one again.
    #[test]
    fn operations_answer(parts in proptest::collection::vec(part(), 1..4)) {
        let body = |value: &str| {
            "{% set v = V %}{% if V %}yes{% elif v is string %}text{% else %}no{% endif %}{{ V }}\n\
             {% for e in V %}{{ loop.index }}{{ e }}{% else %}none{% endfor %}\
             {% macro m(a, b=V) %}[{{ a }}{{ b }}]{% endmacro %}{{ m(V) }}\
             {% set c %}<{{ V }}>{% endset %}{{ c }}{% filter upper %}{{ V }}{% endfilter %}"
                .replace('V', value)
        };
        let source: String = parts.iter().map(|value| body(value)).collect();
        let x = json!(["a", {"b": "ca"}]);
        let limits = TemplateLimits::default();
        let jinja = Jinja::new(&source, limits, Clock::Fixed(0)).unwrap();
        let context = || minijinja::Value::from_pairs([("x", value_of(&x)), ("v", value_of(&json!("va")))]);
        prop_assert_eq!(jinja.render(context(), 0), jinja.render(context(), 0));
    }
}
