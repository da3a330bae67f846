//! The choice of some kernels out of all work, so that measurements see these alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets all kernels of a stream run, or only those of some names. Copies run in any case.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    on: AtomicBool,
    chosen: Mutex<Chosen>,
}

#[derive(Debug, Default)]
struct Chosen {
    names: &'static [&'static str],
    launches: usize,
}

impl Selection {
    /// From now on lets only kernels with these names run; without names, all of them. Returns
    /// the number of launches that the earlier names let run.
    pub(crate) fn select(&self, names: &'static [&'static str]) -> usize {
        let before = std::mem::replace(&mut *self.chosen(), Chosen { names, launches: 0 });
        self.on.store(!names.is_empty(), Ordering::Relaxed);
        before.launches
    }

    /// Returns true if a launch of `kernel` is to run.
    pub(crate) fn runs(&self, kernel: &str) -> bool {
        if !self.on.load(Ordering::Relaxed) {
            return true;
        }
        let mut chosen = self.chosen();
        let runs = chosen.names.contains(&kernel);
        chosen.launches += usize::from(runs);
        runs
    }

    fn chosen(&self) -> MutexGuard<'_, Chosen> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_of_the_names_run_and_are_counted() {
        let selection = Selection::default();
        assert!(selection.runs("attend"));
        assert_eq!(selection.select(&["sum_up", "rms_norm"]), 0);
        let run = ["attend", "sum_up", "rms_norm", "sum_up"].map(|name| selection.runs(name));
        assert_eq!(run, [false, true, true, true]);
        assert_eq!(selection.select(&[]), 3);
        assert!(selection.runs("attend"));
        assert_eq!(selection.select(&[]), 0);
    }
}
