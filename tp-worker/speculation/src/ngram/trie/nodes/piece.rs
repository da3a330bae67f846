//! Pieces of tails, which fill entries of the arena as nodes do.

use super::{Links, Node};

/// Number of tokens of a piece.
pub(super) const PIECE: usize = 7;

/// Number of bits of a link that name an entry. The bits above count the tokens of the piece
/// that the link leads to; they are 0 if the link leads to a node.
const ENTRY_BITS: u32 = 29;

/// Tokens of a tail, and the link to the next piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) tokens: [u32; PIECE],
    pub(super) next: u32,
}

/// Makes the link to a piece of `tokens` tokens, at least one.
pub(super) fn link(entry: u32, tokens: usize) -> u32 {
    (tokens as u32) << ENTRY_BITS | entry
}

/// Returns the piece that a link leads to, and its number of tokens; `None` if the link leads
/// to a node.
pub(super) fn target(link: u32) -> Option<(u32, usize)> {
    let tokens = link >> ENTRY_BITS;
    (tokens > 0).then_some((link & ((1 << ENTRY_BITS) - 1), tokens as usize))
}

impl Piece {
    /// Makes a piece with the given tokens, at most [`PIECE`].
    pub(super) fn new(given: &[u32], next: u32) -> Self {
        let mut tokens = [0; PIECE];
        tokens[..given.len()].copy_from_slice(given);
        Self { tokens, next }
    }
}

impl From<Piece> for Node {
    fn from(piece: Piece) -> Self {
        let [
            token,
            parent,
            count,
            newer_sibling,
            older_sibling,
            newer,
            older,
        ] = piece.tokens;
        Self {
            token,
            parent,
            count,
            below: piece.next,
            siblings: Links {
                newer: newer_sibling,
                older: older_sibling,
            },
            uses: Links { newer, older },
        }
    }
}

impl From<Node> for Piece {
    fn from(node: Node) -> Self {
        let Node {
            token,
            parent,
            count,
            below,
            siblings,
            uses,
        } = node;
        Self {
            tokens: [
                token,
                parent,
                count,
                siblings.newer,
                siblings.older,
                uses.newer,
                uses.older,
            ],
            next: below,
        }
    }
}
