//! Reservation of memory for output that is still to come.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::budget::{Budget, Charge, OverBudget};

/// Memory that a request has taken for its answer before the answer exists. It draws on
/// the same part of the budget, and becomes the answer's memory. So a request that was
/// admitted is not refused when its work is done.
#[derive(Debug, Clone)]
pub(crate) struct AnswerReservation(Arc<Mutex<ReservationState>>);

#[derive(Debug)]
struct ReservationState {
    charge: Charge,
    /// Bytes that were handed over to the answer. They still count for the request's
    /// size.
    handed_over: usize,
    /// Number of handed-over bytes that are still reserved.
    reserved: ReservedBytes,
}

/// Bytes of an answer's memory that are reserved for output still to come.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReservedBytes(Arc<AtomicUsize>);

/// Memory of an answer.
#[derive(Debug)]
pub(crate) struct AnswerMemory {
    pub(crate) charge: Charge,
    pub(crate) reserved: ReservedBytes,
}

impl AnswerReservation {
    /// Makes an empty reservation.
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self(Arc::new(Mutex::new(ReservationState {
            charge: budget.charge(),
            handed_over: 0,
            reserved: ReservedBytes::default(),
        })))
    }

    /// Reserves the given number of bytes for each choice.
    pub(crate) fn reserve(&self, choices: &[usize]) -> Result<Vec<Reservation>, OverBudget> {
        let sum = |sum: usize, bytes: &usize| sum.saturating_add(*bytes);
        self.take(choices.iter().fold(0, sum))?;
        let part = |left: &usize| Reservation {
            room: self.clone(),
            left: Arc::new((*left).into()),
            kept: 0,
            beyond: 0,
        };
        Ok(choices.iter().map(part).collect())
    }

    /// Hands over all memory to the answer. Memory that is taken later is kept here,
    /// beside it.
    pub(crate) fn hand_over(&self) -> AnswerMemory {
        let mut taken = self.taken();
        let charge = taken.charge.hand_over();
        taken.handed_over += charge.bytes();
        taken.reserved.0.fetch_add(charge.bytes(), Relaxed);
        let reserved = taken.reserved.clone();
        AnswerMemory { charge, reserved }
    }

    /// Takes more memory, for a request as large as all that it has taken.
    fn take(&self, bytes: usize) -> Result<(), OverBudget> {
        let mut taken = self.taken();
        let beside = taken.handed_over;
        taken.charge.add_beside(bytes, beside)
    }

    /// Ends the reservation of `bytes` bytes. Bytes that were handed over leave the
    /// answer with its next part.
    fn give_back(&self, bytes: usize) {
        let mut taken = self.taken();
        let own = bytes.min(taken.charge.bytes());
        let rest = taken.charge.bytes() - own;
        taken.charge.keep(rest);
        taken.reserved.give_back(bytes - own);
    }

    fn taken(&self) -> MutexGuard<'_, ReservationState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReservedBytes {
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }

    fn give_back(&self, bytes: usize) {
        let less = |reserved: usize| Some(reserved.saturating_sub(bytes));
        // The update never fails, because `less` always returns a value.
        let _ = self.0.fetch_update(Relaxed, Relaxed, less);
    }
}

impl From<Charge> for AnswerMemory {
    /// Makes the memory of an answer; all of it is reserved.
    fn from(charge: Charge) -> Self {
        let reserved = ReservedBytes(Arc::new(charge.bytes().into()));
        Self { charge, reserved }
    }
}

/// Reservation of memory for one of a request's choices, see
/// [`RequestMemory::reserve`](crate::RequestMemory::reserve). Dropping it gives back the bytes
/// that did not come.
#[derive(Debug)]
pub struct Reservation {
    room: AnswerReservation,
    left: Arc<AtomicUsize>,
    /// Bytes that came, those beyond the reservation included.
    kept: usize,
    /// Bytes beyond the reservation that are held back.
    beyond: usize,
}

impl Reservation {
    /// Records `bytes` that came and are kept until the answer ends. If they exceed the
    /// reservation, more memory is taken.
    ///
    /// # Errors
    /// [`OverBudget`], and nothing more is taken.
    pub fn came(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let came = self.come(bytes);
        self.kept += came;
        if bytes > came {
            self.room.take(bytes - came)?;
            self.kept += bytes - came;
        }
        Ok(())
    }

    /// Records that `bytes` of output are there which are neither kept nor gone. If they exceed the
    /// reservation, more memory is taken until they are fewer.
    ///
    /// # Errors
    /// [`OverBudget`], and nothing more is taken.
    pub fn holds(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let beyond = bytes.saturating_sub(self.left.load(Relaxed));
        if beyond > self.beyond {
            self.room.take(beyond - self.beyond)?;
        } else {
            self.room.give_back(self.beyond - beyond);
        }
        self.beyond = beyond;
        Ok(())
    }

    /// Records `bytes` that came and leave with the answer's next part: their memory is
    /// given back.
    pub fn went(&mut self, bytes: usize) {
        let came = self.come(bytes);
        self.room.give_back(came);
    }

    /// Ends the choice. Its kept bytes leave with the answer's next part.
    pub fn end(self) {
        self.room.give_back(self.kept);
    }

    /// Returns how many of `bytes` were reserved.
    fn come(&mut self, bytes: usize) -> usize {
        // Other threads only read it.
        let left = self.left.load(Relaxed);
        let came = bytes.min(left);
        self.left.store(left - came, Relaxed);
        came
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let left = self.left.swap(0, Relaxed);
        self.room.give_back(left + self.beyond);
    }
}

/// Bytes reserved by requests for data that has not come yet, read from their
/// [`Reservation`]s.
#[derive(Debug, Default)]
pub struct Prepaid(Vec<Arc<AtomicUsize>>);

impl Prepaid {
    /// Number of bytes that did not come yet.
    pub(crate) fn bytes(&self) -> usize {
        let left = self.0.iter().map(|left| left.load(Relaxed));
        left.fold(0, usize::saturating_add)
    }
}

impl<'r> FromIterator<&'r Reservation> for Prepaid {
    fn from_iter<I: IntoIterator<Item = &'r Reservation>>(reserves: I) -> Self {
        let left = |reserve: &Reservation| reserve.left.clone();
        Self(reserves.into_iter().map(left).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_reserved_is_taken_as_it_comes() {
        let budget = Budget::new(1 << 20);
        let room = AnswerReservation::new(&budget);
        let parts = room.reserve(&[100, 200]).expect("there is room");
        assert_eq!(budget.taken(), 300);
        let [mut first, mut second]: [Reservation; 2] = parts.try_into().expect("two");
        for (bytes, taken) in [(60, 300), (40, 300), (1, 301)] {
            assert_eq!(first.came(bytes), Ok(()));
            assert_eq!(budget.taken(), taken);
        }
        assert_eq!(second.came(1 << 20), Err(OverBudget::Process));
        drop((first, room));
        assert_eq!(budget.taken(), 301, "the second still runs");
        drop(second);
        assert_eq!(budget.taken(), 0);
        let room = AnswerReservation::new(&budget);
        assert!(room.reserve(&[1 << 19, 1 << 19]).is_err());
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn what_was_reserved_becomes_the_answers() {
        let budget = Budget::new(1 << 20);
        let room = AnswerReservation::new(&budget);
        let mut parts = room.reserve(&[100]).expect("there is room");
        let answer = room.hand_over();
        assert_eq!((answer.charge.bytes(), budget.taken()), (100, 100));
        assert_eq!(parts[0].came(101), Ok(()));
        assert_eq!(budget.taken(), 101, "what is beyond alone is taken");
        drop((parts, room));
        assert_eq!(budget.taken(), 100);
        drop(answer);
        assert_eq!(budget.taken(), 0);
    }

    /// The last quarter of a budget is for small requests. A large request does not
    /// become small when its answer begins.
    #[test]
    fn what_comes_beyond_a_large_reserve_is_no_small_request() {
        for begins in [false, true] {
            let budget = Budget::new(1 << 20);
            let room = AnswerReservation::new(&budget);
            let mut parts = room.reserve(&[3 << 18]).expect("three quarters");
            let answer = begins.then(|| room.hand_over());
            assert_eq!(parts[0].came(3 << 18), Ok(()));
            assert_eq!(parts[0].came(1), Err(OverBudget::Process), "{begins}");
            assert_eq!(budget.taken(), 3 << 18);
            drop((parts, room, answer));
            assert_eq!(budget.taken(), 0);
        }
    }

    #[test]
    fn what_is_held_back_takes_its_room() {
        let budget = Budget::new(1 << 20);
        let room = AnswerReservation::new(&budget);
        let mut parts = room.reserve(&[100]).expect("there is room");
        let mut only = parts.pop().expect("one");
        for (held, taken) in [(100, 100), (150, 150), (400, 400), (120, 120), (0, 100)] {
            assert_eq!(only.holds(held), Ok(()));
            assert_eq!(budget.taken(), taken);
        }
        only.went(60);
        assert_eq!((only.holds(90), budget.taken()), (Ok(()), 90));
        assert_eq!(only.holds(1 << 20), Err(OverBudget::Process));
        assert_eq!(budget.taken(), 90, "nothing more");
        let answer = room.hand_over();
        assert_eq!((only.holds(200), budget.taken()), (Ok(()), 200));
        drop(only);
        drop((answer, room));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn what_came_beyond_a_reserve_leaves_with_its_choice() {
        let budget = Budget::new(1 << 20);
        let room = AnswerReservation::new(&budget);
        let mut parts = room.reserve(&[100]).expect("there is room");
        let mut only = parts.pop().expect("one");
        assert_eq!(only.came(150), Ok(()));
        assert_eq!(budget.taken(), 150);
        only.end();
        assert_eq!(budget.taken(), 0, "the request goes on without it");
    }

    #[test]
    fn what_can_not_come_any_more_is_given_back() {
        let budget = Budget::new(1 << 20);
        let room = AnswerReservation::new(&budget);
        let parts = room.reserve(&[100, 200, 400]).expect("there is room");
        let [ended, kept, mut streamed]: [Reservation; 3] = parts.try_into().expect("three");
        let mut kept = kept;
        drop(ended);
        assert_eq!(budget.taken(), 600, "it brought nothing");
        assert_eq!(kept.came(50), Ok(()));
        streamed.went(100);
        assert_eq!(budget.taken(), 500);
        let answer = room.hand_over();
        streamed.went(100);
        assert_eq!(answer.reserved.bytes(), 400);
        streamed.went(1000);
        assert_eq!(answer.reserved.bytes(), 200, "no more than was its own");
        assert_eq!(Prepaid::from_iter([&kept, &streamed]).bytes(), 150);
        let paid = Prepaid::from_iter([&kept]);
        drop(kept);
        assert_eq!(
            (paid.bytes(), answer.reserved.bytes()),
            (0, 50),
            "what came stays"
        );
        assert_eq!(budget.taken(), 500, "the answer's");
        streamed.end();
        drop((answer, room));
        assert_eq!(budget.taken(), 0);
    }
}
