//! Qwen3-Coder, Qwen3.5 and Nemotron 3: tags around raw values, see [`Tagged`].

use super::parts::tagged::Tagged;
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
    parser: |tools| Box::new(Tagged::new(tools)),
};
