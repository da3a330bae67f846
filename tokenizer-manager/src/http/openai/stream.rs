//! The choices of a request as one stream.

use futures::{Stream, StreamExt, stream};

use crate::{error::ApiResult, generation::Delta, submission::Submission};

/// Deltas of all choices as they come, with the choice's index.
pub(crate) type Deltas = stream::BoxStream<'static, (usize, ApiResult<Delta>)>;

/// Merges the choices and waits for the first delta, so that a request refused
/// by the scheduler is answered with a status and not with a stream.
///
/// # Errors
/// The error of the choice whose result comes first, such as 429 or 503.
pub(crate) async fn start(submission: Submission) -> ApiResult<Deltas> {
    let choices = submission
        .generations
        .into_iter()
        .enumerate()
        .map(|(index, generation)| {
            Box::pin(generation.into_stream().map(move |delta| (index, delta)))
        });
    let mut deltas = merge(choices.collect());
    let Some((index, first)) = deltas.next().await else {
        return Ok(deltas);
    };
    let first = (index, Ok(first?));
    Ok(stream::once(std::future::ready(first))
        .chain(deltas)
        .boxed())
}

fn merge<S>(mut choices: Vec<S>) -> Deltas
where
    S: Stream<Item = (usize, ApiResult<Delta>)> + Send + Unpin + 'static,
{
    match choices.pop() {
        Some(only) if choices.is_empty() => only.boxed(),
        Some(last) => {
            choices.push(last);
            stream::select_all(choices).boxed()
        }
        None => stream::empty().boxed(),
    }
}
