//! The model's answers without speculation, and the drafts of drafters of the same family
//! that are accepted in them.

use std::collections::HashMap;

use lockstep_local_engine::LocalEngine;
use lockstep_planner::RequestId;
use lockstep_types::request::Request;
use lockstep_types::sampling::SamplingParams;

use super::run::ask;
use super::work::Text;
use crate::speculate::prompts::Prompts;

/// Fewest tokens of an answer: in shorter ones, which are left out, most steps would be
/// prompts.
const SHORTEST: usize = 8;

/// Accepted drafts by text and position, at the greatest depth.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    /// For each text, by number of tokens that are out: accepted drafts of the drafts
    /// proposed after these tokens. Drafts for the first token are never proposed.
    pub accepted: Vec<Vec<u32>>,
    /// Positions where the model of the log would go on differently from the text.
    pub different: u64,
}

/// Answers to all prompts, at temperature 0, of at most `most` tokens.
///
/// A prompt takes the first tokens of its answer, up to one beyond a whole page. So all
/// pages of a prompt but one token are found in the prefix cache.
///
/// # Errors
/// The errors of the engine.
pub fn answers(
    engine: &mut LocalEngine,
    prompts: &Prompts,
    most: u32,
    page: usize,
) -> anyhow::Result<Vec<Text>> {
    let mut all = Vec::new();
    for domain in prompts.domains() {
        for prompt in &domain.prompts {
            all.push((domain.name.clone(), prompt.clone()));
        }
    }
    let requests = all
        .iter()
        .map(|(_, prompt)| ask(prompt, most, SamplingParams::greedy()));
    let completions = engine.run(requests.collect())?;
    let texts = all.into_iter().zip(completions);
    let texts = texts.filter_map(|((domain, mut prompt), completion)| {
        let mut answer = completion.token_ids;
        let missing = (page + 1 - prompt.len() % page) % page;
        if answer.len() < missing + SHORTEST {
            return None;
        }
        prompt.extend(answer.drain(..missing));
        Some(Text {
            domain,
            prompt,
            answer,
        })
    });
    Ok(texts.collect())
}

/// Lets `engine` go on from every position of every answer, `depth` draft steps deep,
/// `batch` positions at a time.
///
/// # Errors
/// The errors of the engine.
pub fn log(
    engine: &mut LocalEngine,
    texts: &[Text],
    depth: u32,
    batch: usize,
) -> anyhow::Result<Log> {
    let mut log = Log::default();
    for text in texts {
        log.accepted.push(vec![0; text.answer.len()]);
        // The prompt's last page comes first, so that the other requests find it.
        engine.run(vec![ask(&text.prompt, 1, SamplingParams::greedy())])?;
        let positions: Vec<usize> = (1..text.answer.len()).collect();
        for positions in positions.chunks(batch) {
            let requests = positions.iter().map(|out| from_position(text, *out, depth));
            let rounds = second_outputs(engine, requests.collect())?;
            for (out, (first, accepted)) in positions.iter().zip(rounds) {
                log.different += u64::from(first != Some(text.answer[out - 1]));
                if let Some(list) = log.accepted.last_mut() {
                    list[*out] = accepted;
                }
            }
        }
    }
    Ok(log)
}

impl Log {
    /// Part of a text's positions at which at least `depth` drafts are accepted.
    pub fn survival(&self, text: usize, depth: u32) -> f64 {
        let positions = self.accepted[text].get(1..).unwrap_or_default();
        let kept = positions.iter().filter(|accepted| **accepted >= depth);
        kept.count() as f64 / positions.len().max(1) as f64
    }

    /// A digit (or letter, from ten on) for each position.
    pub fn digits(&self, text: usize) -> String {
        let positions = self.accepted[text].iter();
        let digit = |accepted: &u32| char::from_digit(*accepted, 36).unwrap_or('+');
        positions.map(digit).collect()
    }
}

/// The request that goes on from a position: the prompt and all of the answer's first `out`
/// tokens but the last. One token and one verification continue it.
fn from_position(text: &Text, out: usize, depth: u32) -> Request {
    let mut prompt = text.prompt.clone();
    prompt.extend(&text.answer[..out - 1]);
    ask(&prompt, depth + 2, SamplingParams::greedy())
}

/// For each request its first token, and the number of drafts that its first verification
/// accepted.
fn second_outputs(
    engine: &mut LocalEngine,
    requests: Vec<Request>,
) -> anyhow::Result<Vec<(Option<u32>, u32)>> {
    let mut found: HashMap<RequestId, (Option<u32>, Option<u32>)> = HashMap::new();
    let mut ids = Vec::with_capacity(requests.len());
    for request in requests {
        ids.push(engine.submit(request)?);
    }
    while engine.step()? {
        let mut seen = Vec::new();
        for (id, output) in engine.take_outputs() {
            let (first, second) = found.entry(id).or_default();
            match (first.is_some(), output.token_ids.len()) {
                (_, 0) => {}
                (false, _) => *first = output.token_ids.first().copied(),
                (true, tokens) if second.is_none() => {
                    *second = u32::try_from(tokens - 1).ok();
                    seen.push(id);
                }
                (true, _) => {}
            }
        }
        // Later outputs are of no interest.
        for id in seen {
            engine.abort(id);
        }
    }
    let outcome = |id: &RequestId| {
        let (first, second) = found.get(id).copied().unwrap_or_default();
        (first, second.unwrap_or(0))
    };
    Ok(ids.iter().map(outcome).collect())
}
