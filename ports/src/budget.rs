//! One budget for the bytes that all requests of a process hold together, as
//! gRPC core's `ResourceQuota` and Envoy's overload manager have it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tonic::Status;

/// A request of so many bytes at most may use the budget's last quarter, so
/// that a few large ones don't keep out all others.
const SMALL: usize = 64 << 10;

/// The bytes that requests may hold, and those that they do.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    taken: AtomicUsize,
}

/// The budget has not so many bytes left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "The server holds as many bytes of requests as --max-request-memory allows; try again later."
)]
pub struct OverBudget;

/// What one request has taken, given back when this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl From<OverBudget> for Status {
    fn from(over: OverBudget) -> Self {
        let mut status = Self::resource_exhausted(over.to_string());
        status.metadata_mut().insert("retry-after", 1.into());
        status
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            taken: AtomicUsize::new(0),
        })
    }

    /// Nothing yet, for one request.
    pub fn charge(self: &Arc<Self>) -> Charge {
        Charge {
            budget: self.clone(),
            bytes: 0,
        }
    }

    /// Bytes that requests hold now.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }
}

impl Charge {
    /// Bytes that it has taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes `bytes` more.
    ///
    /// # Errors
    /// [`OverBudget`], and nothing more is taken.
    pub fn add(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let Budget { limit, taken } = &*self.budget;
        let own = self.bytes.saturating_add(bytes);
        let limit = if own <= SMALL {
            *limit
        } else {
            limit - limit / 4
        };
        let more = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= limit);
        match taken.fetch_update(Relaxed, Relaxed, more) {
            Ok(_) => {
                self.bytes = own;
                Ok(())
            }
            Err(_) => Err(OverBudget),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_requests_leave_room_for_small_ones() {
        let budget = Budget::new(16 * SMALL);
        let mut large = budget.charge();
        for _ in 0..12 {
            assert_eq!(large.add(SMALL), Ok(()));
        }
        assert_eq!(large.add(1), Err(OverBudget), "three quarters");
        let mut small: Vec<_> = (0..4).map(|_| budget.charge()).collect();
        for charge in &mut small {
            assert_eq!(charge.add(SMALL), Ok(()));
            assert_eq!(charge.add(1), Err(OverBudget), "it would be large");
        }
        assert_eq!(budget.charge().add(1), Err(OverBudget), "nothing is left");
        assert_eq!(budget.taken(), 16 * SMALL);
        drop(large);
        assert_eq!(budget.taken(), 4 * SMALL);
        let mut next = budget.charge();
        assert_eq!(next.add(usize::MAX), Err(OverBudget));
        assert_eq!(next.add(8 * SMALL), Ok(()));
        drop((next, small));
        assert_eq!(budget.taken(), 0);
    }
}
