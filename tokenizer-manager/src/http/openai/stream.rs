//! All choices of a request as one stream.

use std::time::Duration;

use futures::{Stream, StreamExt, stream};

use crate::{error::ApiResult, generation::Delta, http::sse::KEEP_ALIVE, submission::Submission};

/// Deltas of all choices in order of arrival, each with its choice's index.
pub(crate) type Deltas = stream::BoxStream<'static, (usize, ApiResult<Delta>)>;

/// Merges the choices and waits for the first delta. So a request that the scheduler
/// refuses is answered with an error status instead of a stream. The wait ends after
/// [`KEEP_ALIVE`], before a proxy could close the silent connection.
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
    first(merge(choices.collect()), KEEP_ALIVE).await
}

/// Waits for the first delta, for at most `patience`.
///
/// # Errors
/// The error that came in place of the first delta.
pub(crate) async fn first<S>(mut deltas: S, patience: Duration) -> ApiResult<Deltas>
where
    S: Stream<Item = (usize, ApiResult<Delta>)> + Send + Unpin + 'static,
{
    match tokio::time::timeout(patience, deltas.next()).await {
        Ok(Some((index, first))) => {
            let first = (index, Ok(first?));
            Ok(stream::once(std::future::ready(first))
                .chain(deltas)
                .boxed())
        }
        Ok(None) | Err(_) => Ok(deltas.boxed()),
    }
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
