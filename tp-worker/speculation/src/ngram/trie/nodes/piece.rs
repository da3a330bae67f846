//! Pieces of tails, which fill entries of the arena as nodes do.

use super::{Links, Node};

/// Tokens of a piece.
pub(super) const PIECE: usize = 7;

/// Bits of a link that name an entry; those above count the tokens of the piece
/// that it leads to, and are 0 where it leads to a node.
const ENTRY_BITS: u32 = 29;

/// Tokens of a tail, and the link to what follows them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) tokens: [u32; PIECE],
    pub(super) next: u32,
}

/// The link to a piece of `tokens` tokens, of which there is at least one.
pub(super) fn link(entry: u32, tokens: usize) -> u32 {
    (tokens as u32) << ENTRY_BITS | entry
}

/// The piece that a link leads to, and its number of tokens.
pub(super) fn target(link: u32) -> Option<(u32, usize)> {
    let tokens = link >> ENTRY_BITS;
    (tokens > 0).then_some((link & ((1 << ENTRY_BITS) - 1), tokens as usize))
}

impl Piece {
    /// One with the given tokens, at most [`PIECE`].
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
