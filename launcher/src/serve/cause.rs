//! The cause of an engine's failure, found among its children.

use std::fmt;

use lockstep_process::{Role, exit};

use super::children::{Children, Member};
use super::end::Ending;

/// Lines of a crashed child that an error shows.
const SHOWN_LINES: usize = 20;

/// The first cause of a failure: the child that failed for its own reasons, not because
/// another child was gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cause {
    pub(super) role: Role,
    /// The child's message, or how it ended.
    pub(super) what: String,
    /// The child's last lines, if it sent no message.
    pub(super) last_lines: Vec<String>,
}

/// Finds the cause among the children's ends and messages so far. `None` when every child is
/// well or was told to end.
pub(super) fn find(children: &Children) -> Option<Cause> {
    children
        .members()
        .iter()
        .filter_map(|member| Some((weight(member)?, member)))
        .min_by_key(|(weight, _)| *weight)
        .map(|(_, member)| describe(member))
}

/// The cause of a failure after `role` was seen to fail or to end: the result of [`find`],
/// or else that process itself.
pub(super) fn find_or(children: &Children, role: Role) -> Cause {
    find(children).unwrap_or_else(|| of(children, role))
}

/// Describes the end of `role` itself.
pub(super) fn of(children: &Children, role: Role) -> Cause {
    match children.member(role) {
        Some(member) => describe(member),
        None => Cause {
            role,
            what: "failed".into(),
            last_lines: Vec::new(),
        },
    }
}

/// Order of suspicion: the member with the least weight most likely made the others fail. A
/// process that was killed or crashed noticed and reported nothing; reports of other
/// processes follow from its end.
fn weight(member: &Member) -> Option<u8> {
    const PANIC: Ending = Ending::Code(exit::PANIC as i32);
    match (member.ended, &member.failed) {
        (Some((Ending::Signal(_) | Ending::Unknown, false)), _) => Some(0),
        (Some((PANIC, false)), _) => Some(1),
        (_, Some(_)) => Some(3),
        (Some((Ending::Code(0), false)), None) => Some(4),
        (Some((_, false)), None) => Some(2),
        _ => None,
    }
}

fn describe(member: &Member) -> Cause {
    let role = member.child.role;
    let (what, last_lines) = match (&member.failed, member.ended) {
        (Some(message), _) => (format!("failed: {message}"), Vec::new()),
        (None, Some((ending, _))) => (ending.to_string(), member.child.last_lines(SHOWN_LINES)),
        (None, None) => ("failed".into(), Vec::new()),
    };
    Cause {
        role,
        what,
        last_lines,
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.what)?;
        if !self.last_lines.is_empty() {
            write!(f, "\nits last lines:")?;
            for line in &self.last_lines {
                write!(f, "\n  {line}")?;
            }
        }
        Ok(())
    }
}
