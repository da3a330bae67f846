//! Masks of constrained requests whose tokens a device chooses.

use lockstep_backend::{ChoiceBatch, Masks};
use lockstep_sampling::TokenConstraint as _;
use lockstep_speculation::{Drafts, Node, forbidden};

use super::{
    WorkerError,
    batch::{BatchBuffers, LogitUse, Wanted},
    choices::drafts_of,
    constraints::SlotConstraint,
    slots::{RowTask, Slots},
};

/// Variable of the environment that places the masks of every rank of a program.
const VARIABLE: &str = "LOCKSTEP_CONSTRAINT_MASKS";

/// Place where the masks of constrained requests meet their logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaskPlace {
    /// The logits of constrained requests come to the host, which chooses their tokens.
    #[default]
    Host,
    /// The host makes masks while the layers run, and the device chooses by them. Requests that
    /// need more than masks stay with the host.
    Device,
}

impl MaskPlace {
    /// Returns the place that the environment names; the host, if it names none.
    ///
    /// # Errors
    /// [`WorkerError::Masks`] if it names another thing.
    pub fn of_environment() -> Result<Self, WorkerError> {
        match std::env::var_os(VARIABLE) {
            None => Ok(Self::default()),
            Some(word) => Self::named(&word.to_string_lossy()),
        }
    }

    fn named(word: &str) -> Result<Self, WorkerError> {
        match word {
            "host" => Ok(Self::Host),
            "device" => Ok(Self::Device),
            _ => Err(WorkerError::Masks(format!(
                "{VARIABLE} is host or device, not {word:?}"
            ))),
        }
    }
}

/// The masks of a step, made once, on the rank that samples.
#[derive(Debug)]
pub struct RowMasks {
    place: MaskPlace,
    /// Words of a mask.
    words: usize,
    /// Masked rows of the wanted logits, and the node that each belongs to.
    rows: Vec<u32>,
    nodes: Vec<MaskedNode>,
    bits: Vec<u32>,
    /// Drafted tokens on the way to a node.
    path: Vec<u32>,
    /// True once the step's masks are made.
    made: bool,
}

/// The node of a request's drafts whose logits have a mask; node 0 is the request's last token.
#[derive(Debug, Clone, Copy)]
struct MaskedNode {
    task: usize,
    node: u32,
}

impl RowMasks {
    /// Makes room for no masks at all: hosts choose the tokens of constrained requests.
    pub fn new(vocab: usize) -> Self {
        Self {
            place: MaskPlace::Host,
            words: vocab.div_ceil(32),
            rows: Vec::new(),
            nodes: Vec::new(),
            bits: Vec::new(),
            path: Vec::new(),
            made: false,
        }
    }

    /// Makes room for the masks of `rows` rows, where masks are the device's.
    pub fn set_place(&mut self, place: MaskPlace, rows: usize) {
        self.place = place;
        if place == MaskPlace::Device {
            self.rows.reserve(rows);
            self.nodes.reserve(rows);
            self.bits.reserve(rows * self.words);
        }
    }

    /// Returns true if devices choose by masks.
    pub fn on_device(&self) -> bool {
        self.place == MaskPlace::Device
    }

    /// Begins a step: notes the constrained rows of `batch` that the device chooses from.
    pub fn begin(
        &mut self,
        batch: &BatchBuffers,
        tasks: &[RowTask],
        slots: &Slots,
        choices: ChoiceBatch<'_>,
    ) {
        self.rows.clear();
        self.nodes.clear();
        self.bits.clear();
        self.made = false;
        if !self.on_device() {
            return;
        }
        for (at, LogitUse { row, wanted }) in batch.uses().iter().enumerate() {
            let task = &tasks[*row];
            let constrained = slots.get(task.slot).generation.constraint.is_some();
            if let Wanted::Node(node) = *wanted
                && constrained
                && !choices.is_hosts(task.choice)
            {
                self.rows.push(at as u32);
                self.nodes.push(MaskedNode { task: *row, node });
            }
        }
    }

    /// Returns the step's masks, and makes them first if that was not done. `drafts` are the
    /// drafts of the step, and of rows without any. A constraint that can't be followed allows
    /// nothing at the root, so the request fails. Behind a draft such a mask ends the accepted path
    /// before the draft, and only then is it known if it was wanted.
    pub fn make(
        &mut self,
        tasks: &[RowTask],
        slots: &mut Slots,
        drafts: (&Drafts, &Drafts),
    ) -> Masks<'_> {
        if !self.made {
            self.bits.resize(self.rows.len() * self.words, 0);
            let masks = self.bits.chunks_exact_mut(self.words.max(1));
            for (to, MaskedNode { task, node }) in masks.zip(&self.nodes) {
                let task = &tasks[*task];
                let (drafts, row) = drafts_of(task, drafts);
                let Some((constraint, output)) = slots.constraint(task.slot) else {
                    continue;
                };
                let nodes = drafts.nodes(row);
                let allowed = match *node {
                    0 => constraint.allowed().ok(),
                    node => {
                        path_to(node, nodes, &mut self.path);
                        let ahead = constraint.ahead();
                        ahead.and_then(|ahead| ahead.allowed_behind(output, &self.path))
                    }
                };
                if let Some(allowed) = allowed {
                    let words = allowed.len().min(to.len());
                    to[..words].copy_from_slice(&allowed[..words]);
                }
                if *node as usize == nodes.len() {
                    come_back(constraint);
                }
            }
            self.made = true;
        }
        Masks {
            rows: &self.rows,
            bits: &self.bits,
        }
    }

    /// Returns the number of drafts of a task that masks forbade where a token was chosen: at the
    /// root, and at the nodes of the accepted `path`.
    pub fn cut(&self, task: usize, nodes: &[Node], path: &[u32]) -> u32 {
        let masks = self.bits.chunks_exact(self.words.max(1));
        let own = self.nodes.iter().zip(masks);
        let own = own.filter(|(at, _)| at.task == task);
        let chosen = own.filter(|(at, _)| at.node == 0 || path.contains(&at.node));
        chosen
            .map(|(at, mask)| forbidden(nodes, at.node, mask))
            .sum()
    }
}

/// Writes the drafted tokens from the root to a node, with its own.
fn path_to(mut node: u32, nodes: &[Node], path: &mut Vec<u32>) {
    path.clear();
    while let Some(draft) = (node as usize).checked_sub(1).map(|at| nodes[at]) {
        path.push(draft.token);
        node = draft.parent;
    }
    path.reverse();
}

fn come_back(constraint: &mut SlotConstraint) {
    if let Some(ahead) = constraint.ahead() {
        ahead.come_back();
    }
}
