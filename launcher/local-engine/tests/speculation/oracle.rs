//! Answers to the same requests without speculation.

use std::{
    collections::BTreeMap,
    sync::{LazyLock, Mutex},
};

use lockstep_local_engine::{Completion, LocalEngine};
use lockstep_types::{
    request::{FinishReason, Request, Usage},
    sampling::TokenLogprob,
};

use crate::{
    goldens::GOLDENS,
    requests::{Job, golden},
    setup::{Form, Setup},
};

/// Engines without speculation, one for each form.
#[derive(Default)]
pub struct Oracle(BTreeMap<Form, LocalEngine>);

impl Oracle {
    /// The answers to `requests`, all asked at once.
    pub fn answers<'a>(
        &mut self,
        form: Form,
        requests: impl IntoIterator<Item = &'a Request>,
    ) -> Vec<Completion> {
        let plain = |request: &Request| {
            let mut request = request.clone();
            request.generation.max_draft_steps = None;
            request
        };
        let engine = self.0.entry(form);
        let engine = engine.or_insert_with(|| Setup::of(form).start());
        engine
            .run(requests.into_iter().map(plain).collect())
            .unwrap()
    }

    /// The answers to requests that are asked alone, one after the other; see
    /// [`Self::answers`].
    pub fn alone<'a>(
        &mut self,
        form: Form,
        jobs: impl IntoIterator<Item = &'a Job>,
    ) -> Vec<Completion> {
        jobs.into_iter()
            .map(|job| self.answers(form, [&job.request]).remove(0))
            .collect()
    }
}

type Answers = BTreeMap<Form, Vec<Completion>>;

/// The answers to all [`GOLDENS`], computed once.
pub fn golden_answers(form: Form) -> Vec<Completion> {
    static KNOWN: LazyLock<Mutex<Answers>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap();
    let answers = known.entry(form).or_insert_with(|| {
        let requests: Vec<Request> = GOLDENS.iter().map(golden).collect();
        Oracle::default().answers(form, &requests)
    });
    answers.clone()
}

/// Asserts that an answer has the bits of the expected one. An aborted answer is its
/// beginning.
pub fn compare(what: &str, found: &Completion, expected: &Completion) {
    let finish = found.finish.as_ref().expect("it ended");
    let wanted = expected.finish.as_ref().expect("it ended");
    let usage = |usage: Usage| (usage.prompt_tokens, usage.completion_tokens);
    let mut length = expected.token_ids.len();
    if finish.outcome == Ok(FinishReason::Abort) {
        length = found.token_ids.len();
    } else {
        let end = (finish.outcome.clone(), finish.matched_token);
        assert_eq!(
            end,
            (wanted.outcome.clone(), wanted.matched_token),
            "{what}: end"
        );
        assert_eq!(usage(finish.usage), usage(wanted.usage), "{what}: usage");
    }
    assert_eq!(
        found.token_ids,
        expected.token_ids[..length],
        "{what}: tokens"
    );
    let reported = length.min(expected.logprobs.len());
    same(what, &found.logprobs, &expected.logprobs[..reported]);
    // A request that was aborted during its prompt has reported nothing of it.
    if length > 0 || finish.outcome != Ok(FinishReason::Abort) {
        same(what, &found.prompt_logprobs, &expected.prompt_logprobs);
    }
}

/// Asserts that two lists have the same bits.
fn same(what: &str, found: &[TokenLogprob], expected: &[TokenLogprob]) {
    assert_eq!(found.len(), expected.len(), "{what}: positions");
    let bits = |logprob: &TokenLogprob| {
        let top = logprob.top.iter().map(|(id, value)| (*id, value.to_bits()));
        let top: Vec<_> = top.collect();
        (logprob.token_id, logprob.logprob.map(f32::to_bits), top)
    };
    for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            bits(found) == bits(expected),
            "{what}: position {position} is {found:?}, not {expected:?}"
        );
    }
}
