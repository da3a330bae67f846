//! Tables of what each format lets through.

use serde_json::{Value, json};

use crate::support::{MARKS, TOKENIZER, accepts, accepts_tokens, byte, tag, whole};

fn judge(format: &Value, words: &[&str], others: &[&str]) {
    let constraint = tag(format);
    for word in words {
        assert!(accepts(&constraint, word), "{format} {word:?}");
    }
    for other in others {
        assert!(!accepts(&constraint, other), "{format} {other:?}");
    }
}

fn number() -> Value {
    json!({"type": "json_schema", "json_schema": {"type": "integer"}})
}

fn fixed(text: &str) -> Value {
    json!({"type": "const_string", "value": text})
}

fn tagged(name: &str, content: &Value) -> Value {
    json!({
        "type": "tag", "begin": format!("<{name}>"), "content": content,
        "end": format!("</{name}>"),
    })
}

#[test]
fn single_formats() {
    judge(&fixed("Hi!"), &["Hi!"], &["", "Hi", "Hi!!", "hi!"]);
    judge(&number(), &["12", "-3"], &["", "1.5", "x"]);
    judge(
        &json!({"type": "regex", "pattern": "^[ab]{2}\\d?$"}),
        &["ab", "ba7"],
        &["a", "abc", ""],
    );
    judge(
        &json!({"type": "grammar", "grammar": "root ::= \"(\" root \")\" | [a-c]+"}),
        &["a", "((abc))"],
        &["(a", ""],
    );
    judge(
        &json!({"type": "grammar", "grammar": "root ::= x x\nx ::= \"a\" | \"b\""}),
        &["ab", "bb"],
        &["a", "abc"],
    );
    judge(&json!({"type": "any_text"}), &["", "what <ever>"], &[]);
    judge(
        &json!({"type": "any_text", "excludes": ["<a", "b>"], "max_chars": 4}),
        &["", "<b a", "éééé"],
        &["<a", "xb>", "12345"],
    );
    judge(&json!({"type": "any_text", "max_chars": 0}), &[""], &["a"]);
    judge(
        &json!({"type": "json_schema", "max_whitespace_cnt": 0, "json_schema":
            {"type": "array", "items": {"type": "boolean"}}}),
        &["[true,false]", "[]"],
        &["[true, false]"],
    );
}

#[test]
fn compositions() {
    let both = json!([fixed("a"), number(), fixed("b")]);
    judge(
        &json!({"type": "sequence", "elements": both}),
        &["a1b", "a-20b"],
        &["ab", "a1", "a1bb"],
    );
    judge(
        &json!({"type": "or", "elements": [number(), fixed("x"), fixed("xy"),
            {"type": "json_schema", "json_schema": {"type": "boolean"}}]}),
        &["1", "x", "xy", "true"],
        &["", "xx", "1x"],
    );
    let item = tagged("i", &number());
    let repeat = |least: i64, most: i64| {
        json!({"type": "sequence", "elements": [
            {"type": "repeat", "min": least, "max": most, "content": item}, fixed(".")]})
    };
    judge(
        &json!({"type": "optional", "content": item}),
        &["", "<i>1</i>"],
        &["<i>1</i><i>1</i>"],
    );
    judge(
        &json!({"type": "plus", "content": item}),
        &["<i>1</i>", "<i>1</i><i>2</i><i>3</i>"],
        &["", "<i>1</i>2"],
    );
    judge(
        &json!({"type": "star", "content": fixed("ab")}),
        &["", "ab", "ababab"],
        &["a", "aba"],
    );
    judge(
        &repeat(2, 3),
        &["<i>1</i><i>2</i>.", "<i>1</i><i>2</i><i>3</i>."],
        &[
            "<i>1</i>.",
            "<i>1</i><i>2</i>",
            "<i>1</i><i>2</i><i>3</i><i>4</i>.",
        ],
    );
    judge(&repeat(0, -1), &[".", "<i>1</i>."], &["", "<i>1</i>"]);
    judge(&repeat(2, -1), &["<i>1</i><i>2</i>."], &[".", "<i>1</i>."]);
    judge(&repeat(0, 0), &["."], &["<i>1</i>."]);
}

#[test]
fn a_tag_ends_where_its_end_first_comes() {
    let text = json!({"type": "any_text"});
    judge(
        &tagged("t", &text),
        &["<t></t>", "<t>a < b </ t></t>"],
        &["<t>a", "<t>a</t>b", "<t>a</t></t>", "a"],
    );
    judge(
        &json!({"type": "tag", "begin": "[", "content": text, "end": ["]", "!)"]}),
        &["[a]", "[a!)", "[a!]"],
        &["[a", "[a]]", "[a!)b]"],
    );
    judge(
        &json!({"type": "tag", "begin": "", "content": number(), "end": ""}),
        &["12"],
        &["", "a"],
    );
    // Expressions, too, end as early as they can.
    judge(
        &json!({"type": "tag", "begin": "<", "content": {"type": "regex", "pattern": "[a-z>]*"},
            "end": ">>"}),
        &["<>>", "<ab>>", "<a>b>>"],
        &["<a>", "<a>>>", "<a>>b>>"],
    );
    judge(
        &json!({"type": "tag", "begin": "", "content": {"type": "regex", "pattern": "\\d\\.\\d"},
            "end": "."}),
        &["3.1."],
        &["3.", "3.1"],
    );
}

#[test]
fn free_text_ends_where_something_else_may_begin() {
    let text = json!({"type": "any_text", "excludes": ["%"]});
    judge(
        &json!({"type": "sequence", "elements": [text, tagged("a", &number())]}),
        &["<a>1</a>", "hm <b><a>1</a>"],
        &["hm", "hm <a>x</a>", "% <a>1</a>", "<a>1</a>hm"],
    );
    judge(
        &json!({"type": "sequence", "elements": [text, {"type": "or", "elements":
            [tagged("a", &number()), fixed("<b>")]}, text]}),
        &["x<a>1</a>y<b>", "x<b>y<a>"],
        &["x", "<a>1<b>"],
    );
    judge(
        &json!({"type": "sequence", "elements": [text, {"type": "optional", "content":
            tagged("a", &number())}]}),
        &["", "x", "x<a>1</a>"],
        &["x<a>", "x<a>1</a>y"],
    );
    judge(
        &json!({"type": "sequence", "elements": [text, {"type": "star", "content":
            tagged("a", &number())}, fixed("!")]}),
        &["!", "x!", "x<a>1</a><a>2</a>!"],
        &["x", "x<a>1</a>y!", "x!!"],
    );
    // The end of the tag around it does not come before the end of what follows.
    judge(
        &tagged(
            "t",
            &json!({"type": "sequence", "elements": [text, fixed("--"), number()]}),
        ),
        &["<t>a--1</t>"],
        &["<t>a</t>--1</t>", "<t>a</t>"],
    );
}

fn triggered(flags: &Value) -> Value {
    let mut format = json!({
        "type": "triggered_tags", "triggers": ["<f="],
        "tags": [
            {"begin": "<f=a>", "content": number(), "end": "</f>"},
            {"type": "tag", "begin": "<f=b>", "content": {"type": "any_text"}, "end": "</f>"},
        ],
    });
    for (key, value) in flags.as_object().unwrap() {
        format[key] = value.clone();
    }
    format
}

#[test]
fn triggers_begin_their_tags_and_nothing_else() {
    judge(
        &triggered(&json!({})),
        &[
            "",
            "hi <f",
            "<f=a>1</f>",
            "x<f=a>1</f>y<f=b>z<f=</f><f=b></f>!",
            "</f>",
        ],
        &["<f=", "<f=c>", "<f=a>x</f>", "x <f=a>1", "x<f=b>"],
    );
    judge(
        &triggered(&json!({"at_least_one": true})),
        &["<f=a>1</f>", "<f=a>1</f> hm <f=b></f>."],
        &["", "x<f=a>1</f>", "<f=a>1</f><f=c>"],
    );
    judge(
        &triggered(&json!({"stop_after_first": true})),
        &["", "x", "x<f=a>1</f>"],
        &["x<f=a>1</f>y", "<f=a>1</f><f=a>1</f>"],
    );
    judge(
        &triggered(&json!({"at_least_one": true, "stop_after_first": true})),
        &["<f=a>1</f>", "<f=b>hm</f>"],
        &["", "x<f=a>1</f>", "<f=a>1</f>y"],
    );
    judge(
        &triggered(&json!({"excludes": ["<e>", "bad"]})),
        &["x<f=a>1</f>", "ba", "<f=b>bad</f>"],
        &["bad", "<f=a>1</f>bad", "so bad <f=a>1</f>", "<e>"],
    );
    // Inside a tag, the free text ends with the tag.
    judge(
        &tagged("t", &triggered(&json!({}))),
        &["<t></t>", "<t>x<f=a>1</f>y</t>"],
        &["<t>x", "<t>x</t>y", "<t><f=a>1</f></t></t>"],
    );
    judge(
        &json!({"type": "sequence", "elements": [tagged("think", &json!({"type": "any_text"})),
            triggered(&json!({}))]}),
        &["<think>a <f=</think>", "<think></think>x<f=a>1</f>"],
        &["x", "<think></think><f=x"],
    );
}

#[test]
fn several_triggers_and_tags_without_ends() {
    let format = json!({
        "type": "triggered_tags", "triggers": ["[A", "[B]"],
        "tags": [
            {"begin": "[A]", "content": number(), "end": ""},
            {"begin": "[A2]", "content": fixed("x"), "end": [";", ""]},
            {"begin": "[B]", "content": {"type": "regex", "pattern": "[xy]*"}, "end": "."},
        ],
    });
    judge(
        &format,
        &["[A]1", "t[A]12 t[B]xy.t", "[A2]x;[A2]x", "[B", "[B]."],
        &["[A", "[A]", "[B]z", "[B]xy"],
    );
}

#[test]
fn tags_with_separators() {
    let tags = json!([
        tagged("a", &number()),
        tagged("b", &json!({"type": "any_text"}))
    ]);
    let separated = |separator: &str, one: bool, stop: bool| {
        json!({"type": "tags_with_separator", "tags": tags, "separator": separator,
            "at_least_one": one, "stop_after_first": stop})
    };
    judge(
        &separated(", ", false, false),
        &["", "<a>1</a>", "<a>1</a>, <b>,</b>, <a>2</a>"],
        &["<a>1</a>,", "<a>1</a><a>1</a>", ", ", "x"],
    );
    judge(
        &separated("", true, false),
        &["<a>1</a>", "<a>1</a><b>x</b>"],
        &["", "<a>1</a> "],
    );
    judge(
        &separated(",", false, true),
        &["", "<a>1</a>"],
        &["<a>1</a>,<a>1</a>"],
    );
    judge(
        &separated(",", true, true),
        &["<b></b>"],
        &["", "<b></b>,<b></b>"],
    );
    judge(
        &tagged("t", &separated(",", false, false)),
        &["<t></t>", "<t><a>1</a>,<b></t></b></t>"],
        &["<t>x</t>"],
    );
}

#[test]
fn the_older_form() {
    let tag = whole(&json!({
        "type": "structural_tag",
        "structures": [
            {"begin": "<function=a>", "schema": {"type": "integer"}, "end": "</function>"},
            {"begin": "<function=b>", "schema": "{\"type\": \"boolean\"}", "end": "</function>"},
        ],
        "triggers": ["<function="],
    }));
    for (text, expected) in [
        ("", true),
        (
            "Let me see. <function=a>1</function> and <function=b>true</function>",
            true,
        ),
        ("<function=a>true</function>", false),
        ("<function=c>", false),
    ] {
        assert_eq!(accepts(&tag, text), expected, "{text}");
    }
}

/// Layouts of arguments, with and without line breaks behind them.
#[test]
fn arguments_as_tags() {
    let schema = json!({
        "type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
        "$defs": {"t": {"enum": ["x", "y"]}},
    });
    let qwen = "<parameter=name>\nBob <b>\n</parameter>\n<parameter=age>\n100\n</parameter>";
    let minimax = "<parameter name=\"name\">Bob</parameter><parameter name=\"age\">1</parameter>\n";
    let glm = "<arg_key>name</arg_key><arg_value>Bob</arg_value>\n\
               <arg_key>age</arg_key>\n<arg_value>1</arg_value>";
    let deepseek = "<｜DSML｜parameter name=\"name\" string=\"true\">Bob</｜DSML｜parameter>\n\
                    <｜DSML｜parameter name=\"age\" string=\"false\">1</｜DSML｜parameter>\n";
    let all = [
        ("qwen_xml", qwen),
        ("minimax_xml", minimax),
        ("glm_xml", glm),
        ("deepseek_xml", deepseek),
    ];
    for (style, good) in all {
        let content = json!({"type": "json_schema", "json_schema": schema, "style": style});
        let format = json!({"type": "tag", "begin": "<f>\n", "content": content, "end": "\n</f>"});
        let around = |text: &str| format!("<f>\n{text}\n</f>");
        let wrong = good.replace("100", "x").replace(">1<", ">x<");
        let part = good.split_once("age").unwrap().0;
        judge(
            &format,
            &[&around(good), &around(good.trim_end())],
            &[&around(&wrong), &around(part), good],
        );
        for (other, text) in all {
            assert_eq!(
                accepts(&tag(&format), &around(text)),
                other == style,
                "{style} {other}"
            );
        }
    }
    let format = json!({"type": "qwen_xml_parameter", "json_schema": schema});
    let tags = format!("{qwen}\n<parameter=tags>\n[\"x\", \"y\"]\n</parameter>");
    judge(&format, &[qwen, &tags], &[&tags.replace('y', "z"), ""]);
}

/// The name of a special token stands for the token, and for its spelling.
#[test]
fn special_tokens_are_what_their_names_say() {
    let format = json!({
        "type": "triggered_tags", "triggers": ["<|call|>f"],
        "tags": [
            {"begin": "<|call|>f:", "content": number(), "end": "<|end|>"},
            {"begin": "<|call|>f;", "content": {"type": "any_text"}, "end": "\n<|end|>"},
            {"begin": "<|call|>f.", "content": {"type": "regex", "pattern": "[a\\n]*"},
                "end": "\n<|end|>"},
        ],
    });
    let constraint = tag(&format);
    let tokens = |text: &str| TOKENIZER.encode(text, false).unwrap();
    let spelled = |text: &str| text.bytes().map(byte).collect::<Vec<_>>();
    for (text, expected) in [
        ("x", true),
        ("x<|call|>f:12<|end|>y", true),
        ("<|call|>f;a\nb\n<|end|><|call|>f.\n\n<|end|>", true),
        ("<|call|>f.a\n<|end|>", true),
        ("<|call|>", false),
        ("<|call|>g", false),
        ("<|end|>", false),
        ("x<|call|>f:x<|end|>", false),
        ("<|call|>f;a\nb<|end|>", false),
    ] {
        let ids = tokens(text);
        assert_eq!(ids.contains(&MARKS[0].1), text.contains("<|call|>"));
        assert_eq!(accepts_tokens(&constraint, &ids), expected, "{text}");
        if text.starts_with("<|call|>f") || text.starts_with("x<|call|>f") {
            assert_eq!(
                accepts_tokens(&constraint, &spelled(text)),
                expected,
                "{text}"
            );
        }
    }
    // A trigger may end inside of a name.
    let constraint = tag(&json!({
        "type": "triggered_tags", "triggers": ["<|"],
        "tags": [{"begin": "<|call|>x", "content": number(), "end": ""}],
    }));
    for (text, expected) in [
        ("a<|call|>x1", true),
        ("<|call|>", false),
        ("<|call|>y", false),
    ] {
        assert_eq!(
            accepts_tokens(&constraint, &tokens(text)),
            expected,
            "{text}"
        );
        assert_eq!(
            accepts_tokens(&constraint, &spelled(text)),
            expected,
            "{text}"
        );
    }
    assert!(!accepts_tokens(&constraint, &spelled("<|c")));
}
