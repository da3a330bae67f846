//! Health is a forward step on every rank, not a process that answers.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// A step so recent needs no new one.
const RECENT: Duration = Duration::from_secs(1);

type Reply = oneshot::Sender<Result<(), String>>;

/// When steps were last done on every rank, and who waits to hear of one.
#[derive(Default)]
pub struct Health {
    last: Option<Instant>,
    /// (reply, the step must have a higher number than this)
    waiting: Vec<(Reply, u64)>,
}

impl Health {
    /// Answers at once from a recent step, or keeps the reply. `sent`: number
    /// of the last step sent. True if a step is wanted.
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

    /// A step is done on every rank.
    pub fn step_done(&mut self, step: u64) {
        self.last = Some(Instant::now());
        for (reply, _) in self.waiting.extract_if(.., |(_, after)| step > *after) {
            // The asker may have given up.
            let _ = reply.send(Ok(()));
        }
    }

    /// The group failed.
    pub fn failed(&mut self, reason: &str) {
        for (reply, _) in self.waiting.drain(..) {
            // The asker may have given up.
            let _ = reply.send(Err(reason.to_owned()));
        }
    }

    /// Whether somebody still waits.
    pub fn wanted(&mut self) -> bool {
        self.waiting.retain(|(reply, _)| !reply.is_closed());
        !self.waiting.is_empty()
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
}
