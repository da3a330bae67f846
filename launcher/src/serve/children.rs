//! All children of one engine on this node.

use std::io;
use std::path::Path;
use std::time::Duration;

use lockstep_process::{ChildMessage, ChildReport, LauncherMessage, Role};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::child::{Child, ChildSpec};
use super::control;
use super::end::Ending;
use super::event::Event;
use crate::console::Lines;

/// What changed among the children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Start-up work of a role: what, and units done of all.
    Progress(Role, String, u64, u64),
    /// A role serves.
    Ready(Role),
    /// A role reported that it cannot go on.
    Failed(Role),
    /// A role's process ended.
    Exited(Role, Ending),
}

/// A child and what is known about it.
pub(super) struct Member {
    pub(super) child: Child,
    link: Option<UnboundedSender<LauncherMessage>>,
    /// The strongest wish so far; sent when the link opens late.
    asked: Option<LauncherMessage>,
    pub(super) ready: Option<String>,
    pub(super) failed: Option<String>,
    /// How it ended, and whether it had been asked to end like that: after a
    /// drain only an end in order is, after a halt every end.
    pub(super) ended: Option<(Ending, bool)>,
}

impl Member {
    /// Notes a failure, unless it only follows from a halt.
    fn fail(&mut self, message: String) -> Change {
        if self.asked != Some(LauncherMessage::Halt) {
            self.failed.get_or_insert(message);
        }
        Change::Failed(self.child.role)
    }

    /// Whether it has been asked to end, by a drain or a halt.
    pub(super) fn was_asked(&self) -> bool {
        self.asked.is_some()
    }
}

/// The children. Dropping this kills them all.
pub(super) struct Children {
    members: Vec<Member>,
    events: UnboundedReceiver<Event>,
    _control: AbortOnDropHandle<()>,
}

/// Which members a call concerns.
pub(super) type Filter = fn(Role) -> bool;

/// All of them.
pub(super) fn everyone(_: Role) -> bool {
    true
}

/// The public front.
pub(super) fn fronts(role: Role) -> bool {
    matches!(role, Role::TokenizerManager(_))
}

impl Children {
    /// Listens on `control_socket` and starts all children.
    ///
    /// # Errors
    /// When one of them cannot be started; those before it are killed.
    pub(super) fn spawn(
        specs: Vec<ChildSpec>,
        control_socket: &Path,
        lines: &Lines,
    ) -> io::Result<Self> {
        let (sender, events) = unbounded_channel();
        let control = control::serve(control_socket, sender.clone())?;
        let mut members = Vec::with_capacity(specs.len());
        for spec in specs {
            let child = Child::spawn(spec, lines.clone(), sender.clone())?;
            members.push(Member {
                child,
                link: None,
                asked: None,
                ready: None,
                failed: None,
                ended: None,
            });
        }
        Ok(Self {
            members,
            events,
            _control: control,
        })
    }

    /// Waits for the next change. Cancelling loses nothing.
    pub(super) async fn next(&mut self) -> Change {
        loop {
            // The control task of these children holds a sender as long as it lives.
            let Some(event) = self.events.recv().await else {
                std::future::pending().await
            };
            if let Some(change) = self.apply(event) {
                return change;
            }
        }
    }

    fn apply(&mut self, event: Event) -> Option<Change> {
        match event {
            Event::Linked(name, link) => {
                let member = self.named(&name)?;
                if let Some(message) = member.asked {
                    let _ = link.send(message);
                }
                member.link = Some(link);
                None
            }
            Event::Report(name, report) => {
                let member = self.named(&name)?;
                let role = member.child.role;
                match report {
                    ChildReport::Message(ChildMessage::Progress { phase, done, total }) => {
                        Some(Change::Progress(role, phase, done, total))
                    }
                    ChildReport::Message(ChildMessage::Ready { detail }) => {
                        member.ready = Some(detail);
                        Some(Change::Ready(role))
                    }
                    ChildReport::Message(ChildMessage::Failed { message }) => {
                        Some(member.fail(message))
                    }
                    ChildReport::Garbled(line) => {
                        Some(member.fail(format!("sent an unknown line: {line}")))
                    }
                    ChildReport::Message(ChildMessage::Hello { .. }) | ChildReport::Closed => None,
                }
            }
            Event::Exited(role, ending) => {
                let member = self.members.iter_mut().find(|m| m.child.role == role)?;
                let asked = match ending {
                    Ending::Code(0) => member.asked.is_some(),
                    _ => member.asked == Some(LauncherMessage::Halt),
                };
                member.ended = Some((ending, asked));
                Some(Change::Exited(role, ending))
            }
        }
    }

    fn named(&mut self, name: &str) -> Option<&mut Member> {
        self.members
            .iter_mut()
            .find(|member| member.child.role.to_string() == name)
    }

    /// The children.
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The child with this role.
    pub(super) fn member(&self, role: Role) -> Option<&Member> {
        self.members.iter().find(|member| member.child.role == role)
    }

    /// Whether all have reported that they serve.
    pub(super) fn all_ready(&self) -> bool {
        self.members.iter().all(|member| member.ready.is_some())
    }

    /// Whether all members of the filter have ended.
    pub(super) fn all_ended(&self, filter: Filter) -> bool {
        self.members
            .iter()
            .all(|m| !filter(m.child.role) || m.ended.is_some())
    }

    /// Sends members a message; one that has not opened its link gets it when it
    /// does.
    pub(super) fn send(&mut self, message: LauncherMessage, filter: Filter) {
        for member in self.members.iter_mut().filter(|m| filter(m.child.role)) {
            if member.asked == Some(LauncherMessage::Halt) {
                continue;
            }
            member.asked = Some(message);
            if let Some(link) = &member.link {
                let _ = link.send(message);
            }
        }
    }

    /// Handles events until members of the filter have ended, or the deadline.
    /// Tells whether they have.
    pub(super) async fn wait_ended(&mut self, filter: Filter, deadline: Instant) -> bool {
        while !self.all_ended(filter) {
            if timeout_at(deadline, self.next()).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Ends all: halt, then kill those that have not ended within `grace`.
    /// Nobody is left when it returns, save what the system itself cannot kill.
    pub(super) async fn stop(&mut self, grace: Duration) {
        const UNKILLABLE: Duration = Duration::from_secs(5);
        self.send(LauncherMessage::Halt, everyone);
        if self.wait_ended(everyone, Instant::now() + grace).await {
            return;
        }
        for member in &self.members {
            member.child.kill();
        }
        if !self.wait_ended(everyone, Instant::now() + UNKILLABLE).await {
            tracing::error!("a process does not end after SIGKILL; it waits for the system");
        }
    }
}

#[cfg(test)]
pub(in crate::serve) mod tests;
