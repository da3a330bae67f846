//! SGLang's answers: whole objects, or a stream of objects whose text grows.

mod meta;

use std::sync::Arc;

use axum::response::Response;
use futures::{StreamExt, future::try_join_all, stream};
use meta::{Answer, Meta};

use super::convert::Batch;
use crate::{
    engine::Engine,
    error::ApiResult,
    generation::{Delta, Generation},
    http::{
        json,
        sse::{self, Framer, Frames},
    },
    submission::Submission,
    tally::Tally,
};

/// One choice being generated and what its answer repeats.
struct Job {
    meta: Meta,
    generation: Generation,
}

/// All choices of a request.
pub(super) struct Jobs {
    engine: Arc<Engine>,
    jobs: Vec<Job>,
    is_list: bool,
}

impl Jobs {
    /// Submits every draft. If one is refused, the others are aborted.
    pub(super) async fn submit(engine: &Arc<Engine>, batch: Batch) -> ApiResult<Self> {
        let mut jobs = Vec::new();
        let mut is_list = batch.is_list;
        for draft in batch.drafts {
            let rid = draft.trace_id.clone();
            let logprobs = draft.logprobs.clone();
            let submission = Submission::new(engine, draft).await?;
            is_list |= submission.n > 1;
            let prompt_tokens = submission.prompts.first().map_or(0, |prompt| prompt.len());
            if let Some(tally) = Tally::current() {
                tally.prompt(prompt_tokens as u64);
            }
            for (choice, generation) in submission.generations.into_iter().enumerate() {
                let id = match submission.n {
                    1 => rid.clone(),
                    _ => format!("{rid}-{choice}"),
                };
                let meta = Meta::new(
                    engine.clone(),
                    id,
                    prompt_tokens,
                    &logprobs,
                    batch.text_in_logprobs,
                );
                jobs.push(Job { meta, generation });
            }
        }
        Ok(Self {
            engine: engine.clone(),
            jobs,
            is_list,
        })
    }
}

/// Waits for all choices.
pub(super) async fn whole(jobs: Jobs) -> ApiResult<Response> {
    let is_list = jobs.is_list;
    let answers = jobs.jobs.into_iter().map(|job| async move {
        let Job {
            mut meta,
            generation,
        } = job;
        let (mut whole, end) = generation.complete().await?;
        whole.end = Some(end);
        meta.add(whole)?;
        ApiResult::Ok(meta)
    });
    let metas = try_join_all(answers).await?;
    let mut answers: Vec<Answer<'_>> = metas.iter().map(|meta| meta.answer(None)).collect();
    match (is_list, answers.pop()) {
        (false, Some(only)) => json(&only),
        (_, last) => {
            answers.extend(last);
            json(&answers)
        }
    }
}

struct NativeFramer {
    metas: Vec<Meta>,
    is_list: bool,
    // Keeps the tokenizer of every answer alive and shared.
    _engine: Arc<Engine>,
}

/// Streams all choices.
pub(super) async fn stream(jobs: Jobs) -> ApiResult<Response> {
    let (mut metas, mut choices) = (Vec::new(), Vec::new());
    for (index, job) in jobs.jobs.into_iter().enumerate() {
        metas.push(job.meta);
        let deltas = job.generation.into_stream();
        choices.push(Box::pin(deltas.map(move |delta| (index, delta))));
    }
    let mut deltas = stream::select_all(choices);
    // A request refused by the scheduler is answered with a status.
    let first = match deltas.next().await {
        Some((index, delta)) => Some((index, Ok(delta?))),
        None => None,
    };
    let framer = NativeFramer {
        metas,
        is_list: jobs.is_list,
        _engine: jobs.engine,
    };
    Ok(sse::response(stream::iter(first).chain(deltas), framer))
}

impl Framer for NativeFramer {
    type Item = (usize, ApiResult<Delta>);

    fn item(&mut self, (index, delta): Self::Item, frames: &mut Frames) -> bool {
        let added = delta.and_then(|delta| self.metas[index].add(delta));
        if let Err(error) = added {
            frames.error(&error);
            return false;
        }
        frames.event(&self.metas[index].answer(self.is_list.then_some(index)));
        true
    }

    fn end(&mut self, frames: &mut Frames) {
        frames.done();
    }
}
