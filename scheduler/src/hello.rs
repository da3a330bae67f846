//! The first message of an internal stream.

use std::time::Duration;

use tonic::{Status, Streaming};

/// Time limit for the hello. A stream without one is no stream of ours.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the first message, which must be a hello; `pick` takes the hello out.
///
/// # Errors
/// DEADLINE_EXCEEDED if nothing comes, INVALID_ARGUMENT if the message is no hello.
pub async fn hello<M, H>(
    messages: &mut Streaming<M>,
    pick: impl FnOnce(M) -> Option<H>,
) -> Result<H, Status> {
    let first = tokio::time::timeout(HELLO_TIMEOUT, messages.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no hello"))??;
    first
        .and_then(pick)
        .ok_or_else(|| Status::invalid_argument("the first message must be a hello"))
}
