//! Slowest pace of a body's bytes: a body that drips would be waited for without end.

use std::time::Duration;

use tokio::time::Instant;

use crate::TransferLimits;

/// Counter of the bytes in a window of time.
pub(crate) struct MinimumRate {
    window: Duration,
    least: u64,
    since: Instant,
    came: u64,
}

impl MinimumRate {
    /// A window that begins now.
    pub(crate) fn new(limits: TransferLimits) -> Self {
        Self {
            window: limits.window,
            least: limits.least,
            since: Instant::now(),
            came: 0,
        }
    }

    /// Counts more bytes.
    ///
    /// # Errors
    /// The reason, in words, if a window is over in which too few bytes came.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), String> {
        self.came += bytes as u64;
        if self.since.elapsed() < self.window {
            return Ok(());
        }
        if self.came < self.least {
            return Err(format!(
                "only {} bytes came within {:?}",
                self.came, self.window
            ));
        }
        (self.since, self.came) = (Instant::now(), 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_has_to_bring_something() {
        let limits = |window| TransferLimits {
            window,
            least: 10,
            ..TransferLimits::default()
        };
        // Each of these windows is over at once.
        let mut minimum_rate = MinimumRate::new(limits(Duration::ZERO));
        for _ in 0..3 {
            assert_eq!(minimum_rate.add(10), Ok(()));
        }
        let why = minimum_rate.add(9).expect_err("too little");
        assert!(why.starts_with("only 9 bytes"), "{why}");
        // This window is not over.
        let mut minimum_rate = MinimumRate::new(limits(Duration::from_secs(3600)));
        assert_eq!(minimum_rate.add(0), Ok(()));
    }
}
