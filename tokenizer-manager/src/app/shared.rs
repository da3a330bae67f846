//! A question shared by all callers who ask at the same time. Its answer is reused for
//! a second.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, WeakShared},
};
use tokio::time::Instant;

/// Time for which an answer is reused.
const FRESH: Duration = Duration::from_secs(1);

/// The last answer and the question that is open.
#[derive(Debug)]
pub struct Shared<T: Clone>(Mutex<State<T>>);

/// An answer, and the time until which it is reused.
type Answer<T> = (Instant, T);

#[derive(Debug)]
struct State<T: Clone> {
    answer: Option<Answer<T>>,
    /// The open question. It is dropped when nobody waits for it any more.
    question: Option<WeakShared<BoxFuture<'static, Option<Answer<T>>>>>,
}

impl<T: Clone> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::new(State {
            answer: None,
            question: None,
        }))
    }
}

impl<T: Clone + Send + Sync + 'static> Shared<T> {
    /// Returns the last answer if it is fresh by the clock `now`. Otherwise it waits
    /// for the question that others have asked already, or else asks with `ask`.
    ///
    /// `None` means that the question failed. A failure is not reused: the next caller
    /// asks again. So nobody waits longer than one question lasts.
    pub async fn get<F>(
        &self,
        now: impl Fn() -> Instant + Send + 'static,
        ask: impl FnOnce() -> F,
    ) -> Option<T>
    where
        F: Future<Output = Option<T>> + Send + 'static,
    {
        let question = {
            let mut state = self.state();
            if let Some((until, answer)) = &state.answer
                && now() < *until
            {
                return Some(answer.clone());
            }
            let open = state.question.as_ref().and_then(WeakShared::upgrade);
            // Some callers may not yet have seen that the question has ended, or may
            // not yet have stored its answer.
            let ended = open.as_ref().and_then(|open| open.peek());
            if let Some(Some((until, answer))) = ended
                && now() < *until
            {
                return Some(answer.clone());
            }
            match open.filter(|open| open.peek().is_none()) {
                Some(open) => open,
                None => {
                    let answer = ask();
                    let question =
                        async move { answer.await.map(|answer| (now() + FRESH, answer)) };
                    let question = question.boxed().shared();
                    state.question = question.downgrade();
                    question
                }
            }
        };
        let answer = question.await?;
        let mut state = self.state();
        // A slow caller may return after a newer answer was stored.
        if state.answer.as_ref().is_none_or(|last| last.0 < answer.0) {
            state.answer = Some(answer.clone());
        }
        Some(answer.1)
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    };

    use futures::join;
    use tokio::sync::Notify;

    use super::*;

    /// A shared question whose answer is its number, from 0. Each call of `answer`
    /// answers one question at the time `at`, in milliseconds.
    #[derive(Clone)]
    struct World {
        begin: Instant,
        at: Arc<AtomicU64>,
        asked: Arc<AtomicU64>,
        answer: Arc<Notify>,
        shared: Arc<Shared<u64>>,
    }

    impl World {
        fn new() -> Self {
            Self {
                begin: Instant::now(),
                at: Arc::default(),
                asked: Arc::default(),
                answer: Arc::default(),
                shared: Arc::default(),
            }
        }

        async fn get(&self, fails: bool) -> Option<u64> {
            let (begin, at) = (self.begin, self.at.clone());
            let now = move || begin + Duration::from_millis(at.load(Relaxed));
            let ask = || {
                let number = self.asked.fetch_add(1, Relaxed);
                let answer = self.answer.clone();
                async move {
                    answer.notified().await;
                    (!fails).then_some(number)
                }
            };
            self.shared.get(now, ask).await
        }

        /// Answers one question, at the time `at`.
        async fn answer(&self, at: u64) {
            tokio::task::yield_now().await;
            self.at.store(at, Relaxed);
            self.answer.notify_one();
        }

        fn asked(&self) -> u64 {
            self.asked.load(Relaxed)
        }
    }

    #[tokio::test]
    async fn an_answer_is_good_for_a_second_from_when_it_came() {
        let world = World::new();
        let (first, ()) = join!(world.get(false), world.answer(5000));
        assert_eq!(first, Some(0));
        for at in [5000, 5999] {
            world.at.store(at, Relaxed);
            assert_eq!(world.get(false).await, Some(0), "{at}");
        }
        world.at.store(6000, Relaxed);
        let (next, ()) = join!(world.get(false), world.answer(6000));
        assert_eq!((next, world.asked()), (Some(1), 2));
    }

    #[tokio::test]
    async fn who_asks_at_once_waits_for_one_question() {
        for fails in [false, true] {
            let world = World::new();
            let get = || world.get(fails);
            let (a, b, c, ()) = join!(get(), get(), get(), world.answer(2000));
            let answer = (!fails).then_some(0);
            assert_eq!([a, b, c], [answer; 3]);
            assert_eq!(world.asked(), 1, "nobody waits for another's turn");
        }
    }

    #[tokio::test]
    async fn a_question_that_failed_is_asked_again() {
        let world = World::new();
        let (failed, ()) = join!(world.get(true), world.answer(1));
        assert_eq!(failed, None);
        let (answer, ()) = join!(world.get(false), world.answer(2));
        assert_eq!((answer, world.asked()), (Some(1), 2));
    }

    /// Also while an earlier caller has not yet seen the failure.
    #[tokio::test]
    async fn a_question_that_has_ended_is_nobodys_who_asks_later() {
        let world = World::new();
        let mut first = Box::pin(world.get(true));
        let mut late = Box::pin(world.get(true));
        assert_eq!(futures::poll!(&mut first), std::task::Poll::Pending);
        assert_eq!(futures::poll!(&mut late), std::task::Poll::Pending);
        world.answer(1).await;
        assert_eq!(first.await, None);
        let (answer, ()) = join!(world.get(false), world.answer(2));
        assert_eq!((answer, world.asked()), (Some(1), 2));
        assert_eq!(late.await, None);
    }

    /// Plays the moment between two threads when one has its answer but has not stored
    /// it.
    #[tokio::test]
    async fn an_answer_that_nobody_has_kept_yet_is_shared() {
        let world = World::new();
        let until = world.begin + FRESH;
        let question = async move { Some((until, 7)) }.boxed().shared();
        assert_eq!(question.clone().await, Some((until, 7)));
        world.shared.state().question = question.downgrade();
        assert_eq!((world.get(false).await, world.asked()), (Some(7), 0));
        world.at.store(1000, Relaxed);
        let (next, ()) = join!(world.get(false), world.answer(1000));
        assert_eq!((next, world.asked()), (Some(0), 1), "it is no longer fresh");
    }

    #[tokio::test]
    async fn who_gives_up_leaves_the_question_to_the_others() {
        let world = World::new();
        let mut first = Box::pin(world.get(false));
        let mut other = Box::pin(world.get(false));
        assert_eq!(futures::poll!(&mut first), std::task::Poll::Pending);
        assert_eq!(futures::poll!(&mut other), std::task::Poll::Pending);
        drop(first);
        let (answer, ()) = join!(other, world.answer(1));
        assert_eq!((answer, world.asked()), (Some(0), 1));
        // If all callers have given up, their question must not be continued: its
        // answer would be from long ago.
        world.at.store(5000, Relaxed);
        let mut given_up = Box::pin(world.get(false));
        assert_eq!(futures::poll!(&mut given_up), std::task::Poll::Pending);
        drop(given_up);
        let (answer, ()) = join!(world.get(false), world.answer(5000));
        assert_eq!((answer, world.asked()), (Some(2), 3));
    }
}
