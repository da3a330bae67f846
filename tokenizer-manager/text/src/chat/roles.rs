//! Adapts messages to a template: roles unknown to the template, and instructions in places that
//! the template would not show.

use minijinja::Value;
use serde_json::{Value as Json, json};

use super::TemplateError;
use super::content::{ContentFormat, parts, text_of, text_part};
use super::message::Message;
use super::probe::{MARK, Probe};

/// Separator between instructions that become one message, as in vLLM.
const INSTRUCTION_SEPARATOR: &str = "\n\n";

/// A template's treatment of roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Roles {
    /// True if the template knows `developer`.
    developer: bool,
    /// True if the template knows `function`.
    function: bool,
    instructions: Instructions,
}

/// The `system` and `developer` messages that a template shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    /// The template shows all, or refuses the messages that it does not show.
    All,
    /// The template shows only the first and silently leaves out the others.
    First,
    /// The template silently leaves out all.
    None,
}

impl Roles {
    /// Finds out the treatment by rendering trial conversations.
    pub(super) fn detect(probe: &Probe<'_>) -> Self {
        let opening = |role: &str| {
            probe.render(&json!([
                probe.message(role, MARK),
                probe.message("user", "Go")
            ]))
        };
        let shows = |text: &Option<String>| text.as_ref().is_some_and(|t| t.contains(MARK));
        // A template knows a role if it shows the role differently from an unknown one. A
        // template may have an `else` for all roles but the user's and the assistant's; that
        // `else` would show an unknown role as a turn.
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

    /// Changes messages so that the template shows every instruction. An unknown role becomes one
    /// that the template knows. If the template would hide later instructions, all become one
    /// message at the start.
    ///
    /// # Errors
    /// [`TemplateError::InvalidRequest`] names the message that the template would hide.
    pub(super) fn settle<'a>(
        self,
        mut messages: Vec<Message<'a>>,
        content: ContentFormat,
        continue_final_message: bool,
    ) -> Result<Vec<Message<'a>>, TemplateError> {
        let mut renamed = false;
        for (index, message) in messages.iter_mut().enumerate() {
            if message.text("role") == Some("developer") && !self.developer {
                message.set("role", "system".into());
                renamed = true;
            }
            if message.text("role") == Some("function") && !self.function {
                return Err(TemplateError::invalid(format!(
                    "messages[{index}].role: the model's chat template does not know \"function\"; send results of \
                     tools with the role \"tool\""
                )));
            }
            if message.text("role") == Some("system") && self.instructions == Instructions::None {
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

/// Returns true if the template leaves out an instruction of this role that comes after the first
/// one, without an error.
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

fn is_instruction(message: &Message<'_>) -> bool {
    matches!(message.text("role"), Some("system" | "developer"))
}

/// Joins all instructions into the first message. The message keeps the other fields of the first
/// instruction.
fn one_instruction(messages: Vec<Message<'_>>, format: ContentFormat) -> Vec<Message<'_>> {
    let (mut instructions, others): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(is_instruction);
    let contents = instructions
        .iter()
        .filter_map(|message| message.get("content"));
    let content = one_content(&contents.collect::<Vec<_>>(), format);
    instructions.truncate(1);
    for first in &mut instructions {
        first.set("content", content.clone());
    }
    instructions.extend(others);
    instructions
}

/// Joins all contents into one text, or into parts if some hold thoughts.
fn one_content(contents: &[&Value], format: ContentFormat) -> Value {
    let kind = |part: &Value| part.get_attr("type").unwrap_or_default();
    let is_thought = |part: Value| kind(&part).as_str() == Some("thinking");
    if !contents
        .iter()
        .any(|content| parts(content).any(is_thought))
    {
        let texts = contents.iter().map(|content| text_of(content));
        let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        return format.wrap(&texts.join(INSTRUCTION_SEPARATOR));
    }
    let part = |text: &str| text_part(&Json::Null, text);
    let all = contents.iter().map(|content| match content.as_str() {
        Some(text) => vec![part(text)],
        None => parts(content).collect(),
    });
    let separator = [part(INSTRUCTION_SEPARATOR)];
    all.collect::<Vec<_>>().join(&separator[..]).into()
}
