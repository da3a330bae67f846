//! All children of one engine on this node.

use std::io;
use std::path::Path;
use std::time::Duration;

use lockstep_process::{ChildMessage, ChildReport, LauncherMessage, Role, logging};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::child::{Child, ChildSpec};
use super::control;
use super::end::Ending;
use super::event::{Event, LinkNumber};
use crate::console::Lines;

/// A change among the children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Start-up work of a role: the phase, units done, and units of all.
    Progress(Role, String, u64, u64),
    /// A role serves.
    Ready(Role),
    /// A role reported that it cannot go on.
    Failed(Role),
    /// A role's process ended.
    Exited(Role, Ending),
}

/// A child and its state.
pub(super) struct Member {
    pub(super) child: Child,
    link: Option<(LinkNumber, UnboundedSender<LauncherMessage>)>,
    /// Pings in a row that the child left unanswered.
    unanswered: u32,
    lost_log_lines: u64,
    /// The strongest request to end so far, sent when the link opens late.
    asked: Option<LauncherMessage>,
    pub(super) ready: Option<String>,
    pub(super) failed: Option<String>,
    /// The child's end, and true if the child had been asked for it. After a drain only an
    /// end in order is one that was asked for, after a halt every end is.
    pub(super) ended: Option<(Ending, bool)>,
}

impl Member {
    fn new(child: Child) -> Self {
        Self {
            child,
            link: None,
            unanswered: 0,
            lost_log_lines: 0,
            asked: None,
            ready: None,
            failed: None,
            ended: None,
        }
    }

    /// Notes a failure, unless it follows only from a halt.
    fn fail(&mut self, message: String) -> Change {
        if self.asked != Some(LauncherMessage::Halt) {
            self.failed.get_or_insert(message);
        }
        Change::Failed(self.child.role)
    }

    /// Returns true if the child was asked to end, by a drain or a halt.
    pub(super) fn was_asked(&self) -> bool {
        self.asked.is_some()
    }
}

/// All children of the engine on this node. A drop kills them all.
pub(super) struct Children {
    members: Vec<Member>,
    events: UnboundedReceiver<Event>,
    sender: UnboundedSender<Event>,
    lines: Lines,
    /// The outlook that the children were told last: seconds until requests are served
    /// again.
    foreseen: Option<u32>,
    /// Lost log lines of processes that were replaced.
    lost_log_lines: u64,
    _control: AbortOnDropHandle<()>,
}

/// Selects the members that a call concerns.
pub(super) type Filter = fn(Role) -> bool;

/// Selects all members.
pub(super) fn everyone(_: Role) -> bool {
    true
}

/// Selects the public front.
pub(super) fn fronts(role: Role) -> bool {
    matches!(role, Role::TokenizerManager(_))
}

impl Children {
    /// Listens on `control_socket` and starts all children.
    ///
    /// # Errors
    /// Fails when one child cannot be started; earlier ones are killed.
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
            members.push(Member::new(child));
        }
        Ok(Self {
            members,
            events,
            sender,
            lines: lines.clone(),
            foreseen: None,
            lost_log_lines: 0,
            _control: control,
        })
    }

    /// Waits for the next change. Cancelling loses nothing.
    pub(super) async fn next(&mut self) -> Change {
        loop {
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
            Event::Linked(name, number, link) => {
                if self.foreseen.is_some() {
                    let served_in_s = self.foreseen;
                    let _ = link.send(LauncherMessage::Outlook { served_in_s });
                }
                let member = self.named(&name)?;
                if let Some(message) = member.asked {
                    let _ = link.send(message);
                }
                member.link = Some((number, link));
                None
            }
            Event::Report(number, report) => {
                let member = self.linked(number)?;
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
                    ChildReport::Message(ChildMessage::Pong { lost_log_lines }) => {
                        member.unanswered = 0;
                        member.lost_log_lines = lost_log_lines;
                        None
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

    fn linked(&mut self, number: LinkNumber) -> Option<&mut Member> {
        let own = |member: &&mut Member| member.link.as_ref().is_some_and(|link| link.0 == number);
        self.members.iter_mut().find(own)
    }

    /// The children.
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The child with this role.
    pub(super) fn member(&self, role: Role) -> Option<&Member> {
        self.members.iter().find(|member| member.child.role == role)
    }

    /// Returns true if all children have reported that they serve.
    pub(super) fn all_ready(&self) -> bool {
        self.members.iter().all(|member| member.ready.is_some())
    }

    /// Returns true if all members of the filter have ended.
    pub(super) fn all_ended(&self, filter: Filter) -> bool {
        self.members
            .iter()
            .all(|m| !filter(m.child.role) || m.ended.is_some())
    }

    /// Sends members a message. A member without an open link gets the message when it opens
    /// its link.
    pub(super) fn send(&mut self, message: LauncherMessage, filter: Filter) {
        for member in self.members.iter_mut().filter(|m| filter(m.child.role)) {
            if member.asked == Some(LauncherMessage::Halt) {
                continue;
            }
            member.asked = Some(message);
            if let Some((_, link)) = &member.link {
                let _ = link.send(message);
            }
        }
    }

    /// Sends a message that ends nobody to all children with an open link.
    pub(super) fn tell(&self, message: LauncherMessage) {
        let links = self
            .members
            .iter()
            .filter_map(|member| member.link.as_ref());
        for (_, link) in links {
            let _ = link.send(message);
        }
    }

    /// Tells all children in how many seconds requests will be served again, if that has
    /// changed. A child that opens its link later is told then.
    pub(super) fn foresee(&mut self, served_in_s: Option<u32>) {
        if self.foreseen != served_in_s {
            self.foreseen = served_in_s;
            self.tell(LauncherMessage::Outlook { served_in_s });
        }
    }

    /// Pings all children with an open link. Returns the ones that have left `most` pings in
    /// a row unanswered and have not ended.
    pub(super) fn ping(&mut self, most: u32) -> Vec<Role> {
        let lost = self.members.iter().map(|member| member.lost_log_lines);
        let lost_log_lines = logging::lost_lines() + self.lost_log_lines + lost.sum::<u64>();
        let mut silent = Vec::new();
        for member in &mut self.members {
            let Some((_, link)) = &member.link else {
                continue;
            };
            if member.failed.is_some() || member.ended.is_some() {
                continue;
            }
            if member.unanswered == most {
                silent.push(member.child.role);
            } else {
                member.unanswered += 1;
                let _ = link.send(LauncherMessage::Ping { lost_log_lines });
            }
        }
        silent
    }

    /// Kills a child, and notes the reason.
    pub(super) fn give_up(&mut self, role: Role, why: String) {
        let mut members = self.members.iter_mut();
        if let Some(member) = members.find(|member| member.child.role == role) {
            member.failed.get_or_insert(why);
            member.child.kill();
        }
    }

    /// Accepts a child's end: it is no cause of later failures.
    pub(super) fn excuse(&mut self, role: Role) {
        let mut members = self.members.iter_mut();
        if let Some(member) = members.find(|member| member.child.role == role) {
            member.failed = None;
            if let Some((_, was_asked)) = &mut member.ended {
                *was_asked = true;
            }
        }
    }

    /// Starts a child in the place of one that has ended.
    ///
    /// # Errors
    /// Fails when the system cannot start the child.
    pub(super) fn replace(&mut self, spec: ChildSpec) -> io::Result<()> {
        let child = Child::spawn(spec, self.lines.clone(), self.sender.clone())?;
        let mut members = self.members.iter_mut();
        if let Some(member) = members.find(|member| member.child.role == child.role) {
            self.lost_log_lines += member.lost_log_lines;
            *member = Member::new(child);
        }
        Ok(())
    }

    /// Handles events until members of the filter have ended, or until the deadline. Returns
    /// true if they have ended.
    pub(super) async fn wait_ended(&mut self, filter: Filter, deadline: Instant) -> bool {
        while !self.all_ended(filter) {
            if timeout_at(deadline, self.next()).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Ends all children: halts them, then kills the ones that have not ended within
    /// `grace`. When it returns, all are gone, except for processes that the system itself
    /// cannot kill.
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
