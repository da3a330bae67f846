//! Telling all ranks of a DP rank about the step's drafts.

use lockstep_adaptive::Digest;
use lockstep_backend::{Axis, Backend, DraftShape};
use lockstep_speculation::Node;

use super::DraftStage;
use crate::worker::WorkerError;

/// Flag beside the number of a row's nodes: the nodes' tokens were sampled.
const SAMPLED: u32 = 1 << 31;
/// Flags: the lead's device is to make the nodes, as chains or as trees.
const CHAINS: u32 = 1 << 30;
const TREES: u32 = 1 << 29;
const FLAGS: u32 = SAMPLED | CHAINS | TREES;

impl<B: Backend> DraftStage<B> {
    /// Takes the drafts into the step's digest.
    pub fn digest(&self, digest: &mut Digest) {
        digest.list(&self.words);
    }

    /// Puts the drafts into words.
    pub(super) fn word(&mut self) {
        let stride = self.stride;
        let made = match self.on_device {
            None => 0,
            Some(DraftShape::Chains) => CHAINS,
            Some(DraftShape::Trees) => TREES,
        };
        self.words.clear();
        self.words.resize(self.rows.len() * stride, 0);
        for (row, words) in self.words.chunks_exact_mut(stride).enumerate() {
            let nodes = self.drafts.nodes(row);
            let sampled = if self.drafts.is_sampled(row) {
                SAMPLED
            } else {
                0
            };
            words[0] = nodes.len() as u32 | sampled | made;
            for (words, node) in words[1..].chunks_exact_mut(2).zip(nodes) {
                words.copy_from_slice(&[node.token, node.parent]);
            }
        }
    }

    /// Gives the lead's drafts to every rank of the DP rank. If the lead's device is to make
    /// the drafts, the ranks get only their number.
    pub(super) fn broadcast(&mut self, backend: &mut B) -> Result<(), WorkerError> {
        self.word();
        let stride = self.stride;
        backend
            .control(Axis::Attention)
            .broadcast(0, &mut self.words)?;
        if self.drafter.is_none() {
            for (row, words) in self.words.chunks_exact(stride).enumerate() {
                let nodes = (words[0] & !FLAGS) as usize;
                for node in words[1..].chunks_exact(2).take(nodes) {
                    let (token, parent) = (node[0], node[1]);
                    self.drafts.push(row, Node { token, parent });
                }
                if words[0] & SAMPLED != 0 {
                    self.drafts.note_sampled(row);
                }
                self.on_device = match words[0] & (CHAINS | TREES) {
                    0 => None,
                    CHAINS => Some(DraftShape::Chains),
                    _ => Some(DraftShape::Trees),
                };
            }
        }
        Ok(())
    }
}
