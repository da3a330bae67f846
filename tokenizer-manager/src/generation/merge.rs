//! All choices of a request as one stream.

use std::time::Duration;

use futures::{StreamExt, stream};

use super::{Delta, Generation};
use crate::error::ApiResult;

/// Deltas of all choices in order of arrival, each with its choice's index.
pub type Deltas = stream::BoxStream<'static, (usize, ApiResult<Delta>)>;

/// Merges the choices of a request.
pub fn merge(choices: Vec<Generation>) -> Deltas {
    let choices = choices.into_iter().enumerate();
    let mut choices: Vec<_> = choices
        .map(|(index, choice)| Box::pin(choice.into_stream().map(move |delta| (index, delta))))
        .collect();
    match choices.pop() {
        Some(only) if choices.is_empty() => only.boxed(),
        Some(last) => {
            choices.push(last);
            stream::select_all(choices).boxed()
        }
        None => stream::empty().boxed(),
    }
}

/// Waits for the first delta, for at most `patience`. So a request that the scheduler
/// refuses is answered with an error status instead of a stream.
///
/// # Errors
/// The error that came in place of the first delta, such as 429 or 503.
pub async fn first(mut deltas: Deltas, patience: Duration) -> ApiResult<Deltas> {
    match tokio::time::timeout(patience, deltas.next()).await {
        Ok(Some((index, first))) => {
            let first = (index, Ok(first?));
            Ok(stream::once(std::future::ready(first))
                .chain(deltas)
                .boxed())
        }
        Ok(None) | Err(_) => Ok(deltas),
    }
}
