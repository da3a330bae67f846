//! Replacement of tokenizer-managers that died alone: the other processes, and the engine
//! with its cache, serve on.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_process::Role;
use tokio::time::{Instant, sleep_until};

use super::child::ChildSpec;
use super::children::{Children, fronts};
use super::restarts::Restarts;
use super::retry_after::Outlook;

/// Replacements of tokenizer-managers that are under way.
pub(super) struct Replacements<'a> {
    restarts: &'a mut Restarts,
    outlook: &'a Outlook,
    startup: Duration,
    spec: &'a dyn Fn(Role) -> ChildSpec,
    /// The next step of each replacement, and when it is due.
    under_way: BTreeMap<Role, (Step, Instant)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The process is to be started.
    Start,
    /// The process was started and has to be ready.
    Ready,
}

impl<'a> Replacements<'a> {
    /// Replacements as often as `restarts` allow. Each process must be ready within
    /// `startup`.
    pub(super) fn new(
        restarts: &'a mut Restarts,
        outlook: &'a Outlook,
        startup: Duration,
        spec: &'a dyn Fn(Role) -> ChildSpec,
    ) -> Self {
        Self {
            restarts,
            outlook,
            startup,
            spec,
            under_way: BTreeMap::new(),
        }
    }

    /// Tells the children when they would serve again if the engine failed now.
    pub(super) fn foresee(&self, children: &mut Children) {
        let next = self.restarts.next(Instant::now());
        children.foresee(self.outlook.while_serving(next));
    }

    /// Handles the failure of `role`, whose end is on its way. Returns true if its end may
    /// be waited for.
    pub(super) fn ends(&self, children: &mut Children, role: Role) -> bool {
        let replaceable = fronts(role) && self.restarts.most() > 0;
        if replaceable {
            children.give_up(role, "failed".into());
        }
        replaceable
    }

    /// Handles the end of `role`. Returns true if `role` will be replaced and nothing else
    /// ends.
    pub(super) fn take(&mut self, children: &mut Children, role: Role, why: &str) -> bool {
        if !fronts(role) {
            return false;
        }
        let now = Instant::now();
        let Some(restart) = self.restarts.take(now) else {
            return false;
        };
        tracing::error!(
            "{why}\nonly its own requests are lost; it is replaced, restart {} of {}, {restart}",
            restart.number,
            self.restarts.most(),
        );
        children.excuse(role);
        let due = (Step::Start, now + restart.pause);
        self.under_way.insert(role, due);
        true
    }

    /// Notes that `role` serves.
    pub(super) fn ready(&mut self, role: Role) {
        if self.under_way.remove(&role).is_some() {
            tracing::info!("{role} serves again");
        }
        if self.under_way.is_empty() {
            self.restarts.healthy(Instant::now());
        }
    }

    /// Waits for the next step of a replacement. Cancelling loses nothing.
    pub(super) async fn due(&self) -> Role {
        match self.under_way.iter().min_by_key(|(_, (_, at))| *at) {
            Some((role, (_, at))) => {
                sleep_until(*at).await;
                *role
            }
            None => std::future::pending().await,
        }
    }

    /// Takes the step that is due; returns false if it failed.
    pub(super) fn step(&mut self, children: &mut Children, role: Role) -> bool {
        match self.under_way.remove(&role) {
            Some((Step::Start, _)) => {
                let due = (Step::Ready, Instant::now() + self.startup);
                self.under_way.insert(role, due);
                children.replace((self.spec)(role)).is_ok()
            }
            Some((Step::Ready, _)) => {
                let limit = self.startup.as_secs();
                children.give_up(role, format!("was not ready within {limit} s"));
                true
            }
            None => true,
        }
    }
}
