//! SGLang's formulae (`python/sglang/srt/speculative`), for a layout where the branches of a
//! tree start on pages of their own. Each branch repeats the partial last page of its prefix.
//! Nothing here is sized by these formulae; they are only compared with the exact form.

use super::{ReserveConfig, max};

/// Returns `W` of that layout: the slots that one decode step writes for one request.
pub const fn alloc_len_per_decode(shape: &ReserveConfig, page_size: u32) -> u32 {
    if !shape.speculates() {
        return 1;
    }
    let tree = if page_size > 1 && shape.topk > 1 {
        (page_size - 1 + shape.steps).div_ceil(page_size) * page_size * shape.topk
    } else {
        shape.steps * shape.topk
    };
    max(tree, shape.draft_tokens)
}

/// Returns `2·W` under overlap: one `W` for the step, one for the step before it.
pub const fn alloc_reserve_per_decode(shape: &ReserveConfig, page_size: u32, overlap: bool) -> u32 {
    alloc_len_per_decode(shape, page_size) * if overlap { 2 } else { 1 }
}

/// Returns the columns of a request-to-token row beyond the context length.
pub const fn req_to_token_extra_context_len(
    shape: &ReserveConfig,
    page_size: u32,
    overlap: bool,
) -> u32 {
    let mut reserve = alloc_reserve_per_decode(shape, page_size, overlap);
    if page_size > 1 && shape.speculates() {
        reserve += page_size - 1;
    }
    max(4 + shape.draft_tokens, reserve)
}
