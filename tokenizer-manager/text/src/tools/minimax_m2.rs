//! MiniMax-M2: tags with attributes around raw values, see [`Tagged`]. One block has several calls.

use super::grammar::{RawStyle, Unit};
use super::parts::tagged::{
    BLOCK, BLOCK_END, CALL_END, CLOSING, PARAMETER, PARAMETER_END, TAGS, Tagged, call,
};
use super::{CallIds, ToolFormat};

pub(super) const FORMAT: ToolFormat = ToolFormat {
    names: &["minimax-m2", "minimax_m2"],
    marks: &[
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        "<invoke name=",
        "</invoke>",
        "<parameter name=",
        "</parameter>",
    ],
    openings: 1,
    is_format_of: |template| template.contains("<minimax:tool_call>"),
    ids: CallIds::Long,
    begins: TAGS,
    grammar: |lark, several| {
        let [end, block_end] = [CALL_END, BLOCK_END].map(|at| lark.mark(at));
        let call = call(lark, |name| format!("\"{name}\">\n"), &STYLE)?;
        let call = lark.rule(&format!("{call} {end} \"\\n\""));
        let many = if several { "+" } else { "" };
        Ok(Unit {
            opening: Some(BLOCK),
            rest: format!("\"\\n\" {call}{many} {block_end}"),
            between: None,
        })
    },
    whole: None,
    parser: |tools| Box::new(Tagged::new(tools)),
};

/// Values between their tags.
pub(super) const STYLE: RawStyle = RawStyle {
    head: |lark, key| format!("{} \"\\\"\" {key} \"\\\">\"", lark.mark(PARAMETER)),
    close: PARAMETER_END,
    behind: "\"\\n\"",
    without: CLOSING,
    around: "",
    trims: true,
    told: None,
};
