//! PHRASES drafts the tokens that follow an earlier place with the request's last
//! tokens, in the request's own text or in texts from operators.
//!
//! The example shows two declarations beyond a drafter. An option becomes a flag of the
//! program. Drafting from texts opens the server's routes for texts.

use std::sync::Arc;

use lockstep_backend::Backend;
use lockstep_speculation::{
    Build, CommandHandler, Corpora, CorporaView, CorpusIndex, Device, DraftError, DraftRow,
    Drafter, DrafterFactory, Drafts, Node,
};
use lockstep_types::{Algorithm, Capabilities, NumberOption, OptionSpec};

/// Number of tokens at a request's end that the drafter looks for.
const LENGTH: NumberOption = NumberOption {
    flag: "--speculative-phrase-length",
    unit: "TOKENS",
    default: 2,
    least: 1,
    most: 16,
    help: "tokens at a request's end that are looked for, at most 16",
};

/// The algorithm. All drafters that it builds share its texts.
#[derive(Debug, Clone, Default)]
pub struct Phrases {
    texts: Corpora<Text>,
}

impl Algorithm for Phrases {
    fn name(&self) -> &str {
        "PHRASES"
    }

    fn summary(&self) -> &str {
        "what follows the last tokens in the request and in given texts"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            adaptive: true,
            drafts_from_texts: true,
            ..Capabilities::default()
        }
    }

    fn options(&self) -> &[OptionSpec] {
        const { &[OptionSpec::Number(LENGTH)] }
    }

    fn why_others_refuse_options(&self) -> &str {
        "it looks for no phrases"
    }
}

impl<B: Backend> DrafterFactory<B> for Phrases {
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        Ok(Box::new(PhraseDrafter {
            length: LENGTH.get(&build.speculation.options) as usize,
            texts: CorporaView::new(self.texts.clone()),
        }))
    }
}

struct PhraseDrafter {
    /// Number of tokens in a phrase.
    length: usize,
    texts: CorporaView<Text>,
}

impl<B: Backend> Drafter<B> for PhraseDrafter {
    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        for (at, row) in rows.iter().enumerate() {
            let text = device.requests.tokens(row.slot);
            let Some(from) = text.len().checked_sub(self.length) else {
                continue;
            };
            let (before, phrase) = (&text[..text.len() - 1], &text[from..]);
            let continuation = match after(before, phrase) {
                Some(place) => &text[place..],
                None => {
                    let mut texts = self.texts.indices().iter();
                    let found = texts.find_map(|text| Some(&text.0[after(&text.0, phrase)?..]));
                    found.unwrap_or_default()
                }
            };
            let depth = row.steps.min(row.most);
            for (token, parent) in continuation.iter().take(depth).zip(0..) {
                let token = *token;
                drafts.push(at, Node { token, parent });
            }
        }
        Ok(())
    }

    fn commands(&self) -> Option<Arc<dyn CommandHandler>> {
        Some(Arc::new(self.texts.corpora().clone()))
    }
}

/// The tokens of a given text, searched for phrases from end to start. An algorithm for
/// long texts would build its index in [`CorpusIndex::new`], on a thread that no step
/// waits for.
#[derive(Debug)]
struct Text(Vec<u32>);

impl CorpusIndex for Text {
    fn new(tokens: Vec<u32>) -> Self {
        Self(tokens)
    }

    fn tokens(&self) -> usize {
        self.0.len()
    }
}

/// Returns the index behind the last `phrase` in `text`.
fn after(text: &[u32], phrase: &[u32]) -> Option<usize> {
    let place = text
        .windows(phrase.len())
        .rposition(|window| window == phrase)?;
    Some(place + phrase.len())
}

#[cfg(test)]
mod tests {
    use super::after;

    #[test]
    fn the_last_place_counts() {
        assert_eq!(after(&[1, 2, 3, 1, 2, 4], &[1, 2]), Some(5));
        assert_eq!(after(&[1, 2], &[2]), Some(2));
        assert_eq!(after(&[1, 2], &[2, 1]), None);
        assert_eq!(after(&[1], &[1, 2]), None);
    }
}
