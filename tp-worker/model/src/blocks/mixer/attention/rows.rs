//! Rows of an attention's projections, in the order in which they are read.

use std::ops::Range;

use lockstep_types::{AttentionSpec, Values};

use crate::blocks::{LayerPlace, linear::Fused, parts::VectorPart};

/// Returns the rows of the tensor of queries: those of each head are its query, and then its gate if
/// there are gates.
pub(super) fn tensor_rows(attention: &AttentionSpec) -> usize {
    parts(attention) * attention.heads * attention.head_dim
}

/// Returns the rows of the queries of these heads in that tensor, with pairs half a head apart, and
/// the rows of their gates; none if there are no gates.
pub(super) fn query_rows(
    attention: &AttentionSpec,
    heads: &Range<usize>,
) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let (dim, parts) = (attention.head_dim, parts(attention));
    let part = |head: usize, part: usize| {
        let first = (parts * head + part) * dim;
        first..first + dim
    };
    let queries = match attention.rope.rotated {
        None if parts == 1 => vec![scaled(heads, dim)],
        rotated => {
            let query = |head| pairs(rotated.unwrap_or(dim), part(head, 0));
            heads.clone().flat_map(query).collect()
        }
    };
    let gated = heads.clone().filter(|_| attention.output_gate);
    (queries, gated.map(|head| part(head, 1)).collect())
}

/// Returns the parts of a head in the tensor of queries.
fn parts(attention: &AttentionSpec) -> usize {
    if attention.output_gate { 2 } else { 1 }
}

/// Returns the order in which the columns of a head are read, so that the halves of the head hold
/// pairs: first those of the `rotated` columns, which are pairs of their own halves, then others
/// that stay. The order changes no score, as queries and keys share it. Example: of columns `0..8`
/// four are rotated, 0 with 2 and 1 with 3; the order is 0, 1, 4, 5 and 2, 3, 6, 7.
pub(super) fn pairs(rotated: usize, head: Range<usize>) -> Vec<Range<usize>> {
    let (first, end) = (head.start, head.end);
    let (half, behind) = (rotated / 2, first + rotated);
    if behind >= end {
        return vec![head];
    }
    let middle = behind + (end - behind) / 2;
    vec![
        first..first + half,
        behind..middle,
        first + half..behind,
        middle..end,
    ]
}

/// Returns the range of the parts of `by` elements in `range`.
pub(super) fn scaled(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

/// Lists the weights of the norm of value heads, which are ones; `None` if values are not normed, or
/// the layer reads those of another.
pub(super) fn value_norm(attention: &AttentionSpec) -> Option<VectorPart> {
    let normed = attention.values != Values::Projected && attention.kv_of.is_none();
    normed.then(|| VectorPart::ones(attention.head_dim))
}

/// Lists the projections of keys and of values of which a rank takes the rows `keys` and `values`;
/// none where the layer reads those of another.
pub(super) fn keys_and_values(
    place: &LayerPlace<'_>,
    AttentionSpec {
        kv_heads,
        head_dim,
        values: of_values,
        kv_of,
        names,
        ..
    }: &AttentionSpec,
    keys: Vec<Range<usize>>,
    values: Vec<Range<usize>>,
) -> Vec<Fused> {
    let part = |name: &str, rows| Fused::of(place.name(name), kv_heads * head_dim, rows);
    if kv_of.is_some() {
        return Vec::new();
    }
    match of_values {
        // The rows of keys are taken twice.
        Values::NormedKeys => vec![part(&names.key, [keys, values].concat())],
        Values::Projected | Values::Normed => {
            vec![part(&names.key, keys), part(&names.value, values)]
        }
    }
}
