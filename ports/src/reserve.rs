//! Room for what is still to come, taken before anything is begun.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::budget::{Budget, Charge, OverBudget};

/// What a request has taken for its answer before that is there. It draws on the
/// same part of the budget, and becomes the answer's room: what was let in is not
/// refused when its work is done.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Mutex<Taken>>);

#[derive(Debug)]
struct Taken {
    charge: Charge,
    /// Bytes that are the answer's: the request has them too.
    handed_over: usize,
}

impl Room {
    /// None yet.
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self(Arc::new(Mutex::new(Taken {
            charge: budget.charge(),
            handed_over: 0,
        })))
    }

    /// As many bytes for each choice.
    pub(crate) fn reserve(&self, choices: &[usize]) -> Result<Vec<Reserve>, OverBudget> {
        let sum = |sum: usize, bytes: &usize| sum.saturating_add(*bytes);
        self.take(choices.iter().fold(0, sum))?;
        let part = |left: &usize| Reserve {
            room: self.clone(),
            left: *left,
        };
        Ok(choices.iter().map(part).collect())
    }

    /// All of it. What comes beyond from now on is taken beside it.
    pub(crate) fn hand_over(&self) -> Charge {
        let mut taken = self.taken();
        let charge = taken.charge.hand_over();
        taken.handed_over += charge.bytes();
        charge
    }

    /// Takes more, for a request of all that it has taken.
    fn take(&self, bytes: usize) -> Result<(), OverBudget> {
        let mut taken = self.taken();
        let beside = taken.handed_over;
        taken.charge.add_beside(bytes, beside)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of one of a request's choices in what the request has reserved, see
/// [`Held::reserve`](crate::Held::reserve).
#[derive(Debug)]
pub struct Reserve {
    room: Room,
    left: usize,
}

impl Reserve {
    /// Bytes for which there is room and that did not come yet.
    pub fn left(&self) -> usize {
        self.left
    }

    /// So many bytes came. More is taken where they are more than was reserved.
    ///
    /// # Errors
    /// [`OverBudget`], and nothing more is taken.
    pub fn came(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let beyond = bytes.saturating_sub(self.left);
        self.left -= bytes.min(self.left);
        match beyond {
            0 => Ok(()),
            beyond => self.room.take(beyond),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_reserved_is_taken_as_it_comes() {
        let budget = Budget::new(1 << 20);
        let room = Room::new(&budget);
        let parts = room.reserve(&[100, 200]).expect("there is room");
        assert_eq!(budget.taken(), 300);
        let [mut first, mut second]: [Reserve; 2] = parts.try_into().expect("two");
        for (bytes, taken) in [(60, 300), (40, 300), (1, 301)] {
            assert_eq!(first.came(bytes), Ok(()));
            assert_eq!(budget.taken(), taken);
        }
        assert_eq!(second.came(1 << 20), Err(OverBudget::Process));
        drop((first, room));
        assert_eq!(budget.taken(), 301, "the second still runs");
        drop(second);
        assert_eq!(budget.taken(), 0);
        let room = Room::new(&budget);
        assert!(room.reserve(&[1 << 19, 1 << 19]).is_err());
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn what_was_reserved_becomes_the_answers() {
        let budget = Budget::new(1 << 20);
        let room = Room::new(&budget);
        let mut parts = room.reserve(&[100]).expect("there is room");
        let answer = room.hand_over();
        assert_eq!((answer.bytes(), budget.taken()), (100, 100));
        assert_eq!(parts[0].came(101), Ok(()));
        assert_eq!(budget.taken(), 101, "what is beyond alone is taken");
        drop((parts, room));
        assert_eq!(budget.taken(), 100);
        drop(answer);
        assert_eq!(budget.taken(), 0);
    }

    /// The last quarter of a budget is for small requests, and a large one does not
    /// become small where its answer has begun.
    #[test]
    fn what_comes_beyond_a_large_reserve_is_no_small_request() {
        for begins in [false, true] {
            let budget = Budget::new(1 << 20);
            let room = Room::new(&budget);
            let mut parts = room.reserve(&[3 << 18]).expect("three quarters");
            let answer = begins.then(|| room.hand_over());
            assert_eq!(parts[0].came(3 << 18), Ok(()));
            assert_eq!(parts[0].came(1), Err(OverBudget::Process), "{begins}");
            assert_eq!(budget.taken(), 3 << 18);
            drop((parts, room, answer));
            assert_eq!(budget.taken(), 0);
        }
    }
}
