use serde_json::{Map, Value, json};

use super::*;

/// Bytes of the file before its data.
const BEGIN: u64 = 100;

fn read(json: &str, data: u64) -> Result<BTreeMap<String, TensorPlace>, String> {
    places(json.as_bytes(), BEGIN..BEGIN + data)
}

fn tensor(shape: &[u64], from: u64, to: u64) -> Value {
    json!({"dtype": "F32", "shape": shape, "data_offsets": [from, to]})
}

#[test]
fn places_are_counted_from_the_beginning_of_the_file() {
    let header = json!({
        "__metadata__": {"format": "pt", "a": "text"},
        "later": tensor(&[2, 3], 4, 28),
        "first": tensor(&[], 0, 4),
        "empty": tensor(&[5, 0], 4, 4),
    });
    let found = read(&header.to_string(), 28).unwrap();
    let names: Vec<_> = found.keys().collect();
    assert_eq!(names, ["empty", "first", "later"]);
    assert_eq!(found["later"].bytes, BEGIN + 4..BEGIN + 28);
    assert_eq!(found["later"].shape, [2, 3]);
    assert_eq!(found["first"].bytes, BEGIN..BEGIN + 4);
}

#[test]
fn many_tensors_are_read_in_any_order() {
    const MANY: u64 = 60_000;
    let tensors = (0..MANY).map(|at| {
        // Not in the order of their names, and not in that of their places.
        let at = at * 7_919 % MANY;
        (format!("layers.{at}"), tensor(&[2], 8 * at, 8 * at + 8))
    });
    let header = Value::from(tensors.collect::<Map<_, _>>()).to_string();
    let found = read(&header, 8 * MANY).unwrap();
    assert_eq!(found.len() as u64, MANY);
    assert_eq!(found["layers.5"].bytes, BEGIN + 40..BEGIN + 48);
    let names: Named<IgnoredAny> = serde_json::from_str(&header).unwrap();
    assert!(names.0.into_keys().eq(found.into_keys()));
}

#[test]
fn more_tensors_than_any_model_has_are_refused() {
    let names = (0..=MOST_TENSORS).map(|at| format!("\"{at}\":0"));
    let text = format!("{{{}}}", names.collect::<Vec<_>>().join(","));
    let error = serde_json::from_str::<Named<u8>>(&text).err().unwrap();
    assert!(
        error.to_string().contains("more than 524288 tensors"),
        "{error}"
    );
}

#[test]
fn headers_that_lie_are_refused() {
    let one = |value: Value| json!({ "x": value }).to_string();
    let pair = |a: Value, b: Value| json!({"a": a, "b": b}).to_string();
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let wide = vec![1u64; 9];
    for (json, data, part) in [
        // A place that is out of range, backwards, or beyond any file.
        (one(tensor(&[1], 0, 4)), 3, "should have"),
        (one(tensor(&[1], 0, 4)), 5, "should have"),
        (one(tensor(&[1], 4, 0)), 4, "end at 100"),
        (one(tensor(&[1], 4, 8)), 8, "end at 100"),
        (one(tensor(&[1], 0, u64::MAX)), 4, "beyond any file"),
        // Tensors that overlap, or leave a gap.
        (pair(tensor(&[2], 0, 8), tensor(&[1], 4, 8)), 8, "tensor b"),
        (
            pair(tensor(&[1], 0, 4), tensor(&[1], 0, 4)),
            4,
            "end at 104",
        ),
        (
            pair(tensor(&[1], 0, 4), tensor(&[1], 8, 12)),
            12,
            "end at 104",
        ),
        // Sizes that are not the shape's, or overflow.
        (one(tensor(&[2], 0, 4)), 4, "not those of its shape"),
        (
            one(tensor(&[1 << 40, 1 << 40], 0, 4)),
            4,
            "not those of its shape",
        ),
        (
            one(tensor(&[u64::MAX, 2], 0, 4)),
            4,
            "not those of its shape",
        ),
        (
            one(json!({"dtype": "F4", "shape": [3], "data_offsets": [0, 1]})),
            1,
            "not those",
        ),
        (one(tensor(&wide, 0, 4)), 4, "more than 8 dimensions"),
        // Things of other types.
        (
            one(json!({"dtype": "F5", "shape": [1], "data_offsets": [0, 4]})),
            4,
            "F5",
        ),
        (
            one(json!({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]})),
            4,
            "-1",
        ),
        (
            one(json!({"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]})),
            4,
            "trailing",
        ),
        (
            one(json!({"dtype": "F32", "shape": [1]})),
            4,
            "data_offsets",
        ),
        (one(json!(7)), 4, "invalid type"),
        ("[]".to_owned(), 0, "tensors by name"),
        (String::new(), 0, "EOF"),
        ("{\"x\":".to_owned(), 0, "EOF"),
        // Deep nesting where a value is read. Where it is skipped it does no harm.
        (format!("{{\"x\": {deep}}}"), 4, "expected value"),
    ] {
        let error = read(&json, data).err();
        let error = error.unwrap_or_else(|| panic!("{json:.100} is accepted"));
        assert!(error.contains(part), "{json:.100}: {error}");
    }
    assert!(
        read(&format!("{{\"__metadata__\": {deep}}}"), 0)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_name_that_is_there_twice_is_refused() {
    let entry = tensor(&[1], 0, 4).to_string();
    let twice = format!(
        "{{\"x\": {entry}, \"y\": {}, \"x\": {entry}}}",
        tensor(&[1], 4, 8)
    );
    let error = read(&twice, 8).err().unwrap();
    assert!(error.contains("tensor x is there twice"), "{error}");
}
