//! Simulated requests. Their text decides how many of their drafts are accepted.

/// A seeded generator (SplitMix64: Steele, Lea & Flood 2014), as a hash.
pub fn hash(words: [u64; 4]) -> u64 {
    words
        .into_iter()
        .fold(0x9e37_79b9_7f4a_7c15, |state, word| {
            let mut value = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
            value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            value ^ value >> 31
        })
}

/// Kinds of texts, by how well a drafter predicts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    Predictable,
    Code,
    Hard,
    /// Each request is one of the others.
    Mixed,
}

/// A request, and its progress.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    id: u64,
    text: Text,
    /// Prompt tokens that have not run yet.
    pub prompt: u32,
    /// Tokens to emit, and tokens emitted.
    tokens: u32,
    emitted: u32,
}

impl Request {
    pub fn new(id: u64, text: Text, prompt: u32, tokens: (u32, u32)) -> Self {
        let draw = |at| hash([id, at, at, at]);
        let text = match (text, draw(1) % 3) {
            (Text::Mixed, 0) => Text::Predictable,
            (Text::Mixed, 1) => Text::Code,
            (Text::Mixed, _) => Text::Hard,
            (text, _) => text,
        };
        let (least, most) = tokens;
        let tokens = least + (draw(5) % u64::from(most - least + 1)) as u32;
        Self {
            id,
            text,
            prompt,
            tokens,
            emitted: 0,
        }
    }

    /// Returns how many of 1,000 drafts are accepted at a position if all before it were. The
    /// number rises with depth, as with EAGLE's heads. Each request has an offset of its own, of
    /// up to 40 of the 1,000.
    fn hazard(&self, position: u32) -> u32 {
        let (first, step, most) = match self.text {
            Text::Predictable => (900, 10, 950),
            Text::Code | Text::Mixed => (740, 15, 830),
            Text::Hard => (300, 40, 480),
        };
        let own = hash([self.id, 2, 2, 2]) % 81;
        (first + step * position).min(most) + own as u32 - 40
    }

    /// Returns how many of `depth` drafts are accepted at the request's present token. The answer is
    /// the same for every policy that is compared.
    pub fn accepts(&self, depth: u32) -> u32 {
        let emitted = u64::from(self.emitted);
        let missed = |at: &u32| {
            let draw = hash([self.id, emitted, u64::from(*at), 3]) % 1000;
            draw >= u64::from(self.hazard(*at))
        };
        (0..depth).find(missed).unwrap_or(depth)
    }

    /// Counts emitted tokens.
    pub fn emit(&mut self, tokens: u32) {
        self.emitted += tokens;
    }

    pub fn is_done(&self) -> bool {
        self.emitted >= self.tokens
    }
}
