//! Waiting for a condition, with a deadline that only a broken server reaches.

use std::time::{Duration, Instant};

/// Time limit that only something broken exceeds in these tests.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Polls `look` until it returns something.
///
/// # Panics
/// After `limit`, naming `what` was awaited.
pub async fn until<T>(what: &str, limit: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Polls `look` in a thread without a runtime; returns true if it came true in time.
pub fn blocking(limit: Duration, mut look: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !look() {
        if Instant::now() >= deadline {
            return false;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the pause between two looks at a condition"
        )]
        std::thread::sleep(PAUSE);
    }
    true
}

/// Awaits `work`.
///
/// # Panics
/// After `limit`, naming `what` was awaited.
pub async fn within<T>(what: &str, limit: Duration, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => panic!("not within {limit:?}: {what}"),
    }
}
