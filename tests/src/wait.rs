//! Waiting for a condition, with a deadline that only something broken reaches.

use std::time::{Duration, Instant};

/// Nothing in these tests takes so long unless it is broken.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks until `look` gives something.
///
/// # Panics
/// Past `limit`, saying `what` was awaited.
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

/// The same for threads without a runtime; tells whether it came true.
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
/// Past `limit`, saying `what` was awaited.
pub async fn within<T>(what: &str, limit: Duration, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => panic!("not within {limit:?}: {what}"),
    }
}
