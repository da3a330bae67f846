//! Kills a rank at the place that a test names.

use std::sync::atomic::{AtomicU64, Ordering};

/// Place in a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// The host has asked for the collective, which may be recorded or run later.
    Asked,
    /// The device has come to the collective, and brought nothing.
    Entered,
    /// The rank's bytes lie where its peers read them, and it waits for theirs.
    Brought,
}

/// The collective at which a rank ends its process, if there is one.
pub(super) struct Kill {
    planted: Option<(u64, When)>,
    counts: [AtomicU64; 3],
}

impl Kill {
    /// Reads the environment for rank `rank`.
    ///
    /// # Panics
    /// Panics if the variable has another form than `1:40:entered`.
    pub(super) fn of_rank(rank: usize) -> Self {
        let text = std::env::var("FAKE_NCCL_KILL").ok();
        let planted = text.map(|text| {
            parse(&text).unwrap_or_else(|| panic!("FAKE_NCCL_KILL is `{text}`: give 1:40:entered"))
        });
        let own = planted.filter(|(of, ..)| *of == rank);
        Self {
            planted: own.map(|(_, number, when)| (number, when)),
            counts: Default::default(),
        }
    }

    /// Counts another collective that has come to this place.
    pub(super) fn at(&self, when: When) {
        let Some((number, planted)) = self.planted else {
            return;
        };
        let count = self.counts[when as usize].fetch_add(1, Ordering::SeqCst) + 1;
        if (count, when) == (number, planted) {
            // SAFETY: no pointers.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

fn parse(text: &str) -> Option<(usize, u64, When)> {
    let mut words = text.split(':');
    let (rank, number) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let when = match words.next()? {
        "asked" => When::Asked,
        "entered" => When::Entered,
        "brought" => When::Brought,
        _ => return None,
    };
    words.next().is_none().then_some((rank, number, when))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_in_full() {
        assert_eq!(parse("1:40:entered"), Some((1, 40, When::Entered)));
        assert_eq!(parse("0:1:brought"), Some((0, 1, When::Brought)));
        for text in ["", "1:40", "1:40:never", "a:1:asked", "1:1:asked:2"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
