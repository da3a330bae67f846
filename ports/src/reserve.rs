//! Room for what is still to come, taken before anything is begun.

use std::sync::{Arc, Mutex, PoisonError};

use crate::budget::{Budget, Charge, OverBudget};

/// The part of one of a request's choices in what the request has reserved, which
/// is given back when the last of them is dropped.
#[derive(Debug, Clone)]
pub struct Reserve {
    charge: Arc<Mutex<Charge>>,
    left: usize,
}

impl Reserve {
    /// As many bytes for each choice.
    ///
    /// # Errors
    /// [`OverBudget`] where there is no room for all.
    pub fn new(budget: &Arc<Budget>, choices: &[usize]) -> Result<Vec<Self>, OverBudget> {
        let mut charge = budget.charge();
        let sum = |sum: usize, bytes: &usize| sum.saturating_add(*bytes);
        charge.add(choices.iter().fold(0, sum))?;
        let charge = Arc::new(Mutex::new(charge));
        let part = |left: &usize| Self {
            charge: charge.clone(),
            left: *left,
        };
        Ok(choices.iter().map(part).collect())
    }

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
        if beyond == 0 {
            return Ok(());
        }
        let mut charge = self.charge.lock().unwrap_or_else(PoisonError::into_inner);
        charge.add(beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_reserved_is_taken_as_it_comes() {
        let budget = Budget::new(1 << 20);
        let parts = Reserve::new(&budget, &[100, 200]).expect("there is room");
        assert_eq!(budget.taken(), 300);
        let [mut first, mut second]: [Reserve; 2] = parts.try_into().expect("two");
        for (bytes, taken) in [(60, 300), (40, 300), (1, 301)] {
            assert_eq!(first.came(bytes), Ok(()));
            assert_eq!(budget.taken(), taken);
        }
        assert_eq!(second.came(1 << 20), Err(OverBudget::Process));
        drop(first);
        assert_eq!(budget.taken(), 301, "the second still runs");
        drop(second);
        assert_eq!(budget.taken(), 0);
        assert!(Reserve::new(&budget, &[1 << 19, 1 << 19]).is_err());
        assert_eq!(budget.taken(), 0);
    }
}
