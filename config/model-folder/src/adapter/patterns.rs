//! Numbers by the endings of modules' names: `rank_pattern` and `alpha_pattern`.

use lockstep_files::shown;
use serde_json::Value;

/// Numbers, each with the ending of names that it is for. The first one that fits counts.
///
/// PEFT takes the keys for regular expressions. Those that it writes itself are names or their
/// endings, and only such keys are served. In them a dot stands for any character, as there.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Patterns(Vec<(String, f64)>);

impl Patterns {
    /// Reads an object of numbers, in its order.
    ///
    /// # Errors
    /// The reason why it is none, or why a key is not served, as the end of a sentence.
    pub fn of(value: &Value) -> Result<Self, String> {
        let Some(map) = value.as_object() else {
            return Err(format!("is {}, not an object", shown(&value.to_string())));
        };
        let pattern = |(key, value): (&String, &Value)| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            let name = key.strip_prefix('^').unwrap_or(key);
            if name.is_empty() || !name.chars().all(plain) {
                let key = shown(key);
                return Err(format!(
                    "has the key {key}, an expression that is not served: write the modules' names"
                ));
            }
            match value.as_f64() {
                Some(number) if number > 0.0 && number.is_finite() => Ok((key.clone(), number)),
                _ => Err(format!(
                    "is {} for {}, not a number above zero",
                    shown(&value.to_string()),
                    shown(key)
                )),
            }
        };
        map.iter().map(pattern).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the number for `module`, if there is one.
    pub fn find(&self, module: &str) -> Option<f64> {
        let fits = |(key, _): &&(String, f64)| match key.strip_prefix('^') {
            Some(whole) => is_like(module, whole),
            None => ends_at_dot(module, key),
        };
        self.0.iter().find(fits).map(|(_, number)| *number)
    }
}

/// Returns true if `module` is `ending`, or ends in it behind a dot.
pub(super) fn ends_at_dot(module: &str, ending: &str) -> bool {
    let Some(at) = module.len().checked_sub(ending.len()) else {
        return false;
    };
    let (before, end) = module.as_bytes().split_at(at);
    matches!(before, [] | [.., b'.']) && alike(end, ending.as_bytes())
}

/// Returns true if `module` is `name`.
fn is_like(module: &str, name: &str) -> bool {
    module.len() == name.len() && alike(module.as_bytes(), name.as_bytes())
}

/// Returns true if names of one length are alike. A dot of the second stands for any character.
fn alike(module: &[u8], name: &[u8]) -> bool {
    let mut pairs = module.iter().zip(name);
    pairs.all(|(own, wanted)| own == wanted || *wanted == b'.')
}
