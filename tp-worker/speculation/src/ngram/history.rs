//! The places where a request's own text said the same before.

/// Most places of a chain that one look-up compares with the text's end.
pub(super) const PLACES: usize = 64;

/// An index over one growing text, to find earlier places that end as the text does.
///
/// There is one chain of places per gram length: the shortest match, twice that, and so on up
/// to the longest. A look-up asks the longest gram first, and compares the [`PLACES`] most
/// recent places in its chain. So it finds a longest match, unless a gram of at least half its
/// length ends more often than that in between. A token costs one insertion per gram length,
/// and a look-up at most [`PLACES`] comparisons per gram length, however long the text is.
/// Example: matches of 1 to 16 tokens have grams of 1, 2, 4, 8 and 16.
#[derive(Debug)]
pub(super) struct History {
    /// Chains, ascending by gram.
    chains: Vec<Chain>,
    /// Number of places in the chains: 1..=`indexed`.
    indexed: usize,
    /// True if the chains' heads still belong to an earlier text.
    stale: bool,
}

/// An earlier place where the text said the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// Number of tokens before the continuation.
    pub(super) end: usize,
    /// Number of tokens before the continuation that equal the text's last ones.
    pub(super) len: usize,
}

#[derive(Debug)]
struct Chain {
    gram: usize,
    /// By hash of the gram: the last place that ends with it; 0 if there is none.
    heads: Vec<u32>,
    /// By place: the place before it with the same hash; 0 if there is none.
    before: Vec<u32>,
}

impl History {
    /// Makes an index for matches of `shortest` to `longest` tokens.
    pub(super) fn new(shortest: usize, longest: usize) -> Self {
        let doubled = |gram: &usize| (*gram < longest).then(|| (*gram * 2).min(longest));
        let chain = |gram| Chain {
            gram,
            heads: Vec::new(),
            before: Vec::new(),
        };
        Self {
            chains: std::iter::successors(Some(shortest), doubled)
                .map(chain)
                .collect(),
            indexed: 0,
            stale: false,
        }
    }

    /// Begins another text, keeping the memory. The old tables are cleared only when the next
    /// text is indexed.
    pub(super) fn clear(&mut self) {
        self.stale |= self.indexed > 0;
        self.indexed = 0;
    }

    /// Takes in the tokens by which `text` has grown. Its last place has no continuation yet,
    /// and waits for the next call.
    pub(super) fn index(&mut self, text: &[u32]) {
        let places = text.len().saturating_sub(1);
        let capacity = self.chains.first().map_or(0, |chain| chain.heads.len());
        if places > capacity {
            let capacity = text.len().next_power_of_two().max(256);
            for chain in &mut self.chains {
                chain.heads.clear();
                chain.heads.resize(capacity, 0);
                chain.before.resize(capacity + 1, 0);
            }
            self.indexed = 0;
            self.stale = false;
        } else if std::mem::take(&mut self.stale) {
            for chain in &mut self.chains {
                chain.heads.fill(0);
            }
        }
        for place in self.indexed + 1..=places {
            each_gram(&mut self.chains, &text[..place], |chain, bucket| {
                chain.before[place] = std::mem::replace(&mut chain.heads[bucket], place as u32);
            });
        }
        self.indexed = places;
    }

    /// Finds earlier places that end as `text` does; the text must be indexed. The first places
    /// are those of the longest gram that has any, from the most recent on. With `all`, places
    /// of shorter grams follow, as long as there are fewer than [`PLACES`].
    pub(super) fn find(&mut self, text: &[u32], all: bool, found: &mut Vec<Match>) {
        found.clear();
        let mut firsts = [0; usize::BITS as usize];
        let mut rungs = 0;
        each_gram(&mut self.chains, text, |chain, bucket| {
            firsts[rungs] = chain.heads.get(bucket).copied().unwrap_or(0);
            rungs += 1;
        });
        let longest = self.chains.last().map_or(0, |chain| chain.gram);
        let mut above = longest + 1;
        for (chain, first) in self.chains[..rungs].iter().zip(firsts).rev() {
            let some = |place: u32| (place != 0).then_some(place);
            let before = |place: &u32| some(chain.before[*place as usize]);
            for place in std::iter::successors(some(first), before).take(PLACES) {
                let end = place as usize;
                let len = common_end(&text[..end], text, longest);
                if (chain.gram..above).contains(&len) {
                    found.push(Match { end, len });
                }
            }
            if found.len() >= PLACES || !(all || found.is_empty()) {
                break;
            }
            above = chain.gram;
        }
    }
}

/// Calls `each` with the chains whose gram fits `text`, shortest first, and with the bucket of
/// the gram that ends the text.
fn each_gram(chains: &mut [Chain], text: &[u32], mut each: impl FnMut(&mut Chain, usize)) {
    let mut chains = chains.iter_mut().peekable();
    let mut hash = 0u64;
    for (taken, token) in text.iter().rev().enumerate() {
        hash = (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 32;
        if let Some(chain) = chains.next_if(|chain| chain.gram == taken + 1) {
            let bucket = hash as usize & chain.heads.len().saturating_sub(1);
            each(chain, bucket);
        }
        if chains.peek().is_none() {
            break;
        }
    }
}

/// Returns the number of equal tokens at the ends of `a` and `b`, at most `most`.
fn common_end(a: &[u32], b: &[u32], most: usize) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev()).take(most);
    pairs.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
