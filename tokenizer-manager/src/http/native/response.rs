//! Answers in SGLang's form: whole objects, or a stream of objects whose text grows.

mod meta;

use std::sync::Arc;

use axum::response::Response;
use futures::future::try_join_all;
use lockstep_ports::{RequestMemory, Reservation};
use meta::{Answer, Meta};

use super::convert::NativeSpecs;
use crate::{
    app::App,
    error::ApiResult,
    generation::{Delta, Generation, first, merge},
    http::{
        json,
        sse::{self, Framer, Frames},
    },
    request_stats::RequestStats,
    submission::Submission,
};

/// One choice being generated, and its answer so far.
struct Choice {
    meta: Meta,
    generation: Generation,
}

/// All choices of a request.
pub(super) struct Choices {
    choices: Vec<Choice>,
    is_list: bool,
}

impl Choices {
    /// Submits every prompt. If one is refused, the others are aborted.
    pub(super) async fn submit(
        app: &Arc<App>,
        specs: NativeSpecs,
        held: Option<&RequestMemory>,
    ) -> ApiResult<Self> {
        let mut choices = Vec::new();
        let mut is_list = specs.is_list;
        let parent = (specs.specs.len() > 1).then(|| app.scheduler.parent());
        for mut spec in specs.specs {
            spec.parent = parent;
            let rid = spec.trace_id.clone();
            let logprobs = spec.logprobs.clone();
            let submission = Submission::new(app, spec, held).await?;
            is_list |= submission.n > 1;
            let prompt_tokens = submission.prompts.first().map_or(0, |prompt| prompt.len());
            if let Some(stats) = RequestStats::current() {
                stats.prompt(prompt_tokens as u64);
            }
            for (choice, generation) in submission.generations.into_iter().enumerate() {
                let id = match submission.n {
                    1 => rid.clone(),
                    _ => format!("{rid}-{choice}"),
                };
                let meta = Meta::new(
                    app.clone(),
                    id,
                    prompt_tokens,
                    &logprobs,
                    specs.text_in_logprobs,
                );
                choices.push(Choice { meta, generation });
            }
        }
        Ok(Self { choices, is_list })
    }
}

/// Waits for all choices and returns them.
pub(super) async fn whole(choices: Choices) -> ApiResult<Response> {
    let is_list = choices.is_list;
    let answers = choices.choices.into_iter().map(|choice| async move {
        let Choice {
            mut meta,
            generation,
        } = choice;
        meta.add(generation.complete().await?);
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
    /// Answers so far, each with the memory reserved for its log-probabilities.
    metas: Vec<(Meta, Option<Reservation>)>,
    is_list: bool,
}

/// Streams all choices.
pub(super) async fn stream(request: Choices) -> ApiResult<Response> {
    let (mut metas, mut generations) = (Vec::new(), Vec::new());
    for mut choice in request.choices {
        // Each object repeats everything so far, so no reserved memory is given back.
        metas.push((choice.meta, choice.generation.reserve.take()));
        generations.push(choice.generation);
    }
    let deltas = first(merge(generations), sse::KEEP_ALIVE).await?;
    let framer = NativeFramer {
        metas,
        is_list: request.is_list,
    };
    Ok(sse::response(deltas, framer))
}

/// Adds a delta, if there is memory for its log-probabilities.
fn add(meta: &mut Meta, reserve: &mut Option<Reservation>, delta: Delta) -> ApiResult<()> {
    if let Some(reserve) = reserve {
        reserve.came(delta.logprob_bytes())?;
    }
    if delta.end().is_some() {
        // The choice has ended and needs no more memory.
        reserve.take();
    }
    meta.add(delta);
    Ok(())
}

impl Framer for NativeFramer {
    type Item = (usize, ApiResult<Delta>);

    fn item(&mut self, (index, delta): Self::Item, frames: &mut Frames) -> bool {
        let (meta, reserve) = &mut self.metas[index];
        if let Err(error) = delta.and_then(|delta| add(meta, reserve, delta)) {
            frames.error(&error);
            return false;
        }
        frames.event(&meta.answer(self.is_list.then_some(index)));
        true
    }

    fn end(&mut self, frames: &mut Frames) {
        frames.done();
    }
}
