//! Qwen3-Coder, Qwen3.5 and Nemotron 3: tags around raw values, see [`Tagged`].

use super::grammar::{RawStyle, Unit, literal};
use super::parts::tagged::{
    BLOCK, BLOCK_END, CALL_END, CLOSING, PARAMETER, PARAMETER_END, TAGS, Tagged, call,
};
use super::{CallIds, ToolFormat};

pub(super) const FORMAT: ToolFormat = ToolFormat {
    names: &["qwen3_coder", "qwen3_xml"],
    marks: &[
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "</function>",
        "<parameter=",
        "</parameter>",
    ],
    openings: 1,
    is_format_of: |template| template.contains("<function=") && template.contains("<parameter="),
    ids: CallIds::Long,
    begins: TAGS,
    grammar: |lark, _| {
        let [end, block_end] = [CALL_END, BLOCK_END].map(|at| lark.mark(at));
        let call = call(lark, |name| format!("{name}>\n"), &STYLE)?;
        Ok(Unit {
            opening: Some(BLOCK),
            rest: format!("\"\\n\" {call} {end} \"\\n\" {block_end}"),
            between: Some(literal("\n")),
        })
    },
    whole: None,
    parser: |tools| Box::new(Tagged::new(tools)),
};

/// Values on lines of their own.
pub(super) const STYLE: RawStyle = RawStyle {
    head: |lark, key| format!("{} {key} \">\"", lark.mark(PARAMETER)),
    close: PARAMETER_END,
    behind: "\"\\n\"",
    without: CLOSING,
    around: "\n",
    trims: true,
    told: None,
};
