//! What all ranks know of a step's drafts.

use lockstep_adaptive::Digest;
use lockstep_backend::{Axis, Backend};
use lockstep_speculation::Node;

use super::DraftStage;
use crate::worker::WorkerError;

/// Beside the number of a row's nodes: its tokens were sampled.
const SAMPLED: u32 = 1 << 31;

impl<B: Backend> DraftStage<B> {
    /// Takes the drafts into the step's digest.
    pub fn digest(&self, digest: &mut Digest) {
        digest.list(&self.words);
    }

    /// Puts the drafts into words, on the rank that drafts.
    pub(super) fn word(&mut self) {
        let stride = self.stride;
        self.words.clear();
        self.words.resize(self.rows.len() * stride, 0);
        let rows = self.words.chunks_exact_mut(stride).enumerate();
        for (row, words) in rows.filter(|_| self.drafter.is_some()) {
            let nodes = self.drafts.nodes(row);
            let sampled = if self.drafts.is_sampled(row) {
                SAMPLED
            } else {
                0
            };
            words[0] = nodes.len() as u32 | sampled;
            for (words, node) in words[1..].chunks_exact_mut(2).zip(nodes) {
                words.copy_from_slice(&[node.token, node.parent]);
            }
        }
    }

    /// Gives every rank the drafts of the one that leads.
    pub(super) fn broadcast(&mut self, backend: &mut B) -> Result<(), WorkerError> {
        self.word();
        let stride = self.stride;
        backend
            .control(Axis::Attention)
            .broadcast(0, &mut self.words)?;
        if self.drafter.is_none() {
            for (row, words) in self.words.chunks_exact(stride).enumerate() {
                let nodes = (words[0] & !SAMPLED) as usize;
                for node in words[1..].chunks_exact(2).take(nodes) {
                    let (token, parent) = (node[0], node[1]);
                    self.drafts.push(row, Node { token, parent });
                }
                if words[0] & SAMPLED != 0 {
                    self.drafts.note_sampled(row);
                }
            }
        }
        Ok(())
    }
}
