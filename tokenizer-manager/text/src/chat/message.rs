//! A message on its way from the request to the template. Its texts are already the engine's, so
//! giving a text a second name or place copies nothing.

use minijinja::Value;

/// Fields by name, in the order in which they came.
#[derive(Debug, Clone, Default)]
pub(super) struct Message<'a> {
    fields: Vec<(&'a str, Value)>,
}

impl<'a> Message<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        let field = self.fields.iter().find(|(known, _)| *known == name);
        field.map(|(_, value)| value)
    }

    /// Returns the text of a field; `None` if the field is no text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    pub(super) fn set(&mut self, name: &'a str, value: Value) {
        match self.fields.iter_mut().find(|(known, _)| *known == name) {
            Some(field) => field.1 = value,
            None => self.fields.push((name, value)),
        }
    }

    pub(super) fn into_value(self) -> Value {
        Value::from_pairs(self.fields)
    }
}
