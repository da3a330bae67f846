//! Random JSON schemas of all keywords that structured output obeys, and whose instances end.

use serde_json::{Map, Value, json};

/// A small generator of random numbers, so that a schema is a function of its number.
struct Dice(u64);

impl Dice {
    /// Returns a number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.roll(list.len() as u64) as usize]
    }
}

/// Returns the schema with this number. Every schema is an object, as most clients send it, and
/// has at most three levels.
pub fn schema(number: u64) -> Value {
    let mut dice = Dice(number);
    let point = json!({"type": "object", "properties": {
        "x": {"type": "integer", "minimum": -99, "maximum": 99},
        "y": {"type": "boolean"}}, "required": ["x"], "additionalProperties": false});
    let mut own = object(&mut dice, 2);
    own["$defs"] = json!({"point": point, "short": {"type": "string", "maxLength": 5}});
    own
}

fn object(dice: &mut Dice, depth: u32) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for at in 0..1 + dice.roll(3) {
        let name = format!(
            "{}{at}",
            dice.pick(&["name", "größe", "is_set", "a b", "x\"y"])
        );
        properties.insert(name.clone(), any(dice, depth));
        if dice.roll(3) > 0 {
            required.push(name);
        }
    }
    let mut own = json!({"type": "object", "properties": properties, "required": required,
        "additionalProperties": false});
    if dice.roll(5) == 0 {
        own["patternProperties"] = json!({"^s_[a-z]{1,3}$": {"type": "null"}});
    }
    own
}

fn any(dice: &mut Dice, depth: u32) -> Value {
    if depth > 0 && dice.roll(3) == 0 {
        return match dice.roll(5) {
            0 => object(dice, depth - 1),
            1 => json!({"type": "array", "items": any(dice, depth - 1), "maxItems": 2}),
            2 => json!({"type": "array", "items": plain(dice), "minItems": 1, "maxItems": 3}),
            3 => json!({"type": "array", "prefixItems": [plain(dice), plain(dice)],
                "items": false, "minItems": 2}),
            _ => json!({"anyOf": [any(dice, depth - 1), {"type": "null"}]}),
        };
    }
    plain(dice)
}

fn plain(dice: &mut Dice) -> Value {
    let low = dice.roll(200) as i64 - 100;
    let high = low + 1 + dice.roll(5000) as i64;
    match dice.roll(18) {
        0 => json!({"type": "boolean"}),
        1 => json!({"type": "null"}),
        2 => json!({"type": "integer", "minimum": low, "maximum": high}),
        3 => json!({"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high + 1}),
        4 => json!({"type": "integer", "minimum": 0, "maximum": 999,
            "multipleOf": 2 + dice.roll(9)}),
        5 => json!({"type": "number", "minimum": low, "maximum": high}),
        6 => json!({"type": "number", "exclusiveMinimum": low, "maximum": high}),
        7 => json!({"type": "string", "maxLength": 1 + dice.roll(12)}),
        8 => json!({"type": "string", "minLength": 2, "maxLength": 2 + dice.roll(9)}),
        9 => json!({"type": "string", "pattern": *dice.pick(&[
            "^[A-Z]{2}[0-9]{3}$", "^(red|green|blue)$", "^[a-zäöü]{1,8}$", r"^\d{4}-\d{2}$",
            r"^\$[1-9]\.[0-9]{2}$"])}),
        10 => json!({"type": "string", "format": *dice.pick(&[
            "date", "time", "date-time", "uuid", "ipv4", "duration"])}),
        11 => json!({"enum": ["low", "high", 3, null, true, {"k": [1, "v"]}, 2.5]}),
        12 => json!({"const": *dice.pick(&["fixed", "a\nb", "\u{1f980}", "\\"])}),
        13 => json!({"oneOf": [{"type": "string", "maxLength": 4},
            {"type": "integer", "minimum": 0, "maximum": 9}]}),
        14 => json!({"allOf": [{"type": "integer", "minimum": low}, {"maximum": high}]}),
        15 => json!({"$ref": "#/$defs/point"}),
        16 => json!({"type": ["string", "null"], "maxLength": 6}),
        _ => json!({"$ref": "#/$defs/short", "description": "a short text"}),
    }
}
