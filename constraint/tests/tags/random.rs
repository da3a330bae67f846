//! Random structural tags and texts: what is let through is what a plain recogniser accepts.

use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};

use crate::{
    oracle,
    support::{accepts, check, tag},
};

const FRAGMENTS: [&str; 25] = [
    "<0>", "<1>", "</a>", "<f=", "<f=x>", "<f=y>", "</f>", ")", "(", ",", "--", "1", "12", "true",
    "\"q\"", "a", "b", ">", "<", "a7", "<|", "é", "\n", "[", "!)",
];

/// Free text, behind which a fixed text is needed.
fn free() -> impl Strategy<Value = Value> {
    let excludes = prop::collection::vec(select(vec!["b", "<", "--"]), 0..2);
    (excludes, prop::option::of(0..5u64)).prop_map(
        |(excludes, most)| json!({"type": "any_text", "excludes": excludes, "max_chars": most}),
    )
}

/// Contents of tags. Expressions are alone there: with anything but a fixed text behind it, one is
/// as long as it can be, which the recogniser does not know.
fn content(inner: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let regex = select(vec!["[ab>]*", "a[0-9]?"]);
    let regex = regex.prop_map(|pattern| json!({"type": "regex", "pattern": pattern}));
    prop_oneof![4 => inner, 1 => regex].boxed()
}

fn closed() -> impl Strategy<Value = Value> {
    prop_oneof![
        2 => select(vec![json!([1, 12]), json!([true]), json!(["q", null])])
            .prop_map(|words| json!({"type": "json_schema", "json_schema": {"enum": words}})),
        1 => select(vec!["--", "(", "é", "a"])
            .prop_map(|value| json!({"type": "const_string", "value": value})),
    ]
}

fn tagged(inner: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
    let end = select(vec![
        json!("</a>"),
        json!(")"),
        json!(["</f>", "!)"]),
        json!(">"),
    ]);
    (content(inner), end).prop_map(
        |(content, end)| json!({"type": "tag", "begin": "", "content": content, "end": end}),
    )
}

fn triggered(inner: &BoxedStrategy<Value>) -> impl Strategy<Value = Value> + use<> {
    let tag = |begin: &'static str| {
        let end = select(vec!["</f>", ")"]);
        (content(inner.clone()), end)
            .prop_map(move |(content, end)| json!({"begin": begin, "content": content, "end": end}))
    };
    let tags = (tag("<f=x>"), tag("<f=y>"), tag("[<"));
    let excludes = prop::collection::vec(select(vec!["é", "--"]), 0..2);
    (tags, any::<[bool; 3]>(), excludes).prop_map(|((x, y, z), [one, stop, third], excludes)| {
        let (mut tags, mut triggers) = (vec![x, y], vec!["<f="]);
        if third {
            tags.push(z);
            triggers.push("[");
        }
        json!({
            "type": "triggered_tags", "triggers": triggers, "tags": tags, "excludes": excludes,
            "at_least_one": one, "stop_after_first": stop,
        })
    })
}

fn separated(inner: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
    let tags = prop::collection::vec(tagged(inner), 1..3);
    let separator = select(vec![",", "--"]);
    (tags, separator, any::<[bool; 2]>()).prop_map(|(tags, separator, [one, stop])| {
        json!({
            "type": "tags_with_separator", "tags": tags, "separator": separator,
            "at_least_one": one, "stop_after_first": stop,
        })
    })
}

fn format() -> impl Strategy<Value = Value> {
    prop_oneof![free(), closed()].prop_recursive(3, 12, 3, |inner| {
        let inner = inner.boxed();
        let more = select(vec!["optional", "star", "plus"]);
        prop_oneof![
            2 => tagged(inner.clone()),
            3 => triggered(&inner),
            1 => separated(inner.clone()),
            1 => (more, tagged(inner.clone()))
                .prop_map(|(kind, content)| json!({"type": kind, "content": content})),
            2 => prop::collection::vec(inner.clone(), 1..4)
                .prop_map(|elements| json!({"type": "sequence", "elements": elements})),
            1 => prop::collection::vec(inner, 1..3)
                .prop_map(|elements| json!({"type": "or", "elements": elements})),
        ]
    })
}

/// True if a format begins with free text.
fn is_free(format: &Value) -> bool {
    match format["type"].as_str().unwrap() {
        "any_text" => true,
        "triggered_tags" => format["at_least_one"] != true,
        "sequence" => is_free(&format["elements"][0]),
        _ => false,
    }
}

/// Gives each tag outside of triggered ones a begin of its own.
fn told_apart(format: &mut Value, count: &mut usize) {
    if format["type"] == "tag" {
        format["begin"] = format!("<{count}>").into();
        *count += 1;
    }
    for key in ["elements", "tags"] {
        let inner = format.get_mut(key).and_then(Value::as_array_mut);
        let inner = inner.into_iter().flatten();
        inner.for_each(|format| told_apart(format, count));
    }
    if let Some(content) = format.get_mut("content") {
        told_apart(content, count);
    }
}

/// Returns the number of schemas outside of tags.
fn schemas(format: &Value) -> usize {
    let elements = format["elements"].as_array().into_iter().flatten();
    usize::from(format["type"] == "json_schema") + elements.map(schemas).sum::<usize>()
}

/// True if free text and something else may begin at no place, and no schema may follow another
/// one directly. Otherwise the free text is as long as it can be, and blanks may stand between the
/// instances, which the recogniser does not know.
fn is_clear(format: &Value) -> bool {
    let list = |key: &str| format[key].as_array().cloned().unwrap_or_default();
    let (elements, tags) = (list("elements"), list("tags"));
    let here = match format["type"].as_str().unwrap_or("tag") {
        "or" => !elements.iter().any(is_free),
        "sequence" if schemas(format) > 1 => false,
        "sequence" => elements.windows(2).all(|pair| {
            let before = pair[0]["type"].as_str().unwrap();
            !is_free(&pair[1]) || ["const_string", "json_schema", "tag"].contains(&before)
        }),
        _ => true,
    };
    let mut inner = elements.iter().chain(&tags).chain(format.get("content"));
    here && inner.all(is_clear)
}

/// Random numbers.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: usize) -> usize {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn one<'a>(&mut self, list: &'a Value) -> &'a Value {
        let list = list.as_array().unwrap();
        &list[self.below(list.len())]
    }

    fn text(&mut self) -> String {
        let count = self.below(4);
        (0..count)
            .map(|_| FRAGMENTS[self.below(FRAGMENTS.len())])
            .collect()
    }
}

/// Writes what is likely a word of a format.
fn word(format: &Value, draws: &mut Draws) -> String {
    let tag = |tag: &Value, draws: &mut Draws| {
        let end = match &tag["end"] {
            Value::String(end) => end,
            list => draws.one(list).as_str().unwrap(),
        };
        let content = word(&tag["content"], draws);
        format!("{}{content}{end}", tag["begin"].as_str().unwrap())
    };
    match format["type"].as_str().unwrap() {
        "const_string" => format["value"].as_str().unwrap().to_owned(),
        "json_schema" => draws.one(&format["json_schema"]["enum"]).to_string(),
        "regex" => ["", "a", "ab", "a7", "b>a"][draws.below(5)].to_owned(),
        "any_text" => draws.text(),
        "sequence" => {
            let elements = format["elements"].as_array().unwrap();
            elements
                .iter()
                .map(|element| word(element, draws))
                .collect()
        }
        "or" => word(draws.one(&format["elements"]), draws),
        "tag" => tag(format, draws),
        "triggered_tags" => {
            let mut text = match format["at_least_one"] == true {
                true => tag(draws.one(&format["tags"]), draws),
                false => draws.text(),
            };
            for _ in 0..draws.below(3) {
                text += &tag(draws.one(&format["tags"]), draws);
                text += &draws.text();
            }
            text
        }
        "tags_with_separator" => {
            let tags = (0..draws.below(3)).map(|_| tag(draws.one(&format["tags"]), draws));
            tags.collect::<Vec<_>>()
                .join(format["separator"].as_str().unwrap())
        }
        _ => (0..draws.below(3))
            .map(|_| word(&format["content"], draws))
            .collect(),
    }
}

/// Changes a text a little, or not at all.
fn changed(text: &str, draws: &mut Draws) -> String {
    let places: Vec<_> = text
        .char_indices()
        .map(|(at, _)| at)
        .chain([text.len()])
        .collect();
    let at = places[draws.below(places.len())];
    match draws.below(4) {
        0 => format!("{}{}{}", &text[..at], draws.text(), &text[at..]),
        1 => text[..at].to_owned(),
        _ => text.to_owned(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96, max_global_rejects: 20_000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn a_plain_recogniser_agrees(mut format in format(), seed: u64) {
        told_apart(&mut format, &mut 0);
        let constraint = tag(&format);
        prop_assume!(is_clear(&format) && check(&constraint).is_ok());
        let mut draws = Draws(seed);
        for _ in 0..24 {
            let text = word(&format, &mut draws);
            let text = changed(&text, &mut draws);
            let expected = oracle::accepts(&format, &text);
            prop_assert_eq!(accepts(&constraint, &text), expected, "{:?} {}", text, format);
        }
    }
}

#[test]
fn the_recogniser_tells_words_from_others() {
    let format = json!({"type": "triggered_tags", "triggers": ["<f="], "tags": [
        {"begin": "<f=x>", "content": {"type": "any_text"}, "end": ")"}]});
    for (text, expected) in [
        ("", true),
        ("a<f=x>)b", true),
        ("<f=", false),
        ("<f=x>", false),
    ] {
        assert_eq!(oracle::accepts(&format, text), expected, "{text}");
    }
}
