//! Which phases follow each other.

use std::fmt;
use std::str::FromStr;

/// What a phase's requests are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Texts of which drafters get much accepted.
    Predictable,
    /// Texts of which they get little accepted.
    Hard,
    /// Program text.
    Code,
    /// All texts in turn.
    Mixed,
    /// The same few texts again and again.
    Repeating,
    /// Sampled at a temperature and at seeds that never come again.
    Fresh,
}

/// Some streams that answer requests of one kind until the phase's tokens are
/// out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// Of its requests.
    pub kind: Kind,
    /// Requests that run at once.
    pub streams: u32,
    /// So many of them become evenly less, down to one.
    pub falls: bool,
    /// Tokens that all its requests put out together.
    pub tokens: u32,
}

/// Phases in their order, without a pause between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// Of reports and files.
    pub name: String,
    /// At least one.
    pub phases: Vec<Phase>,
}

/// The lists that have a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// Nine phases.
    Nine,
    /// One stream and thirty-two in turn.
    TwoRegimes,
    /// Texts that repeat and texts that do not in turn.
    Repeats,
}

impl Named {
    /// Each with the name by which it is asked for.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Nine, "nine"),
        (Self::TwoRegimes, "two-regimes"),
        (Self::Repeats, "repeats"),
    ];

    /// Its phases, see [`Phase::new`] for `dwell`.
    pub fn list(self, dwell: u32) -> List {
        use Kind::{Code, Fresh, Hard, Mixed, Predictable, Repeating};
        let phases: &[(Kind, u32)] = match self {
            Self::Nine => &[
                (Predictable, 1),
                (Hard, 1),
                (Code, 4),
                (Mixed, 4),
                (Predictable, 8),
                (Hard, 16),
                (Mixed, 32),
                (Mixed, 32),
            ],
            Self::TwoRegimes => &[(Predictable, 1), (Mixed, 32), (Predictable, 1), (Mixed, 32)],
            Self::Repeats => &[(Repeating, 4), (Fresh, 4), (Repeating, 4), (Fresh, 4)],
        };
        let phases = phases.iter();
        let mut phases: Vec<Phase> = phases
            .map(|(kind, streams)| Phase::new(*kind, *streams, dwell))
            .collect();
        if self == Self::Nine {
            phases.push(Phase::tail(Mixed, 32, dwell));
        }
        let known = Self::ALL.iter().find(|(named, _)| *named == self);
        List {
            name: known.map_or("", |(_, name)| name).to_owned(),
            phases,
        }
    }
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(_, name)| *name == text);
        found.map(|(named, _)| named).ok_or_else(|| {
            let names = Self::ALL.map(|(_, name)| name);
            format!("there are {}", names.join(", "))
        })
    }
}

impl List {
    /// All texts in turn at a constant number of `streams`.
    pub fn constant(streams: u32, dwell: u32) -> Self {
        Self {
            name: format!("constant-{streams}"),
            phases: vec![Phase::new(Kind::Mixed, streams, dwell)],
        }
    }

    /// The most requests that run at once.
    pub fn streams(&self) -> u32 {
        let streams = self.phases.iter().map(|phase| phase.streams);
        streams.max().unwrap_or(1)
    }

    /// Tokens of all phases.
    pub fn tokens(&self) -> u32 {
        self.phases.iter().map(|phase| phase.tokens).sum()
    }

    /// Whether all its texts are the most likely ones, so that accepted drafts
    /// can be known beforehand.
    pub fn is_greedy(&self) -> bool {
        self.phases.iter().all(|phase| phase.kind != Kind::Fresh)
    }
}

impl Phase {
    /// Each stream puts out `dwell` tokens: four times as many where it runs
    /// alone and twice as many where there are less than eight, which are the
    /// fast ones.
    pub fn new(kind: Kind, streams: u32, dwell: u32) -> Self {
        let times = match streams {
            1 => 4,
            2..8 => 2,
            _ => 1,
        };
        Self {
            kind,
            streams,
            falls: false,
            tokens: streams * times * dwell,
        }
    }

    /// Half the tokens of a phase that stays at `streams`.
    pub fn tail(kind: Kind, streams: u32, dwell: u32) -> Self {
        Self {
            falls: true,
            tokens: (streams * dwell).div_ceil(2),
            ..Self::new(kind, streams, dwell)
        }
    }

    /// Requests that may run at once when `begun` of all `count` have begun.
    pub fn allowed(&self, begun: usize, count: usize) -> usize {
        let streams = self.streams as usize;
        if !self.falls {
            return streams;
        }
        let gone = streams * begun / count.max(1);
        streams.saturating_sub(gone).max(1)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Predictable => "predictable",
            Kind::Hard => "hard",
            Kind::Code => "code",
            Kind::Mixed => "mixed",
            Kind::Repeating => "repeating",
            Kind::Fresh => "fresh",
        };
        match self.falls {
            true => write!(f, "{kind} {}→1", self.streams),
            false => write!(f, "{kind} {}", self.streams),
        }
    }
}
