//! A staged batch, laid out for kernels.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_backend::{Batch, Chosen as Outcomes, DraftShape, InputLimits, PassKey};
use lockstep_types::StateLimits;

mod chain;
mod choices;
mod chosen;
mod fill;
mod states;
mod trees;

use crate::error::CudaError;
use crate::runtime::{Buffer, Context, Staged, Stream};
use crate::tensors::Rows;
pub use chosen::Chosen;
pub(crate) use trees::{TreeLists, TreeRoom};

/// Words of a row, as in `batch.cuh`.
const ROW_WORDS: usize = 5;
/// Number of batches that may be on their way at once.
const STAGES: usize = 2;

/// Words of the header that hold counts.
const TOKENS: usize = 0;
const ROWS: usize = 1;
const WANTED: usize = 2;
const CHOICES: usize = 3;
const CHAINS: usize = 4;
const TREES: usize = 5;
/// Word of the header with the entries of the page tables of one group of layers.
const PAGES: usize = 6;
/// Words of the header for the chains' first pass, which is a batch of its own: the word where
/// it begins (`CHAIN_AT`) and its number of words (`CHAIN_WORDS`).
const CHAIN_AT: usize = 7;
const CHAIN_WORDS: usize = 8;
/// Words of the header before the words with the beginnings of lists.
const COUNTS: usize = 9;

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
    States,
    Replays,
    Keeps,
}

impl List {
    /// Word of the header that says where the list begins.
    pub(crate) fn header(self) -> usize {
        COUNTS + self as usize
    }
}

/// Words before the lists.
const HEADER_WORDS: usize = COUNTS + List::Keeps as usize + 1;

/// Words of the largest batch, in which all tokens may want logits.
fn words(limits: &InputLimits) -> u64 {
    let lists = [
        (3 + limits.groups, limits.tokens),
        (ROW_WORDS, limits.requests),
        (limits.groups, limits.pages),
        (2, limits.mask_words),
    ];
    lists
        .into_iter()
        .chain(choices::words(&limits.choices))
        .chain(chain::words(&limits.chain))
        .chain(states::words(limits))
        .fold(HEADER_WORDS as u64, |sum, (each, count)| {
            sum.saturating_add((each as u64).saturating_mul(count as u64))
        })
}

/// Most numbers of states that a batch names.
fn most_named(limits: &InputLimits) -> usize {
    match limits.replays {
        0 => 0,
        _ => limits.keeps().saturating_add(limits.requests),
    }
}

/// Room for batches on the device. A batch comes there as one block of words in one copy, and
/// the outcomes of its choices come back in another copy.
pub struct Inputs {
    limits: InputLimits,
    device: Buffer<u32>,
    /// `None` if the device chooses no tokens.
    chosen: Option<Chosen>,
    /// `None` if the device drafts no trees.
    trees: Option<TreeRoom>,
    stages: [Staged<u32>; STAGES],
    turn: usize,
    /// Numbers of tokens, rows, wanted tokens and choices of the batch staged last.
    counts: [usize; 4],
    /// Number of tokens of each of its rows.
    lengths: Vec<u32>,
    /// True if launches are for the staged rows, and not for all that a size allows, or that the
    /// device lays out.
    as_staged: bool,
    /// Shape of the drafts that devices make for the batch, if they do.
    drafts: Option<DraftShape>,
    /// States and records of recurrent layers that the batch names.
    named: states::Named,
    /// Least limits of the states that batches were used with.
    least: states::Least,
    /// Space for numbers of states.
    numbers: Vec<u32>,
    /// Number of the batch, which no other batch of this process has.
    number: u64,
}

impl Inputs {
    /// Allocates room for the largest batch.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>, limits: InputLimits) -> Result<Self, CudaError> {
        // A size beyond `usize` is refused like a size that memory does not have.
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
            lengths: Vec::with_capacity(limits.requests),
            as_staged: false,
            drafts: None,
            named: states::Named::default(),
            least: states::Least::default(),
            numbers: Vec::with_capacity(most_named(&limits)),
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

    /// Queues the copy of a batch. The host waits only for the copy before the last one.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Panics
    /// The panics of [`InputLimits::expect`]. Panics if the batch lacks states, or names some that
    /// layers that batches were used with before do not have.
    pub fn stage(&mut self, stream: &Stream, batch: &Batch<'_>) -> Result<(), CudaError> {
        self.limits.expect(batch);
        let named = states::Named::of(batch, &mut self.numbers);
        // A pass that is repeated does not ask again.
        if let Some(least) = self.least.limits() {
            named.expect(&least);
        }
        self.turn = (self.turn + 1) % STAGES;
        let stage = &mut self.stages[self.turn];
        let (groups, page_size) = (self.limits.groups, self.limits.page_size);
        let len = chain::fill_with_chains(stage.elements()?, batch, groups, page_size);
        stage.send(stream, 0..len, &mut self.device, 0)?;
        self.counts = [
            batch.tokens.len(),
            batch.rows.len(),
            batch.logit_tokens.len(),
            batch.choices.choices.len(),
        ];
        self.lengths.clear();
        self.lengths.extend(batch.rows.iter().map(|row| row.q_len));
        self.as_staged = true;
        self.drafts = batch.draft_shape();
        self.named = named;
        self.renumber();
        Ok(())
    }

    /// Sizes launches for a batch that the device lays out here by itself. It has at most
    /// `tokens` tokens and `rows` rows, and each row wants one token.
    ///
    /// # Panics
    /// Panics if there is no room for as many.
    pub(crate) fn expect(&mut self, tokens: usize, rows: usize) {
        self.expect_wanted(tokens, rows, rows);
    }

    /// Does the same as [`Self::expect`], for at most `wanted` wanted tokens.
    pub(crate) fn expect_wanted(&mut self, tokens: usize, rows: usize, wanted: usize) {
        let limits = &self.limits;
        assert!(
            tokens <= limits.tokens && wanted <= limits.tokens,
            "{rows} rows of {tokens} tokens fit into {limits:?}"
        );
        self.counts = [tokens, rows.min(limits.requests), wanted, 0];
        self.as_staged = false;
        self.renumber();
    }

    /// Gives the staged batch a new number.
    fn renumber(&mut self) {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        self.number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    }

    /// Sizes launches for `size.tokens` tokens, each of which may be a row and wanted. On the
    /// device the counts stay those of the staged batch.
    ///
    /// # Panics
    /// Panics if there is no room for as many.
    pub(crate) fn pad(&mut self, size: PassKey) {
        let limits = &self.limits;
        let fits = size.tokens <= limits.tokens && size.requests <= limits.requests;
        assert!(fits, "a pass of {size} fits into {limits:?}");
        let choices = self.counts[CHOICES];
        self.counts = [size.tokens, size.requests, size.tokens, choices];
        self.as_staged = false;
    }

    /// Tokens of the batch.
    pub fn tokens(&self) -> Rows<'_> {
        Rows::counted(self.counts[TOKENS], &self.device, TOKENS)
    }
    /// Rows of the batch, one for each request.
    pub fn rows(&self) -> Rows<'_> {
        Rows::counted(self.counts[ROWS], &self.device, ROWS)
    }
    /// Number of tokens that lie in rows of at least `least` tokens, or the most that may.
    pub(crate) fn tokens_in_long_rows(&self, least: usize) -> usize {
        if !self.as_staged {
            return self.counts[TOKENS];
        }
        let lengths = self.lengths.iter().map(|length| *length as usize);
        lengths.filter(|length| *length >= least).sum()
    }
    /// Tokens whose logits are wanted.
    pub fn wanted(&self) -> Rows<'_> {
        Rows::counted(self.counts[WANTED], &self.device, WANTED)
    }
    /// The first wanted tokens, at most `most` of them.
    pub(crate) fn wanted_of(&self, most: usize) -> Rows<'_> {
        Rows::counted(most, &self.device, WANTED)
    }
    /// Requests whose tokens are chosen. Launches are sized for the most that the batch can
    /// have.
    pub fn requests(&self) -> Rows<'_> {
        // Each of these requests has a row.
        let most = self.limits.choices.requests.min(self.counts[ROWS]);
        Rows::counted(most, &self.device, CHOICES)
    }
    /// Outcomes of the choices, on the device.
    ///
    /// # Panics
    /// Panics if there is no room for choices.
    pub fn chosen(&self) -> &Chosen {
        self.chosen
            .as_ref()
            .expect("tokens are chosen where there is room")
    }
    /// Words of the outcomes, and the range of them that launches use.
    ///
    /// # Panics
    /// Panics if there is no room for choices.
    pub(crate) fn outcome_words(&mut self) -> (&mut Buffer<u32>, Range<usize>) {
        let (requests, limits) = (self.requests().most(), &self.limits);
        let len = limits.choices.outcome_words(requests, limits.drafts());
        let chosen = self.chosen.as_mut();
        let chosen = chosen.expect("tokens are chosen where there is room");
        (chosen.words_mut(), 0..len)
    }
    /// Words of a batch, and the range of them that drafts can change in a batch of up to
    /// `tokens` tokens.
    pub(crate) fn drafted_words(&mut self, tokens: usize) -> (&mut Buffer<u32>, Range<usize>) {
        let words = HEADER_WORDS..HEADER_WORDS + self.limits.drafted_words(tokens);
        (&mut self.device, words)
    }
    /// Waits, and brings the outcomes of the staged batch to the host.
    ///
    /// # Errors
    /// [`CudaError::Driver`], also of work that was queued before.
    ///
    /// # Panics
    /// Panics if there is no room for choices.
    pub fn outcomes(&mut self, stream: &Stream) -> Result<Outcomes<'_>, CudaError> {
        let chosen = self
            .chosen
            .as_mut()
            .expect("tokens are chosen where there is room");
        chosen.read(stream, self.counts[CHOICES], self.drafts)
    }
    /// Returns true if `inputs` have room for the first pass of any chains that come with a
    /// batch.
    pub(crate) fn holds_first_for(&self, inputs: &Self) -> bool {
        let (chain, to) = (&self.limits.chain, &inputs.limits);
        let words = chain::first_words(chain) <= inputs.device.len() as u64;
        words && to.pages >= chain.pages && to.tokens >= chain.tokens
    }
    /// Room for the trees that the device drafts.
    ///
    /// # Panics
    /// Panics if there is no such room.
    pub(crate) fn trees(&self) -> &TreeRoom {
        self.trees
            .as_ref()
            .expect("trees are drafted where there is room")
    }
    /// Later batches are held against `limits` when they are staged.
    ///
    /// # Panics
    /// Panics if the batch has no states, or names what layers of `limits` do not have.
    pub(crate) fn expect_states(&self, limits: &StateLimits) {
        self.named.expect(limits);
        self.least.note(limits);
    }
    /// Largest batch that there is room for.
    pub fn limits(&self) -> &InputLimits {
        &self.limits
    }
    /// Number of the batch, which no other batch has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
    pub(crate) fn address(&self) -> u64 {
        self.device.address()
    }
}
