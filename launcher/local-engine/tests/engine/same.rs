//! Equality of answers, bit by bit.

use lockstep_local_engine::Completion;
use lockstep_types::sampling::TokenLogprob;

/// Asserts that tokens, log-probabilities and alternatives have the same bits, and that the
/// answers ended in the same way.
pub fn assert_same(what: &str, found: &Completion, expected: &Completion) {
    assert_eq!(found.token_ids, expected.token_ids, "{what}: tokens");
    assert_same_logprobs(what, &found.logprobs, &expected.logprobs);
    assert_same_logprobs(what, &found.prompt_logprobs, &expected.prompt_logprobs);
    let end = |completion: &Completion| {
        let finish = completion.finish.clone().expect("it ended");
        (finish.outcome, finish.matched_token)
    };
    assert_eq!(end(found), end(expected), "{what}: end");
}

/// Asserts like [`assert_same`], without the prompt.
pub fn assert_same_output(what: &str, found: &Completion, expected: &Completion) {
    assert_eq!(found.token_ids, expected.token_ids, "{what}: tokens");
    assert_same_logprobs(what, &found.logprobs, &expected.logprobs);
}

/// Asserts that two lists are the same bits.
pub fn assert_same_logprobs(what: &str, found: &[TokenLogprob], expected: &[TokenLogprob]) {
    assert_eq!(found.len(), expected.len(), "{what}: positions");
    for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            bits(found) == bits(expected),
            "{what}: position {position} is {found:?}, not {expected:?}"
        );
    }
}

type Bits = (u32, Option<u32>, Vec<(u32, u32)>);

fn bits(logprob: &TokenLogprob) -> Bits {
    let top = logprob.top.iter().map(|(id, value)| (*id, value.to_bits()));
    let own = logprob.logprob.map(f32::to_bits);
    (logprob.token_id, own, top.collect())
}

/// The largest difference between the log-probabilities of the same tokens.
pub fn largest_difference(found: &[TokenLogprob], expected: &[TokenLogprob]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected).map(|(a, b)| {
        assert_eq!(a.token_id, b.token_id);
        match (a.logprob, b.logprob) {
            (Some(a), Some(b)) => (a - b).abs(),
            (a, b) => {
                assert_eq!(a, b, "one of them is not scored");
                0.0
            }
        }
    });
    pairs.fold(0.0, f32::max)
}
