//! DeepSeek V3.2 and V4: tags with attributes around raw values, see [`Tagged`]. A value's tag says
//! if it is a text or JSON. One block has several calls.

use super::grammar::{GrammarError, Lark, RawStyle, Told, Unit};
use super::parts::tagged::{
    BLOCK, BLOCK_END, CALL_END, CLOSING, PARAMETER, PARAMETER_END, TAGS, Tagged, call,
};
use super::{CallIds, ToolFormat};

/// Part of every mark, a token of its own in the vocabularies of these models.
const SIGN: &str = "｜DSML｜";

/// V3.2, whose blocks are `function_calls`.
pub(super) const V32: ToolFormat = ToolFormat {
    names: &["deepseekv32", "deepseek_v32"],
    marks: &[
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "<｜DSML｜invoke name=",
        "</｜DSML｜invoke>",
        "<｜DSML｜parameter name=",
        "</｜DSML｜parameter>",
    ],
    openings: 1,
    is_format_of: |template| template.contains(SIGN) && template.contains("function_calls>"),
    ids: CallIds::Long,
    begins: TAGS,
    grammar,
    whole: None,
    parser: |tools| Box::new(Tagged::told(tools)),
};

/// V4, whose blocks are `tool_calls`.
pub(super) const V4: ToolFormat = ToolFormat {
    names: &["deepseekv4", "deepseek_v4"],
    marks: &[
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
        "<｜DSML｜invoke name=",
        "</｜DSML｜invoke>",
        "<｜DSML｜parameter name=",
        "</｜DSML｜parameter>",
    ],
    is_format_of: |template| template.contains(SIGN) && template.contains("tool_calls>"),
    ..V32
};

/// Values between their tags.
pub(super) const STYLE: RawStyle = RawStyle {
    head: |lark, key| {
        format!(
            "{} \"\\\"\" {key} \"\\\" string=\\\"\"",
            lark.mark(PARAMETER)
        )
    },
    close: PARAMETER_END,
    behind: "\"\\n\"",
    without: CLOSING,
    around: "",
    trims: false,
    told: Some(Told {
        before: |_| ["\"true\\\">\"", "\"false\\\">\""].map(str::to_owned),
        closes_json: true,
    }),
};

fn grammar(lark: &mut Lark<'_>, several: bool) -> Result<Unit, GrammarError> {
    let [end, block_end] = [CALL_END, BLOCK_END].map(|at| lark.mark(at));
    let call = call(lark, |name| format!("\"{name}\">\n"), &STYLE)?;
    let call = lark.rule(&format!("{call} {end} \"\\n\""));
    let many = if several { "+" } else { "" };
    Ok(Unit {
        opening: Some(BLOCK),
        rest: format!("\"\\n\" {call}{many} {block_end}"),
        between: None,
    })
}
