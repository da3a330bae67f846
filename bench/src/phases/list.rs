//! Lists of phases that follow each other.

use std::fmt;
use std::str::FromStr;

/// Texts of a phase's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Texts with many accepted drafts.
    Predictable,
    /// Texts with few accepted drafts.
    Hard,
    /// Program text.
    Code,
    /// All texts in turn.
    Mixed,
    /// A few texts, repeated again and again.
    Repeating,
    /// Texts sampled at a temperature, with a new seed for each.
    Fresh,
}

/// Distribution of requests over DP ranks, where there are several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Equal numbers on all DP ranks.
    Even,
    /// Three of four requests on the first DP rank.
    Skewed,
    /// All requests on the first DP rank; the others are idle.
    One,
}

impl Spread {
    /// The DP rank of the `number`-th request of a phase.
    pub fn dp_rank(self, number: usize, dp_size: usize) -> Option<u32> {
        let others = dp_size.checked_sub(1).filter(|others| *others > 0)?;
        let dp_rank = match self {
            Self::Even => number % dp_size,
            Self::Skewed if number % 4 == 3 => 1 + number / 4 % others,
            Self::Skewed | Self::One => 0,
        };
        u32::try_from(dp_rank).ok()
    }
}

/// A number of streams that answer requests of one kind until the phase's tokens are out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// Kind of the phase's requests.
    pub kind: Kind,
    /// DP ranks of the requests.
    pub spread: Spread,
    /// Requests that run at once.
    pub streams: u32,
    /// True if the number of streams falls evenly to one.
    pub falls: bool,
    /// Tokens that all requests of the phase put out together.
    pub tokens: u32,
}

/// Phases in their order, without a pause between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// Name in reports and files.
    pub name: String,
    /// The phases, at least one.
    pub phases: Vec<Phase>,
}

/// The lists that have a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// Nine phases.
    Nine,
    /// One stream and thirty-two in turn.
    TwoRegimes,
    /// Texts that repeat, and texts that do not, in turn.
    Repeats,
    /// All DP ranks busy, one busier than the others, and one alone.
    DpRanks,
    /// Only texts that are hard to guess, at 1 to 24 streams, with a crowd before and after
    /// one stream. Drafting brings little or nothing here, and must cost nothing either.
    Hard,
}

impl Named {
    /// All lists, each with the name that asks for it.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Nine, "nine"),
        (Self::TwoRegimes, "two-regimes"),
        (Self::Repeats, "repeats"),
        (Self::DpRanks, "dp-ranks"),
        (Self::Hard, "hard"),
    ];

    /// The phases of the list; see [`Phase::new`] for `dwell`.
    pub fn list(self, dwell: u32) -> List {
        use Kind::{Code, Fresh, Hard, Mixed, Predictable, Repeating};
        use Spread::{Even, One, Skewed};
        let phases: &[(Kind, u32, Spread)] = match self {
            Self::Nine => &[
                (Predictable, 1, Even),
                (Hard, 1, Even),
                (Code, 4, Even),
                (Mixed, 4, Even),
                (Predictable, 8, Even),
                (Hard, 16, Even),
                (Mixed, 32, Even),
                (Mixed, 32, Even),
            ],
            Self::TwoRegimes => &[
                (Predictable, 1, Even),
                (Mixed, 32, Even),
                (Predictable, 1, Even),
                (Mixed, 32, Even),
            ],
            Self::Repeats => &[
                (Repeating, 4, Even),
                (Fresh, 4, Even),
                (Repeating, 4, Even),
                (Fresh, 4, Even),
            ],
            Self::DpRanks => &[
                (Predictable, 2, Even),
                (Mixed, 32, Even),
                (Mixed, 8, Skewed),
                (Predictable, 4, One),
                (Hard, 16, Skewed),
                (Predictable, 1, One),
                (Mixed, 32, Even),
            ],
            Self::Hard => &[
                (Hard, 1, Even),
                (Hard, 24, Even),
                (Hard, 1, Even),
                (Hard, 8, Even),
                (Hard, 4, Even),
                (Hard, 24, Even),
                (Hard, 4, Even),
                (Hard, 8, Even),
            ],
        };
        let phases = phases.iter();
        let mut phases: Vec<Phase> = phases
            .map(|(kind, streams, spread)| Phase {
                spread: *spread,
                ..Phase::new(*kind, *streams, dwell)
            })
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

    /// Returns true if all requests sample greedily, so that accepted drafts can be known
    /// beforehand.
    pub fn is_greedy(&self) -> bool {
        self.phases.iter().all(|phase| phase.kind != Kind::Fresh)
    }
}

impl Phase {
    /// A phase in which each stream puts out `dwell` tokens. The number is four times as
    /// large if the stream runs alone, and twice as large with fewer than eight streams,
    /// because few streams are fast.
    pub fn new(kind: Kind, streams: u32, dwell: u32) -> Self {
        let times = match streams {
            1 => 4,
            2..8 => 2,
            _ => 1,
        };
        Self {
            kind,
            spread: Spread::Even,
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
        write!(f, "{kind} {}", self.streams)?;
        if self.falls {
            f.write_str("→1")?;
        }
        f.write_str(match self.spread {
            Spread::Even => "",
            Spread::Skewed => ", skewed",
            Spread::One => ", one rank",
        })
    }
}
