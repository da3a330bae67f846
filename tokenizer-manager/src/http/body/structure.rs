//! Estimates the memory that a body needs once it is parsed, before anything is built.

use crate::error::{ApiError, ApiResult};

/// Maximum number of containers and strings in a body, keys included. A `[]` takes two
/// bytes in a body and tens of bytes in memory.
const MOST_PARTS: usize = 1 << 16;

/// Approximate bytes that `serde_json` takes for each, besides the characters of
/// strings. An object is made with room for four fields, a list with room for four
/// values.
const OBJECT: usize = 512;
const LIST: usize = 256;
const STRING: usize = 128;
const PLAIN: usize = 64;

/// Limits of a body's structure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Structure {
    /// Maximum levels of nesting.
    pub depth: usize,
    /// Maximum number of numbers, booleans and nulls.
    pub plain: usize,
}

impl Structure {
    /// Counts the body's parts and returns the bytes that parsing will take, besides
    /// the characters of strings. The count for a body that is not JSON may be wrong;
    /// parsing refuses that body afterwards.
    ///
    /// # Errors
    /// 400 with the limit that is exceeded.
    pub fn check(self, body: &[u8]) -> ApiResult<usize> {
        let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
        let mut bytes = 0;
        let (mut parts, mut plain, mut in_plain) = (0usize, 0usize, false);
        for byte in body {
            if in_string {
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' => escaped = true,
                    b'"' => in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => (in_string, parts, bytes) = (true, parts + 1, bytes + STRING),
                b'[' => (depth, parts, bytes) = (depth + 1, parts + 1, bytes + LIST),
                b'{' => (depth, parts, bytes) = (depth + 1, parts + 1, bytes + OBJECT),
                b']' | b'}' => depth = depth.saturating_sub(1),
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => {}
                _ if in_plain => continue,
                _ => {
                    (in_plain, plain) = (true, plain + 1);
                    if plain > self.plain {
                        return Err(too_many("numbers", self.plain));
                    }
                    continue;
                }
            }
            in_plain = false;
            if depth > self.depth {
                return Err(ApiError::bad_request(format!(
                    "The request's JSON is nested deeper than {} levels.",
                    self.depth
                )));
            }
            if parts > MOST_PARTS {
                return Err(too_many("lists, objects and strings", MOST_PARTS));
            }
        }
        Ok(bytes + plain * PLAIN)
    }
}

fn too_many(what: &str, limit: usize) -> ApiError {
    ApiError::bad_request(format!(
        "The request's JSON has more than {limit} {what}: send less at once."
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const PLAIN_VALUES: usize = 1 << 18;

    fn refused(body: &str, depth: usize) -> Option<String> {
        let plain = PLAIN_VALUES;
        let error = Structure { depth, plain }.check(body.as_bytes()).err()?;
        Some(error.message)
    }

    #[test]
    fn depth_is_counted_outside_strings() {
        assert_eq!(refused(r#"{"a": "[[[[\"[[", "b": [[1]]}"#, 3), None);
        assert!(refused("[[[[", 3).is_some_and(|why| why.contains("3 levels")));
    }

    #[test]
    fn each_kind_has_its_limit() {
        let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
        for (item, most) in [
            ("[]", MOST_PARTS - 1),
            ("{}", MOST_PARTS - 1),
            (r#""[""#, MOST_PARTS - 1),
            ("-1.5e3", PLAIN_VALUES),
            ("null", PLAIN_VALUES),
        ] {
            assert_eq!(refused(&list(item, most), 8), None, "{item}");
            assert!(refused(&list(item, most + 1), 8).is_some(), "{item}");
        }
    }

    #[test]
    fn what_is_made_of_it_is_told() {
        let bytes = |body: &str| Structure { depth: 8, plain: 9 }.check(body.as_bytes());
        let expected = OBJECT + 3 * STRING + LIST + 2 * PLAIN;
        assert_eq!(bytes(r#"{"a": "[[", "b": [1, null]}"#), Ok(expected));
        assert_eq!(bytes(""), Ok(0));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(".{0,4}", inner, 0..6).prop_map(|fields| json!(fields)),
            ]
        })
    }

    /// Returns the levels, parts and plain values of a parsed body.
    fn count(value: &Value) -> [usize; 3] {
        let of_all = |items: &mut dyn Iterator<Item = &Value>, keys: usize| {
            items.map(count).fold([1, 1 + keys, 0], |all, item| {
                [all[0].max(item[0] + 1), all[1] + item[1], all[2] + item[2]]
            })
        };
        match value {
            Value::Array(items) => of_all(&mut items.iter(), 0),
            Value::Object(fields) => of_all(&mut fields.values(), fields.len()),
            Value::String(_) => [0, 1, 0],
            _ => [0, 0, 1],
        }
    }

    proptest! {
        /// The counts are a parser's counts, whether the JSON is pretty-printed or not.
        #[test]
        fn nothing_is_miscounted(value in value(), pretty in any::<bool>()) {
            let body = match pretty {
                true => serde_json::to_vec_pretty(&value),
                false => serde_json::to_vec(&value),
            }.expect("it is JSON");
            let [depth, parts, plain] = count(&value);
            prop_assert!(parts <= MOST_PARTS);
            let exactly = Structure { depth, plain };
            prop_assert!(exactly.check(&body).is_ok());
            if depth > 0 {
                let less = Structure { depth: depth - 1, plain };
                prop_assert!(less.check(&body).is_err());
            }
            if plain > 0 {
                let less = Structure { depth, plain: plain - 1 };
                prop_assert!(less.check(&body).is_err());
            }
        }
    }
}
