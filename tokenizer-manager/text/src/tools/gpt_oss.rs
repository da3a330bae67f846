//! gpt-oss: every output is messages of channels, `<|channel|>commentary to=functions.NAME
//! <|constrain|>json<|message|>{…}<|call|>` among them. The prompt ends inside the first header,
//! behind `<|start|>assistant`.

use super::grammar::{Beside, GrammarError, Lark, Unit, WantedCalls};
use super::parts::channels::{CALL, CHANNEL, CONSTRAIN, Channels, END, MARKS, MESSAGE, START};
use super::{CallIds, ToolFormat};
use crate::lark::{literal, text_without};
use crate::reasoning::Turn;
use crate::tokenizer::Tokenizer;

pub(super) const FORMAT: ToolFormat = ToolFormat {
    names: &["gpt-oss", "openai"],
    marks: &MARKS,
    openings: 1,
    is_format_of: |template| template.contains("<|channel|>commentary"),
    ids: CallIds::Long,
    begins: &[CHANNEL],
    grammar,
    whole: Some(whole),
    parser: |tools| Box::new(Channels::new(Turn::Open, false, Some(tools), None)),
};

/// Writes a call without the mark of its channel.
fn grammar(lark: &mut Lark<'_>, _: bool) -> Result<Unit, GrammarError> {
    let [constrain, message] = [CONSTRAIN, MESSAGE].map(|at| lark.mark(at));
    let call = lark.each_tool(|lark, tool| {
        let name = literal(&format!(
            "commentary to=functions.{} ",
            lark.tools[tool].name
        ));
        let arguments = lark.arguments(tool);
        Ok(format!("{name} {constrain} \"json\" {message} {arguments}"))
    })?;
    Ok(Unit {
        opening: Some(CHANNEL),
        rest: call,
        between: Some(format!("{} {}", lark.mark(CALL), start(lark))),
    })
}

/// Writes messages: comments on what will be done, and then calls or an answer. A first message
/// may have its begin in the prompt.
fn whole(lark: &mut Lark<'_>, wanted: &WantedCalls<'_>) -> Result<String, GrammarError> {
    let unit = grammar(lark, wanted.several)?;
    let channel = lark.mark(CHANNEL);
    let start = start(lark);
    let one = format!("{channel} {}", unit.rest);
    let calls = match unit.between {
        Some(between) if wanted.several => format!("{one} ({between} {one})*"),
        _ => one,
    };
    Ok(match wanted.beside {
        Beside::Nothing => format!("({start})? {calls}"),
        Beside::Answer(answer) => format!("({start})? ({} | {calls})", last(lark, answer)),
        Beside::Text => {
            let [message, end] = [MESSAGE, END].map(|at| lark.mark(at));
            let free = lark.terminal(&text_without(MARKS));
            let free_end = format!("{free}? {end}");
            let free_end = match lark.is_token(END) {
                true => free_end,
                false => lark.terminal(&free_end),
            };
            let comment = format!("{channel} \"commentary\" {message} {free_end}");
            let last = last(lark, &format!("{free}?"));
            format!("({start})? ({comment} {start})* ({last} | {calls})")
        }
    })
}

fn start(lark: &Lark<'_>) -> String {
    format!("{} \"assistant\"", lark.mark(START))
}

/// Returns the expression of a message that is the answer.
fn last(lark: &Lark<'_>, answer: &str) -> String {
    let [channel, constrain, message] = [CHANNEL, CONSTRAIN, MESSAGE].map(|at| lark.mark(at));
    format!("{channel} \"final\" (\" \" {constrain} \"json\")? {message} ({answer})")
}

/// Returns the grammar of an output of channels whose answer is this expression of Lark. It begins
/// behind the reasoning.
///
/// # Errors
/// [`GrammarError::TooLong`].
pub fn channel_answer(tokenizer: &Tokenizer, answer: &str) -> Result<String, GrammarError> {
    let lark = Lark::new(&MARKS, tokenizer, &[]);
    let answer = format!("({})? {}", start(&lark), last(&lark, answer));
    lark.finish(&answer)
}
