//! The exchanges of ranks' recorded passes, compared by all ranks before they serve. Between
//! devices nobody compares data, and ranks that differ would wait for ever.

use lockstep_adaptive::Digest;
use lockstep_backend::{Axis, Backend, Exchanged, PassKey, PassPlan};

use crate::worker::WorkerError;

/// Checks that the passes of all ranks have the same exchanges. Returns their digest.
///
/// # Errors
/// [`WorkerError::ExchangesDiffer`] on every rank that differs from another;
/// [`WorkerError::Backend`] when a peer is gone.
pub fn compare<B: Backend>(backend: &mut B, passes: &[PassPlan]) -> Result<u64, WorkerError> {
    let (rank, size) = backend.group(Axis::World);
    let own = to_words(passes);
    let digest = digest(&own);
    let control = backend.control(Axis::World);
    let mut all = vec![[0; 3]; size];
    let shown = [digest as u32, (digest >> 32) as u32, own.len() as u32];
    control.exchange(&shown, all.as_flattened_mut())?;
    // If two ranks differ, every rank finds one that differs from itself.
    let Some(peer) = all.iter().position(|theirs| *theirs != shown) else {
        return Ok(digest);
    };
    let longest = all.iter().map(|words| words[2] as usize).max().unwrap_or(0);
    let mut padded = own;
    padded.resize(longest, 0);
    let mut every = vec![0; longest * size];
    control.exchange(&padded, &mut every)?;
    let [low, high, count] = all[peer];
    let theirs = from_words(&every[peer * longest..][..count as usize]);
    Err(match first_difference(passes, &theirs) {
        Some((key, at, [ours, theirs])) => WorkerError::ExchangesDiffer {
            rank,
            peer,
            key,
            at,
            ours,
            theirs,
        },
        None => WorkerError::PassesDiffer {
            rank,
            ours: digest,
            peer,
            theirs: u64::from(low) | u64::from(high) << 32,
        },
    })
}

/// Returns the first pass in which two ranks differ, the place in it, and the exchange of each
/// rank there. A pass that only one rank has differs at its beginning.
fn first_difference(
    ours: &[PassPlan],
    theirs: &[PassPlan],
) -> Option<(PassKey, usize, [Option<Exchanged>; 2])> {
    let pairs = (0..ours.len().max(theirs.len())).map(|at| [ours.get(at), theirs.get(at)]);
    for [own, other] in pairs {
        let key = own.or(other)?.key;
        let nothing = PassPlan {
            key,
            exchanges: Vec::new(),
        };
        let of = |plan: Option<&PassPlan>| {
            let same = plan.filter(|plan| plan.key == key);
            same.unwrap_or(&nothing).clone()
        };
        if let Some((at, pair)) = of(own).differs(&of(other)) {
            return Some((key, at, pair));
        }
    }
    None
}

fn digest(words: &[u32]) -> u64 {
    let mut digest = Digest::new();
    digest.list(words);
    digest.value()
}

/// Encodes each pass: its size, the number of its collectives, and the collectives.
fn to_words(passes: &[PassPlan]) -> Vec<u32> {
    let mut words = Vec::new();
    for PassPlan { key, exchanges } in passes {
        let PassKey {
            requests,
            tokens,
            max_q_len,
        } = *key;
        let head = [requests, tokens, max_q_len, exchanges.len()];
        words.extend(head.map(|number| number as u32));
        words.extend(exchanges.iter().flat_map(|one| one.to_words()));
    }
    words
}

/// Decodes passes; words without a meaning are left out.
fn from_words(mut words: &[u32]) -> Vec<PassPlan> {
    let mut passes = Vec::new();
    while let Some((&[requests, tokens, max_q_len, count], rest)) = words.split_first_chunk() {
        let (own, behind) = rest.split_at(rest.len().min(count as usize * Exchanged::WORDS));
        let (chunks, _) = own.as_chunks();
        passes.push(PassPlan {
            key: PassKey {
                requests: requests as usize,
                tokens: tokens as usize,
                max_q_len: max_q_len as usize,
            },
            exchanges: chunks.iter().filter_map(Exchanged::from_words).collect(),
        });
        words = behind;
    }
    passes
}

#[cfg(test)]
mod tests;
