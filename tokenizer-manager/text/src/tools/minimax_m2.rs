//! MiniMax-M2: tags with attributes around raw values, see [`Tagged`]. One block has several calls.

use super::parts::tagged::Tagged;
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
    parser: |tools| Box::new(Tagged::new(tools)),
};
