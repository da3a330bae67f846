//! The engine is healthy if a forward step ran on every rank, not if a process answers.

use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

/// Age up to which a step answers without a new one.
const RECENT: Duration = Duration::from_secs(1);

type Reply = oneshot::Sender<Result<(), String>>;

/// New health, if it has changed.
type HealthChange = Option<bool>;

/// Time of the last step on every rank, the callers that wait for one, and the last known
/// health.
#[derive(Default)]
pub struct Health {
    last: Option<Instant>,
    /// Waiting callers: (reply, the step must have a higher number than this).
    waiting: Vec<(Reply, u64)>,
    healthy: bool,
    /// The last known health, for other tasks. Written only when it changes, not at every step.
    known: watch::Sender<bool>,
}

impl Health {
    /// Answers at once if a step is recent, or keeps the reply. `sent` is the number of the
    /// last step sent. Returns true if a step is needed.
    pub fn ask(&mut self, reply: Reply, force_step: bool, sent: u64) -> bool {
        let recent = self.last.is_some_and(|last| last.elapsed() < RECENT);
        if recent && !force_step {
            // The asker may have given up.
            let _ = reply.send(Ok(()));
            return false;
        }
        self.waiting.retain(|(reply, _)| !reply.is_closed());
        self.waiting
            .push((reply, if force_step { sent } else { 0 }));
        true
    }

    /// Notes that a step is done on every rank.
    pub fn step_done(&mut self, step: u64) -> HealthChange {
        self.last = Some(Instant::now());
        for (reply, _) in self.waiting.extract_if(.., |(_, after)| step > *after) {
            // The asker may have given up.
            let _ = reply.send(Ok(()));
        }
        self.is_known(true)
    }

    /// Notes that a caller who asked at `asked` has waited too long for a step.
    pub fn late(&mut self, asked: Instant) -> HealthChange {
        // A step that was done meanwhile has answered all callers.
        match self.last.is_some_and(|last| last >= asked) {
            true => None,
            false => self.is_known(false),
        }
    }

    /// Notes that the group failed.
    pub fn failed(&mut self, reason: &str) -> HealthChange {
        for (reply, _) in self.waiting.drain(..) {
            // The asker may have given up.
            let _ = reply.send(Err(reason.to_owned()));
        }
        self.is_known(false)
    }

    /// Returns true if a caller still waits.
    pub fn wanted(&mut self) -> bool {
        self.waiting.retain(|(reply, _)| !reply.is_closed());
        !self.waiting.is_empty()
    }

    /// Returns the health that is known without another step, now and at each change.
    pub fn known(&self) -> watch::Receiver<bool> {
        self.known.subscribe()
    }

    fn is_known(&mut self, healthy: bool) -> HealthChange {
        if self.healthy == healthy {
            return None;
        }
        self.healthy = healthy;
        self.known.send_replace(healthy);
        Some(healthy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(health: &mut Health, force: bool, sent: u64) -> oneshot::Receiver<Result<(), String>> {
        let (reply, answer) = oneshot::channel();
        health.ask(reply, force, sent);
        answer
    }

    #[test]
    fn a_recent_step_answers_unless_one_is_forced() {
        let mut health = Health::default();
        let mut first = asked(&mut health, false, 0);
        assert!(first.try_recv().is_err(), "no step has run");
        health.step_done(1);
        assert_eq!(first.try_recv(), Ok(Ok(())));
        assert_eq!(asked(&mut health, false, 1).try_recv(), Ok(Ok(())));
        let mut forced = asked(&mut health, true, 2);
        health.step_done(2);
        assert!(
            forced.try_recv().is_err(),
            "step 2 was sent before it was asked for"
        );
        health.step_done(3);
        assert_eq!(forced.try_recv(), Ok(Ok(())));
    }

    #[test]
    fn a_failure_reaches_everybody_who_waits() {
        let mut health = Health::default();
        let mut answer = asked(&mut health, true, 0);
        assert!(health.wanted());
        health.failed("rank 1 is gone");
        assert_eq!(answer.try_recv(), Ok(Err("rank 1 is gone".to_owned())));
        assert!(!health.wanted());
    }

    #[test]
    fn changes_are_news_once_and_cost_no_step() {
        let mut health = Health::default();
        let known = health.known();
        let begin = Instant::now();
        assert!(!*known.borrow(), "nothing has run");
        assert_eq!(health.late(begin), None, "no news");
        assert_eq!(health.step_done(1), Some(true));
        assert_eq!(health.step_done(2), None);
        assert_eq!(health.late(begin), None, "a step was done meanwhile");
        assert!(*known.borrow());
        let later = Instant::now() + RECENT;
        assert_eq!(health.late(later), Some(false));
        assert_eq!(health.late(later), None);
        assert!(!*known.borrow());
        assert_eq!(health.step_done(3), Some(true));
        assert_eq!(health.failed("rank 1 is gone"), Some(false));
        assert!(!*known.borrow());
    }
}
