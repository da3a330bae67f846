//! The place where the ranks of a new group find their shared memory.

use std::sync::{Arc, Mutex, PoisonError};

use super::join;
use super::region::Region;
use crate::{CollectiveError, Options};

/// The way in which split-off groups get their regions.
#[derive(Clone)]
pub(crate) enum Home {
    /// Threads of one process. The first rank that comes leaves the region here.
    Process(Arc<Offers>),
    /// Processes, through files whose names begin with the first group's name.
    Files(String),
}

/// Regions that some of their ranks have not taken yet.
#[derive(Default)]
pub(crate) struct Offers(Mutex<Vec<Offer>>);

struct Offer {
    id: u64,
    region: Arc<Region>,
    /// Number of ranks that are still to come.
    missing: usize,
}

impl Home {
    /// Returns the region of group `id`, for rank `rank` of `size`.
    ///
    /// # Errors
    /// [`CollectiveError::Join`] if another process doesn't come; [`CollectiveError::System`].
    pub fn region(
        &self,
        id: u64,
        rank: usize,
        size: usize,
        options: &Options,
    ) -> Result<Arc<Region>, CollectiveError> {
        match self {
            Self::Process(offers) => Ok(offers.take(id, size, options.max_elements)),
            Self::Files(name) => {
                let name = format!("{name}.{id:016x}");
                Ok(Arc::new(join::join(&name, rank, size, options)?))
            }
        }
    }
}

impl Offers {
    fn take(&self, id: u64, size: usize, capacity: usize) -> Arc<Region> {
        let mut offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = offers.iter().position(|offer| offer.id == id);
        let at = at.unwrap_or_else(|| {
            offers.push(Offer {
                id,
                region: Arc::new(Region::allocate(size, capacity)),
                missing: size,
            });
            offers.len() - 1
        });
        let offer = &mut offers[at];
        offer.missing -= 1;
        match offer.missing {
            0 => offers.swap_remove(at).region,
            _ => offer.region.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups are split off for as long as a process lives.
    #[test]
    fn a_region_that_all_ranks_have_taken_is_theirs_alone() {
        let offers = Arc::new(Offers::default());
        let home = Home::Process(offers.clone());
        let take = |id| {
            let region = home.region(id, 0, 2, &Options::default());
            region.expect("there is memory")
        };
        let (one, other) = (take(7), take(8));
        assert!(!Arc::ptr_eq(&one, &other));
        assert!(Arc::ptr_eq(&one, &take(7)));
        assert_eq!(Arc::strong_count(&one), 1);
        assert!(Arc::ptr_eq(&other, &take(8)));
        assert_eq!(Arc::strong_count(&other), 1);
    }
}
