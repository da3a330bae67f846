//! A batch where kernels read it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_backend::{Batch, Chosen as Outcomes, DraftShape, InputLimits, PassKey, Row};

mod chain;
mod choices;
mod chosen;
mod trees;

use crate::context::Context;
use crate::error::CudaError;
use crate::memory::Buffer;
use crate::rows::Rows;
use crate::staged::Staged;
use crate::stream::Stream;
pub use chosen::Chosen;
pub(crate) use trees::{TreeLists, TreeRoom};

/// Words of a row, as `batch.cuh` has it.
const ROW_WORDS: usize = 5;
/// The mask of a row that has none.
const CAUSAL: u32 = u32::MAX;
/// Batches that may be on their way at once.
const STAGES: usize = 2;

/// The header's counts, by word.
const TOKENS: usize = 0;
const ROWS: usize = 1;
const WANTED: usize = 2;
const CHOICES: usize = 3;
const CHAINS: usize = 4;
const TREES: usize = 5;
/// Where the chains' first pass begins, a batch as this one, and how many words it has.
const CHAIN_AT: usize = 6;
const CHAIN_WORDS: usize = 7;
/// Words before those that say where lists begin.
const COUNTS: usize = 8;

/// The lists behind the header, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    Tokens,
    Positions,
    Cells,
    Rows,
    Pages,
    Masks,
    Wanted,
    Choices,
    Uses,
    Drafted,
    Parents,
    Chains,
    Sources,
    Trees,
}

impl List {
    /// The word of the header that says where it begins.
    pub(crate) fn header(self) -> usize {
        COUNTS + self as usize
    }
}

/// Words before the lists.
const HEADER_WORDS: usize = COUNTS + List::Trees as usize + 1;

/// Words of the largest batch, which may want the logits of all its tokens.
fn words(limits: &InputLimits) -> u64 {
    let lists = [
        (4, limits.tokens),
        (ROW_WORDS, limits.requests),
        (1, limits.pages),
        (2, limits.mask_words),
    ];
    lists
        .into_iter()
        .chain(choices::words(&limits.choices))
        .chain(chain::words(&limits.chain))
        .fold(HEADER_WORDS as u64, |sum, (each, count)| {
            sum.saturating_add((each as u64).saturating_mul(count as u64))
        })
}

/// Brings batches to the device: one block of words each, in one copy; and back what
/// became of their choices, in another.
pub struct Inputs {
    limits: InputLimits,
    device: Buffer<u32>,
    /// `None` where nothing is chosen.
    chosen: Option<Chosen>,
    /// `None` where the device drafts no trees.
    trees: Option<TreeRoom>,
    stages: [Staged<u32>; STAGES],
    turn: usize,
    /// What was staged last.
    counts: [usize; 4],
    /// What devices draft of it.
    drafts: Option<DraftShape>,
    /// No other batch has this number, here or elsewhere.
    number: u64,
}

impl Inputs {
    /// Takes room for the largest batch.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>, limits: InputLimits) -> Result<Self, CudaError> {
        // What is more than memory has is refused as such.
        let words = usize::try_from(words(&limits)).unwrap_or(usize::MAX);
        let stage = || Staged::new(context, words, "a staged batch");
        Ok(Self {
            limits,
            device: Buffer::new(context, words, "a batch")?,
            chosen: match limits.choices.requests {
                0 => None,
                _ => Some(Chosen::new(context, &limits.choices)?),
            },
            trees: match limits.chain.trees {
                0 => None,
                trees => Some(TreeRoom::new(context, trees)?),
            },
            stages: [stage()?, stage()?],
            turn: 0,
            counts: [0; 4],
            drafts: None,
            number: 0,
        })
    }

    /// Bytes of each array on the device, for batches within `limits`.
    pub fn bytes(limits: &InputLimits) -> impl Iterator<Item = u64> {
        let chosen = (limits.choices.requests > 0).then(|| Chosen::bytes(&limits.choices));
        let trees = (limits.chain.trees > 0).then(|| TreeRoom::bytes(limits.chain.trees));
        let own = std::iter::once(words(limits).saturating_mul(4));
        own.chain(chosen.into_iter().flatten()).chain(trees)
    }

    /// Queues the copy of a batch. It waits for nothing but the copy before the
    /// last one.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// Those of [`InputLimits::expect`].
    pub fn stage(&mut self, stream: &Stream, batch: &Batch<'_>) -> Result<(), CudaError> {
        self.limits.expect(batch);
        self.turn = (self.turn + 1) % STAGES;
        let stage = &mut self.stages[self.turn];
        let len = chain::fill(stage.elements()?, batch, self.limits.page_size);
        stage.send(stream, 0..len, &mut self.device, 0)?;
        self.counts = [
            batch.tokens.len(),
            batch.rows.len(),
            batch.logit_tokens.len(),
            batch.choices.choices.len(),
        ];
        self.drafts = batch.draft_shape();
        self.renumber();
        Ok(())
    }

    /// Lets launches be for a batch that the device stages here by itself, of at most so
    /// many tokens and rows, of each of which a token is wanted.
    ///
    /// # Panics
    /// If there is no room for as many.
    pub(crate) fn expect(&mut self, tokens: usize, rows: usize) {
        self.expect_wanted(tokens, rows, rows);
    }

    /// As [`Self::expect`], where so many tokens are wanted.
    pub(crate) fn expect_wanted(&mut self, tokens: usize, rows: usize, wanted: usize) {
        let limits = &self.limits;
        assert!(
            tokens <= limits.tokens && wanted <= limits.tokens,
            "{rows} rows of {tokens} tokens fit into {limits:?}"
        );
        self.counts = [tokens, rows.min(limits.requests), wanted, 0];
        self.renumber();
    }

    /// What is staged is another batch.
    fn renumber(&mut self) {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        self.number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets launches be for `size` tokens, each of which may be a row and wanted; the
    /// device still counts those that are staged.
    ///
    /// # Panics
    /// If there is no room for as many.
    pub(crate) fn pad(&mut self, size: PassKey) {
        let limits = &self.limits;
        let fits = size.tokens <= limits.tokens && size.requests <= limits.requests;
        assert!(fits, "a pass of {size} fits into {limits:?}");
        let choices = self.counts[CHOICES];
        self.counts = [size.tokens, size.requests, size.tokens, choices];
    }

    /// The tokens of the batch.
    pub fn tokens(&self) -> Rows<'_> {
        Rows::counted(self.counts[TOKENS], &self.device, TOKENS)
    }
    /// Its requests.
    pub fn rows(&self) -> Rows<'_> {
        Rows::counted(self.counts[ROWS], &self.device, ROWS)
    }
    /// The tokens whose logits are wanted.
    pub fn wanted(&self) -> Rows<'_> {
        Rows::counted(self.counts[WANTED], &self.device, WANTED)
    }
    /// The first of those: at most so many.
    pub(crate) fn wanted_of(&self, most: usize) -> Rows<'_> {
        Rows::counted(most, &self.device, WANTED)
    }
    /// The requests whose tokens are chosen: of the largest batch for launches.
    pub fn requests(&self) -> Rows<'_> {
        // Each of them has a row.
        let most = self.limits.choices.requests.min(self.counts[ROWS]);
        Rows::counted(most, &self.device, CHOICES)
    }
    /// What became of them.
    ///
    /// # Panics
    /// If there is no room for any.
    pub fn chosen(&self) -> &Chosen {
        self.chosen
            .as_ref()
            .expect("tokens are chosen where there is room")
    }
    /// The words of what became of them, and which there are for launches.
    ///
    /// # Panics
    /// If there is no room for any.
    pub(crate) fn outcome_words(&mut self) -> (&mut Buffer<u32>, Range<usize>) {
        let (requests, limits) = (self.requests().most(), &self.limits);
        let len = limits.choices.outcome_words(requests, limits.drafts());
        let chosen = self.chosen.as_mut();
        let chosen = chosen.expect("tokens are chosen where there is room");
        (chosen.words_mut(), 0..len)
    }
    /// The words of a batch, and which of them depend on drafts at the most, where it has up
    /// to so many tokens.
    pub(crate) fn drafted_words(&mut self, tokens: usize) -> (&mut Buffer<u32>, Range<usize>) {
        let words = HEADER_WORDS..HEADER_WORDS + self.limits.drafted_words(tokens);
        (&mut self.device, words)
    }
    /// Waits, and brings the words of those to the host that are staged.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; also of work that was queued before.
    ///
    /// # Panics
    /// If there is no room for any.
    pub fn outcomes(&mut self, stream: &Stream) -> Result<Outcomes<'_>, CudaError> {
        let chosen = self
            .chosen
            .as_mut()
            .expect("tokens are chosen where there is room");
        chosen.read(stream, self.counts[CHOICES], self.drafts)
    }
    /// Whether `inputs` have room for the first pass of any chains that come with a batch.
    pub(crate) fn holds_first_for(&self, inputs: &Self) -> bool {
        let (chain, to) = (&self.limits.chain, &inputs.limits);
        let words = chain::first_words(chain) <= inputs.device.len() as u64;
        words && to.pages >= chain.pages && to.tokens >= chain.tokens
    }
    /// Room for trees that the device drafts.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn trees(&self) -> &TreeRoom {
        self.trees
            .as_ref()
            .expect("trees are drafted where there is room")
    }
    /// What it has room for.
    pub fn limits(&self) -> &InputLimits {
        &self.limits
    }
    /// What tells the batch from all others.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
    pub(crate) fn address(&self) -> u64 {
        self.device.address()
    }
}

/// Writes a batch; returns how many words it takes. Of page tables so many entries are
/// written as `pages` says of the row of that number, one table behind the other.
/// `sources` are those of a first pass of chains.
fn fill(
    words: &mut [u32],
    batch: &Batch<'_>,
    sources: &[u32],
    pages: &dyn Fn(usize) -> usize,
) -> usize {
    let requests = batch.chain.map_or(&[][..], |chain| chain.requests);
    let trees = batch.chain.map_or(&[][..], |chain| chain.trees);
    for (count, len) in [
        (TOKENS, batch.tokens.len()),
        (ROWS, batch.rows.len()),
        (WANTED, batch.logit_tokens.len()),
        (CHOICES, batch.choices.choices.len()),
        (CHAINS, requests.len()),
        (TREES, trees.len()),
    ] {
        words[count] = len as u32;
    }
    let (header, lists) = words.split_at_mut(HEADER_WORDS);
    let mut at = 0;
    let mut list = |which: List, len: usize, write: &mut dyn FnMut(&mut [u32])| {
        header[which.header()] = (HEADER_WORDS + at) as u32;
        write(&mut lists[at..at + len]);
        at += len;
    };
    // What drafts are comes first, as ranks that draft tell it in one piece.
    let plain = [
        (List::Tokens, batch.tokens),
        (List::Positions, batch.positions),
        (List::Parents, batch.choices.parents),
    ];
    for (which, values) in plain {
        list(which, values.len(), &mut |to| to.copy_from_slice(values));
    }
    list(List::Masks, 2 * batch.masks.len(), &mut |to| {
        for (to, mask) in to.as_chunks_mut::<2>().0.iter_mut().zip(batch.masks) {
            *to = [*mask as u32, (*mask >> 32) as u32];
        }
    });
    let plain = [
        (List::Cells, batch.cells),
        (List::Wanted, batch.logit_tokens),
    ];
    for (which, values) in plain {
        list(which, values.len(), &mut |to| to.copy_from_slice(values));
    }
    list(List::Rows, ROW_WORDS * batch.rows.len(), &mut |to| {
        let rows = to.as_chunks_mut::<ROW_WORDS>().0;
        let mut table = 0;
        for (number, (to, row)) in rows.iter_mut().zip(batch.rows).enumerate() {
            *to = row_words(row, table);
            table += pages(number) as u32;
        }
    });
    let all = (0..batch.rows.len()).map(pages).sum();
    list(List::Pages, all, &mut |to| fill_pages(to, batch, pages));
    choices::fill(&batch.choices, &mut list);
    list(List::Chains, requests.len(), &mut |to| {
        to.copy_from_slice(requests);
    });
    list(List::Sources, sources.len(), &mut |to| {
        to.copy_from_slice(sources);
    });
    list(List::Trees, trees::WORDS * trees.len(), &mut |to| {
        trees::fill(to, trees);
    });
    HEADER_WORDS + at
}

/// Writes rows' page tables, one behind the other.
fn fill_pages(mut to: &mut [u32], batch: &Batch<'_>, pages: &dyn Fn(usize) -> usize) {
    for (number, row) in batch.rows.iter().enumerate() {
        let table = &batch.pages[row.pages_start as usize..][..pages(number)];
        let (own, rest) = to.split_at_mut(table.len());
        own.copy_from_slice(table);
        to = rest;
    }
}

/// A row whose page table begins at entry `table`.
fn row_words(row: &Row, table: u32) -> [u32; ROW_WORDS] {
    let mask = row.mask.unwrap_or(CAUSAL);
    [row.start, row.q_len, row.kv_len, table, mask]
}
