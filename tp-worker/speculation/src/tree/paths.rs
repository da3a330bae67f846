//! Depths and masks of drafted trees.

use crate::Node;

/// Appends the depth of every token of a row's verification: 0 for the root, which is the
/// request's last known token, then one number per node. The root's position plus a depth is a
/// rotary position.
pub fn push_depths(nodes: &[Node], depths: &mut Vec<u32>) {
    let root = depths.len();
    depths.push(0);
    for node in nodes {
        depths.push(depths[root + node.parent as usize] + 1);
    }
}

/// Appends the mask of a row's verification, in the form of [`lockstep_backend::Batch::masks`].
/// Token 0 is the root and sees itself. Token `n` is node `n`; it sees the root, its ancestors
/// and itself.
pub fn push_masks(nodes: &[Node], masks: &mut Vec<u64>) {
    let parents = nodes.iter().map(|node| Some(node.parent));
    let tokens = nodes.len() + 1;
    push_closure(tokens, std::iter::once(None).chain(parents), masks);
}

/// Appends the words of `tokens` tokens. Each token sees itself and all that its parent sees. A
/// parent is the index of an earlier token.
pub(super) fn push_closure(
    tokens: usize,
    parents: impl Iterator<Item = Option<u32>>,
    masks: &mut Vec<u64>,
) {
    let words = tokens.div_ceil(64);
    let first = masks.len();
    for (token, parent) in parents.enumerate() {
        let at = first + token * words;
        match parent {
            None => masks.resize(at + words, 0),
            Some(parent) => {
                let parent = first + parent as usize * words;
                masks.extend_from_within(parent..parent + words);
            }
        }
        masks[at + token / 64] |= 1 << (token % 64);
    }
}
