//! NGRAM: drafts are the tokens that followed the same words before.

mod continuations;
mod history;
mod index;
mod options;
mod trie;

use std::{ops::Range, sync::Arc};

use lockstep_backend::Backend;
use lockstep_types::{
    Algorithm, Capabilities, ConfigError, DraftShape, ModelConfig, OptionSpec, OptionValues,
    SpeculationConfig,
};

use crate::{
    Build, CommandHandler, Corpora, CorporaView, Device, DraftError, DraftRow, Drafter,
    DrafterFactory, Drafts, ExtendRow, TreeShape,
};
use continuations::Continuations;
use history::{History, Match, PLACES};
use index::Index;
use options::NgramConfig;

pub use trie::Trie;

/// The algorithm. It has no draft model, and nothing on the device. All drafters built from one
/// value draft from the same corpora, also after new weights were loaded.
///
/// Requests draft from texts served to other requests, unless texts are `private`. This changes
/// no text. But the speed of a text may tell that a similar one was served before, as with a
/// shared prefix cache.
#[derive(Debug, Default, Clone)]
pub struct Ngram {
    corpora: Corpora<Index>,
}

impl Algorithm for Ngram {
    fn name(&self) -> &str {
        "NGRAM"
    }

    fn summary(&self) -> &str {
        "what followed the same words in the request, in given texts and in served ones"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            supports_tree: true,
            adaptive: true,
            drafts_from_texts: true,
            ..Capabilities::default()
        }
    }

    /// Returns deep chains: a look-up costs nothing, and copied passages are often long.
    fn default_shape(&self) -> DraftShape {
        DraftShape {
            num_steps: 7,
            topk: 1,
            num_draft_tokens: 8,
        }
    }

    fn options(&self) -> &[OptionSpec] {
        &options::OPTIONS
    }

    fn why_others_refuse_options(&self) -> &str {
        "it looks no texts up"
    }

    fn complete_options(&self, given: &mut OptionValues) -> Result<(), ConfigError> {
        options::complete(given)
    }

    fn memory_bytes(&self, speculation: &SpeculationConfig) -> u64 {
        let config = NgramConfig::read(&speculation.options);
        match config.private {
            true => 0,
            false => Trie::bytes(config.capacity),
        }
    }

    fn validate(
        &self,
        speculation: &SpeculationConfig,
        _target: &ModelConfig,
    ) -> Result<(), ConfigError> {
        let config = NgramConfig::read(&speculation.options);
        config.check()?;
        let window = window(&config, speculation.num_steps);
        if config.capacity > window || config.private {
            return Ok(());
        }
        Err(ConfigError::value(
            options::CAPACITY.flag,
            config.capacity,
            format!("the longest match and its continuation are {window} tokens"),
            format!("Give at least {}, or leave it out", window + 1),
        ))
    }
}

impl<B: Backend> DrafterFactory<B> for Ngram {
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        let steps = build.speculation.num_steps;
        let config = NgramConfig::read(&build.speculation.options);
        Ok(Box::new(NgramDrafter::new(
            config,
            steps,
            build.requests,
            self.corpora.clone(),
        )))
    }
}

/// Returns the number of tokens of a path of the shared trie: a match and its continuation.
fn window(config: &NgramConfig, steps: usize) -> usize {
    config.max_match + steps.max(1)
}

/// Looks up the end of a request's text: in the text itself, in the corpora, and in the texts
/// served before, unless those are private. The longest match wins. Among equal matches the
/// request's own text comes before a corpus, and a corpus before texts served to others. If
/// there are branches to fill, weaker evidence follows stronger.
struct NgramDrafter {
    shortest: usize,
    longest: usize,
    window: usize,
    slots: Vec<Slot>,
    /// Texts that were served; `None` if they are not to be remembered.
    trie: Option<Trie>,
    corpora: CorporaView<Index>,
    found: Continuations,
    matches: Vec<Match>,
}

/// State of one request.
struct Slot {
    history: History,
    /// Start of the first window of the request's text that is not yet in the trie.
    served: usize,
}

/// Source of a match. Among equal matches, the order here is the rank.
#[derive(Debug, Clone, Copy)]
enum Source {
    Own,
    Corpus,
    Served,
}

impl NgramDrafter {
    fn new(config: NgramConfig, steps: usize, requests: usize, corpora: Corpora<Index>) -> Self {
        let shortest = config.min_match.max(1);
        let longest = config.max_match.max(shortest);
        let slot = || Slot {
            history: History::new(shortest, longest),
            served: 0,
        };
        Self {
            shortest,
            longest,
            window: window(&config, steps),
            slots: std::iter::repeat_with(slot).take(requests).collect(),
            trie: (!config.private).then(|| Trie::new(config.capacity)),
            corpora: CorporaView::new(corpora),
            found: Continuations::default(),
            matches: Vec::new(),
        }
    }

    /// Begins the text of a request.
    fn begin(&mut self, slot: usize, text: &[u32]) {
        let longest = self.longest;
        let slot = &mut self.slots[slot];
        slot.history.clear();
        // The text to serve begins after these tokens, and is found by their end.
        slot.served = text.len().saturating_sub(longest);
    }

    /// Drafts for a request with the text `text`.
    fn propose(&mut self, row: &DraftRow, text: &[u32], drafts: &mut Drafts, at: usize) {
        let shape = TreeShape::of(row);
        if shape.steps > 0 {
            self.look_up(row.slot, text, shape);
            self.found.draft(shape, drafts, at);
        }
    }

    /// Finds the tokens that may follow a request's `text`.
    fn look_up(&mut self, slot: usize, text: &[u32], shape: TreeShape) {
        self.found.clear();
        let history = &mut self.slots[slot].history;
        history.index(text);
        history.find(text, shape.topk > 1, &mut self.matches);
        // Stronger evidence comes first, and the latest among equal evidence.
        let order = |at: &Match| std::cmp::Reverse((at.len, at.end));
        self.matches.sort_unstable_by_key(order);
        for at in &self.matches {
            // If the match reaches the text's end, the text repeats itself. The piece between
            // then follows over and over.
            let piece = text[at.end..].iter().copied().cycle();
            let rank = rank(self.longest, at.len, Source::Own);
            self.found.add_path(rank, piece.take(shape.steps));
        }
        for index in self.corpora.indices() {
            if let Some((places, len)) = index.find(text, self.shortest..=self.longest) {
                let rank = rank(self.longest, len, Source::Corpus);
                let stride = places.len().div_ceil(PLACES);
                for place in places.iter().step_by(stride) {
                    let after = index.after(*place).iter().copied();
                    self.found.add_path(rank, after.take(shape.steps));
                }
            }
        }
        if let Some(trie) = &mut self.trie
            && let Some((end, len)) = trie.find(text, self.shortest..=self.longest)
        {
            let rank = rank(self.longest, len, Source::Served);
            trie.follow(end, shape, rank, &mut self.found);
        }
    }

    /// Takes a request's text into the trie: every complete window. If the text is `whole`,
    /// also the windows that its end cuts short.
    fn serve(&mut self, slot: usize, text: &[u32], whole: bool) {
        let Some(trie) = &mut self.trie else {
            return;
        };
        let served = &mut self.slots[slot].served;
        let end = match whole {
            true => text.len().saturating_sub(1),
            false => (text.len() + 1).saturating_sub(self.window),
        };
        for start in *served..end {
            let window = (start + self.window).min(text.len());
            trie.insert(&text[start..window]);
        }
        *served = end.max(*served);
    }
}

/// Returns the rank of a match; lower is stronger. A longer match has a lower rank.
fn rank(longest: usize, len: usize, source: Source) -> u32 {
    (longest - len) as u32 * 3 + source as u32
}

impl<B: Backend> Drafter<B> for NgramDrafter {
    fn open(&mut self, slot: usize, tokens: &[u32], _cached: Range<usize>) {
        self.begin(slot, tokens);
    }

    fn close(&mut self, slot: usize, tokens: &[u32]) {
        self.serve(slot, tokens, true);
    }

    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        for (at, row) in rows.iter().enumerate() {
            self.propose(row, device.requests.tokens(row.slot), drafts, at);
        }
        Ok(())
    }

    fn extend(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        for row in rows {
            self.serve(row.slot, device.requests.tokens(row.slot), false);
        }
        Ok(())
    }

    fn forget(&mut self) {
        if let Some(trie) = &mut self.trie {
            trie.clear();
        }
    }

    fn commands(&self) -> Option<Arc<dyn CommandHandler>> {
        Some(Arc::new(self.corpora.corpora().clone()))
    }
}

#[cfg(test)]
mod tests;
