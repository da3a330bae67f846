//! Texts with a `format`, judged by a validator of others.

use std::sync::LazyLock;

use lockstep_constraint::ConstraintError;
use lockstep_sampling::{Stream, TokenConstraint as _, allows, uniform};
use serde_json::{Value, json};

use crate::support::{TOKENIZER, accepts, check, compact, lark, matcher, schema};

/// Most tokens of a text: one that goes on is given up.
const LONGEST: u64 = 400;

/// Names of the formats that are obeyed, as the error for another one tells them.
static FORMATS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let refused = check(&schema(&json!({"format": "no-such-format"})));
    let Err(ConstraintError::Refused { message, .. }) = refused else {
        panic!("{refused:?}");
    };
    let (_, names) = message.split_once("is not one of ").unwrap();
    names.split(", ").map(str::to_owned).collect()
});

/// The validator for one format.
struct Judge(boon::Schemas, boon::SchemaIndex);

impl Judge {
    fn of(own: &Value) -> Self {
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        compiler.enable_format_assertions();
        let place = "http://localhost/schema.json";
        compiler.add_resource(place, own.clone()).unwrap();
        let compiled = compiler.compile(place, &mut schemas).unwrap();
        Self(schemas, compiled)
    }

    fn accepts(&self, text: &str) -> bool {
        let instance: Value = serde_json::from_str(text).unwrap();
        self.0.validate(&instance, self.1).is_ok()
    }
}

/// Tokens of one character each, which meet the places where a text may break its format more often
/// than long ones do.
static SHORT: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let tokens = 0..TOKENIZER.vocab_size() as u32;
    let is_short = |token: &u32| {
        TOKENIZER
            .token_text(*token)
            .is_some_and(|text| text.len() == 1)
    };
    tokens.filter(is_short).collect()
});

/// Returns a random token; in two of three texts one of those that are short, if one is allowed.
/// The quote that ends the text comes more often than by chance.
fn draw(allowed: &[u32], text: u64, step: u64, quote: u32) -> u32 {
    let chance = |draw| uniform(text, step, Stream::SAMPLE, draw);
    if step > 0 && allows(allowed, quote) && chance(0) < 0.15 {
        return quote;
    }
    let any = |tokens: Vec<u32>| {
        let at = (tokens.len() as f64 * chance(1)) as usize;
        tokens.get(at).copied()
    };
    let tokens = SHORT.iter().copied();
    let short = tokens.filter(|token| allows(allowed, *token)).collect();
    let short = any(short).filter(|_| !text.is_multiple_of(3));
    let all = || {
        let tokens = 0..TOKENIZER.vocab_size() as u32;
        any(tokens.filter(|token| allows(allowed, *token)).collect())
    };
    short.or_else(all).unwrap()
}

/// Writes random texts of a format, and returns how many came to an end. Each is an instance.
fn judge(format: &str, texts: u64) -> usize {
    let own = json!({"type": "string", "format": format});
    let judge = Judge::of(&own);
    let mut matcher = matcher(&compact(&own));
    let quote = TOKENIZER.encode("\"", false).unwrap()[0];
    let mut ended = 0;
    for text in 0..texts {
        let mut taken = Vec::new();
        while !matcher.is_fulfilled().unwrap() && (taken.len() as u64) < LONGEST {
            let allowed = matcher.allowed().unwrap();
            let token = draw(allowed, text, taken.len() as u64, quote);
            matcher.take(token).unwrap();
            taken.push(token);
        }
        if matcher.is_fulfilled().unwrap() {
            let written = TOKENIZER.decode(&taken, false);
            assert!(judge.accepts(&written), "{format}: {written}");
            ended += 1;
        }
        matcher.give_back(taken.len()).unwrap();
    }
    ended
}

#[test]
fn random_texts_have_their_format() {
    assert!(FORMATS.len() >= 10, "{FORMATS:?}");
    for format in FORMATS.iter() {
        let ended = judge(format, 150);
        assert!(ended > 100, "{format}: {ended}");
    }
}

#[test]
#[ignore = "takes minutes"]
fn thousands_of_random_texts_have_their_format() {
    for format in FORMATS.iter() {
        let ended = judge(format, 30_000);
        println!("{format}: {ended} of 30000 texts ended, each an instance");
        assert!(ended > 20_000, "{format}: {ended}");
    }
}

/// Words that are written, and texts that are no words. The validator says the same, but for a
/// second 60, which is never written.
#[test]
fn formats_are_no_wider_than_their_standards() {
    let label = "a".repeat(63);
    let (hosts, host) = (format!("{label}.").repeat(3), "b".repeat(61));
    let local = "c".repeat(64);
    for (format, words, others) in [
        (
            "date",
            vec!["2024-02-29", "2000-02-29", "1996-12-31", "0000-01-01"],
            vec![
                "2023-02-29",
                "1900-02-29",
                "2024-02-30",
                "2024-04-31",
                "2024-13-01",
            ],
        ),
        (
            "time",
            vec!["23:59:59Z", "05:09:00-17:11", "00:00:00.5+23:59"],
            vec![
                "05:09:60-17:11",
                "23:59:60Z",
                "24:00:00Z",
                "00:00:00",
                "00:00:00+24:00",
            ],
        ),
        (
            "date-time",
            vec!["2024-02-29T05:09:59-17:11", "2024-01-01t00:00:00.25z"],
            vec![
                "2024-01-01T05:09:60-17:11",
                "2023-02-29T00:00:00Z",
                "2024-01-01 00:00:00Z",
            ],
        ),
        (
            "hostname",
            vec![
                &*label,
                "a-b.c--d.example",
                "a.b.c.d.e.f.g.h",
                &*(hosts.clone() + &host),
            ],
            vec![
                "",
                "-a",
                "a-",
                "a..b",
                "a_b",
                &*(label.clone() + "a"),
                &*(hosts.clone() + &label),
            ],
        ),
        (
            "email",
            vec!["a.b+c@d.example", &*format!("{local}@e"), "o'k@[127.0.0.1]"],
            vec![
                "a",
                ".a@b",
                "a.@b",
                "a..b@c",
                &*format!("d{local}@e"),
                &*format!("a@{label}b"),
                "a@[256.0.0.1]",
                &*format!("{local}@{hosts}{host}"),
            ],
        ),
        (
            "duration",
            vec!["P1Y2M3D", "PT4H", "P5W"],
            vec!["P", "P1D2M", "PT", "P1W2D"],
        ),
        (
            "ipv4",
            vec!["127.0.0.1"],
            vec!["256.0.0.1", "01.0.0.1", "1.2.3"],
        ),
        (
            "ipv6",
            vec!["::", "1:2:3:4:5:6:7:8", "fe80::1"],
            vec!["1::2::3", "12345::", ":"],
        ),
    ] {
        let own = json!({"type": "string", "format": format});
        let judge = Judge::of(&own);
        for (texts, expected) in [(words, true), (others, false)] {
            for text in texts {
                let text = json!(text).to_string();
                assert_eq!(accepts(&compact(&own), &text), expected, "{format}: {text}");
                let second = text.contains(":60");
                assert!(
                    judge.accepts(&text) == expected || second,
                    "{format}: {text}"
                );
            }
        }
    }
}

/// A format is obeyed wherever its schema stands, and beside every other keyword of texts.
#[test]
fn formats_are_obeyed_everywhere() {
    let date = json!({"format": "date"});
    let inside = |own: Value| json!({"type": "array", "items": own, "minItems": 1, "maxItems": 1});
    let both = json!({"type": "string", "pattern": "^20", "format": "date",
        "allOf": [{"pattern": "9$"}]});
    let either = json!({"type": ["string", "null"], "format": "date", "maxLength": 20});
    let referred = json!({"$ref": "#/$defs/day", "$defs": {"day": date}});
    for own in [
        json!({"type": "string", "format": "date"}),
        json!({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}),
        json!({"allOf": [{"type": "string"}, date]}),
        referred,
        either,
        both,
    ] {
        for (day, good) in [("2024-02-29", true), ("2023-02-29", false)] {
            let text = format!("\"{day}\"");
            assert_eq!(accepts(&compact(&own), &text), good, "{own} {text}");
            let grammar = lark(format!("start: \"<\" %json {own} \">\""));
            assert_eq!(accepts(&grammar, &format!("<{text}>")), good, "{own}");
            if own.get("$defs").is_none() {
                assert_eq!(
                    accepts(&compact(&inside(own.clone())), &format!("[{text}]")),
                    good
                );
            }
        }
    }
    let both = json!({"pattern": "^20", "format": "date", "type": "string"});
    assert!(!accepts(&compact(&both), "\"1924-02-29\""));
    // Formats are for texts alone, and names of properties are no keywords.
    let other = json!({"type": "integer", "format": "date"});
    assert!(accepts(&compact(&other), "7"));
    let named = json!({"type": "object", "properties": {"format": {"const": "date"}},
        "required": ["format"], "additionalProperties": false});
    assert!(accepts(&compact(&named), "{\"format\":\"date\"}"));
}

/// Bounds of lengths beside formats are common.
#[test]
fn lengths_beside_formats_compile() {
    for format in FORMATS.iter() {
        for most in [64, 255, 2048] {
            for least in [0, 5] {
                let own = json!({"type": "string", "format": format, "minLength": least,
                    "maxLength": most});
                assert_eq!(check(&compact(&own)), Ok(()), "{own}");
            }
        }
    }
}

/// A value that is referred to as a schema stays as it is.
#[test]
fn schemas_inside_of_values_are_refused() {
    let own = json!({"const": {"format": "date"}, "properties": {"format": {"$ref": "#/const"}}});
    let Err(ConstraintError::Refused {
        keyword, pointer, ..
    }) = check(&schema(&own))
    else {
        panic!("{own} is not refused");
    };
    assert_eq!(
        (keyword.as_deref(), pointer.as_deref()),
        (Some("$ref"), Some("#/const"))
    );
}
