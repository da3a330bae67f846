//! Table of the bytes that each token id stands for.

use tokenizers::Tokenizer as HfTokenizer;

use super::decoder::Decoder;

/// Bytes and properties of every token id, in two flat arrays. Looking up a token touches no heap
/// and no lock.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// Bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// `ends[id]` is the end of the bytes of `id` and the begin of the bytes of `id + 1`.
    ends: Vec<u32>,
    flags: Vec<u8>,
    tokens: usize,
}

const PRESENT: u8 = 1;
const SPECIAL: u8 = 2;

/// Maximum number of ids, more than any vocabulary has. A larger id in a file is a mistake and
/// must not lead to a huge table.
const MOST_IDS: u32 = 1 << 24;

impl Vocabulary {
    /// Decodes every token once. Fails on an id beyond any sensible vocabulary.
    pub(super) fn new(tokenizer: &HfTokenizer, decoder: &Decoder) -> Result<Self, String> {
        let vocabulary = tokenizer.get_vocab(false);
        let added = tokenizer.get_added_tokens_decoder();
        let last = vocabulary.values().chain(added.keys()).max().copied();
        if let Some(id) = last.filter(|&id| id >= MOST_IDS) {
            return Err(format!("token id {id} is too large"));
        }
        let size = last.map_or(0, |id| id as usize + 1);
        let mut contents: Vec<Option<&str>> = vec![None; size];
        for (token, &id) in &vocabulary {
            contents[id as usize] = Some(token);
        }
        let mut flags = vec![0; size];
        for (&id, token) in &added {
            contents[id as usize] = Some(&token.content);
            let special = token.special
                || tokenizer
                    .get_added_vocabulary()
                    .is_special_token(&token.content);
            flags[id as usize] = if special { SPECIAL } else { 0 };
        }
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(size),
            flags,
            tokens: 0,
        };
        for (id, content) in contents.into_iter().enumerate() {
            if let Some(content) = content {
                table.bytes.extend(decoder.piece(content, false));
                table.flags[id] |= PRESENT;
                table.tokens += 1;
            }
            let end = u32::try_from(table.bytes.len())
                .map_err(|_| "the vocabulary exceeds 4 GiB".to_owned())?;
            table.ends.push(end);
        }
        Ok(table)
    }

    /// Largest token id plus one.
    pub(crate) fn id_limit(&self) -> usize {
        self.ends.len()
    }

    /// Number of ids that have a token.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.flags(id) & PRESENT != 0
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.flags(id) & SPECIAL != 0
    }

    /// Returns the bytes that a token contributes to a text, unless it is the first token; empty
    /// for an id without a token.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    fn flags(&self, id: u32) -> u8 {
        self.flags.get(id as usize).copied().unwrap_or(0)
    }
}
