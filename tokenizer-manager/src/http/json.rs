//! JSON values that may take several forms. Their errors name the forms.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, IntoDeserializer, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

use crate::{error::shortened, submission::SpeculativeSpec};

/// One value or a list of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub(super) fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value],
            Self::Many(values) => values,
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

struct OneOrManyVisitor<T>(PhantomData<T>);

/// Makes visitor methods that pass a single value on to `T`.
macro_rules! one {
    ($($visit:ident: $type:ty),*) => {$(
        fn $visit<E: de::Error>(self, value: $type) -> Result<Self::Value, E> {
            T::deserialize(value.into_deserializer()).map(OneOrMany::One)
        }
    )*};
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    one!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str, visit_string: String);

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(OneOrMany::One)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            values.push(value);
        }
        Ok(OneOrMany::Many(values))
    }
}

/// A struct that must come as a JSON object. serde alone would also accept a list of
/// the fields in order.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// OpenAI's `prompt`: a text, tokens, or a list of either.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Prompt {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a list of strings, a list of token ids or a list of such lists")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Texts(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompt, A::Error> {
        let (mut texts, mut ids, mut lists) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(element) = seq.next_element()? {
            match element {
                Element::Text(text) => texts.push(text),
                Element::Id(id) => ids.push(id),
                Element::Ids(list) => lists.push(list),
            }
            let kinds = [texts.is_empty(), ids.is_empty(), lists.is_empty()]
                .map(|empty| usize::from(!empty));
            if kinds.iter().sum::<usize>() > 1 {
                return Err(de::Error::custom(
                    "strings, token ids and lists of token ids cannot be mixed",
                ));
            }
        }
        Ok(if !texts.is_empty() {
            Prompt::Texts(texts)
        } else if !ids.is_empty() {
            Prompt::Tokens(vec![ids])
        } else {
            Prompt::Tokens(lists)
        })
    }
}

enum Element {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a token id or a list of token ids")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Text(text.to_owned()))
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<Element, E> {
        u32::try_from(id)
            .map(Element::Id)
            .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(id), &"a token id"))
    }

    fn visit_i64<E: de::Error>(self, id: i64) -> Result<Element, E> {
        u32::try_from(id)
            .map(Element::Id)
            .map_err(|_| E::invalid_value(de::Unexpected::Signed(id), &"a token id"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = seq.next_element()? {
            ids.push(id);
        }
        Ok(Element::Ids(ids))
    }
}

/// OpenAI's `logit_bias`: an object from token ids, as strings, to numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LogitBias(pub Vec<(u32, f64)>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(LogitBiasVisitor)
    }
}

struct LogitBiasVisitor;

impl<'de> Visitor<'de> for LogitBiasVisitor {
    type Value = LogitBias;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from token ids to numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
        let mut bias = Vec::new();
        while let Some((id, value)) = map.next_entry::<String, f64>()? {
            let wrong = |id| de::Error::custom(format!("the key {id:?} is not a token id"));
            let id = id.parse().map_err(|_| wrong(shortened(id, 64)))?;
            bias.push((id, value));
        }
        Ok(LogitBias(bias))
    }
}

/// An integer, which may be written with a decimal point: many languages have no other
/// numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Integer(pub i64);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntegerVisitor)
    }
}

struct IntegerVisitor;

impl Visitor<'_> for IntegerVisitor {
    type Value = Integer;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Integer, E> {
        Ok(Integer(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Integer, E> {
        i64::try_from(number)
            .map(Integer)
            .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Integer, E> {
        whole(number)
            .map(Integer)
            .ok_or_else(|| E::invalid_type(de::Unexpected::Float(number), &self))
    }
}

/// Returns the integer that a decimal stands for, if it is exact: at most 2^53.
fn whole(number: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
}

/// An optional [`Integer`] that fits the field, for serde's `deserialize_with`.
pub(super) fn integer<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i64>,
{
    let number = Option::<Integer>::deserialize(deserializer)?;
    let fit = |Integer(number)| {
        T::try_from(number).map_err(|_| {
            de::Error::invalid_value(de::Unexpected::Signed(number), &"an integer that fits")
        })
    };
    number.map(fit).transpose()
}

/// A seed: any integer of 64 bits, signed or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seed(pub u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SeedVisitor)
    }
}

struct SeedVisitor;

impl Visitor<'_> for SeedVisitor {
    type Value = Seed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer of 64 bits")
    }

    fn visit_u64<E: de::Error>(self, seed: u64) -> Result<Seed, E> {
        Ok(Seed(seed))
    }

    fn visit_i64<E: de::Error>(self, seed: i64) -> Result<Seed, E> {
        Ok(Seed(seed.cast_unsigned()))
    }

    fn visit_f64<E: de::Error>(self, seed: f64) -> Result<Seed, E> {
        whole(seed)
            .map(|seed| Seed(seed.cast_unsigned()))
            .ok_or_else(|| E::invalid_type(de::Unexpected::Float(seed), &self))
    }
}

/// Limits of speculation for one request. An unknown field is an error, since a
/// misspelt field would silently mean the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Speculative {
    enabled: Option<bool>,
    #[serde(default, deserialize_with = "integer")]
    max_steps: Option<i64>,
}

impl Speculative {
    pub(super) fn spec(self) -> SpeculativeSpec {
        SpeculativeSpec {
            enabled: self.enabled,
            max_steps: self.max_steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_take_four_forms() {
        let parse = |text: &str| serde_json::from_str::<Prompt>(text);
        let texts = |texts: &[&str]| Prompt::Texts(texts.iter().map(|t| (*t).to_owned()).collect());
        assert_eq!(parse(r#""a""#).expect("text"), texts(&["a"]));
        assert_eq!(parse(r#"["a", "b"]"#).expect("texts"), texts(&["a", "b"]));
        assert_eq!(
            parse("[1, 2]").expect("ids"),
            Prompt::Tokens(vec![vec![1, 2]])
        );
        assert_eq!(
            parse("[[1], [2]]").expect("lists"),
            Prompt::Tokens(vec![vec![1], vec![2]])
        );
        for wrong in [
            "1",
            "{}",
            "[1, \"a\"]",
            "[-1]",
            "[1.5]",
            "[[\"a\"]]",
            "[4294967296]",
            "[null]",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn integers_may_have_a_point() {
        for (text, expected) in [
            ("4", Some(4)),
            ("4.0", Some(4)),
            ("-2e1", Some(-20)),
            ("-0.0", Some(0)),
            ("9007199254740992.0", Some(1 << 53)),
            ("9007199254740994.0", None),
            ("1e300", None),
            ("4.5", None),
            ("18446744073709551615", None),
            ("\"4\"", None),
            ("true", None),
        ] {
            let parsed = serde_json::from_str::<Integer>(text);
            assert_eq!(parsed.ok().map(|Integer(n)| n), expected, "{text}");
        }
        let mut text = serde_json::Deserializer::from_str("3000000000.0");
        assert!(integer::<_, i32>(&mut text).is_err());
    }

    #[test]
    fn seeds_and_biases_are_checked() {
        assert_eq!(
            serde_json::from_str::<Seed>("-1").expect("signed"),
            Seed(u64::MAX)
        );
        assert_eq!(serde_json::from_str::<Seed>("1.0").expect("whole"), Seed(1));
        assert!(serde_json::from_str::<Seed>("1.5").is_err());
        let bias = serde_json::from_str::<LogitBias>(r#"{"5": 1, "6": -2.5}"#).expect("bias");
        assert_eq!(bias.0, [(5, 1.0), (6, -2.5)]);
        assert!(serde_json::from_str::<LogitBias>(r#"{"x": 1}"#).is_err());
        let one = serde_json::from_str::<OneOrMany<String>>(r#""a""#).expect("one");
        assert_eq!(one.into_vec(), ["a"]);
    }
}
