//! Following a constraint for some hundred random tokens before it is used, so that one that
//! dies or crawls is refused.

use lockstep_sampling::{Stream, TokenConstraint, allows, uniform};
use lockstep_types::constraint::ConstraintKind;

use crate::{Cancel, ConstraintError, Matcher};

/// Number of tokens that are followed, in each of two ways.
const STEPS: u64 = 200;
/// Key of the random numbers: every process refuses the same constraints.
const SEED: u64 = 0x6c6f_636b;

/// A walk that did not come to its end.
#[derive(Debug)]
pub(crate) enum Stuck {
    /// It was cancelled.
    Cancelled,
    /// It took too much work.
    Heavy,
    /// No output begins.
    NoWords,
    /// The grammar failed.
    Failed(String),
}

impl Stuck {
    pub fn of(self, kind: ConstraintKind) -> ConstraintError {
        match self {
            Self::Cancelled => ConstraintError::Slow,
            Self::Heavy => ConstraintError::Heavy,
            Self::NoWords => ConstraintError::refused(format!(
                "no output fulfils the {}: it has no word",
                kind.name()
            )),
            Self::Failed(why) => ConstraintError::told(kind, &why),
        }
    }
}

/// Distance that a constraint is followed where it is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Up to its first mask.
    FirstMask,
    /// For some hundred tokens, with at most this work.
    Walk(u64),
}

/// Computes the first mask; of a [`Reach::Walk`], follows random allowed tokens until the output
/// must end, again and again, for [`STEPS`] tokens in all, then as many of which each is repeated
/// while it may be. Tokens are drawn uniformly, so that long
/// outputs of odd characters come up early. Returns the work.
pub(crate) fn walk(mut matcher: Matcher, cancel: &Cancel, reach: Reach) -> Result<u64, Stuck> {
    if !cancel.arm(matcher.cancellation()) {
        return Err(Stuck::Cancelled);
    }
    let (steps, most_work) = match reach {
        Reach::FirstMask => (0, u64::MAX),
        Reach::Walk(most_work) => (2 * STEPS, most_work),
    };
    let (mut length, mut last) = (0, None);
    for step in 0..=steps {
        let stuck = |matcher: &Matcher| match cancel.is_cancelled() {
            true => Stuck::Cancelled,
            false if step == 0 => Stuck::NoWords,
            false => Stuck::Failed(matcher.failure().unwrap_or_default().to_owned()),
        };
        let Ok(allowed) = matcher.allowed() else {
            let failure = matcher.failure().unwrap_or_default();
            return Err(match step == 0 && !failure.contains("NoExtension") {
                true if !cancel.is_cancelled() => Stuck::Failed(failure.to_owned()),
                _ => stuck(&matcher),
            });
        };
        // Later on, one token as often as it may come: loops are entered that way.
        let again = last.filter(|last| step > STEPS && allows(allowed, *last));
        let Some(token) = again.or_else(|| draw(allowed, step)) else {
            return Err(Stuck::NoWords);
        };
        last = Some(token);
        if matcher.take(token).is_err() {
            return Err(stuck(&matcher));
        }
        if matcher.spent() > most_work {
            return Err(Stuck::Heavy);
        }
        length += 1;
        if matches!(matcher.is_fulfilled(), Ok(true)) && matcher.has_ended() {
            matcher.give_back(length).map_err(|_| stuck(&matcher))?;
            length = 0;
        }
    }
    Ok(matcher.spent())
}

/// Returns a random allowed token; `None` if none is.
fn draw(allowed: &[u32], step: u64) -> Option<u32> {
    let count: u32 = allowed.iter().map(|word| word.count_ones()).sum();
    let point = uniform(SEED, step, Stream::SAMPLE, 0);
    let wanted = (f64::from(count) * point) as u32;
    let mut left = wanted.min(count.checked_sub(1)?);
    for (at, word) in allowed.iter().enumerate() {
        let here = word.count_ones();
        if left < here {
            let bits = (0..32u32).filter(|bit| word >> bit & 1 == 1);
            return bits.map(|bit| at as u32 * 32 + bit).nth(left as usize);
        }
        left -= here;
    }
    None
}
