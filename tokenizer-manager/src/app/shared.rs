//! An answer that all who ask within a second share.

use std::time::Duration;

use tokio::{sync::Mutex, time::Instant};

/// So long after a question its answer is good enough for who asks the same.
const FRESH: Duration = Duration::from_secs(1);

/// The last answer, and until when it is shared.
#[derive(Debug)]
pub struct Shared<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> Shared<T> {
    /// For one who asks at the time `now`: the last answer where it is fresh, else
    /// that of `ask`, which others then wait for too.
    pub async fn get(&self, now: Instant, ask: impl Future<Output = T>) -> T {
        let mut last = self.0.lock().await;
        if let Some((until, answer)) = &*last
            && now < *until
        {
            return answer.clone();
        }
        let answer = ask.await;
        *last = Some((now + FRESH, answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[tokio::test]
    async fn it_is_asked_for_once_in_a_second() {
        let (shared, asked, begin) = (Shared::default(), AtomicU32::new(0), Instant::now());
        let get = async |ms| {
            let ask = async {
                let number = asked.fetch_add(1, Relaxed);
                // Others come meanwhile.
                tokio::task::yield_now().await;
                number
            };
            shared.get(begin + Duration::from_millis(ms), ask).await
        };
        let at_once = tokio::join!(get(0), get(1), get(999));
        assert_eq!(at_once, (0, 0, 0));
        assert_eq!((get(999).await, asked.load(Relaxed)), (0, 1));
        assert_eq!(tokio::join!(get(1000), get(1000)), (1, 1));
        assert_eq!((get(1999).await, get(2000).await), (1, 2));
    }

    #[tokio::test]
    async fn who_gives_up_leaves_the_question_to_the_next() {
        let (shared, now) = (Shared::default(), Instant::now());
        let never = shared.get(now, std::future::pending());
        assert!(tokio::time::timeout(Duration::ZERO, never).await.is_err());
        assert_eq!(shared.get(now, std::future::ready(7)).await, 7);
    }
}
