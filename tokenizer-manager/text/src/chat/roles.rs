//! Roles that a template may not know, and instructions in places where it would not show them.

use serde_json::{Value, json};

use super::TemplateError;
use super::content::{ContentFormat, text_of, text_part};
use super::probe::{MARK, Probe};
use super::thinking::is_thought;

/// Stands between instructions that become one message, as in vLLM.
const INSTRUCTION_SEPARATOR: &str = "\n\n";

/// What a template does with roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Roles {
    /// Whether it knows `developer`.
    developer: bool,
    /// Whether it knows `function`.
    function: bool,
    instructions: Instructions,
}

/// Which messages of the roles `system` and `developer` it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    /// All, or it refuses those that it does not.
    All,
    /// Only the first, without a word about the others.
    First,
    /// None, without a word.
    None,
}

impl Roles {
    /// Tries the template.
    pub(super) fn detect(probe: &Probe<'_>) -> Self {
        let opening = |role: &str| {
            probe.render(&json!([
                probe.message(role, MARK),
                probe.message("user", "Go")
            ]))
        };
        let shows = |text: &Option<String>| text.as_ref().is_some_and(|t| t.contains(MARK));
        // A template knows a role that it shows otherwise than one that nobody knows: an `else`
        // for what is neither the user's nor the assistant's would make a turn of it.
        let knows =
            |shown: Option<String>, unknown: Option<String>| shows(&shown) && shown != unknown;
        let developer = knows(opening("developer"), opening("aq7role"));
        let answer = |role: &str| {
            probe.render(&json!([
                probe.message("user", "Go"),
                probe.message("assistant", "Gone"),
                probe.message(role, MARK),
            ]))
        };
        let function = knows(answer("function"), answer("aq7role"));
        let system = opening("system");
        let later = ["system", "developer"];
        let later = &later[..if developer { 2 } else { 1 }];
        let instructions = if system.is_some() && !shows(&system) {
            Instructions::None
        } else if later.iter().any(|role| hides_later(probe, role)) {
            Instructions::First
        } else {
            Instructions::All
        };
        Self {
            developer,
            function,
            instructions,
        }
    }

    /// Messages in which the template shows every instruction: a role that it does not know becomes
    /// the one that it does, and instructions become one message, first, where it would hide others.
    ///
    /// # Errors
    /// [`TemplateError::InvalidRequest`] names the message that the template would hide.
    pub(super) fn settle(
        self,
        mut messages: Vec<Value>,
        content: ContentFormat,
        continue_final_message: bool,
    ) -> Result<Vec<Value>, TemplateError> {
        let mut renamed = false;
        for (index, message) in messages.iter_mut().enumerate() {
            if message["role"] == "developer" && !self.developer {
                message["role"] = "system".into();
                renamed = true;
            }
            if message["role"] == "function" && !self.function {
                return Err(TemplateError::invalid(format!(
                    "messages[{index}].role: the model's chat template does not know \"function\"; send results of \
                     tools with the role \"tool\""
                )));
            }
            if message["role"] == "system" && self.instructions == Instructions::None {
                return Err(TemplateError::invalid(format!(
                    "messages[{index}]: the model's chat template shows no system messages; put instructions into a \
                     user message"
                )));
            }
        }
        let one = renamed || self.instructions == Instructions::First;
        let misplaced = messages.iter().skip(1).any(is_instruction);
        if !(one && misplaced) {
            return Ok(messages);
        }
        if continue_final_message && messages.last().is_some_and(is_instruction) {
            return Err(TemplateError::invalid(
                "continue_final_message cannot continue a system or developer message: the model's chat template takes \
                 them first",
            ));
        }
        Ok(one_instruction(messages, content))
    }
}

/// Whether the template renders a conversation with an instruction of this role after the first, and
/// leaves one out.
fn hides_later(probe: &Probe<'_>, role: &str) -> bool {
    let (first, later) = (format!("{MARK}first"), format!("{MARK}later"));
    let (system, later_one) = (probe.message("system", &first), probe.message(role, &later));
    let (user, answer) = (
        probe.message("user", "Go"),
        probe.message("assistant", "Gone"),
    );
    let next = json!([system, later_one, user]);
    let amid = json!([system, user, answer, later_one, user]);
    let hides = |shown: String| !(shown.contains(&first) && shown.contains(&later));
    [next, amid]
        .iter()
        .any(|messages| probe.render(messages).is_some_and(hides))
}

fn is_instruction(message: &Value) -> bool {
    message["role"] == "system" || message["role"] == "developer"
}

/// All instructions as the first message, with what else the first of them says of itself.
fn one_instruction(messages: Vec<Value>, format: ContentFormat) -> Vec<Value> {
    let (mut instructions, others): (Vec<Value>, Vec<Value>) =
        messages.into_iter().partition(is_instruction);
    let contents = instructions.iter().map(|message| &message["content"]);
    let content = one_content(&contents.collect::<Vec<_>>(), format);
    instructions.truncate(1);
    for first in &mut instructions {
        first["content"] = content.clone();
    }
    instructions.extend(others);
    instructions
}

/// All contents as one text; as parts where some hold thoughts.
fn one_content(contents: &[&Value], format: ContentFormat) -> Value {
    let thoughtful = |content: &Value| content.as_array().is_some_and(|c| c.iter().any(is_thought));
    if !contents.iter().any(|content| thoughtful(content)) {
        let texts = contents.iter().map(|content| text_of(content));
        let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        return format.wrap(&texts.join(INSTRUCTION_SEPARATOR));
    }
    let parts = contents.iter().map(|content| match content {
        Value::Array(parts) => parts.clone(),
        text => vec![text_part(text, text.as_str().unwrap_or_default())],
    });
    let separator = INSTRUCTION_SEPARATOR.into();
    let separator = [text_part(&separator, INSTRUCTION_SEPARATOR)];
    parts.collect::<Vec<_>>().join(&separator[..]).into()
}
